"""Write the tables of docs/from-slime.md: flags from vime.config, hooks from the hook specs.

uv run python docs/generate_from_slime.py          write the tables
uv run python docs/generate_from_slime.py --check  write nothing; exit 1 where they are stale

The rest of the page is written by hand; each table stands between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from vime.config.names import ALIASES, NEGATIONS, field_of, flag_of
from vime.config.run_config import RunConfig
from vime.config.upstream import REWARD_ALIASES, REWARD_DISTRIBUTIONS, replacement, why_absent
from vime.plugins.hookspecs import HOOKS

PAGE = Path(__file__).resolve().parent / "from-slime.md"
FLAGS_FILE = Path(__file__).resolve().parent / "from_slime_flags.txt"

DIFFERENCES = {
    "prompt_data": ("a .jsonl or .parquet file", "also .json, .csv and `hf:` names; every row is checked before anything is built"),
    "rollout_batch_size": ("no default", "a first run needs no flags"),
    "n_samples_per_prompt": ("1", "a group of one teaches nothing"),
    "rollout_max_response_len": ("no default", "the engine's memory is planned by it"),
    "over_sampling_batch_size": ("at least `--rollout-batch-size`", "any number: it only says how many are fetched at a time"),
    "dynamic_sampling_filter_path": ("fetches for ever", "bounded by `--dynamic-sampling-max-rounds`; `--on-exhausted` decides there"),
    "micro_batch_size": ("1", "micro-batches are filled by tokens"),
    "use_dynamic_batch_size": ("off", "on, unless `--micro-batch-size` is set"),
    "max_tokens_per_gpu": ("no default", "a longer sample goes alone instead of failing"),
    "load": ("a Megatron checkpoint", "a checkpoint of vime, or `auto`"),
    "save": ("Megatron's format", "Hugging Face's format and DeepSpeed's state; without the flag `checkpoints/` in the run's folder"),
    "ref_load": (
        "a Megatron checkpoint, needed with a KL term",
        "a folder in Hugging Face's format; without it the model that the run began with",
    ),
    "save_debug_rollout_data": ("a torch pickle", "parquet: readable elsewhere, and opening one runs no code"),
    "eval_prompt_data": ("a single path is named `aime`", "a single path is named after its file"),
    "eval_config": ("wins over `--eval-prompt-data`", "both together are refused"),
    "use_kl_loss": ("beside `--kl-coef`", "`--kl-coef` with `--kl-loss-coef` is refused: it would count twice"),
    "use_rollout_logprobs": ("beside `--use-tis`", "both together are refused: they correct for the same thing"),
    "advantage_estimator": ("without `dr_grpo` and `rloo`", "has these too"),
    "use_tis": ("by token", "also by sequence (`--tis-level`), truncated or masked (`--tis-mode`)"),
    "rm_type": ("a name in the code", "the name of an enabled plugin, or a sum of several"),
    "custom_rm_path": (
        "called once for each sample",
        "the same; a synchronous one runs in a worker process with a time limit (`--reward-isolation`)",
    ),
    "rollout_function_path": ("`data_source` may be anything", "the same; the output is checked, and `generate_rollout_async` exists too"),
    "data_source_path": ("saves itself", "the same, or `state_dict()` and its state is in the checkpoint"),
    "colocate": (
        "switches offloading on",
        "with `--runtime ray`; on one device engine and trainer take turns without it",
    ),
    "num_critic_only_steps": (
        "with a Megatron file for the critic",
        "with `--critic-lr`, `--critic-load` and the other flags of the critic",
    ),
}
"""Flags of one name that differ: what they are there, and what is to know here."""

HOOK_DIFFERENCES = {
    "make_data_source": "a state goes into the checkpoint where the class has `state_dict()`",
    "generate_rollout": "`data_source` and `evaluation` as there; an engine is at hand as `engine`",
    "buffer_filter": "what it returns must come out of the buffer; vime removes it there where the filter did not",
    "custom_generate": "no router address in `args`: `engine.generate` instead; may return several samples",
    "rollout_sample_hook": "new",
    "custom_rm": "None, NaN and tensors are refused instead of becoming a reward",
    "shape_reward": "new, for plugins only",
    "dynamic_sampling_filter": "several plugins: all must agree",
    "rollout_sample_filter": "gets the list of groups; samples may only be flagged",
    "process_all_samples": "rewards, tokens and masks of kept samples must stay",
    "log_rollout_data": "what is added to `rollout_extra_metrics` is logged too",
    "log_eval_rollout_data": "what is added to `extra_metrics` is logged too",
    "post_process_rewards": "group sizes may differ: go by `sample.group_index`",
    "convert_samples_to_train_data": "the keys are checked",
    "compute_advantages": "lists or tensors",
    "rollout_data_postprocess": "a mask may only lose tokens",
    "policy_loss": "another signature: `(args, inputs)`, tensors over the trained tokens, no Megatron batch",
    "importance_weights": "called by keyword where the names are upstream's",
    "pg_loss_reducer": "`calculate_per_token_loss` as there",
}
"""What differs for a function that was written for upstream."""


def upstream_flags() -> list[str]:
    """The fields of slime's and upstream vime's own command line, in its order; Megatron's and SGLang's are not among them."""
    lines = FLAGS_FILE.read_text(encoding="utf-8").splitlines()
    return [name for line in lines if not line.startswith("#") for name in line.split()]


def is_kept(field: str) -> bool:
    """Whether the flag works here, under its own name or as another name of a flag."""
    return field_of(field) in RunConfig.model_fields or field in NEGATIONS


def _default(field: str) -> str:
    value = RunConfig.model_fields[field_of(field)].get_default(call_default_factory=True)
    if value is None or value == []:
        return "none"
    return "on" if value is True else "off" if value is False else f"`{value}`"


def kept_table() -> list[str]:
    rows = ["| flag | there | default here | here |", "|---|---|---|---|"]
    return rows + [f"| `{flag_of(field)}` | {there} | {_default(field)} | {here} |" for field, (there, here) in DIFFERENCES.items()]


def same_list() -> list[str]:
    plain = [
        name for name in upstream_flags() if is_kept(name) and name not in DIFFERENCES and name not in ALIASES and name not in NEGATIONS
    ]
    return [", ".join(f"`{flag_of(name)}`" for name in plain) + "."]


def other_names() -> list[str]:
    rows = ["| there | here |", "|---|---|"]
    given = set(upstream_flags())
    rows += [f"| `{flag_of(name)}` | `{flag_of(field)}` |" for name, field in ALIASES.items() if name in given]
    rows += [f"| `{flag_of(name)}` | `--no-{flag_of(field)[2:]}` |" for name, field in NEGATIONS.items()]
    return rows


def gone_table() -> list[str]:
    """Refused flags by what to do instead."""
    by_text: dict[str, list[str]] = {}
    for name in upstream_flags():
        instead = None if is_kept(name) else replacement(name)
        if instead is not None:
            by_text.setdefault(instead, []).append(name)
    rows = ["| flag | instead |", "|---|---|"]
    return rows + [f"| {', '.join(f'`{flag_of(name)}`' for name in names)} | {_as_code(text)} |" for text, names in by_text.items()]


def backend_table() -> list[str]:
    """The flags of Megatron and SGLang that scripts have most often."""
    names = (
        "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size sequence_parallel recompute_granularity "
        "num_layers hidden_size moe_router_topk bf16 attention_backend optimizer optimizer_cpu_offload sglang_mem_fraction_static "
        "sglang_context_length sglang_server_concurrency sglang_disable_cuda_graph sglang_enable_metrics router_policy"
    )
    rows = ["| flag | instead |", "|---|---|"]
    for name in names.split():
        instead = replacement(name)
        if instead is None or "Megatron or SGLang" not in why_absent(name):
            raise ValueError(f"{name} is no flag of a backend")
        rows.append(f"| `{flag_of(name)}` | {_as_code(instead)} |")
    return rows


def hook_table() -> list[str]:
    rows = ["| flag | called with | hook of a plugin | what differs |", "|---|---|---|---|"]
    for info in HOOKS.values():
        called = f"`{', '.join(info.path_args)}`" if info.flag else "-"
        flag = f"`{info.flag}`" if info.flag else "-"
        rows.append(f"| {flag} | {called} | [`{info.name}`](hooks.md#{info.name}) | {HOOK_DIFFERENCES[info.name]} |")
    return rows


def reward_table() -> list[str]:
    rows = ["| `--rm-type` there | here | install |", "|---|---|---|"]
    names = {plugin: name.replace("-", "_") for name, plugin in REWARD_ALIASES.items()}
    return rows + [
        f"| `{names.get(plugin, plugin)}` | `--plugin {plugin}` | `pip install {package}` |"
        for plugin, package in REWARD_DISTRIBUTIONS.items()
    ]


def _as_code(text: str) -> str:
    text = re.sub(r"(?<![`\w-])--[a-z][a-z0-9-]*[a-z0-9](?:-\*)?(?: (?:ray|mask|sft_loss))?", r"`\g<0>`", text)
    return re.sub(r"\b\w+/<name>\S*", r"`\g<0>`", text)


TABLES = {
    "same": same_list,
    "differ": kept_table,
    "names": other_names,
    "gone": gone_table,
    "backend": backend_table,
    "hooks": hook_table,
    "rewards": reward_table,
}


def page(text: str) -> str:
    """The page with its tables anew. Raises ValueError for a table that has no place on it."""
    for name, rows in TABLES.items():
        body = "\n".join(rows())
        whole = f"<!-- {name} -->\n\n{body}\n\n<!-- end -->"
        text, found = re.subn(rf"(?s)<!-- {name} -->\n.*?<!-- end -->", lambda _, whole=whole: whole, text)
        if found != 1:
            raise ValueError(f"{PAGE.name}: expected one place <!-- {name} --> ... <!-- end -->, found {found}")
    return text


def main() -> int:
    """The command; the exit status says whether the page was stale under --check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the tables are stale")
    is_check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if is_check:
        sys.stdout.write(f"{PAGE.name} is {'up to date' if new == old else 'stale: uv run python docs/generate_from_slime.py'}\n")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
