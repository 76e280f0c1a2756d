"""One place that metrics and samples go through on their way to the run folder."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vime.redact import Redactor
from vime.sample import Sample
from vime.track.console import Console
from vime.track.jsonl import JsonlWriter, last_steps
from vime.track.run_dir import RunDir
from vime.track.samples import Dropped, TokenText, TokenValues, remove_after, token_texts, write_samples
from vime.track.services import ServiceRun, Services
from vime.track.tensorboard import TensorBoardWriter


class Tracker:
    """Writes metrics.jsonl, TensorBoard events and sample files, and feeds the services of --track.

    A backend that fails is warned about once and left out.
    """

    def __init__(self, run_dir: RunDir, config: Any, console: Console, hides: Redactor | None = None) -> None:
        """`hides` knows the secrets that no text of a sample may show."""
        self._run_dir = run_dir
        self._hides = hides or Redactor()
        self._console = console
        self._last = last_steps(run_dir.metrics)
        """Of each namespace."""
        self._jsonl = JsonlWriter(run_dir.metrics)
        self._tensorboard: TensorBoardWriter | None = None
        self._write_samples = True
        self._text_of: TokenText | None = None
        self._latest: dict[str, float] = {}
        self._latest_step: int | None = None
        if getattr(config, "tensorboard", True):
            self._tensorboard = self._guarded("TensorBoard", lambda: TensorBoardWriter(run_dir.tensorboard))
        names = [name for name in getattr(config, "track", None) or () if name != "tensorboard"]
        values = self._hides.data(config.model_dump() if names else {})
        service_run = ServiceRun(run_dir.path.resolve().name, run_dir.path, getattr(config, "track_project", None), values)
        self._services = Services(names, service_run, logged=self._last, say=console.info, warn=console.warn)

    def log(self, step: int, namespace: str, metrics: Mapping[str, Any]) -> None:
        """Write one line `{"step", "time", "<namespace>/<key>": number}`; what is not a finite number is left out with a warning.

        The steps of a namespace increase strictly: a second line of one step, or of an earlier one, is left out with a warning.
        """
        full = self.finite(namespace, metrics)
        if not full:
            return
        if step <= self._last.get(namespace, -1):
            self._console.warn(f"{namespace} was logged for step {self._last[namespace]} and then again for step {step}; that is left out")
            return
        self._last[namespace] = step
        self._jsonl.write(step, full)
        self._services.log(namespace, step, full)
        if self._latest_step != step:
            self._latest, self._latest_step = {}, step
        self._latest.update(full)
        if self._tensorboard is not None and self._guarded("TensorBoard", lambda: self._tensorboard.write(step, full) or True) is None:  # type: ignore[union-attr]
            self._tensorboard = None

    def latest(self) -> dict[str, float]:
        """All metrics of the last logged step, by full key: what the console's line shows."""
        return dict(self._latest)

    def read_tokens_with(self, tokenizer: Any) -> None:
        """From now on sample files have the text of each token."""
        self._text_of = token_texts(tokenizer)

    def log_samples(
        self,
        step: int,
        split: str,
        groups: Iterable[list[Sample]],
        dropped: Dropped = (),
        trained: Mapping[int, TokenValues] | None = None,
    ) -> None:
        """Write samples/<split>_<step>.parquet: kept groups, and dropped ones as (group, reason); see `write_samples`."""
        if not self._write_samples:
            return

        def write() -> object:
            options: dict[str, Any] = {"trained": trained, "text_of": self._text_of, "hides": self._hides}
            return write_samples(self._run_dir.samples, step, split, groups, dropped, **options)

        self._write_samples = self._guarded("writing of samples", write) is not None

    def sync(self) -> None:
        """Bring metrics.jsonl to the disk."""
        self._jsonl.sync()

    def truncate_after(self, step: int, *, keep_evaluation: bool = False) -> None:
        """Forget what was written for steps after `step`, the last one of the checkpoint that a run resumes from.

        `keep_evaluation` keeps the evaluation that was logged at that boundary, as step + 1.
        """
        self._jsonl.truncate_after(step, keep_evaluation=keep_evaluation)
        self._last = last_steps(self._run_dir.metrics)
        remove_after(self._run_dir.samples, step, keep_evaluation=keep_evaluation)
        if self._tensorboard is not None:
            self._guarded("TensorBoard", lambda: self._tensorboard.truncate_after(step))  # type: ignore[union-attr]

    def close(self) -> None:
        """End all of it. Called while an exception passes by, the services are told that the run has failed."""
        self._jsonl.close()
        self._services.close(failed=sys.exc_info()[0] is not None)
        if self._tensorboard is not None:
            self._guarded("TensorBoard", self._tensorboard.close)
            self._tensorboard = None

    def finite(self, namespace: str, metrics: Mapping[str, Any]) -> dict[str, float]:
        """The metrics under their full names, as Python numbers; what is not a finite number is left out with a warning."""
        finite: dict[str, float] = {}
        for name, value in metrics.items():
            key = name if name.startswith(f"{namespace}/") else f"{namespace}/{name}"
            number = _number(value)
            if number is None:
                self._console.warn(f"metric {key} is a {type(value).__name__}, not a number; it is left out")
            elif not math.isfinite(number):
                self._console.warn(f"metric {key} is not finite; such values are left out of metrics.jsonl")
            else:
                finite[key] = number
        return finite

    def _guarded(self, backend: str, action: Callable[[], Any]) -> Any:
        """Run an action of a backend; None, with one warning, when it fails. Metrics never end a training run."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, training goes on
            fix = "" if not isinstance(error, ImportError) else f"; pip install {error.name or backend}"
            self._console.warn(f"{backend} is switched off: {type(error).__name__}: {error}{fix}")
            return None


def _number(value: Any) -> float | int | None:
    """A Python number out of a number, a NumPy scalar or a tensor of one element; None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    try:
        return float(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
