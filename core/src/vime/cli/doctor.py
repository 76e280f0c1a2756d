"""`vime doctor`: whether a run would start here, and what it would meet with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vime.cli.flags import ParsedFlags, parse_flags, resolve
from vime.cli.render import waiting_for
from vime.cli.tables import plain_table
from vime.doctor.examine import Report, examine
from vime.doctor.findings import size_text
from vime.errors import EXIT_REFUSED, VimeError

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.runtime.ray.plan import Place

_LABELS = {"stops": "STOPS", "warning": "warning", "note": "note"}
_COLOURS = {"stops": "1;31", "warning": "33", "note": "2"}


def doctor_command(words: list[str]) -> int:
    """Look at the machine and, where flags say which, at the run that `vime train` would start with them.

    Returns 0 when it would start, 2 when it would not. Nothing is started, and no library of torch's size is imported.
    """
    parsed = parse_flags(words, switches=("json",))
    env = dict(os.environ)
    config, refusals, warnings = _resolved(parsed, env)
    report = examine(config, env, refusals=refusals, warnings=warnings, on_wait=waiting_for)
    if "json" in parsed.switches:
        sys.stdout.write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(as_text(report)) + "\n")
    return 0 if report.starts else EXIT_REFUSED


def _resolved(parsed: ParsedFlags, env: dict[str, str]) -> tuple[RunConfig | None, list[VimeError], list[str]]:
    """The configuration, if its values go together, what `vime train` would refuse of it, and what it would warn of."""
    if not (parsed.values or parsed.config_file or env.get("VIME_PLUGINS")):
        return None, [], []
    try:
        resolved = resolve(parsed, env)
        return resolved.config, [], list(resolved.warnings)
    except VimeError as error:
        try:
            resolved = resolve(parsed, env, check_files=False)
        except VimeError:
            return None, [error], []
        return resolved.config, [error], list(resolved.warnings)


def as_text(report: Report) -> Iterator[str]:
    """The lines of the report."""
    yield "installed"
    rows = [
        (version.name, version.installed or "-", "" if version.fits else f"vime asks for {version.wanted}") for version in report.versions
    ]
    yield from _indented(plain_table(("", "", ""), rows))
    for distribution, names in report.installed_plugins.items():
        yield f"  {distribution}: {', '.join(names)}"
    if not report.installed_plugins:
        yield "  no plugin"
    yield from ("", "machine", *_machine(report))
    if report.config is not None:
        yield from ("", "run", *_run(report))
    if report.estimate is not None:
        yield from ("", "memory (calculated; activations and the libraries themselves come on top)", *_memory(report))
    if report.plan is not None:
        yield from ("", f"placement (--runtime ray, {'the cluster' if report.config and report.config.ray_address else 'this machine'})")
        yield from _placement(report)
    yield from ("", *_findings(report))


def _indented(table: str) -> list[str]:
    return [f"  {line}" for line in table.splitlines() if line.strip()]


def _machine(report: Report) -> Iterator[str]:
    machine = report.machine
    of = "" if machine.cpus >= machine.cpus_seen else f" of {machine.cpus_seen}"
    yield f"  {machine.system}{' (WSL)' if machine.is_wsl else ''}"
    yield f"  CPUs      {machine.cpus:g}{of}"
    yield f"  memory    {machine.memory_gib:.1f} GiB, {machine.memory_free_gib:.1f} free"
    for index, gpu in enumerate(machine.gpus):
        size = "" if gpu.memory_gib is None else f", {gpu.memory_gib:.1f} GiB"
        yield f"  GPU {index:<5} {gpu.name}{size}{f', driver {gpu.driver}' if gpu.driver else ''}"
    if not machine.gpus:
        yield "  GPU       none"
    yield f"  /dev/shm  {'none' if machine.shm_gib is None else f'{machine.shm_gib:.2g} GiB'}"
    yield f"  disk      {size_text(report.disk_free_gib)} free in {report.runs_folder}"
    yield f"  files     {machine.open_files} may be open"


def _run(report: Report) -> Iterator[str]:
    config = report.config
    assert config is not None
    yield f"  runtime   {config.runtime}, pipeline {config.pipeline}"
    yield f"  model     {report.model or '-'}"
    for path, names in report.data.items():
        yield f"  data      {path} ({', '.join(names)})"
    for plugin in report.plugins:
        yield f"  plugin    {plugin['name']} ({plugin['distribution']} {plugin['version']})"


def _memory(report: Report) -> Iterator[str]:
    needed, config = report.estimate, report.config
    assert needed is not None and config is not None
    trained = "" if needed.trained == needed.parameters else f", {_millions(needed.trained)} of them trained"
    yield f"  {_millions(needed.parameters)} parameters{trained}; trainer {needed.train_dtype}, engine {needed.engine_dtype}"
    rows = [("trainer rank", config.trainer_ranks, needed.rank), ("  on the host", config.trainer_ranks, needed.rank_on_host)]
    rows += [("engine device", config.engines * config.engine_tp, needed.engine)]
    shown = [
        (what, str(count), size_text(sum(parts.values())), ", ".join(f"{name} {size_text(part)}" for name, part in parts.items()))
        for what, count, parts in rows
        if parts
    ]
    yield from _indented(plain_table(("", "number", "each", "of which"), shown, numbers=("number", "each")))
    yield f"  a checkpoint takes {size_text(needed.disk)} on the disk"


def _millions(number: int) -> str:
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


def _placement(report: Report) -> Iterator[str]:
    made = report.plan
    assert made is not None
    for node in report.nodes:
        gpus = f", {node.gpus} GPUs{f' ({node.devices})' if node.devices else ''}" if node.gpus else ""
        yield f"  node {node.name}: {node.cpus:g} CPUs, {node.memory_gib:.1f} GiB{gpus}"
    rows = [_row(f"rank {index}", place) for index, place in enumerate(made.ranks)]
    rows += [_row(f"engine {index}", place) for index, place in enumerate(made.engines)]
    numbers = ("bundle", "CPUs", "GPUs", "threads")
    yield from _indented(plain_table(("actor", "node", *numbers), rows, numbers=numbers))
    shares = ", engines and ranks in turns on the same devices" if made.colocated else ""
    yield f"  together {made.needs['CPU']:g} CPUs and {made.needs['GPU']:g} GPUs; placement group {made.strategy}{shares}"


def _row(actor: str, place: Place) -> tuple[str, ...]:
    gpus = f"{place.gpus:g}" if not place.shares else "of rank " + ", ".join(map(str, place.shares))
    return actor, place.node, str(place.bundle), f"{place.cpus:g}", gpus, str(place.threads)


def _findings(report: Report) -> Iterator[str]:
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for level in ("note", "warning", "stops"):
        for finding in report.findings:
            if finding.level != level:
                continue
            label = f"{_LABELS[level]}:"
            if is_coloured:
                label = f"\x1b[{_COLOURS[level]}m{label}\x1b[0m"
            yield f"{label} {finding.text}"
            if finding.hint is not None:
                yield f"  hint: {finding.hint}"
    stopping = sum(finding.level == "stops" for finding in report.findings)
    if report.config is None and report.starts:
        yield "nothing is in the way; with the flags of a run, vime doctor looks at that run: vime doctor --plugin math"
    elif report.starts:
        yield "the run would start"
    else:
        yield f"the run would not start: {stopping} thing{'s' if stopping > 1 else ''} in the way"
