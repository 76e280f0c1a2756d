"""How the time of a step grows with prompts, samples per prompt, response length, model size and plugins.

    python benchmarks/scale.py            prints the tables
    python benchmarks/scale.py --write    and writes them to benchmarks/scale.md, with the plots in benchmarks/scale/
    python benchmarks/scale.py --quick    three sizes of each and fewer steps, to see that it works

Whole runs of `vime.loop.train`, with what a run does by default (TensorBoard, samples, a checkpoint at the end). The first
part has a real engine and a real trainer, on models of the quickstart's form with random weights, whose answers have exactly
the length that is asked for; one engine serves all runs of a model. In the second part `FakePlacement` takes their place,
with an engine that answers at once: what is left is the framework's own work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from machine import machine

from vime.api import Generation, Sample, hookimpl
from vime.config.load import Resolved
from vime.config.run_config import RunConfig
from vime.loop import train
from vime.plugins.manager import PluginManager
from vime.runtime.placement import InProcess, Placement
from vime.testing.fakes import FakeEngine
from vime.testing.placement import QUICKSTART, FakePlacement, FakeTrainer

if TYPE_CHECKING:
    from vime.engine.local import SteppedEngine

PROMPTS = 4_096
"""Rows of the data file, all of one length."""
CONTEXT = 512
"""Tokens that the models have room for."""
MODELS = ((192, 2), (320, 2), (384, 4), (512, 6), (768, 7))
"""Hidden size and layers: about 1 to 58 million parameters."""


@dataclass(frozen=True)
class Series:
    """A size that grows while the others stay."""

    name: str
    """The size: prompts, samples, length (tokens of a response), plugins or parameters."""
    sizes: tuple[int, ...]
    """Where `name` is parameters, indices into MODELS."""
    prompts: int = 8
    samples: int = 8
    length: int = 32
    unit: str = "token"
    """What the work is counted in; tokens are those of the responses."""
    fitted: tuple[str, ...] = ("rollout", "train", "step")
    """Parts of a step to fit a line to."""

    def settings(self, size: int) -> dict[str, int]:
        settings = {"prompts": self.prompts, "samples": self.samples, "length": self.length, "plugins": 0}
        return settings | ({self.name: size} if self.name in settings else {})

    def work(self, size: int) -> int:
        """In a step, in units of `unit`; `size` of a model is the number of its parameters."""
        settings = self.settings(size)
        return settings["prompts"] * settings["samples"] * settings["length"] if self.unit == "token" else size

    @property
    def title(self) -> str:
        fixed = {"prompts": f"{self.prompts} prompts", "samples": f"{self.samples} samples", "length": f"{self.length} tokens"}
        return f"{self.name}, at {' x '.join(text for name, text in fixed.items() if name != self.name)}"


REAL = (
    Series("prompts", (4, 8, 16, 32, 64)),
    Series("samples", (2, 4, 8, 16, 32)),
    Series("length", (16, 32, 64, 128, 256)),
    Series("plugins", (0, 1, 5, 20), unit="plugin", fitted=("hooks",)),
)
MODEL = Series("parameters", tuple(range(len(MODELS))), prompts=4, unit="parameter", fitted=("rollout", "train", "sync", "step"))
OWN = ("processor", "step")
FAKE = (
    Series("prompts", (256, 512, 1_024, 2_048, 4_096), samples=4, length=16, fitted=OWN),
    Series("samples", (32, 128, 512, 2_048), length=16, fitted=OWN),
    Series("length", (1_024, 2_048, 4_096, 8_192, 16_384), fitted=OWN),
    Series("plugins", (0, 1, 5, 20, 40), prompts=256, length=16, unit="plugin", fitted=("hooks", "processor")),
)
Measured = list[tuple[int, dict[str, float]]]
"""For each size of a series the medians of its steps: seconds by part."""


# --- one run ----------------------------------------------------------------------------------------------------------


async def custom_rm(args: Any, sample: Sample) -> float:
    return float((sample.index or 0) % 2)


def rollout_sample_hook(sample: Sample) -> None:
    pass


def shape_reward(sample: Sample) -> float:
    return 0.0


def dynamic_sampling_filter(samples: list[Sample]) -> bool:
    return True


def plugins_of(count: int) -> PluginManager:
    """The reward, and `count` plugins with two hooks for each sample and one for each group."""
    manager = PluginManager()
    trivial = (rollout_sample_hook, shape_reward, dynamic_sampling_filter)
    for name, functions in [("reward", (custom_rm,)), *((f"plugin{number}", trivial) for number in range(count))]:
        module = ModuleType(name)
        for function in functions:
            setattr(module, function.__name__, hookimpl(function))
        manager.add(module, name=name)
    return manager


def run(settings: dict[str, int], model: Path, steps: int, placement: Placement, **options: Any) -> list[dict[str, float]]:
    """A run of one step more than `steps`: seconds by part of each but the first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input": f"{number + 1000} + {number + 2000} = "}) + "\n" for number in range(PROMPTS)))
        config = RunConfig(
            hf_checkpoint=str(model),
            prompt_data=str(prompts),
            num_rollout=steps + 1,
            rollout_batch_size=settings["prompts"],
            n_samples_per_prompt=settings["samples"],
            rollout_max_response_len=settings["length"],
            rollout_min_new_tokens=settings["length"],
            run_dir=str(folder / "run"),
            quiet=True,
            **options,
        )
        with patch.object(PluginManager, "load", lambda config: plugins_of(settings["plugins"])):
            assert train(Resolved(config, {}), placement) == 0
        metrics: list[dict[str, float]] = [{} for _ in range(steps + 1)]
        for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
            entry = json.loads(line)
            metrics[entry["step"]] |= entry
    return [parts(step) for step in metrics[1:]]


