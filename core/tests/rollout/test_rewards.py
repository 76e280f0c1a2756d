"""Rewards: who scores, what is refused, what a failure costs, where functions run."""

import asyncio
import inspect
import threading
import time

import pytest

from vime.api import hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.errors import ConfigError, ContractError, PluginError
from vime.isolation import IsolatedTimeout
from vime.plugins.discovery import Catalog
from vime.plugins.manager import PluginManager
from vime.rollout.reward_guard import last_boxed
from vime.rollout.reward_worker import BusyTime
from vime.rollout.rewards import RewardScorer
from vime.sample import Sample, Status

NUM_GPUS = 0


def sample(index=0, response="4", reward=None, status=Status.COMPLETED, **fields):
    return Sample(index=index, group_index=0, response=response, reward=reward, status=status, **fields)


def group_of(*responses, **fields):
    return [sample(index, response, **fields) for index, response in enumerate(responses)]


def rewards(samples):
    return [one.reward for one in samples]


def plugin(function, name="toy"):
    """A plugin class around one hook function, which pluggy binds as a method."""
    return type(name, (), {function.__name__: hookimpl(function)})


def manager_of(*plugins):
    manager = PluginManager()
    for count, target in enumerate(plugins):
        manager.add(target, name=target.__name__ if count else "toy")
    return manager


def scorer_of(*plugins, **config):
    return RewardScorer(RunConfig(**config), manager_of(*plugins))


def constant(*values):
    """A reward plugin that returns these values by sample index."""

    def custom_rm(self, sample):
        value = values[sample.index % len(values)]
        if isinstance(value, Exception):
            raise value
        return value

    return plugin(custom_rm)


def errors(scorer):
    """The failed rewards that were counted, by key."""
    return {key: count for key, count in scorer.take_metrics().items() if key != "reward_time"}


def score(scorer, samples, **options):
    try:
        asyncio.run(scorer.score(samples, **options))
    finally:
        scorer.close()
    return rewards(samples)


def score_group(scorer, group, **options):
    try:
        asyncio.run(scorer.score_group(group, **options))
    finally:
        scorer.close()
    return rewards(group)


# ---------------------------------------------------------------- values


def test_numbers_bools_and_numpy_scalars_become_floats():
    numpy = pytest.importorskip("numpy")
    values = (1, True, False, 0.5, numpy.float32(0.25), numpy.int64(3), numpy.bool_(True))
    got = score(scorer_of(constant(*values)), group_of(*"abcdefg"))
    assert got == [1.0, 1.0, 0.0, 0.5, 0.25, 3.0, 1.0] and all(type(value) is float for value in got)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"plugin 'toy': custom_rm returned None as the reward for sample 0 \(group 0\); expected a finite number or a dict"),
        (float("nan"), "returned nan .* expected a finite number"),
        (float("-inf"), "returned -inf"),
        (10**400, "returned inf as the reward for sample 0"),
        ("1.0", r"returned str '1\.0'"),
        ([1.0], "returned list"),
        ({}, "empty dict"),
    ],
)
def test_other_values_are_refused(value, message):
    with pytest.raises(ContractError, match=message):
        score(scorer_of(constant(value)), [sample()])


def test_an_array_is_refused_with_the_way_out():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ContractError, match=r"a ndarray of shape \(\)") as caught:
        score(scorer_of(constant(numpy.array(1.0))), [sample()])
    assert ".item()" in str(caught.value)


def test_a_dict_reward_needs_a_key_and_its_value_a_number():
    assert score(scorer_of(constant({"acc": True, "pred": "4"}), reward_key="acc"), [sample()]) == [{"acc": 1.0, "pred": "4"}]
    with pytest.raises(ContractError, match=r"dict with the keys \['acc'\] for sample 0 .*no reward key") as caught:
        score(scorer_of(constant({"acc": 1}), on_reward_error="drop"), [sample()])
    assert str(caught.value).endswith("--reward-key acc")
    with pytest.raises(ContractError, match=r"without 'acc' .*\['score'\]"):
        score(scorer_of(constant({"score": 1}), reward_key="acc"), [sample()])
    with pytest.raises(ContractError, match=r"returned 1.0 for sample 0 .*--reward-key is 'acc'"):
        score(scorer_of(constant(1), reward_key="acc"), [sample()])
    with pytest.raises(ContractError, match="returned nan under 'acc' for sample 0"):
        score(scorer_of(constant({"acc": float("nan")}), reward_key="acc"), [sample()])


