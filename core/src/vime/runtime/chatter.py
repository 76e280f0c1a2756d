"""What vLLM, DeepSpeed and their like say, in files of the run folder: `logs/vllm.log`, ..., and `logs/native.log`.

Errors, and warnings of the kind that explain a run which goes wrong, are told on the console too. What C++ code writes to
the file descriptors is caught while the libraries start, which is when it is written; later they are as they were, so
that nothing that ends a run goes unseen.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vime.redact import Redactor

LIBRARIES = {
    "vllm": ("vllm",),
    "deepspeed": ("deepspeed", "DeepSpeed"),
    "transformers": ("transformers",),
    "torch": ("torch", "torch.distributed", "torch.utils.cpp_extension"),
}
"""Files by name, with the loggers that write to them."""
MATTERS = re.compile(
    r"out of memory|\boom\b|preempt|recompute|truncat|overflow|\bnan\b|corrupt|mismatch|exceed|too (small|large|long)|time[d -]?out|"
    r"not (enough|sufficient)|insufficient|newly initialized|not (used|initialized) when",
    re.IGNORECASE,
)
"""Warnings that are told: memory, lengths, numbers and weights that are not what they should be."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LONGEST = 300


class Chatter:
    """Owns the log files and the handlers of one run; `close` takes them away again."""

    def __init__(self, folder: Path, warn: Callable[[str], None], hides: Redactor, *, loud: bool = False) -> None:
        """`loud` leaves everything on the console, as the libraries have it. Made before they are imported."""
        self._folder, self._loud = folder, loud
        self._handlers: list[tuple[logging.Logger, logging.Handler]] = []
        if loud:
            return
        os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
        folder.mkdir(parents=True, exist_ok=True)
        for name, loggers in LIBRARIES.items():
            file = logging.FileHandler(folder / f"{name}.log", encoding="utf-8", delay=True)
            file.setFormatter(_Hiding(_FORMAT, hides))
            tell = _ToConsole(name, warn)
            for logger in map(logging.getLogger, loggers):
                for handler in (file, tell):
                    logger.addHandler(handler)
                    self._handlers.append((logger, handler))
        self._adopt()

    @contextmanager
    def captured(self) -> Iterator[None]:
        """What is written to the file descriptors 1 and 2 within the block goes to native.log; sys.stdout and sys.stderr go on as before.

        A crash of the interpreter still shows where it was on stderr.
        """
        if self._loud or not _own_descriptors():
            yield
            return
        kept_out, kept_err = os.dup(1), os.dup(2)
        before = sys.stdout, sys.stderr
        log = os.open(self._folder / "native.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in before:
            stream.flush()
        sys.stdout = os.fdopen(os.dup(kept_out), "w", buffering=1, encoding=before[0].encoding, errors=before[0].errors)
        sys.stderr = os.fdopen(os.dup(kept_err), "w", buffering=1, encoding=before[1].encoding, errors=before[1].errors)
        tells_crashes = not faulthandler.is_enabled()
        if tells_crashes:
            faulthandler.enable(sys.stderr)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            yield
        finally:
            for stream in before:  # what was written through them belongs into the log too
                with suppress(OSError):
                    stream.flush()
            os.dup2(kept_out, 1)
            os.dup2(kept_err, 2)
            if tells_crashes:
                faulthandler.disable()
            passing = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = before
            for stream in passing:
                with suppress(OSError):
                    stream.close()
            for descriptor in (kept_out, kept_err, log):
                os.close(descriptor)
            self._adopt()

    def _adopt(self) -> None:
        """Take the handlers away that libraries have given their loggers for the terminal, and let them say more than errors."""
        for logger in {logger for logger, _ in self._handlers}:
            for handler in list(logger.handlers):
                if type(handler) is logging.StreamHandler:
                    logger.removeHandler(handler)
            logger.setLevel(logging.INFO if logger.name in ("vllm", "deepspeed", "DeepSpeed") else logging.WARNING)
            logger.propagate = False

    def close(self) -> None:
        """Remove the handlers, and what stayed empty."""
        for logger, handler in self._handlers:
            logger.removeHandler(handler)
            handler.close()
        self._handlers = []
        if not self._loud:
            for path in self._folder.glob("*.log"):
                if path.stat().st_size == 0:
                    path.unlink()
            with suppress(OSError):
                self._folder.rmdir()


class _Hiding(logging.Formatter):
    def __init__(self, form: str, hides: Redactor) -> None:
        super().__init__(form)
        self._hides = hides

    def format(self, record: logging.LogRecord) -> str:
        return self._hides.text(super().format(record))


class _ToConsole(logging.Handler):
    """Tells the first line of errors, and of warnings that matter."""

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._library, self._warn = name, warn

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        if text and (record.levelno >= logging.ERROR or MATTERS.search(text)):
            line = text.splitlines()[0][:_LONGEST]
            self._warn(f"{self._library}: {line}" + (f" (all of it in logs/{self._library}.log)" if line != text else ""))


def _own_descriptors() -> bool:
    """Whether sys.stdout and sys.stderr are the process's own; a test may have put others into their place."""
    try:
        return sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False
