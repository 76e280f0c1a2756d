"""The typer application: help pages, and the commands whose few flags are typer's own."""

from __future__ import annotations

import typer

from vime.cli.app import COMMANDS
from vime.cli.help import ConfiguredCommand, DoctorCommand, EvalCommand, RootGroup

_EPILOG = "Without --model and --prompt-data, vime train uses a small model and data that come with it: vime train --plugin math"
_EVAL_FILE = "docs/evaluation.md describes the file of --eval-config."
_SHOW = "Print every value with its origin; --json prints one object. No plugin is imported: vime plugin explain does that."


def build_app(asked_for: str) -> typer.Typer:
    """The application. Of the commands with modules of their own, only the one that is asked for is imported."""
    app = typer.Typer(
        cls=RootGroup,
        help="RL post-training of language models: a thin core, vLLM and DeepSpeed, and everything else a plugin.",
        epilog=_EPILOG,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)
    app.command("train", cls=ConfiguredCommand, help=COMMANDS["train"], epilog=_EVAL_FILE)(_nothing)
    app.command("doctor", cls=DoctorCommand, help=COMMANDS["doctor"])(_nothing)
    app.command("eval", cls=EvalCommand, help=COMMANDS["eval"], epilog=_EVAL_FILE)(_nothing)
    if asked_for == "report":
        from vime.cli.report import report_runs

        app.command("report")(report_runs)
    else:
        app.command("report", help=COMMANDS["report"])(_nothing)
    if asked_for == "watch":
        from vime.cli.watch import watch_run

        app.command("watch")(watch_run)
    else:
        app.command("watch", help=COMMANDS["watch"])(_nothing)
    config_app = typer.Typer(help=COMMANDS["config"], no_args_is_help=True)
    config_app.callback()(_nothing)
    config_app.command("show", cls=ConfiguredCommand, help=_SHOW)(_nothing)
    app.add_typer(config_app, name="config")
    if asked_for == "plugin":
        from vime.cli.plugin import plugin_app

        app.add_typer(plugin_app, name="plugin", help=COMMANDS["plugin"])
    else:
        app.command("plugin", help=COMMANDS["plugin"])(_nothing)
    return app


def _nothing() -> None:
    """Stands where main() has already gone another way, or where there is only help to show."""