def test_evaluation_has_its_own_reward_key():
    scorer = scorer_of(constant({"score": -1}), reward_key="acc", eval_reward_key="score")
    assert score(scorer, [sample()], evaluation=True) == [{"score": -1.0}]
    with pytest.raises(ContractError, match="without 'acc'"):
        score(scorer, [sample()])


@pytest.mark.parametrize("values", [({"a": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"a": 1})])
def test_case_b6_dicts_with_other_keys_name_both_samples(values):
    scorer = scorer_of(constant(*values), reward_key="a")
    asyncio.run(scorer.score([sample(0)]))
    with pytest.raises(ContractError, match=r"for sample 1 \(group 0\), but a dict with the keys .* for sample 0"):
        asyncio.run(scorer.score([sample(1)]))


@pytest.mark.parametrize("values", [({"a": 1}, {"b": 2}), ({"a": 1}, 1.0), (1.0, {"a": 1})])
@pytest.mark.parametrize("key", [None, "a"])
def test_case_b6_mixed_shapes_are_an_error_at_the_reward_step(values, key):
    with pytest.raises(ContractError, match=r"sample [01]"):
        score(scorer_of(constant(*values), reward_key=key), group_of("x", "y"))


# ---------------------------------------------------------------- routing


def named(name, value):
    def custom_rm(self, sample):
        return value

    return plugin(custom_rm, name)


def test_the_only_reward_plugin_scores():
    assert score(scorer_of(constant(1)), [sample()]) == [1.0]


def test_rm_type_chooses_and_a_row_may_say_otherwise():
    scorer = scorer_of(named("one", 1), named("two", 2), named("Thr_ee", 3), rm_type="two")
    samples = [sample(0), sample(1, metadata={"rm_type": "thr-ee"}), sample(2, metadata={"rm_type": "toy"})]
    assert score(scorer, samples) == [2.0, 3.0, 1.0]


def test_paths_win_over_names(tmp_path):
    (tmp_path / "fns.py").write_text(
        "def five(args, one):\n    return 5\n\ndef six(args, one):\n    return 6\n\ndef seven(args, one): return 7\n"
    )
    five, six, seven = (f"{tmp_path}/fns.py:{name}" for name in ("five", "six", "seven"))
    config = RunConfig(custom_rm_path=five, reward_isolation="thread")
    manager = manager_of(constant(1))
    dataset = EvalDatasetConfig(name="d", path="d.jsonl", custom_rm_path=six)
    samples = [sample(0), sample(1, custom_rm_path=seven)]
    assert score(RewardScorer(config, manager), samples) == [5.0, 7.0]
    samples = [sample(0), sample(1, custom_rm_path=seven)]
    assert score(RewardScorer(config, manager), samples, evaluation=True, dataset=dataset) == [6.0, 7.0]


def test_the_data_sets_rm_type_goes_before_the_runs():
    scorer = scorer_of(named("one", 1), named("two", 2), rm_type="toy")
    assert score(scorer, [sample()], evaluation=True, dataset=EvalDatasetConfig(name="d", path="d", rm_type="two")) == [2.0]


