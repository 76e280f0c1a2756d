"""Help pages: panels of names and what they mean. A name is never cut, however narrow the terminal is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer.core

from vime.config.names import ALIASES, flag_of
from vime.plugins.probe import TIMEOUT

_PATHS_OF_EVALUATION = {
    "rollout_function_path",
    "eval_function_path",
    "custom_generate_function_path",
    "custom_rm_path",
    "rollout_sample_hook_path",
    "custom_eval_rollout_log_function_path",
}
_OF_TRAINING_ONLY = {
    *("num_rollout", "num_epoch", "pipeline", "save", "save_interval", "keep_checkpoints"),
    *("debug_rollout_only", "debug_train_only", "save_debug_rollout_data", "load_debug_rollout_data"),
    *("ref_load", "check_weights_every", "check_weights_tolerance", "trainer_ranks", "colocate", "sync_timeout"),
    *("prompt_data", "rollout_max_prompt_len", "rollout_shuffle"),
    *("rollout_batch_size", "n_samples_per_prompt", "over_sampling_batch_size", "dynamic_sampling_max_rounds", "on_exhausted"),
    *("partial_rollout", "mask_offpolicy_in_partial_rollout", "max_staleness"),
    *("eval_interval", "skip_eval_before_train"),
}
"""Of the sections that evaluation shares with training."""
_ON_TWO_LINES = 26
"""A panel with a longer name than this puts what it means below it."""


@dataclass(frozen=True)
class Entry:
    """A command or a flag: its name, what stands after it, its default, and what it means."""

    name: str
    text: str
    value: str = ""
    default: str = ""


@dataclass(frozen=True)
class Group:
    """A panel."""

    title: str
    entries: Sequence[Entry]


COMMON = Group(
    "Options",
    [
        Entry("--help", "Show this page."),
        Entry("--traceback", "Show the traceback of an error; works with every command."),
    ],
)
CONFIGURATION = Group(
    "Configuration",
    [
        Entry("--config", "YAML file with the flags' names as keys; flags go over it.", "FILE"),
        Entry("--set", "Setting of a plugin; repeatable. Example: --set math.timeout=5.", "PLUGIN.KEY=VALUE"),
    ],
)


def configuration_groups(left_out: frozenset[str] = frozenset()) -> Iterator[Group]:
    """A panel for each section of the configuration, without these fields."""
    from vime.config.fields import field_docs
    from vime.config.kinds import kinds_of
    from vime.config.run_config import SECTIONS, RunConfig

    kinds = kinds_of(RunConfig)
    aliases = {field: alias for alias, field in ALIASES.items() if alias == "model"}
    for section in SECTIONS:
        entries: list[Entry] = []
        for name, text in field_docs(section).items():
            if name in left_out:
                continue
            kind, flag = kinds[name], flag_of(name)
            alias = f", {flag_of(aliases[name])}" if name in aliases else ""
            switch = f" / --no-{flag[2:]}" if kind.base is bool else ""
            default = RunConfig.model_fields[name].get_default(call_default_factory=True)
            entries.append(Entry(f"{flag}{switch}{alias}", text, _value(kind), _default(default)))
        if entries:
            yield Group(section.__doc__ or "", entries)


def of_training_only() -> frozenset[str]:
    """The fields that change nothing in an evaluation."""
    from vime.config.sections import HookPathSection
    from vime.config.train_sections import AlgorithmSection, CriticSection, OptimizerSection, TrainerSection

    sections = (AlgorithmSection, CriticSection, OptimizerSection, TrainerSection)
    paths = set(HookPathSection.model_fields) - _PATHS_OF_EVALUATION
    return frozenset(
        {name for section in sections for name in section.model_fields} - {"train_dtype", "loss_type"} | paths | _OF_TRAINING_ONLY
    )


def _value(kind: Any) -> str:
    if kind.choices:
        return "|".join(map(str, kind.choices))
    if kind.shape is not None:
        return kind.shape
    return {int: "N", float: "X", str: "TEXT", list: "VALUE...", dict: "MAPPING", bool: ""}[kind.base]


def _default(value: Any) -> str:
    if value is None or value == "" or value in ([], {}):
        return ""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def show_page(usage: str, text: str, groups: Sequence[Group], epilog: str = "") -> None:
    """Print a help page to stdout."""
    from rich.box import ROUNDED
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    console.print(Text.assemble(("usage: ", "bold"), usage, "\n\n", text, "\n"))
    for group in groups:
        body = Text("\n").join(_lines(group, console.width - 4))
        console.print(Panel(body, title=Text(group.title, "bold"), title_align="left", box=ROUNDED, border_style="dim"))
    if epilog:
        console.print(Text(f"\n{epilog}"))


def _lines(group: Group, width: int) -> list[Any]:
    """The lines of a panel: names and meanings side by side where all names are short, else below each other."""
    import textwrap

    from rich.text import Text

    lines: list[Any] = []
    longest = max(len(f"{entry.name} {entry.value}") for entry in group.entries)
    column = longest + 2 if longest <= _ON_TWO_LINES else 4
    for entry in group.entries:
        default = f"[{entry.default}]" if entry.default else ""
        meaning = textwrap.wrap(f"{entry.text}", max(width - column, 20))
        head = Text.assemble((entry.name, "bold cyan"), " " if entry.value else "", (entry.value, "yellow"))
        if column == longest + 2:
            lines += [Text.assemble(head, " " * (column - len(head)), meaning[0])]
            meaning = meaning[1:]
        else:
            lines += [Text.assemble(head, f"  {default}" if default else "")]
        lines += [Text(" " * column + line) for line in meaning]
    return lines


class RootGroup(typer.core.TyperGroup):
    """`vime --help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        commands = [Entry(name, command.help or "") for name, command in self.commands.items()]
        options = Group("Options", [*COMMON.entries, Entry("--version", "Show the version.")])
        show_page("vime COMMAND [FLAGS]", self.help or "", [Group("Commands", commands), options], self.epilog or "")


class ConfiguredCommand(typer.core.TyperCommand):
    """`vime train --help` and its like: all flags of the configuration."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        groups = [CONFIGURATION, *configuration_groups(), COMMON]
        show_page(f"{ctx.command_path} [FLAGS]", self.help or "", groups, self.epilog or "")


_OF_EVAL = Group(
    "Evaluate",
    [
        Entry(
            "--checkpoints",
            "Models to evaluate one after another, with a table of their scores: checkpoints, folders of them, run folders (all that is in "
            "them), and model folders in Hugging Face format.",
            "PATH...",
        ),
        Entry("--json", "Print the scores as JSON."),
    ],
)


class EvalCommand(typer.core.TyperCommand):
    """`vime eval --help`: the flags that change an evaluation."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        groups = [_OF_EVAL, CONFIGURATION, *configuration_groups(left_out=of_training_only()), COMMON]
        more = "The flags of training are taken too, so that one file serves both commands, and have no effect here: vime train --help"
        show_page(f"{ctx.command_path} [FLAGS]", self.help or "", groups, f"{self.epilog}\n{more}")


class DoctorCommand(typer.core.TyperCommand):
    """`vime doctor --help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        more = (
            "Exit code 0 when the run would start, 2 when it would not. Without flags only the machine and what is installed are looked at."
        )
        groups = [Group("Doctor", [_JSON]), CONFIGURATION, *configuration_groups(), COMMON]
        show_page(f"{ctx.command_path} [FLAGS OF vime train]", self.help or "", groups, more)