def parts(metrics: dict[str, float]) -> dict[str, float]:
    """Seconds of a step by part: `rest` is what belongs to none, `hooks` what the trivial plugins took inside the others."""
    found = {part: metrics[f"perf/{part}_time"] for part in ("rollout", "train", "sync")}
    step = metrics["perf/step_time"]
    hooks = sum(value for key, value in metrics.items() if key.startswith("hooks/plugin")) / 1000
    return found | {"rest": step - sum(found.values()), "step": step, "hooks": hooks}


class Kept(InProcess):
    """Hands out one engine for all runs: closing it has no effect."""

    engine: SteppedEngine | None = None

    def start_engine(self) -> SteppedEngine:
        from vime.engine.local import SteppedEngine

        class KeptEngine(SteppedEngine):
            def close(self) -> None:
                pass

        needs = self._needs
        if self.engine is None:
            self.engine = KeptEngine(needs.config, needs.model_path, dtype="float32", deterministic=needs.deterministic, concurrency=256)
        self._engine = self.engine
        return self.engine


class AtOnce(FakeEngine):
    """Answers at once, with as many tokens as are allowed."""

    async def generate(self, token_ids: Any, sampling_params: Any, **options: Any) -> Generation:
        length = sampling_params["max_new_tokens"]
        return Generation([5] * length, [-1.0] * length, "1" * length, "length", self.weight_version)


class TimedPlacement(FakePlacement):
    """Notes this process's processor time at each sync: the end of a step."""

    def __init__(self) -> None:
        engine = AtOnce()
        super().__init__(engine, FakeTrainer(engine))
        self.times: list[float] = []

    def push_weights(self, version: int) -> None:
        super().push_weights(version)
        self.times.append(time.process_time())