def test_boxed_hands_over_the_last_box_only():
    def custom_rm(self, sample):
        sample.metadata["seen"] = sample.response
        return float(sample.response == "4")

    samples = group_of(r"\boxed{3} so \boxed{4}", "4", r"\boxed{ \frac{1}{2} }", r"\boxed{4")
    assert score(scorer_of(plugin(custom_rm), rm_type="boxed_toy"), samples) == [1.0, 0.0, 0.0, 0.0]
    assert [one.metadata["seen"] for one in samples] == ["4", "", r"\frac{1}{2}", ""]
    assert samples[0].response == r"\boxed{3} so \boxed{4}"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{a{b}c}", "a{b}c"),
        (r"\boxed{1} \boxed{", "1"),
        (r"\boxed{\}}", r"\}"),
        ("", ""),
        (r"\boxed{}", ""),
        (r"\boxed{1}\boxed{2", "1"),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text) == content


def test_an_unknown_rm_type_in_the_data_names_the_sample():
    with pytest.raises(ConfigError, match=r"sample 3 \(group 0\): no enabled plugin answers to rm_type 'dapoo'; enabled rewards: toy"):
        score(scorer_of(constant(1)), [sample(3, metadata={"rm_type": "dapoo"})])


# ---------------------------------------------------------------- checks at start


def test_no_reward_at_all_is_refused_with_the_pip_line():
    with pytest.raises(ConfigError, match="no enabled plugin scores samples") as caught:
        scorer_of()
    assert "--plugin math" in str(caught.value) and "pip install vime-rm-math" in str(caught.value)


def test_no_reward_is_needed_where_a_plugin_makes_the_rollouts():
    def generate_rollout(self, args, rollout_id, data_source): ...

    def custom_generate(self, sample): ...

    for claim in (generate_rollout, custom_generate):
        scorer_of(plugin(claim))
    scorer_of(load_debug_rollout_data="{rollout_id}.parquet")
    with pytest.raises(ConfigError, match=r"sample 0 .* no enabled plugin scores samples"):
        score(scorer_of(plugin(custom_generate)), [sample()])


def test_sft_needs_a_plugin_that_makes_its_rollouts():
    def generate_rollout(self, args, rollout_id, data_source): ...

    for path in (None, "vime.rollout.vllm_rollout.generate_rollout"):
        with pytest.raises(ConfigError, match="--loss-type sft_loss: nothing turns the rows of the data into rollouts") as caught:
            scorer_of(constant(1), loss_type="sft_loss", rollout_function_path=path)
        assert caught.value.hint.endswith("--plugin sft")
    scorer_of(plugin(generate_rollout), loss_type="sft_loss")
    scorer_of(rollout_function_path="vime.rollout.sft_rollout.generate_rollout", loss_type="sft_loss")


def test_a_run_of_no_rollouts_asks_for_the_rewards_of_evaluation_only(tmp_path):
    (tmp_path / "fns.py").write_text("def five(args, one):\n    return 5\n")
    dataset = EvalDatasetConfig(name="d", path="d", custom_rm_path=f"{tmp_path}/fns.py:five")
    scorer_of(num_rollout=0, eval_datasets=[dataset])
    scorer_of(num_rollout=0, loss_type="sft_loss", eval_datasets=[dataset])
    with pytest.raises(ConfigError, match="evaluation dataset 'd': no reward"):
        scorer_of(num_rollout=0, eval_datasets=[EvalDatasetConfig(name="d", path="d")])


def test_naming_the_built_in_rollout_by_path_still_needs_a_reward():
    with pytest.raises(ConfigError, match="no enabled plugin scores samples"):
        scorer_of(rollout_function_path="vime.rollout.vllm_rollout.generate_rollout")


def test_case_k9_two_reward_plugins_without_rm_type_are_named():
    with pytest.raises(ConfigError, match="plugin 'toy' and plugin 'other'") as caught:
        scorer_of(constant(1), named("other", 2))
    assert "--rm-type toy" in str(caught.value)


@pytest.mark.parametrize(
    ("rm_type", "line"),
    [
        ("f1", "pip install vime-rm-qa, then add --plugin f1"),
        ("remote_rm", "pip install vime-rm-remote, then add --plugin remote"),
        ("gpqa", "pip install vime-rm-qa, then add --plugin choice"),
    ],
)
def test_upstreams_reward_names_have_their_pip_line(rm_type, line, monkeypatch):
    monkeypatch.setattr("vime.rollout.reward_resolver.discover", lambda: Catalog((), "0.1.0"))  # where nothing is installed
    with pytest.raises(ConfigError) as caught:
        scorer_of(constant(1), rm_type=rm_type)
    assert caught.value.hint == line