_IMPORT_TIMEOUT = Entry("--import-timeout", "Time that importing a plugin may take.", "SECONDS", f"{TIMEOUT:g}")
_JSON = Entry("--json", "Print JSON.")
_SET_OF_PLUGINS = Group(
    "Which plugins are enabled",
    [
        Entry("--plugin", "Plugin to enable; repeatable. Without it those of VIME_PLUGINS, else of the file.", "NAME"),
        Entry("--no-plugin", "Plugin to leave out; repeatable.", "NAME"),
        Entry("--config", "YAML file of a run.", "FILE"),
    ],
)
_TAKES_ALL = "All other flags of vime train are taken too, so that a run's command line can be tried here."


class ListCommand(typer.core.TyperCommand):
    """`vime plugin list --help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        probe = Entry("--probe", "Also import each plugin, in a process of its own, and list its hooks.")
        groups = [Group("List", [_JSON, probe, _IMPORT_TIMEOUT]), _SET_OF_PLUGINS, COMMON]
        show_page(f"{ctx.command_path} [FLAGS]", self.help or "", groups, _TAKES_ALL)


class ExplainCommand(typer.core.TyperCommand):
    """`vime plugin explain --help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        groups = [Group("Explain", [_JSON, _IMPORT_TIMEOUT]), _SET_OF_PLUGINS, COMMON]
        show_page(f"{ctx.command_path} [FLAGS]", self.help or "", groups, _TAKES_ALL)