def write_model(folder: Path, hidden: int, layers: int) -> int:
    """A model of the quickstart's form with random weights; its number of parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(
        QUICKSTART,
        hidden_size=hidden,
        intermediate_size=hidden * 10 // 3,
        num_hidden_layers=layers,
        layer_types=["full_attention"] * layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=CONTEXT,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(QUICKSTART, model_max_length=CONTEXT).save_pretrained(folder)
    return model.num_parameters()


# --- a process --------------------------------------------------------------------------------------------------------

Once = Callable[[dict[str, int]], list[dict[str, float]]]


def measure(series: Sequence[Series], rounds: int, once: Once) -> dict[str, Measured]:
    """Run every size of these series once in each round, every second round backwards, after a run that does not count."""
    once(series[0].settings(series[0].sizes[0]))
    points = [(each, size) for each in series for size in each.sizes]
    found: dict[tuple[str, int], list[dict[str, float]]] = {(each.name, size): [] for each, size in points}
    for number in range(rounds):
        for each, size in points if number % 2 == 0 else reversed(points):
            found[each.name, size] += once(each.settings(size))
    medians: dict[str, Measured] = {each.name: [] for each in series}
    for (name, size), steps in found.items():
        medians[name].append((size, {part: statistics.median(step[part] for step in steps) for part in steps[0]}))
    return medians


def of_model(number: int, *, quick: bool) -> dict[str, Measured]:
    """The real part on one of MODELS: that point of the series of models, and on the smallest model the other series."""
    rounds, steps = (1, 2) if quick else (2, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = write_model(folder, *MODELS[number])
        placement = Kept()
        options: dict[str, Any] = {"vllm_max_model_len": CONTEXT, "vllm_kv_cache_gib": 1.0, "train_dtype": "float32"}
        series = [replace(MODEL, sizes=(number,)), *(shortened(REAL, quick=quick) if number == 0 else ())]
        found = measure(series, rounds, lambda settings: run(settings, folder, steps, placement, **options))
    return found | {MODEL.name: [(parameters, medians) for _, medians in found[MODEL.name]]}


def of_framework(*, quick: bool) -> dict[str, Measured]:
    """The part without a model."""
    rounds, steps = (1, 2) if quick else (2, 3)

    def once(settings: dict[str, int]) -> list[dict[str, float]]:
        placement = TimedPlacement()
        found = run(settings, QUICKSTART, steps, placement)
        _, *ends = placement.times
        return [step | {"processor": ends[number + 1] - ends[number]} for number, step in enumerate(found)]

    return measure(shortened(FAKE, quick=quick), rounds, once)


def shortened(series: Sequence[Series], *, quick: bool) -> list[Series]:
    return [replace(each, sizes=each.sizes[:3]) if quick else each for each in series]


def in_a_process(part: str, *, quick: bool) -> dict[str, Measured]:
    started = time.perf_counter()
    command = [sys.executable, __file__, "--part", part, *(["--quick"] if quick else [])]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(finished.stderr)
    print(f"{part}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return json.loads(finished.stdout.splitlines()[-1])


# --- what is said of it -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A straight line through seconds over work, and exponents: 1 is a straight line through 0, less a fixed part beside it."""

    fixed: float
    slope: float
    r2: float
    exponent: float
    """Of a power law through all points."""
    last: float
    """Of one through the two largest sizes."""

    @classmethod
    def of(cls, work: Sequence[float], seconds: Sequence[float]) -> Fit:
        import numpy as np

        x, y = np.array(work, dtype=float), np.array(seconds)
        slope, fixed = np.polyfit(x, y, 1)
        r2 = 1 - ((y - slope * x - fixed) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        log_x, log_y = np.log(x[(x > 0) & (y > 0)]), np.log(y[(x > 0) & (y > 0)])
        last = (log_y[-1] - log_y[-2]) / (log_x[-1] - log_x[-2])
        return cls(float(fixed), float(slope), float(r2), float(np.polyfit(log_x, log_y, 1)[0]), float(last))


def fit(series: Series, points: Measured, part: str) -> Fit:
    """For plugins of what they add to a step without any."""
    without = points[0][1][part] if series.name == "plugins" else 0.0
    return Fit.of([series.work(size) for size, _ in points], [medians[part] - without for _, medians in points])


def tables(series: Sequence[Series], found: dict[str, Measured], columns: Sequence[str]) -> str:
    """The medians of every series, in milliseconds."""
    text = ""
    for each in series:
        text += f"\n| {each.title} | {' | '.join(columns)} |\n|---:|{'---:|' * len(columns)}\n"
        for size, medians in found[each.name]:
            text += f"| {size:,} | {' | '.join(f'{1000 * medians[column]:,.1f}' for column in columns)} |\n"
    return text


def fits(series: Sequence[Series], found: dict[str, Measured]) -> str:
    text = "| growing | part | fixed, ms | more, µs | R² | exponent | at the end |\n|---|---|---:|---:|---:|---:|---:|\n"
    for each in series:
        for part in each.fitted:
            line = fit(each, found[each.name], part)
            cells = [each.name, part, f"{1000 * line.fixed:,.1f}", f"{1e6 * line.slope:,.3g} a {each.unit}", f"{line.r2:.4f}"]
            text += f"| {' | '.join([*cells, f'{line.exponent:.2f}', f'{line.last:.2f}'])} |\n"
    return text


def plot(path: Path, series: Sequence[Series], found: dict[str, Measured]) -> None:
    """A panel for each series: medians as points, and the fitted lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 3 if len(series) > 4 else 2
    figure, panels = plt.subplots(2, columns, figsize=(4 * columns, 6.4), layout="constrained", squeeze=False)
    for panel in panels.flat[len(series) :]:
        panel.set_axis_off()
    for panel, each in zip(panels.flat, series, strict=False):
        sizes = [size for size, _ in found[each.name]]
        for part in each.fitted:
            line = fit(each, found[each.name], part)
            start = found[each.name][0][1][part] if each.name == "plugins" else 0.0
            (drawn,) = panel.plot(sizes, [medians[part] for _, medians in found[each.name]], "o", label=f"{part} (R² {line.r2:.3f})")
            ends = [sizes[0], sizes[-1]]
            panel.plot(ends, [start + line.fixed + line.slope * each.work(size) for size in ends], color=drawn.get_color(), linewidth=1)
        panel.set(title=each.title, ylabel="seconds a step", ylim=(0, None))
        panel.title.set_fontsize(9)
        panel.legend(fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=76)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/scale.md and the plots in benchmarks/scale/")
    parser.add_argument("--quick", action="store_true", help="three sizes of each series and fewer steps")
    parser.add_argument("--part", help="measure one part in this process: framework, or the number of a model")
    options = parser.parse_args()
    if options.part:
        quick = options.quick
        print(json.dumps(of_framework(quick=quick) if options.part == "framework" else of_model(int(options.part), quick=quick)))
        return
    real: dict[str, Measured] = {}
    for number in shortened([MODEL], quick=options.quick)[0].sizes:
        for name, points in in_a_process(str(number), quick=options.quick).items():
            real[name] = real.get(name, []) + points
    fake = in_a_process("framework", quick=options.quick)
    series = (*REAL, MODEL)
    rounds = "2 steps of each size" if options.quick else "6 steps of each size, in two rounds, one upwards and one downwards"
    text = f"""# How the time of a step grows

Written by `python benchmarks/scale.py --write`{", with --quick" if options.quick else ""}, {datetime.datetime.now(tz=datetime.UTC).date()};
{machine()}. Medians of
{rounds}; the first step of a run does not count.
Whole runs, with samples and TensorBoard written as by default.

A straight line is fitted to the seconds of a step over its work: response tokens, plugins (what they add to a step without any) or
parameters of the model. `exponent` is that of a power law through all sizes, `at the end` through the two largest: what grows
faster than its work has one over 1, a fixed part beside a straight line makes it smaller. `hooks` is what the plugins took inside
the other parts, `rest` what belongs to no part: metrics and samples written.

## With a real engine and trainer

On models of the quickstart's form with random weights, in float32, the smallest one where the size of the model does not grow.
Attention is the one thing here that has to grow faster than the responses; a batch of more requests costs vLLM less for each.

{fits(series, real)}
![With a real engine and trainer](scale/real.png)
{tables(series, real, ("rollout", "train", "sync", "rest", "step", "hooks"))}
## The framework alone

An engine that answers at once and a trainer that does nothing: all that is left is vime's own work (`processor`: processor time of
the whole process). The collector of Python's cyclic garbage walks what is in flight, which is more in larger rollouts.

{fits(FAKE, fake)}
![The framework alone](scale/framework.png)
{tables(FAKE, fake, ("rollout", "train", "rest", "step", "processor", "hooks"))}"""
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
        folder = Path(__file__).with_suffix("")
        plot(folder / "real.png", series, real)
        plot(folder / "framework.png", FAKE, fake)


if __name__ == "__main__":
    main()
