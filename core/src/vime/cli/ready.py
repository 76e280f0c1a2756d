"""The last check of `vime train` and `vime eval` before anything heavy is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime.config.extras import TRAINING, require_training_extra
from vime.errors import MissingExtraError, PluginError

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


def require_ready(config: RunConfig) -> None:
    """Raise MissingExtraError where the extra is missing, but first what else is wrong with the plugins and the data.

    Installing the extra takes minutes, after which a misspelt plugin would be news. With the extra the run itself
    checks both when it starts.
    """
    try:
        require_training_extra()
    except MissingExtraError:
        from vime.data.dataset import check_prompt_data
        from vime.plugins.manager import PluginManager

        try:
            PluginManager.load(config)
        except PluginError as error:
            if not _needs_the_extra(error):
                raise
        check_prompt_data(config)
        raise


def _needs_the_extra(error: PluginError) -> bool:
    cause = error.__cause__
    return isinstance(cause, ModuleNotFoundError) and (cause.name or "").partition(".")[0] in TRAINING
