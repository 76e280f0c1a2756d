"""Who is called by one training step: a row for each hook, as plain data. Runs where the plugins are imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime.cli.plugin_explain import EVALUATES_ONLY, NEVER
from vime.errors import ConfigError
from vime.plugins.child import Announce
from vime.plugins.hookspecs import EVAL_PATH_FLAG, HOOKS
from vime.plugins.manager import ROUTED, PluginManager
from vime.rollout.reward_resolver import BUILT_IN_ROLLOUT, RewardResolver
from vime.rollout.reward_worker import takes_group

if TYPE_CHECKING:
    from vime.config.eval import EvalDatasetConfig
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import HookFunction
    from vime.rollout.reward_resolver import ResolvedReward


@dataclass(frozen=True)
class Moment:
    """When a hook is called, and what happens where nobody has it."""

    phase: str
    called: str
    built_in: str | None = None


MOMENTS: dict[str, Moment] = {
    "make_data_source": Moment("data", "once, at the start", "the rows of --prompt-data, and a buffer"),
    "generate_rollout": Moment("generation", "once a rollout", "dynamic sampling over the engine"),
    "buffer_filter": Moment("generation", "once a fetch of prompts", "the oldest groups of the buffer first"),
    "custom_generate": Moment("generation", "once a sample", "one answer of the engine"),
    "rollout_sample_hook": Moment("generation", "once a sample"),
    ROUTED: Moment("reward", "once a sample"),
    "shape_reward": Moment("reward", "once a sample"),
    "dynamic_sampling_filter": Moment("filter", "once a group", "every group is kept"),
    "rollout_sample_filter": Moment("filter", "once a rollout"),
    "process_all_samples": Moment("filter", "once a rollout"),
    "log_rollout_data": Moment("logging", "once a rollout", "the default log"),
    "log_eval_rollout_data": Moment("logging", "once an evaluation", "the default log"),
    "post_process_rewards": Moment("training", "once a rollout", "the baseline of --advantage-estimator"),
    "convert_samples_to_train_data": Moment("training", "once a rollout", "a row for each sample"),
    "compute_advantages": Moment("training", "once a rollout", "--advantage-estimator"),
    "rollout_data_postprocess": Moment("training", "once a rollout"),
    "policy_loss": Moment("training", "once a micro-batch", "--loss-type"),
    "importance_weights": Moment("training", "once a micro-batch", "--tis-mode and --tis-level"),
    "pg_loss_reducer": Moment("training", "once a micro-batch", "--loss-aggregation"),
}
"""For each hook, in the order of a step."""
WITHIN_ROLLOUT = ("custom_generate", "rollout_sample_hook", ROUTED, "shape_reward", "dynamic_sampling_filter")
"""Called by the built-in rollout: where another takes its place, only as far as that one asks for it."""
Who = dict[str, str]
"""A plugin as {plugin, distribution, version}, a path function as {path, flag}."""


@dataclass
class Row:
    """One hook of a step. `who` are those that are called, in order; without any `built_in` happens, where there is that."""

    phase: str
    hook: str
    kind: str
    called: str
    who: list[Who] = field(default_factory=list[Who])
    built_in: str | None = None
    reason: str | None = None
    """Why vime does not call it in this run, whoever has it."""
    notes: list[str] = field(default_factory=list[str])
    dataset: str | None = None


def explain(config: RunConfig, announce: Announce) -> dict[str, Any]:
    """The enabled plugins and the rows. Raises what a run would be refused with, other than for a reward that is missing."""
    plugins = PluginManager.load(config, announce=announce)
    return _Explanation(config, plugins).as_json()


class _Explanation:
    """Asks the manager and the reward resolver of a run who would be called."""

    def __init__(self, config: RunConfig, plugins: PluginManager) -> None:
        self.config, self.plugins = config, plugins
        self.resolver = RewardResolver(config, plugins)
        self.missing = self._missing_reward()
        self.rollout = self._claims_rollout(evaluation=False)

    def as_json(self) -> dict[str, Any]:
        """`{"plugins": [who], "hooks": [row]}`; the rows of the evaluation come last."""
        rows = [self._row(name) for name in HOOKS if name != "log_eval_rollout_data"]
        by_hook = {row.hook: row for row in rows}
        self._explain_reward(by_hook[ROUTED])
        if by_hook["custom_generate"].called != NEVER:
            by_hook["custom_generate"].notes.append("a sample's own generate_function_path goes first")
        if self.missing is not None:
            row = by_hook["generate_rollout" if self.config.loss_type == "sft_loss" else ROUTED]
            row.notes.append(f"vime train refuses this: {self.missing.message}; {self.missing.hint}")
        rows += self._evaluation(by_hook)
        return {"plugins": [self._plugin(plugin.name) for plugin in self.plugins.plugins], "hooks": [vars(row) for row in rows]}

    def _missing_reward(self) -> ConfigError | None:
        """The refusal of a run without any reward, which is no conflict; other refusals are raised."""
        try:
            self.resolver.check_at_start()
        except ConfigError as error:
            if self.resolver.functions or self.config.rm_type:
                raise
            return error
        return None

    def _claims_rollout(self, *, evaluation: bool) -> HookFunction | None:
        path = (self.config.eval_function_path if evaluation else None) or self.config.rollout_function_path
        is_built_in = path is not None and path.replace(":", ".") == BUILT_IN_ROLLOUT
        return None if is_built_in else self.plugins.claimed("generate_rollout", evaluation=evaluation)

    def _row(self, hook: str) -> Row:
        info, moment = HOOKS[hook], MOMENTS[hook]
        row = Row(moment.phase, hook, info.kind, moment.called)
        functions = self.plugins.implementations(hook)
        if info.kind == "one":
            chosen = self.rollout if hook == "generate_rollout" else self.plugins.claimed(hook)
            row.who = [self._who(chosen, info.flag)] if chosen is not None else []
            if hook != ROUTED:
                passed_over = [function.label for function in functions if function is not chosen and not function.by_path]
                row.notes += [f"not called: {label}, since {info.flag} goes first" for label in passed_over]
        else:
            row.who = [self._who(function, info.flag) for function in functions]
        row.reason = self._not_called(hook)
        if row.reason is not None:
            row.called = "where asked for" if row.reason.startswith("only") else NEVER
        elif not row.who:
            row.built_in = moment.built_in
        return row

    def _not_called(self, hook: str) -> str | None:
        """Why vime does not call this hook in this run, whoever has it."""
        config = self.config
        if config.num_rollout == 0:
            return EVALUATES_ONLY
        if config.debug_train_only and hook in ("make_data_source", "generate_rollout", "buffer_filter", *WITHIN_ROLLOUT):
            return "the rollouts are read from --load-debug-rollout-data"
        if config.debug_rollout_only and MOMENTS[hook].phase == "training":
            return "--debug-rollout-only has no trainer"
        if hook == "buffer_filter" and self.plugins.claimed("make_data_source") is not None:
            return "the data source is not the built-in one, and the buffer is its own"
        if hook in WITHIN_ROLLOUT and self.rollout is not None:
            return f"only where generate_rollout of {self.rollout.label} asks for it"
        if hook == "policy_loss" and config.loss_type != "custom_loss":
            return "needs --loss-type custom_loss"
        if hook == "importance_weights" and not (config.use_tis and config.loss_type == "policy_loss"):
            return "needs --use-tis, and --loss-type policy_loss"
        if hook == "pg_loss_reducer" and config.loss_type != "policy_loss":
            return "needs --loss-type policy_loss"
        if hook in ("compute_advantages", "rollout_data_postprocess") and config.loss_type == "sft_loss":
            return "--loss-type sft_loss has no advantages"
        return None

    def _explain_reward(self, row: Row) -> None:
        """Who scores a sample that names nobody itself, and what a sample may name."""
        if row.called == NEVER:
            return
        config, functions = self.config, self.resolver.functions
        others = [function.plugin for function in functions.values()]
        if config.custom_rm_path:
            row.notes.append("--custom-rm-path goes before rm_type" + (f" and the plugins ({', '.join(others)})" if others else ""))
            claimed = self.plugins.claimed(ROUTED)
            chosen = [claimed] if claimed is not None else []
        elif not functions:
            return
        else:
            scoring = self.resolver.by_type(config.rm_type, "training") if config.rm_type or len(functions) == 1 else ()
            chosen = [reward.function for reward in scoring]
            if not scoring:
                row.notes.append("several plugins, and no --rm-type: each sample has to name one in its metadata")
            else:
                self._name_rewards(row, scoring)
                row.notes.append(f"--rm-type {config.rm_type}{_sum(scoring)}" if config.rm_type else "the only plugin with a reward")
            row.notes.append(f"a sample's own custom_rm_path goes first, then its rm_type (it may name {' or '.join(others)})")
        by_group = [config.group_rm and takes_group(function) for function in chosen]
        if any(by_group) and row.called == MOMENTS[ROUTED].called:
            row.called = "once a group" if all(by_group) else "once a group or sample"

    def _name_rewards(self, row: Row, scoring: tuple[ResolvedReward, ...]) -> None:
        """One reward, or the parts of a sum."""
        row.who = [self._who(reward.function, None) for reward in scoring]
        if len(scoring) > 1:
            row.kind = "sum"

    def _evaluation(self, training: dict[str, Row]) -> list[Row]:
        """The rows of an evaluation: who makes it, and for each dataset what differs from training."""
        log = self._row("log_eval_rollout_data")
        log.phase = "evaluation"
        function = self._claims_rollout(evaluation=True)
        flag = "--" + EVAL_PATH_FLAG.replace("_", "-") if self.config.eval_function_path else HOOKS["generate_rollout"].flag
        makes = Row("evaluation", "generate_rollout", "one", "once an evaluation")
        makes.who = [self._who(function, flag)] if function is not None else []
        if not self.config.eval_datasets:
            makes.called = log.called = NEVER
            makes.reason = log.reason = "no evaluation dataset is named (--eval-prompt-data, --eval-config)"
            log.built_in = None
            return [makes, log] if self.config.eval_function_path else [log]
        log.called, log.reason = MOMENTS["log_eval_rollout_data"].called, None
        log.built_in = None if log.who else MOMENTS["log_eval_rollout_data"].built_in
        names = ", ".join(dataset.name for dataset in self.config.eval_datasets)
        if makes.who:
            makes.notes.append(f"datasets: {names}")
            return [makes, log]
        makes.built_in = "the samples of each dataset"
        if self.config.num_rollout == 0:
            makes.notes.append(f"datasets: {names}")
            return [makes, *self._of_datasets(), log]
        makes.notes.append(f"datasets: {names}; generated and scored as in training, but for what follows")
        return [makes, *(row for row in self._of_datasets() if row.who != training[row.hook].who), log]

    def _of_datasets(self) -> list[Row]:
        """Who generates, watches and scores the samples of an evaluation."""
        rows = [row for dataset in self.config.eval_datasets for row in self._dataset(dataset)]
        for hook in ("rollout_sample_hook", "shape_reward"):
            functions = self.plugins.implementations(hook)
            who = [self._who(function, HOOKS[hook].flag) for function in functions]
            rows.append(Row("evaluation", hook, "all", MOMENTS[hook].called, who))
        return rows

    def _dataset(self, dataset: EvalDatasetConfig) -> list[Row]:
        """Who generates and who scores the samples of one dataset."""
        rows: list[Row] = []
        rm_type: str | None = dataset.metadata_overrides.get("rm_type") or dataset.rm_type
        for hook, path in (("custom_generate", dataset.custom_generate_function_path), (ROUTED, dataset.custom_rm_path)):
            info = HOOKS[hook]
            row = Row("evaluation", hook, info.kind, "once a sample", dataset=dataset.name)
            if path:
                own = path != getattr(self.config, str(info.path_flag))
                row.who = [self._who(self.plugins.path_function(path, hook), f"{info.path_flag} of the dataset" if own else info.flag)]
            elif hook == ROUTED and (rm_type or len(self.resolver.functions) == 1):
                scoring = self.resolver.by_type(rm_type, f"evaluation dataset {dataset.name!r}")
                self._name_rewards(row, scoring)
                row.notes += [f"rm_type {rm_type}{_sum(scoring)}"] if rm_type else []
            elif (chosen := self.plugins.claimed(hook)) is not None:
                row.who = [self._who(chosen, info.flag)]
            row.built_in = None if row.who else MOMENTS[hook].built_in
            rows.append(row)
        return rows

    def _who(self, function: HookFunction, flag: str | None) -> Who:
        if function.by_path:
            return {"path": function.plugin.removeprefix("path:"), "flag": flag or ""}
        return self._plugin(function.plugin)

    def _plugin(self, name: str) -> Who:
        plugin = self.plugins.get(name)
        assert plugin is not None
        return {"plugin": plugin.name, "distribution": str(plugin.distribution), "version": str(plugin.version)}


def _sum(scoring: tuple[ResolvedReward, ...]) -> str:
    """What the parts of a sum add up to: `: total = 1 math + 0.2 format`; empty for one reward."""
    terms = [f"{reward.part.weight:g} {reward.part.name}" for reward in scoring if reward.part is not None]
    return ": total = " + " + ".join(terms).replace("+ -", "- ") if terms else ""
