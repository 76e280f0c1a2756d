"""The last checks of `vime train` and `vime eval` before anything heavy is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime.cli.render import waiting_for
from vime.config.extras import TRAINING, require_trackers, require_training_extra
from vime.errors import MissingExtraError, PluginError, VimeError
from vime.plugins.child import Announce, Call, ChildTraceback, call_in_child
from vime.plugins.discovery import discover, unreadable_entry_points
from vime.plugins.hookspecs import EVAL_PATH_FLAG, HOOKS
from vime.plugins.manager import PluginManager, selected

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


def require_ready(config: RunConfig) -> None:
    """Raise what is wrong with the plugins and the environment; MissingExtraError comes after all other refusals.

    Installing the extra takes minutes, after which a misspelt plugin would be news.
    """
    refusal = try_plugins(config)
    try:
        require_trackers(config.track or () if {"track", "wandb"} & config.model_fields_set else ())
        require_training_extra()
    except MissingExtraError:
        if refusal is None or _needs_the_extra(refusal):
            from vime.data.dataset import check_prompt_data

            check_prompt_data(config)
            raise
    if refusal is not None:
        raise refusal from refusal.__cause__
    unreadable = unreadable_entry_points()
    if unreadable is not None:
        raise unreadable


def try_plugins(config: RunConfig) -> VimeError | None:
    """Load the plugins and path functions in a process of its own first, and return the error.

    A module that ends its process or waits for ever would otherwise end or hold up the run without a word. There is no
    limit of time: who takes long is named, and the user decides.
    """
    catalog = discover()
    names = selected(config.plugin, config.no_plugin, catalog)
    for name in names:
        catalog.find(name)  # what metadata can tell needs no import
    paths = [EVAL_PATH_FLAG, *(info.path_flag for info in HOOKS.values() if info.path_flag)]
    if not names and not any(getattr(config, flag) for flag in paths):
        PluginManager.load(config, catalog=catalog)  # the names in its settings are checked all the same
        return None
    return call_in_child(Call("vime.cli.ready:load", config, "the plugins"), on_wait=waiting_for).error


def load(config: RunConfig, announce: Announce) -> None:
    """The child's side."""
    PluginManager.load(config, announce=announce)


def _needs_the_extra(error: VimeError) -> bool:
    cause = error.__cause__
    missing = cause.missing_module if isinstance(error, PluginError) and isinstance(cause, ChildTraceback) else None
    return (missing or "").partition(".")[0] in TRAINING