def test_rm_type_that_nobody_answers_to_has_the_line_that_helps():
    with pytest.raises(ConfigError, match="training: no enabled plugin answers to rm_type 'deepscaler'") as caught:
        scorer_of(constant(1), rm_type="deepscaler")
    assert "--plugin deepscaler" in str(caught.value)
    dataset = EvalDatasetConfig(name="held-out", path="x", rm_type="nonsense")
    with pytest.raises(ConfigError, match=r"evaluation dataset 'held-out': .*'nonsense'"):
        scorer_of(constant(1), eval_datasets=[dataset])


def test_the_generate_function_of_an_evaluation_dataset_is_looked_for_at_start():
    dataset = EvalDatasetConfig(name="held-out", path="x", custom_generate_function_path="nosuch_module.generate")
    with pytest.raises(PluginError, match=r"--custom-generate-function-path nosuch_module\.generate: there is no module 'nosuch_module'"):
        scorer_of(constant(1), eval_datasets=[dataset])


def test_a_group_reward_needs_group_rm():
    def custom_rm(self, samples): ...

    with pytest.raises(ConfigError, match="plugin 'toy': its custom_rm takes `samples` only") as caught:
        scorer_of(plugin(custom_rm))
    assert "--group-rm" in str(caught.value)


def test_a_path_that_does_not_exist_is_refused_for_an_evaluation_dataset():
    with pytest.raises(PluginError, match="nowhere_at_all"):
        scorer_of(constant(1), eval_datasets=[EvalDatasetConfig(name="d", path="d", custom_rm_path="nowhere_at_all.fn")])


# ---------------------------------------------------------------- what is scored


def test_aborted_and_failed_samples_are_passed_over_and_rewards_kept():
    samples = [
        sample(0, status=Status.ABORTED),
        sample(1, reward=0.25),
        sample(2),
        sample(3, status=Status.FAILED),
        sample(4, status=Status.TRUNCATED),
    ]
    assert score(scorer_of(constant(1)), samples) == [None, 0.25, 1.0, None, 1.0]


def test_a_reward_that_custom_generate_set_is_checked():
    with pytest.raises(ContractError, match="custom_generate returned nan as the reward for sample 0"):
        score(scorer_of(constant(1)), [sample(reward=float("nan"))])
    assert score(scorer_of(constant(1)), [sample(reward=True)]) == [1.0]


def test_siblings_with_different_rewards_are_refused():
    siblings = [sample(0, "a", rollout_id=7), sample(1, "b", rollout_id=7)]
    with pytest.raises(ContractError, match=r"rollout 7 \(group 0\) have different rewards: \[1.0, 0.0\]"):
        score(scorer_of(constant(1, 0)), siblings)
    assert score(scorer_of(constant(1, 1)), [sample(0, rollout_id=7), sample(1, rollout_id=7)]) == [1.0, 1.0]


def test_hooks_before_and_after_run_once_even_when_a_group_is_passed_again():
    calls = []

    class Around:
        @hookimpl
        def rollout_sample_hook(self, sample, rollout_id, evaluation):
            calls.append((sample.index, rollout_id, evaluation))
            return Sample(index=sample.index, response="replaced", status=Status.COMPLETED)

        @hookimpl
        async def shape_reward(self, sample):
            return 0.5 if sample.index == 0 else None

        @hookimpl
        def custom_rm(self, sample):
            return len(sample.response)

    scorer = RewardScorer(RunConfig(), manager_of(Around))
    group = group_of("x", "y")
    asyncio.run(scorer.score_group(group, rollout_id=3))
    group = [Sample.from_dict(one.to_dict()) for one in group]
    group[1].reset_for_generation()
    group[1].status = Status.COMPLETED
    asyncio.run(scorer.score_group(group, rollout_id=4))
    assert rewards(group) == [8.5, 8.0]
    assert calls == [(0, 3, False), (1, 3, False), (1, 4, False)]


