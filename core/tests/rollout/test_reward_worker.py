"""Synchronous rewards in worker processes: found and configured there, killed when they hang, counted when they fail."""

import asyncio
import os
import textwrap

import pytest

from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.rewards import RewardScorer
from vime.sample import Sample, Status

NUM_GPUS = 0


def group_of(*responses):
    return [Sample(index=index, group_index=0, response=text, status=Status.COMPLETED) for index, text in enumerate(responses)]


def rewards(samples):
    return [one.reward for one in samples]


def errors(scorer):
    """The failed rewards that were counted, by key."""
    return {key: count for key, count in scorer.take_metrics().items() if key != "reward_time"}


def score_group(scorer, group):
    try:
        asyncio.run(scorer.score_group(group))
    finally:
        scorer.close()
    return rewards(group)


def install(folder, name, source, monkeypatch):
    """A real distribution with one module and one entry point, found through its metadata as an installed one is."""
    module = f"toy_{name}_{abs(hash(str(folder))) % 10**8}"
    (folder / f"{module}.py").write_text(textwrap.dedent(source))
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    has_class = f"{module}:Toy" if "class Toy" in source else module
    (info / "entry_points.txt").write_text(f"[vime.plugins]\n{name} = {has_class}\n")
    monkeypatch.syspath_prepend(str(folder))
    return module


TOY = """
    import os, sys, time
    from vime.api import Settings as Base, hookimpl

    class Unsendable(Exception):
        def __init__(self, one, two):
            super().__init__(one)

    class Toy:
        class Settings(Base):
            bonus: float = 0.0

        def __init__(self, settings):
            self.settings = settings

        @hookimpl
        def custom_rm(self, args, sample):
            if sample.response == "hang":
                time.sleep(3600)
            if sample.response == "raise":
                raise ValueError("broken in the worker")
            if sample.response == "unsendable":
                raise Unsendable("one", "two")
            if sample.response == "nothing":
                return None
            if sample.response == "die":
                os._exit(3)
            sample.metadata["pid"], sample.metadata["torch"] = os.getpid(), "torch" in sys.modules
            return self.settings.bonus + args.rollout_batch_size
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    install(tmp_path, "toy", TOY, monkeypatch)

    def build(**config):
        config = RunConfig(plugin=["toy"], plugin_settings={"toy": {"bonus": 0.5}}, rollout_batch_size=3, reward_workers=2, **config)
        return RewardScorer(config, PluginManager.load(config))

    return build


def test_case_b10_a_plugin_is_found_and_configured_in_worker_processes(toy):
    samples = group_of(*"abcdef")
    for one in samples:
        one.metadata = {"kept": 1}
    assert score_group(toy(), samples) == [3.5] * 6
    assert all(one.metadata["pid"] != os.getpid() and one.metadata["kept"] == 1 for one in samples)
    assert not any(one.metadata["torch"] for one in samples)


def test_case_b2_hanging_workers_are_killed_and_the_pool_serves_the_next_call(toy):
    scorer = toy(reward_timeout=1.0, on_reward_error="drop")
    try:
        samples = group_of(*["hang"] * 4)
        asyncio.run(scorer.score(samples))
        assert rewards(samples) == [None] * 4
        assert errors(scorer) == {"reward_errors/toy/timeout": 4.0}
        samples = group_of("a", "b")
        asyncio.run(scorer.score(samples))
        assert rewards(samples) == [3.5, 3.5]
    finally:
        scorer.close()


def test_failures_in_workers_are_counted_by_kind(toy):
    scorer = toy(on_reward_error="zero")
    assert score_group(scorer, group_of("raise", "unsendable", "nothing", "die", "fine")) == [0.0, 0.0, 0.0, 0.0, 3.5]
    kinds = {"ValueError", "Unsendable", "bad_value", "IsolatedError"}
    assert errors(scorer) == {f"reward_errors/toy/{kind}": 1.0 for kind in kinds}


def test_an_exception_from_a_worker_keeps_its_type_and_its_place(toy):
    with pytest.raises(ValueError, match="broken in the worker") as caught:
        score_group(toy(), group_of("raise"))
    notes = "\n".join(caught.value.__notes__)
    assert "plugin 'toy'" in notes and "in custom_rm" in notes and "sample 0 (group 0)" in notes


def test_the_loop_never_blocks_while_workers_start_and_score(toy):
    scorer = toy()
    beats = 0

    async def scenario():
        nonlocal beats
        task = asyncio.ensure_future(scorer.score_group(group_of(*"abcd")))
        while not task.done():
            await asyncio.sleep(0.01)
            beats += 1
        await task

    asyncio.run(scenario())
    scorer.close()
    assert beats > 5


WAITS = """
from pathlib import Path

