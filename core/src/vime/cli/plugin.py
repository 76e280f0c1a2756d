"""The commands of `vime plugin`, as the help pages show them."""

from __future__ import annotations

from typing import Annotated

import typer

from vime.cli.check import check_plugin
from vime.cli.help import ExplainCommand, ListCommand
from vime.cli.new import new_plugin
from vime.plugins.probe import TIMEOUT

plugin_app = typer.Typer(name="plugin", help="List, show, explain, check and write plugins.", no_args_is_help=True)


@plugin_app.callback()
def plugin() -> None:
    """Keeps `vime plugin` a group of commands."""


@plugin_app.command("list", cls=ListCommand)
def list_plugins() -> None:
    """List the installed plugins, broken and conflicting ones too. Without --probe none is imported."""


@plugin_app.command("show")
def show_plugin(
    name: Annotated[str, typer.Argument(help="The name that --plugin takes.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    import_timeout: Annotated[str, typer.Option(metavar="SECONDS", help="Time that importing the plugin may take.")] = f"{TIMEOUT:g}",
) -> None:
    """Show one plugin: its hooks, its settings with defaults, its distribution and where it was found."""
    from vime.cli.flags import positive_seconds
    from vime.cli.plugin_show import show

    show(name, as_json=as_json, timeout=positive_seconds("--import-timeout", import_timeout))


@plugin_app.command("explain", cls=ExplainCommand)
def explain_plugins() -> None:
    """Show who is called by one training step, in order. Takes all flags of vime train and imports the plugins they name."""


plugin_app.command("check")(check_plugin)
plugin_app.command("new")(new_plugin)
