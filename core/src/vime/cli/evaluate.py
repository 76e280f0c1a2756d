"""`vime eval`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.cli.flags import ParsedFlags, parse_flags, resolve
from vime.cli.ready import require_ready
from vime.cli.render import warn
from vime.cli.tables import print_table
from vime.config.names import flag_of
from vime.errors import ConfigError
from vime.redact import Redactor

if TYPE_CHECKING:
    from vime.config.load import Resolved
    from vime.runtime.evaluation import Evaluation

RESULTS = "evaluation.json"
"""In the run's folder: what --json prints."""


def eval_command(words: list[str]) -> int:
    """Check the configuration, then evaluate one model, or each of --checkpoints, on the datasets. Returns the exit code."""
    parsed = parse_flags(words, switches=("json",), lists=("checkpoints",))
    models = _models(parsed)
    resolved = resolve(parsed, dict(os.environ), purpose="eval", model=str(models[0].path) if models else None)
    with Redactor.of(os.environ, resolved.config).errors():
        for line in resolved.warnings:
            warn(line)
        require_ready(resolved.config)
        return _evaluate(resolved, models, as_json="json" in parsed.switches)


def _evaluate(resolved: Resolved, models: list[Any], *, as_json: bool) -> int:
    """Evaluate, write evaluation.json, and print the scores as JSON or, of several models, as a table. Returns the exit code."""
    from vime.loop import evaluate, evaluate_each

    results: list[dict[str, Any]] = []
    evaluations: list[tuple[str, Evaluation]] = []

    def done(name: str, path: str, evaluation: Evaluation) -> None:
        evaluations.append((name, evaluation))
        results.append({"checkpoint": path, "step": evaluation.step, "run_folder": evaluation.run_folder, "metrics": evaluation.metrics})
        Path(evaluation.run_folder, RESULTS).write_text(_as_json(results), encoding="utf-8")

    try:
        if models:
            return evaluate_each(resolved, models, lambda model, evaluation: done(model.name, str(model.path), evaluation))
        model = resolved.config.load or str(resolved.config.hf_checkpoint)
        return evaluate(resolved, lambda evaluation: done(model, model, evaluation))
    finally:
        if as_json and results:
            sys.stdout.write(_as_json(results))
        elif models and evaluations:
            header, rows = score_table(evaluations)
            print_table(header, rows, numbers=header[2:])


def _models(parsed: ParsedFlags) -> list[Any]:
    """The models of --checkpoints, all of them whole."""
    if "checkpoints" not in parsed.lists:
        return []
    from vime.runtime.models import find_models

    for other in ("hf_checkpoint", "load"):
        if other in parsed.values:
            raise ConfigError(f"--checkpoints and {flag_of(other)} both name what to evaluate", hint="name all models after --checkpoints")
    return find_models(parsed.lists["checkpoints"])


def _as_json(results: Sequence[dict[str, Any]]) -> str:
    return json.dumps(results, indent=2, ensure_ascii=False) + "\n"


def score_table(evaluations: Sequence[tuple[str, Evaluation]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one row for each model and dataset, with the mean reward, pass@k, what was cut off, and the mean length."""
    found = {key for _, evaluation in evaluations for name in evaluation.datasets for key in _pass_keys(evaluation, name)}
    passes = [f"pass@{k}" for k in sorted(found)]
    header = ["checkpoint", "dataset", "reward", *passes, "truncated", "length"]
    rows: list[list[str]] = []
    failed: list[str] = []
    for model, evaluation in evaluations:
        for name in evaluation.datasets:
            values = [
                (f"eval/{name}", ".4f"),
                *((f"eval/{name}-{key}", ".4f") for key in passes),
                (f"eval/{name}-truncated_ratio", ".4f"),
                (f"eval/{name}/response_len/mean", ".1f"),
            ]
            cells = [format(evaluation.metrics[key], form) if key in evaluation.metrics else "-" for key, form in values]
            rows.append([model, name, *cells])
            failed.append(f"{evaluation.metrics.get(f'eval/{name}/failed_samples', 0):g}")
    if any(count != "0" for count in failed):
        return [*header, "failed"], [[*row, count] for row, count in zip(rows, failed, strict=True)]
    return header, rows


def _pass_keys(evaluation: Evaluation, name: str) -> list[int]:
    prefix = f"eval/{name}-pass@"
    return [int(key.removeprefix(prefix)) for key in evaluation.metrics if key.startswith(prefix) and key.removeprefix(prefix).isdigit()]
