"""Every hook of vime: what it is called with, what it may return, and how several implementations combine.

The specs themselves are in specs_rollout.py, specs_batch.py and specs_train.py; `HOOKS` is the table that the manager, the command line
and the contract kit work from.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Literal

from vime.plugins.markers import hookimpl, hookspec
from vime.plugins.specs_batch import BatchSpec
from vime.plugins.specs_rollout import RolloutSpec
from vime.plugins.specs_train import TrainSpec

__all__ = ["HOOKS", "HookKind", "HookSpecInfo", "VimeSpec", "hookimpl", "hookspec"]

HookKind = Literal["one", "agree", "all"]


class VimeSpec(RolloutSpec, BatchSpec, TrainSpec):
    """All hooks, in the order in which one training step meets them."""


@dataclass(frozen=True)
class HookSpecInfo:
    """What vime knows about one hook."""

    name: str
    kind: HookKind
    """"one": a single plugin claims it; "agree": all must agree, the first refusal decides; "all": all are called."""
    params: tuple[str, ...]
    """The parameters an implementation may take, by name, in any subset."""
    path_flag: str | None = None
    """The attribute of the configuration that names a function for this hook by path."""
    path_args: tuple[str, ...] = ()
    """What a path function is called with positionally, in this order. Its own parameter names do not matter."""
    path_keywords: tuple[str, ...] = ()
    """What a path function gets by keyword, where it has a parameter of that name."""
    repeatable: bool = False
    """Whether the path flag may be given several times."""
    path_by_name: bool = False
    """Whether a path function whose parameters have the names of the spec's is called by these: upstream calls it by keyword."""

    @property
    def flag(self) -> str | None:
        """The path flag as it is typed on the command line."""
        return None if self.path_flag is None else "--" + self.path_flag.replace("_", "-")

    @property
    def doc(self) -> str:
        """The docstring of the spec."""
        return inspect.getdoc(getattr(VimeSpec, self.name)) or ""


def _info(
    name: str,
    kind: HookKind,
    path_flag: str | None = None,
    path_args: tuple[str, ...] | None = None,
    *,
    keywords: tuple[str, ...] = (),
    repeatable: bool = False,
    by_name: bool = False,
) -> HookSpecInfo:
    params = tuple(list(inspect.signature(getattr(VimeSpec, name)).parameters)[1:])
    if path_args is None:
        path_args = tuple(param for param in params if param not in keywords) if path_flag else ()
    return HookSpecInfo(name, kind, params, path_flag, path_args, keywords, repeatable, by_name)


HOOKS: dict[str, HookSpecInfo] = {
    info.name: info
    for info in (
        _info("make_data_source", "one", "data_source_path"),
        _info("generate_rollout", "one", "rollout_function_path", keywords=("evaluation", "engine")),
        _info("buffer_filter", "one", "buffer_filter_path"),
        _info("custom_generate", "one", "custom_generate_function_path", keywords=("evaluation", "engine")),
        _info(
            "rollout_sample_hook",
            "all",
            "rollout_sample_hook_path",
            ("args", "sample"),
            keywords=("rollout_id", "evaluation"),
            repeatable=True,
        ),
        _info("custom_rm", "one", "custom_rm_path", ("args", "sample")),
        _info("shape_reward", "all"),
        _info("dynamic_sampling_filter", "agree", "dynamic_sampling_filter_path"),
        _info("rollout_sample_filter", "all", "rollout_sample_filter_path"),
        _info("process_all_samples", "all", "rollout_all_samples_process_path"),
        _info("log_rollout_data", "all", "custom_rollout_log_function_path"),
        _info("log_eval_rollout_data", "all", "custom_eval_rollout_log_function_path"),
        _info("post_process_rewards", "one", "custom_reward_post_process_path"),
        _info("convert_samples_to_train_data", "one", "custom_convert_samples_to_train_data_path"),
        _info("compute_advantages", "one", "custom_advantage_function_path"),
        _info("rollout_data_postprocess", "all", "rollout_data_postprocess_path"),
        _info("policy_loss", "one", "custom_loss_function_path"),
        _info("importance_weights", "one", "custom_tis_function_path", keywords=("total_lengths", "response_lengths"), by_name=True),
        _info("pg_loss_reducer", "one", "custom_pg_loss_reducer_function_path"),
    )
}
"""All hooks by name, in the order of a training step."""

EVAL_PATH_FLAG = "eval_function_path"
"""The second path flag of generate_rollout: a function for evaluation only."""