def test_hooks_that_return_nonsense_are_named():
    def rollout_sample_hook(self, sample):
        return "x"

    def shape_reward(self, sample):
        return float("inf")

    for hook, message in (
        (rollout_sample_hook, "plugin 'wrong': rollout_sample_hook returned str"),
        (shape_reward, "plugin 'wrong': shape_reward .*inf"),
    ):
        with pytest.raises(ContractError, match=message):
            score(scorer_of(constant(1), plugin(hook, "wrong")), [sample()])


def test_shaping_adds_to_the_key_of_a_dict_reward():
    def shape_reward(self, sample):
        return -0.5

    scorer = scorer_of(constant({"acc": 1, "n": 2}), plugin(shape_reward, "shaper"), reward_key="acc")
    assert score(scorer, [sample()]) == [{"acc": 0.5, "n": 2}]


# ---------------------------------------------------------------- groups


def test_a_group_reward_sees_the_whole_group_and_a_single_one_is_gathered():
    def by_group(self, samples):
        return [float(len(samples)) + position for position, _ in enumerate(samples)]

    def by_sample(self, args, sample):
        return 1.0

    by_group.__name__ = by_sample.__name__ = "custom_rm"
    assert score_group(scorer_of(plugin(by_group), group_rm=True), group_of(*"abc")) == [3.0, 4.0, 5.0]
    assert score_group(scorer_of(plugin(by_sample), group_rm=True), group_of(*"abc")) == [1.0, 1.0, 1.0]
    assert score_group(scorer_of(plugin(by_sample)), group_of(*"abc")) == [1.0, 1.0, 1.0]


def test_a_path_function_gets_the_group_under_group_rm_and_the_sample_without(tmp_path):
    (tmp_path / "fns.py").write_text(
        "async def rm(args, x, **kwargs):\n    return [float(len(x))] * len(x) if isinstance(x, list) else x.index\n"
    )
    path = f"{tmp_path}/fns.py:rm"
    assert score_group(scorer_of(custom_rm_path=path, group_rm=True), group_of("a", "b")) == [2.0, 2.0]
    assert score_group(scorer_of(custom_rm_path=path), group_of("a", "b")) == [0.0, 1.0]


def test_an_incomplete_group_is_not_scored_and_set_rewards_are_kept():
    def custom_rm(self, samples):
        return [1.0] * len(samples)

    scorer = scorer_of(plugin(custom_rm), group_rm=True)
    assert score_group(scorer, [sample(0), sample(1, status=Status.ABORTED)]) == [None, None]
    assert score_group(scorer, [sample(0, reward=0.5), sample(1)]) == [0.5, 1.0]
    assert score_group(scorer, [sample(0, status=Status.FAILED), sample(1)]) == [None, 1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], r"plugin 'toy': custom_rm returned a list of the wrong length for group 0 \(samples 0, 1\): expected 2 rewards, got 1"),
        (None, "returned None for group 0"),
        (0.5, "returned float for group 0"),
        ([1.0, None], "returned None as the reward for sample 1"),
    ],
)
def test_case_b4_wrong_group_results(value, message):
    def custom_rm(self, samples):
        return value

    with pytest.raises(ContractError, match=message):
        score_group(scorer_of(plugin(custom_rm), group_rm=True), group_of("a", "b"))


def test_a_group_function_that_sets_rewards_and_returns_none_is_told():
    def custom_rm(self, samples):
        for sample in samples:
            sample.reward = 1.0

    with pytest.raises(ContractError, match="returned None for group 0"):
        score_group(scorer_of(plugin(custom_rm), group_rm=True, reward_isolation="thread"), group_of("a", "b"))
    zeros = scorer_of(plugin(custom_rm), group_rm=True, reward_isolation="thread", on_reward_error="zero")
    assert score_group(zeros, group_of("a", "b")) == [0.0, 0.0]


# ---------------------------------------------------------------- the error policy


