"""The trace of a step: every sample has its spans, spans nest, and nothing is collected at any other time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time

import pytest

from vime.api import Sample
from vime.outputs import Generation
from vime.plugins.function import HookTimes
from vime.runtime.step import Step
from vime.track.trace import Span, Tracer, write_trace

NUM_GPUS = 0


def read(path):
    """Events in their order, and the names of the rows by number; checks what holds of every trace."""
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["ts"], int) for event in events)
    for thread in names:
        nested([event for event in events if event["tid"] == thread])
    return events, names


def nested(events):
    open_ends = []
    for event in events:
        while open_ends and open_ends[-1] <= event["ts"]:
            open_ends.pop()
        assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1], event
        open_ends.append(event["ts"] + event["dur"])


def spans_of(path):
    """The names of the spans of each row, in their order."""
    events, names = read(path)
    found = {}
    for event in events:
        found.setdefault(names[event["tid"]], []).append(event["name"])
    return found


def trace_of(run, tmp_path, number=3):
    """One rollout of a run on FakeEngine, as a step of the loop."""
    tracer = Tracer(number, tmp_path)
    run.runner.context = dataclasses.replace(run.runner.context, tracer=tracer)
    run.runner.built_in.context = run.runner.context
    step = Step(number, tracer)
    with tracer.step(number, run.plugins.times):
        with step.timed("rollout"):
            rollout = run.train(number)
        with step.timed("train"):
            time.sleep(0.001)
        with step.timed("sync"):
            time.sleep(0.001)
    return rollout, tmp_path / f"trace_step_{number}.json"


async def slow_reward(args, sample):
    await asyncio.sleep(0.002 * sample.index)
    return float(sample.index % 2)


def test_every_sample_has_its_spans_in_their_order(setup_run, tmp_path):
    run = setup_run(
        reward=slow_reward,
        rollout_sample_hook=lambda sample: None,
        shape_reward=lambda sample: 0.5,
        dynamic_sampling_filter=lambda samples: samples[0].group_index != 1,
        rollout_sample_filter=lambda samples: None,
        latency=0.002,
    )
    rollout, path = trace_of(run, tmp_path)
    found = spans_of(path)
    made = [sample for group in [*rollout.groups, *(group for group, _ in rollout.dropped)] for sample in group]
    assert len(made) >= 6
    for sample in made:
        assert found[f"sample {sample.index} (group {sample.group_index})"] == [
            "sample",
            "queueing",
            "generation",
            "rollout_sample_hook-0/rollout_sample_hook",
            "reward",
            "shape_reward-0/shape_reward",
            "dynamic_sampling_filter-0/dynamic_sampling_filter",
        ]
    assert found["step"] == ["step 3", "rollout", "train", "sync"]
    hooks = [name for row in found if row == "hooks" for name in found[row]]
    assert hooks.count("custom_rm-0/custom_rm") == sum(names.count("reward") for names in found.values()) >= len(made)
    assert "rollout_sample_filter-0/rollout_sample_filter" in hooks

    events, names = read(path)
    (whole,) = [event for event in events if event["name"] == "sample" and names[event["tid"]] == "sample 1 (group 0)"]
    said = {"index": 1, "group_index": 0, "status": "completed", "reward": 1.5, "response_length": 4}
    assert whole["args"] | {"status": "completed"} == said


def test_requests_of_an_agent_lie_in_its_call(setup_run, tmp_path):
    async def agent(args, sample, sampling_params, engine):
        sample.tokens = [1, 2]
        await asyncio.gather(*(engine.generate([1, 2, 3], sampling_params) for _ in range(3)))  # side by side: not one in another
        (generation,) = await engine.generate_many([(sample.tokens, sampling_params)])
        sample.append_response_tokens(args, tokens=generation.token_ids, log_probs=generation.log_probs)
        sample.status = Sample.Status.COMPLETED
        return sample

    _, path = trace_of(setup_run(custom_generate=agent, latency=0.002), tmp_path)
    row = spans_of(path)["sample 0 (group 0)"]
    assert row.count("generation") == 4
    assert row.index("custom_generate-0/custom_generate") < row.index("generation")


def test_the_engine_says_when_it_began(tmp_path):
    tracer = Tracer(0, tmp_path)
    with tracer.step(0, HookTimes()):
        start = time.monotonic()
        time.sleep(0.004)
        began = time.monotonic()
        time.sleep(0.004)
        tracer.generation(Sample(index=5), start, Generation([1], [0.0], "", "stop", 1, began))
        tracer.generation(Sample(index=6), start, Generation([1], [0.0], "", "stop", 1, began + 100))  # of another clock
        tracer.generation(Sample(index=7), start, Generation([1], [0.0], "", "stop", 1))
    events, names = read(tmp_path / "trace_step_0.json")
    seconds = {(names[event["tid"]], event["name"]): event["dur"] / 1e6 for event in events}
    assert seconds["sample 5", "queueing"] == pytest.approx(began - start, abs=1e-5)
    assert seconds["sample 5", "generation"] >= 0.0039
    assert seconds["sample 6", "generation"] == 0
    assert seconds["sample 7", "queueing"] == 0


def test_another_step_is_not_traced_and_hears_of_nothing(setup_run, tmp_path):
    tracer, times = Tracer(3, tmp_path), HookTimes()
    with tracer.step(2, times):
        assert not tracer.is_on
        assert times.trace is None
        assert tracer.part("train") is tracer.of_samples([Sample()], "reward")
        tracer.finished([Sample()], 0.0)
        tracer.generation(Sample(), 0.0, Generation([], [], "", "stop", 0))
    assert list(tmp_path.iterdir()) == []
    assert not Tracer().is_on


def test_a_step_that_fails_leaves_its_trace_and_what_heard_of_hooks_before(tmp_path):
    heard, times = [], HookTimes()
    times.trace = before = lambda key, seconds: heard.append(key)
    tracer = Tracer(0, tmp_path)

    def fail():
        with tracer.step(0, times):
            times.add("math/custom_rm", 0.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert times.trace is before
    assert heard == ["math/custom_rm"]
    assert spans_of(tmp_path / "trace_step_0.json") == {"hooks": ["math/custom_rm"], "step": ["step 0"]}


def test_spans_that_overlap_go_to_another_row(tmp_path):
    spans = [Span("a", "one", 0.0, 2.0), Span("a", "two", 1.0, 3.0), Span("a", "in one", 0.5, 1.5), Span("a", "later", 4.0, 5.0)]
    write_trace(tmp_path / "t.json", spans, 0.0)
    events, names = read(tmp_path / "t.json")
    rows = {}
    for event in events:
        rows.setdefault(event["tid"], []).append(event["name"])
    assert sorted(rows.values()) == [["one", "in one", "later"], ["two"]]
    assert set(names.values()) == {"a"}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