def rm(args, sample, **kwargs):
    while not Path(__file__).with_name("go").exists():
        sum(range(10_000))
    return 1.0
"""


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_the_loop_runs_while_all_workers_compute_and_others_wait_for_them(tmp_path, isolation):
    (tmp_path / "waits.py").write_text(WAITS)
    config = RunConfig(custom_rm_path=f"{tmp_path}/waits.py:rm", reward_workers=2, reward_isolation=isolation, reward_timeout=20)
    scorer = RewardScorer(config, PluginManager.load(config))

    async def scenario():
        group = group_of(*"abcdef")
        task = asyncio.ensure_future(scorer.score(group))
        for _ in range(50):
            await asyncio.sleep(0.005)
        (tmp_path / "go").touch()  # only a loop that still runs gets here, before the limit
        await task
        return rewards(group)

    try:
        assert asyncio.run(scenario()) == [1.0] * 6
    finally:
        scorer.close()


def test_a_path_function_runs_in_a_worker_group_mode_too(tmp_path, monkeypatch):
    (tmp_path / "my_rm.py").write_text("import os\n\ndef rm(args, group, **kwargs):\n    return [float(os.getpid())] * len(group)\n")
    monkeypatch.chdir(tmp_path)
    config = RunConfig(custom_rm_path="./my_rm.py:rm", group_rm=True, reward_workers=1)
    got = score_group(RewardScorer(config, PluginManager.load(config)), group_of("a", "b"))
    assert got[0] == got[1] != os.getpid()


def test_a_plugin_with_a_state_stays_in_this_process(tmp_path, monkeypatch):
    source = TOY + "\n        def state_dict(self):\n            return {}\n\n        def load_state_dict(self, state): ...\n"
    install(tmp_path, "toy", source, monkeypatch)
    config = RunConfig(plugin=["toy"])
    [one] = group_of("x")
    score_group(RewardScorer(config, PluginManager.load(config)), [one])
    assert one.metadata["pid"] == os.getpid()


BOXED = """
    from vime.api import hookimpl

    @hookimpl
    def custom_rm(sample):
        sample.metadata = {**sample.metadata, "seen": sample.response}
        sample.note = "kept"
        if sample.response == "raise":
            raise ValueError(sample.response)
        return float(sample.response == "4")
"""


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_what_a_boxed_reward_writes_reaches_the_sample_itself(tmp_path, monkeypatch, isolation):
    install(tmp_path, "boxy", BOXED, monkeypatch)
    config = RunConfig(plugin=["boxy"], rm_type="boxed_boxy", reward_isolation=isolation, reward_workers=1, on_reward_error="zero")
    samples = group_of(r"so \boxed{4}", r"\boxed{raise}")
    for one in samples:
        one.metadata = {"row": one.index}
    assert score_group(RewardScorer(config, PluginManager.load(config)), samples) == [1.0, 0.0]
    assert [one.metadata for one in samples] == [{"row": 0, "seen": "4"}, {"row": 1, "seen": "raise"}]
    assert [one.response for one in samples] == [r"so \boxed{4}", r"\boxed{raise}"]
    assert [getattr(one, "note", None) for one in samples] == ["kept"] * 2


NOTES = """
    import os
    from vime.api import hookimpl

    @hookimpl
    def custom_rm(sample):
        sample.metadata["{name}"] = [sample.response, os.getpid()]
        return {value}
"""


def test_the_parts_of_a_sum_run_in_worker_processes_and_keep_what_each_wrote(tmp_path, monkeypatch):
    for name, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        install(tmp_path / name, name, NOTES.format(name=name, value=value), monkeypatch)
    config = RunConfig(plugin=["one", "two"], rm_type="one+boxed_two", reward_weights="one=3", reward_workers=2)
    samples = group_of(r"\boxed{4}", "5")
    for one in samples:
        one.metadata = {"row": one.index}
    got = score_group(RewardScorer(config, PluginManager.load(config)), samples)
    assert got == [{"one": 1.0, "boxed_two": 2.0, "total": 5.0}] * 2
    assert [one.metadata["row"] for one in samples] == [0, 1]
    assert [(one.metadata["one"][0], one.metadata["two"][0]) for one in samples] == [(r"\boxed{4}", "4"), ("5", "")]
    assert all(os.getpid() not in (one.metadata["one"][1], one.metadata["two"][1]) for one in samples)


def test_thread_isolation_runs_in_this_process(toy):
    [one] = group_of("x")
    assert score_group(toy(reward_isolation="thread"), [one]) == [3.5] and one.metadata["pid"] == os.getpid()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