class Broken(Exception):
    pass


def test_case_b8_raise_keeps_type_and_names_plugin_and_sample():
    scorer = scorer_of(constant(1, Broken("no")))
    with pytest.raises(Broken) as caught:
        score(scorer, group_of("a", "b"))
    notes = " ".join(caught.value.__notes__)
    assert "custom_rm of plugin 'toy'" in notes and "sample 1 (group 0)" in notes
    assert errors(scorer) == {"reward_errors/toy/Broken": 1.0}


@pytest.mark.parametrize(("policy", "expected"), [("drop", [1.0, None, None]), ("zero", [1.0, 0.0, 0.0])])
def test_case_b8_drop_and_zero_are_counted_by_plugin_and_kind(policy, expected):
    scorer = scorer_of(constant(1, Broken("no"), None), on_reward_error=policy)
    samples = group_of("a", "b", "c")
    assert score(scorer, samples) == expected
    assert [one.status is Status.FAILED for one in samples] == [False, policy == "drop", policy == "drop"]
    assert errors(scorer) == {"reward_errors/toy/Broken": 1.0, "reward_errors/toy/bad_value": 1.0}
    assert errors(scorer) == {}


def test_a_zero_has_the_shape_of_the_other_rewards():
    scorer = scorer_of(constant({"acc": 1, "len": 3}, Broken()), on_reward_error="zero", reward_key="acc")
    asyncio.run(scorer.score([sample(0)]))
    assert score(scorer, [sample(1)]) == [{"acc": 0.0, "len": 0.0}]


def test_a_failed_group_reward_costs_its_group():
    def custom_rm(self, samples):
        raise Broken

    scorer = scorer_of(plugin(custom_rm), group_rm=True, on_reward_error="drop")
    group = group_of("a", "b")
    assert score_group(scorer, group) == [None, None] and all(one.status is Status.FAILED for one in group)
    assert errors(scorer) == {"reward_errors/toy/Broken": 2.0}


# ---------------------------------------------------------------- time


def test_case_b12_synchronous_rewards_run_side_by_side_and_the_loop_goes_on():
    barrier = threading.Barrier(8)

    def custom_rm(self, sample):
        barrier.wait(timeout=30)  # passes only when all eight run at once
        return 1.0

    scorer = scorer_of(plugin(custom_rm), reward_workers=8)
    samples = group_of(*"abcdefgh")
    asyncio.run(scorer.score(samples))
    assert rewards(samples) == [1.0] * 8


def test_the_loop_runs_while_a_synchronous_reward_blocks():
    released = threading.Event()

    def custom_rm(self, sample):
        return float(released.wait(timeout=30))

    async def scenario():
        samples = [sample()]
        task = asyncio.ensure_future(scorer_of(plugin(custom_rm)).score(samples))
        for _ in range(20):
            await asyncio.sleep(0.001)
        released.set()  # only a loop that still runs gets here
        await task
        return rewards(samples)

    assert asyncio.run(scenario()) == [1.0]


def test_an_asynchronous_reward_past_its_time_is_counted():
    async def custom_rm(self, sample):
        await asyncio.sleep(0 if sample.index else 3600)
        return 1.0

    scorer = scorer_of(plugin(custom_rm), reward_timeout=0.2, on_reward_error="drop")
    assert score(scorer, group_of("a", "b")) == [None, 1.0]
    assert errors(scorer) == {"reward_errors/toy/timeout": 1.0}


def test_a_rewards_own_timeout_error_is_its_own():
    async def custom_rm(self, sample):
        raise TimeoutError("the service is slow")

    scorer = scorer_of(plugin(custom_rm), on_reward_error="zero")
    assert score(scorer, [sample()]) == [0.0]
    assert errors(scorer) == {"reward_errors/toy/TimeoutError": 1.0}


def test_a_time_out_of_an_isolated_pool_is_counted_as_one():
    async def custom_rm(self, sample):
        raise IsolatedTimeout("parse", 2.0, "processor")

    scorer = scorer_of(plugin(custom_rm), on_reward_error="zero")
    assert score(scorer, [sample()]) == [0.0]
    assert errors(scorer) == {"reward_errors/toy/timeout": 1.0}


