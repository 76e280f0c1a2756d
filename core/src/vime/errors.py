"""The errors that a user meets, and the exit code each one ends a command with."""

from __future__ import annotations

EXIT_FAILED = 1
"""A failure while running, or a failed check."""
EXIT_REFUSED = 2
"""Refused before anything was started."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class VimeError(Exception):
    """Base of all errors that vime raises on purpose.

    `message` is one line that names the culprit, `hint` one line that says what to do. The command line prints both
    and no traceback.
    """

    exit_code: int = EXIT_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"


class ConfigError(VimeError):
    """A flag, a configuration key or a combination of them that cannot work."""

    exit_code = EXIT_REFUSED


class MissingExtraError(ConfigError):
    """A part of vime was asked for whose heavy dependencies are not installed."""


class DataError(VimeError):
    """A file or a row that cannot be used: names the file, the row and the keys that exist."""

    exit_code = EXIT_REFUSED


class PluginError(VimeError):
    """A plugin that is missing, broken or refused: names the plugin, its distribution and the fix."""

    exit_code = EXIT_REFUSED


class ContractError(VimeError):
    """A plugin returned or changed something that its hook does not allow."""


class EngineError(VimeError):
    """The inference engine failed, or does not hold the trainer's weights."""


class EngineDeadError(EngineError):
    """The engine as a whole cannot go on: asking it again is of no use."""


class TrainerError(VimeError):
    """The trainer failed: non-finite steps in a row, a batch that cannot be trained."""


class CheckpointError(VimeError):
    """A checkpoint that is missing, incomplete, corrupted or foreign."""

    exit_code = EXIT_REFUSED
