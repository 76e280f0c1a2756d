"""`vime`: finds the command, runs it, and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from vime.cli import render
from vime.config.names import nearest
from vime.errors import EXIT_REFUSED, ConfigError

COMMANDS: dict[str, str] = {
    "train": "Train a model with the enabled plugins.",
    "eval": "Evaluate a model on the evaluation datasets.",
    "report": "Write an HTML page about one run or several.",
    "watch": "Show a run in the terminal, while it goes on or after.",
    "doctor": "Look at this machine, and at whether a run would start on it.",
    "config": "Show the resolved configuration and where each value came from.",
    "plugin": "List, show, explain, check and write plugins.",
}
_CONFIGURED: dict[tuple[str, ...], str] = {
    ("train",): "vime.cli.train:train_command",
    ("eval",): "vime.cli.evaluate:eval_command",
    ("doctor",): "vime.cli.doctor:doctor_command",
    ("config", "show"): "vime.cli.config_cmd:show_command",
    ("plugin", "list"): "vime.cli.plugin_list:list_command",
    ("plugin", "explain"): "vime.cli.plugin_explain:explain_command",
}
"""Commands that take the flags of a configuration. These are read by vime.cli.flags, since some have several values."""
_HELP = ("--help", "-h")


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    # pydantic reads the entry points of all distributions for plugins of its own, and fails to be imported beside a broken one.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code = _run_reporting(list(sys.argv[1:] if argv is None else argv))
    if argv is None and code == EXIT_REFUSED and any(not thread.daemon for thread in threading.enumerate()[1:]):
        os._exit(code)  # the interpreter would wait for a thread that a refused plugin started
    return code


def _run_reporting(words: list[str]) -> int:
    with_traceback = "--traceback" in words
    words = [word for word in words if word != "--traceback"]
    try:
        if any(word.startswith("--traceback=") for word in words):
            raise ConfigError("--traceback takes no value", hint="write --traceback")
        code = _run(words)
        if not getattr(sys.stdout, "closed", True):  # a plugin can close it, or take it away
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - the outermost boundary: everything is reported here
        return render.report(error, with_traceback=with_traceback)


def _run(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        from importlib.metadata import version

        sys.stdout.write(f"vime {version('vime')}\n")
        return 0
    if words and words[0].startswith("-") and words[0] not in _HELP:
        hint = "vime --version shows the version" if words[0] in ("-v", "-V") else "vime --help shows the commands and flags"
        raise ConfigError(f"unknown flag {words[0]}", hint=hint)
    if words and words[0] not in (*COMMANDS, *_HELP):
        close = nearest(words[0], COMMANDS)
        raise ConfigError(f"unknown command {words[0]!r}", hint=f"did you mean {close!r}?" if close else f"commands: {', '.join(COMMANDS)}")
    if words in (["config"], ["plugin"]):
        words = [*words, "--help"]
    wants_help = not words or any(word in _HELP for word in words)
    for command, target in _CONFIGURED.items():
        if tuple(words[: len(command)]) != command:
            continue
        if wants_help:
            words = [*command, "--help"]
        else:
            return _load(target)(words[len(command) :])
    return _run_typer(["--help" if word == "-h" else word for word in words] or ["--help"])


def _load(target: str) -> Callable[[list[str]], int]:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _run_typer(words: list[str]) -> int:
    """Help, and the commands whose few flags are typer's."""
    import typer

    from vime.cli.typer_app import build_app

    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        result = build_app(words[0])(words, prog_name="vime", standalone_mode=False)
    except usage_error as error:
        command = error.ctx.command_path if error.ctx is not None else "vime"
        raise ConfigError(f"vime {' '.join(words)}: {error}", hint=f"{command} --help shows what there is") from error
    return result if isinstance(result, int) else 0