@pytest.mark.parametrize("url", [None, "http://judge"])
def test_a_reward_plugin_may_refuse_a_configuration_at_start(url):
    class Judge:
        def check_args(self, args):
            if args.rm_url is None:
                raise ConfigError("--rm-url is not set")

        @hookimpl
        async def custom_rm(self, sample):
            return 1.0

    config, plugins = RunConfig(rm_url=url), PluginManager()
    plugins.add(Judge, name="judge")
    if url is None:
        with pytest.raises(ConfigError, match="--rm-url is not set"):
            RewardScorer(config, plugins)
    else:
        RewardScorer(config, plugins).close()


def test_case_b2_threads_that_hang_cost_their_own_samples_only():
    hang = threading.Event()

    def custom_rm(self, sample):
        if sample.response == "hang":
            hang.wait(60)
        return 1.0

    scorer = scorer_of(plugin(custom_rm), reward_timeout=0.3, reward_workers=2, on_reward_error="drop")
    assert score(scorer, group_of(*["hang"] * 4)) == [None] * 4
    assert errors(scorer) == {"reward_errors/toy/timeout": 4.0}
    assert score(scorer, group_of("a", "b", "c")) == [1.0] * 3
    hang.set()


@pytest.mark.parametrize("loop_is_closed", [True, False])
def test_a_coroutine_that_comes_after_the_limit_is_closed(loop_is_closed):
    go = threading.Event()
    coroutines = []

    async def answer():
        return 1.0

    def custom_rm(self, sample):
        go.wait(60)
        coroutines.append(answer())
        return coroutines[0]

    def is_closed():
        go.set()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if coroutines and inspect.getcoroutinestate(coroutines[0]) == inspect.CORO_CLOSED:
                return True
            time.sleep(0.01)
        return False

    async def scenario():
        await scorer_of(plugin(custom_rm), reward_timeout=0.05, on_reward_error="drop").score([sample()])
        return loop_is_closed or await asyncio.to_thread(is_closed)

    assert asyncio.run(scenario())
    assert is_closed()


def test_the_time_of_rewards_counts_what_overlaps_once(monkeypatch):
    now = 0.0
    monkeypatch.setattr("vime.rollout.reward_worker.time.perf_counter", lambda: now)
    busy = BusyTime()
    with busy:
        now = 1.0
        with busy:
            now = 3.0
        now = 4.0
        assert busy.take() == 4.0
        now = 5.0
    now = 9.0
    assert busy.take() == 1.0 and busy.take() == 0.0


def test_the_time_of_rewards_is_among_the_metrics():
    scorer = scorer_of(constant(1, Broken("no")), on_reward_error="zero")
    assert scorer.take_metrics() == {}
    score(scorer, group_of("a", "b"))
    assert scorer.take_metrics()["reward_time"] > 0
    assert scorer.take_metrics() == {}


def test_the_message_of_a_timeout_names_plugin_limit_and_sample():
    async def custom_rm(self, sample):
        await asyncio.sleep(3600)

    with pytest.raises(ContractError, match=r"plugin 'toy': custom_rm took longer than 0.05 s for sample 0 \(group 0\)"):
        score(scorer_of(plugin(custom_rm), reward_timeout=0.05), [sample()])


def test_process_isolation_is_refused_where_it_cannot_be():
    with pytest.raises(PluginError, match="plugin 'toy': its custom_rm cannot be imported in a worker process") as caught:
        score(scorer_of(constant(1), reward_isolation="process", on_reward_error="drop"), [sample()])
    assert "--reward-isolation thread" in str(caught.value)


def test_one_scorer_serves_several_event_loops():
    scorer = scorer_of(constant(1), reward_workers=1)
    for _ in range(2):
        samples = group_of(*"abcd")
        asyncio.run(scorer.score(samples))
        assert rewards(samples) == [1.0] * 4


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
