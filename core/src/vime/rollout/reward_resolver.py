"""Which function scores a sample, and the checks at start that there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

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
    """The function that scores a sample; `boxed` hands it the last `\\boxed{}` of the response only."""

    function: HookFunction
    boxed: bool = False


class RewardResolver:
    """sample.custom_rm_path; else the data set's or `--custom-rm-path`; else rm_type; else the only reward plugin."""

    def __init__(self, config: RunConfig, plugins: PluginManager) -> None:
        self.config = config
        self.plugins = plugins
        enabled = {canonicalize_name(plugin.name) for plugin in plugins.plugins}
        functions = [function for function in plugins.implementations("custom_rm") if canonicalize_name(function.plugin) in enabled]
        self.functions: dict[str, HookFunction] = {canonicalize_name(function.plugin): function for function in functions}

    def resolve(self, sample: Sample, dataset: EvalDatasetConfig | None = None) -> ResolvedReward:
        """Who scores this sample. Raises ConfigError, naming the sample, where nobody does."""
        path = sample.custom_rm_path or (dataset.custom_rm_path if dataset else None) or self.config.custom_rm_path
        if path:
            return ResolvedReward(self.plugins.path_function(path, "custom_rm"))
        rm_type = sample.metadata.get("rm_type") or (dataset.rm_type if dataset else None) or self.config.rm_type
        return self.by_type(rm_type, where(sample))

    def by_type(self, rm_type: str | None, what: str) -> ResolvedReward:
        """The reward plugin of this name, or the only one where there is no name. `what` is named in the error."""
        if rm_type:
            boxed = rm_type.startswith("boxed_")
            name = canonicalize_name(rm_type.removeprefix("boxed_"))
            function = self.functions.get(name) or self.functions.get(REWARD_ALIASES.get(name, ""))
            if function is None:
                raise ConfigError(f"{what}: no enabled plugin answers to rm_type {rm_type!r}; {self._enabled()}", hint=_how_to_get(name))
            return ResolvedReward(function, boxed=boxed)
        if not self.functions:
            raise ConfigError(
                f"{what}: no reward: no enabled plugin scores samples",
                hint="use --plugin math (pip install vime-rm-math), another reward plugin, or --custom-rm-path package.module.function",
            )
        if len(self.functions) > 1:
            labels = " and ".join(function.label for function in self.functions.values())
            raise ConfigError(
                f"{what}: several enabled plugins score samples, and nothing says which one to use: {labels}",
                hint=f"choose one: --rm-type {next(iter(self.functions))} (single rows may say otherwise in their metadata, under rm_type)",
            )
        return ResolvedReward(next(iter(self.functions.values())))

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
        if path:
            self.plugins.path_function(path, "custom_rm")
        elif not (sets_rewards or dataset.custom_generate_function_path) or dataset.rm_type:
            self.by_type(dataset.rm_type or self.config.rm_type, f"evaluation dataset {dataset.name!r}")

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
