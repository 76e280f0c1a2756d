"""Flags of slime and of the Megatron vime that this one replaces."""

from __future__ import annotations

import re

import pytest

from vime.config import upstream
from vime.config.load import FIELDS
from vime.config.names import ALIASES, NEGATIONS, flag_of
from vime.config.upstream import replacement, why_absent

NUM_GPUS = 0


@pytest.mark.parametrize(
    ("field", "contains"),
    [
        ("tensor_model_parallel_size", "--zero-stage"),
        ("actor_num_gpus_per_node", "--trainer-ranks"),
        ("rollout_num_gpus_per_engine", "--engine-tp"),
        ("sglang_mem_fraction_static", "--vllm-gpu-memory-utilization"),
        ("sglang_anything_else", "--vllm-engine-args"),
        ("recompute_granularity", "--gradient-checkpointing"),
        ("moe_router_topk", "config.json"),
        ("hidden_size", "config.json"),
        ("custom_config_path", "--set"),
        ("use_opd", "compute_advantages"),
        ("freeze_params_name_list", "--lora-target-modules"),
    ],
)
def test_replacements(field: str, contains: str) -> None:
    assert contains in (replacement(field) or "")


def test_a_flag_that_no_backend_owns_is_not_blamed_on_one() -> None:
    assert why_absent("use_opd") == "it is a flag of slime that vime does not have"
    assert "Megatron or SGLang" in why_absent("sglang_dtype")


def test_other_names_have_none() -> None:
    assert replacement("rollout_batch") is None


def test_no_flag_of_ours_is_refused_and_every_flag_in_a_hint_exists() -> None:
    assert [name for name in (*FIELDS, *ALIASES, *NEGATIONS) if replacement(name)] == []
    ours = {flag_of(name) for name in FIELDS} | {"--set", "--no-vllm-enable-prefix-caching", "--help"}
    hints = [*upstream._GROUPS, *upstream._ABSENT, *upstream._SINGLE.values(), *upstream._PREFIXES.values()]
    named = {flag for hint in hints for flag in re.findall(r"--[a-z][a-z0-9-]*[a-z0-9](?![a-z0-9-]*\*)", hint)}
    assert named - ours == set()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
