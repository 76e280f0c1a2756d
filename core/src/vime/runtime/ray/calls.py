"""Calls of actors, with errors that a run understands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vime.errors import TrainerError, VimeError

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


class RemoteTraceback(Exception):
    """The way that an error came in an actor's process: text, since frames do not travel. The cause of what the caller gets."""


@contextmanager
def signals_as_raised() -> Iterator[None]:
    """Raise what a signal's handler has raised while Ray waited: its compiled code makes a SystemError of all but KeyboardInterrupt."""
    try:
        yield
    except SystemError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, Exception):
            raise
        raise cause from None


def translated(error: BaseException, dead: Callable[[str], VimeError]) -> BaseException:
    """What the caller of an actor is to see: the error that the actor's code raised, or `dead(cause)` where the actor is gone.

    An error that vime did not raise on purpose gets a note of the line that raised it; its cause is the remote traceback.
    """
    from ray.exceptions import ActorUnavailableError, ObjectLostError, OwnerDiedError, RayActorError, RayTaskError

    if isinstance(error, RayTaskError):
        cause: Any = error.cause
        if isinstance(cause, RayActorError | OwnerDiedError | ObjectLostError):
            return translated(cause, dead)
        text = str(error)
        if not isinstance(cause, Exception):
            cause = TrainerError(text.strip().splitlines()[-1])
        if not isinstance(cause, VimeError):
            cause.add_note(f"raised at {_place(text)}")
        cause.__cause__ = RemoteTraceback(f"\n{text.strip()}")
        return cause
    if isinstance(error, RayActorError | ActorUnavailableError):
        return dead(cause_of_death(error))
    return error


def _place(traceback: str) -> str:
    """The last line of code that a traceback names, without the folders around it."""
    frames = list(_FRAME.finditer(traceback))
    if not frames:
        return "a place that is not known"
    last = frames[-1]
    return f"{Path(*Path(last['file']).parts[-2:])}:{last['line']} in {last['function']}"


def cause_of_death(error: BaseException) -> str:
    """Why an actor died, in a few words."""
    text = str(error)
    if "memory" in text.lower() and "threshold" in text.lower():
        return "was ended by Ray, since the memory of its node ran out"
    if "SYSTEM_ERROR" in text or "connection error code" in text or "worker died" in text.lower() or "unexpectedly" in text:
        return "has died (killed, out of memory, or crashed)"
    return "has died: " + next((line.strip() for line in text.splitlines() if line.strip()), "no reason known")


def as_future(reference: Any, dead: Callable[[str], VimeError]) -> Future[Any]:
    """The future of an actor's answer, with translated errors."""
    result: Future[Any] = Future()

    def hand_over(answer: Future[Any]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        error = answer.exception()
        if error is None:
            result.set_result(answer.result())
        else:
            result.set_exception(translated(error, dead))

    reference.future().add_done_callback(hand_over)
    return result
