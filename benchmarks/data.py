"""What a data file of a million rows costs: rows per second at the start, handed out and read at random, and bytes held a row.

    python benchmarks/data.py            prints the table
    python benchmarks/data.py --write    and writes it to benchmarks/data.md

Each format is measured in a process of its own, on the same rows: a prompt of about 120 characters, a label, metadata.
Handed out are whole groups, by the data source that a run has by default, in the order of the file and shuffled. Time is
processor time. Memory is what the process holds beyond what it held before the file was opened, after everything
that is not needed has been freed; the highest point on the way is in a column of its own.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import machine

from vime.config.run_config import RunConfig
from vime.data.dataset import load_dataset
from vime.rollout.data_source import RolloutDataSourceWithBuffer

FORMATS = ("jsonl", "json", "csv", "parquet")
READS = 50_000
GROUPS = 50_000
"""How many groups are handed out, `ROLLOUT` at a time."""
ROLLOUT = 32
SAMPLES = 8
"""Samples of a group."""


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        question = f"What is {number} plus {number * 7 % 1000}? Think step by step and give the answer in a box. "
        yield {"prompt": question + "x" * (number % 100), "label": str(number), "metadata": {"source": "sums", "level": number % 5}}


def write(path: Path, count: int) -> None:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(list(rows(count))), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            table = csv.writer(file)
            table.writerow(["prompt", "label", "metadata"])
            table.writerows([row["prompt"], row["label"], json.dumps(row["metadata"])] for row in rows(count))
        elif path.suffix == ".json":
            file.write("[" + ",\n".join(map(json.dumps, rows(count))) + "]")
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows(count))


def held() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(path: Path) -> dict[str, float]:
    """Rows a second at the start, handed out and read at random, bytes a row held and at the highest point; in this process."""
    if path.suffix == ".parquet":
        import pyarrow.parquet  # noqa: F401 - its own size is not that of the data
    gc.collect()
    before, started = held(), time.process_time()
    data = load_dataset(str(path), input_key="prompt", label_key="label")
    seconds = time.process_time() - started
    gc.collect()
    size = held() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    order = random.Random(0)
    places = [order.randrange(len(data)) for _ in range(READS)]
    started = time.process_time()
    for place in places:
        data[place]
    reads = READS / (time.process_time() - started)
    count = len(data)
    del data
    return {
        "start": count / seconds,
        "held": size / count,
        "peak": peak / count,
        "reads": reads,
        "file": path.stat().st_size / count,
        "ordered": handed_out(path, shuffled=False),
        "shuffled": handed_out(path, shuffled=True),
    }


def handed_out(path: Path, *, shuffled: bool) -> float:
    """Rows a second that a data source makes into groups of samples."""
    config = RunConfig(
        prompt_data=str(path), input_key="prompt", label_key="label", n_samples_per_prompt=SAMPLES, rollout_shuffle=shuffled, num_rollout=1
    )
    source = RolloutDataSourceWithBuffer(config)
    source.get_samples(1)  # the first shuffles
    groups = min(GROUPS, len(source) - 1)
    started = time.process_time()
    for first in range(0, groups, ROLLOUT):
        source.get_samples(min(ROLLOUT, groups - first))
    return groups / (time.process_time() - started)


def table(count: int) -> str:
    head = ("format", "file", "held", "highest point", "starting", "handed out in order", "handed out shuffled", "random reads")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    with tempfile.TemporaryDirectory() as folder:
        for suffix in FORMATS:
            path = Path(folder) / f"rows.{suffix}"
            subprocess.run([sys.executable, __file__, "--make", str(path), "--rows", str(count)], check=True)
            command = [sys.executable, __file__, "--one", str(path)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells = [f"{found[name]:,.0f}" for name in ("file", "held", "peak", "start", "ordered", "shuffled", "reads")]
            lines.append("| " + " | ".join([suffix, *cells]) + " |")
            print(lines[-1], file=sys.stderr, flush=True)
            path.unlink()
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/data.md")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--make", metavar="FILE", help="write the rows to a file")
    parser.add_argument("--one", metavar="FILE", help="measure one file in this process")
    options = parser.parse_args()
    if options.make:
        write(Path(options.make), options.rows)
        return
    if options.one:
        print(json.dumps(measure(Path(options.one))))
        return
    text = f"""# What a data file costs

Written by `python benchmarks/data.py --write`.

{options.rows:,} rows; processor time; {datetime.datetime.now(tz=datetime.UTC).date()};
{machine()}. The first three columns of figures are bytes a row, the others rows a second. Starting checks every
row: it is JSON, its keys are there, prompt, label and metadata have their types. Handing out makes a group of {SAMPLES} samples of
each row, {ROLLOUT} groups a call.

{table(options.rows)}

Of text files the place of each row is held, of parquet the columns that are used, as Arrow holds them. Nothing is held as
Python objects.
"""
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
