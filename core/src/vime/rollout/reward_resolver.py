"""Which function scores a sample, and the checks at start that there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from vime.config.reward_sum import RewardPart, is_sum, parts_of
from vime.config.upstream import REWARD_ALIASES, REWARD_DISTRIBUTIONS
from vime.errors import ConfigError
from vime.plugins.discovery import discover
from vime.rollout.reward_guard import where
from vime.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime.config.eval import EvalDatasetConfig
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import HookFunction, PluginManager

BUILT_IN_ROLLOUT = "vime.rollout.vllm_rollout.generate_rollout"


@dataclass(frozen=True)
class ResolvedReward:
    """The function that scores a sample; `boxed` hands it the last `\\boxed{}` of the response only. `part`: of a sum of several."""

    function: HookFunction
    boxed: bool = False
    part: RewardPart | None = None


class RewardResolver:
    """sample.custom_rm_path; else the data set's or `--custom-rm-path`; else rm_type; else the only reward plugin."""

    def __init__(self, config: RunConfig, plugins: PluginManager) -> None:
        self.config = config
        self.plugins = plugins
        enabled = {canonicalize_name(plugin.name) for plugin in plugins.plugins}
        functions = [function for function in plugins.implementations("custom_rm") if canonicalize_name(function.plugin) in enabled]
        self.functions: dict[str, HookFunction] = {canonicalize_name(function.plugin): function for function in functions}
        self._sums: dict[str, tuple[ResolvedReward, ...]] = {}

    def resolve(self, sample: Sample, dataset: EvalDatasetConfig | None = None) -> tuple[ResolvedReward, ...]:
        """Who scores this sample: one, or the parts of a sum. Raises ConfigError, naming the sample, where nobody does."""
        path = sample.custom_rm_path or (dataset.custom_rm_path if dataset else None) or self.config.custom_rm_path
        if path:
            return (ResolvedReward(self.plugins.path_function(path, "custom_rm")),)
        rm_type = sample.metadata.get("rm_type") or (dataset.rm_type if dataset else None) or self.config.rm_type
        return self.by_type(rm_type, where(sample))

    def by_type(self, rm_type: str | None, what: str) -> tuple[ResolvedReward, ...]:
        """The reward plugins of this name or sum, or the only one where there is no name. `what` is named in the error."""
        if rm_type and not isinstance(rm_type, str):
            raise ConfigError(f"{what}: rm_type is {rm_type!r}; expected the name of a reward", hint="for example math, or math+format")
        if rm_type and is_sum(rm_type):
            if rm_type not in self._sums:
                self._sums[rm_type] = self._sum(rm_type, what)
            return self._sums[rm_type]
        if rm_type:
            boxed = rm_type.startswith("boxed_")
            return (ResolvedReward(self._named(rm_type.removeprefix("boxed_"), rm_type, what), boxed),)
        if not self.functions:
            raise ConfigError(
                f"{what}: no reward: no enabled plugin scores samples",
                hint="use --plugin math (pip install vime-rm-math), another reward plugin, or --custom-rm-path package.module.function",
            )
        if len(self.functions) > 1:
            labels = " and ".join(function.label for function in self.functions.values())
            raise ConfigError(
                f"{what}: several enabled plugins score samples, and nothing says which one to use: {labels}",
                hint=f"choose one: --rm-type {next(iter(self.functions))} (rows may say otherwise in their metadata, under rm_type), "
                + f"or sum them: --rm-type {'+'.join(self.functions)}",
            )
        return (ResolvedReward(next(iter(self.functions.values()))),)

    def _sum(self, rm_type: str, what: str) -> tuple[ResolvedReward, ...]:
        parts = parts_of(rm_type, self.config.reward_weights, f"{what}: rm_type")
        return tuple(ResolvedReward(self._named(part.plugin, part.name, what), part.boxed, part) for part in parts)

    def _named(self, name: str, rm_type: str, what: str) -> HookFunction:
        """The reward of the enabled plugin of this name, or of the one that upstream's name stands for."""
        plugin = canonicalize_name(name)
        function = self.functions.get(plugin) or self.functions.get(REWARD_ALIASES.get(plugin, ""))
        if function is None:
            plugin, colon, key = name.partition(":")
            hint = f"--rm-type {plugin} --reward-key {key}" if colon else _how_to_get(canonicalize_name(name))
            raise ConfigError(f"{what}: no enabled plugin answers to rm_type {rm_type!r}; {self._enabled()}", hint=hint)
        return function

    def check_at_start(self) -> None:
        """Refuse, before anything is built, a run whose samples nobody could make or score. Raises ConfigError.

        With `num_rollout` 0 there is evaluation only, and nothing is asked of training.
        """
        config = self.config
        if not config.group_rm:
            for function in self.functions.values():
                if "samples" in function.params and "sample" not in function.params:
                    raise ConfigError(
                        f"{function.label}: its custom_rm takes `samples` only, which needs group rewards",
                        hint="add --group-rm, or let custom_rm take `sample`",
                    )
        if config.debug_train_only or config.load_debug_rollout_data:
            return
        for function in self.functions.values():
            self._ask_plugin(function)
        sets_rewards = self.plugins.claimed("custom_generate") is not None and not self.functions
        if config.num_rollout != 0 and self._built_in(evaluation=False):
            if config.loss_type == "sft_loss":
                raise ConfigError(
                    "--loss-type sft_loss: nothing turns the rows of the data into rollouts to train on", hint=_how_to_get("sft")
                )
            if not config.custom_rm_path and not (sets_rewards and not config.rm_type):
                self.by_type(config.rm_type, "training")
        if self._built_in(evaluation=True):
            for dataset in config.eval_datasets:
                self._check_dataset(dataset, sets_rewards)

    def _ask_plugin(self, function: HookFunction) -> None:
        """Let a reward plugin refuse the configuration: its method `check_args(args)`, where it has one, raises ConfigError."""
        plugin = self.plugins.get(function.plugin)
        check: Callable[[RunConfig], None] | None = getattr(plugin.obj, "check_args", None) if plugin is not None else None
        if check is not None:
            check(self.config)

    def _check_dataset(self, dataset: EvalDatasetConfig, sets_rewards: bool) -> None:
        if dataset.custom_generate_function_path:
            self.plugins.path_function(dataset.custom_generate_function_path, "custom_generate")
        path = dataset.custom_rm_path or self.config.custom_rm_path
        rm_type = dataset.metadata_overrides.get("rm_type") or dataset.rm_type
        if path:
            self.plugins.path_function(path, "custom_rm")
        elif not (sets_rewards or dataset.custom_generate_function_path) or rm_type:
            self.by_type(rm_type or self.config.rm_type, f"evaluation dataset {dataset.name!r}")

    def _built_in(self, *, evaluation: bool) -> bool:
        """Whether the built-in rollout scores the samples: no plugin claims it, or a path flag names the built-in one."""
        config = self.config
        path = (config.eval_function_path if evaluation else None) or config.rollout_function_path
        if path:
            return path.replace(":", ".") == BUILT_IN_ROLLOUT
        return self.plugins.claimed("generate_rollout") is None

    def _enabled(self) -> str:
        return "enabled rewards: " + ", ".join(self.functions) if self.functions else "no reward plugin is enabled"


def _how_to_get(name: str) -> str:
    """The line that makes an rm_type work: enable the plugin, install it, or correct the name."""
    name = REWARD_ALIASES.get(name, name)
    catalog = discover()
    if catalog.named(name):
        return f"add --plugin {name}"
    brings = REWARD_DISTRIBUTIONS.get(name)
    return f"pip install {brings}, then add --plugin {name}" if brings else catalog.suggestion(name)
