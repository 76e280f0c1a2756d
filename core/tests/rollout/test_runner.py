"""Whole rollouts and evaluations: who makes them, what is checked of them, and what the hooks around them see."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from vime.api import RolloutFnTrainOutput, Sample, Status, current_engine, generate_rollout, generate_rollout_async
from vime.errors import ContractError, VimeError

NUM_GPUS = 0


# A rollout function that wraps the built-in rollout


def test_a_synchronous_function_may_block_on_the_built_in_rollout(setup_run: Any) -> None:
    threads: list[threading.Thread] = []

    def wrapping(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
        threads.append(threading.current_thread())
        return generate_rollout(args, rollout_id, data_source, evaluation)

    setup = setup_run(generate_rollout=wrapping)
    assert len(setup.train().groups) == 2
    assert list(setup.evaluate()[0].data) == ["held-out"]
    assert threading.main_thread() not in threads


def test_an_async_function_awaits_the_built_in_rollout(setup_run: Any) -> None:
    async def wrapping(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
        return await generate_rollout_async(args, rollout_id, data_source, evaluation)

    setup = setup_run(generate_rollout=wrapping)
    assert len(setup.train().groups) == 2
    assert list(setup.evaluate()[0].data) == ["held-out"]


def test_a_function_with_a_loop_of_its_own_awaits_it_too(setup_run: Any) -> None:
    def wrapping(args: Any, rollout_id: int, data_source: Any) -> Any:
        return asyncio.run(generate_rollout_async(args, rollout_id, data_source))

    assert len(setup_run(generate_rollout=wrapping).train().groups) == 2


def test_blocking_in_an_async_function_is_an_error_and_not_a_deadlock(setup_run: Any) -> None:
    async def wrapping(args: Any, rollout_id: int, data_source: Any) -> Any:
        return generate_rollout(args, rollout_id, data_source)

    with pytest.raises(ContractError, match="called in the event loop of the run") as caught:
        setup_run(generate_rollout=wrapping).train()
    assert caught.value.hint and "await generate_rollout_async(" in caught.value.hint
    assert "in generate_rollout of plugin 'generate_rollout-0'" in caught.value.__notes__


def test_outside_a_rollout_there_is_none_to_run() -> None:
    with pytest.raises(ContractError, match="generate_rollout was called outside a rollout"):
        generate_rollout(None, 0, None)
    with pytest.raises(ContractError, match="generate_rollout_async was called outside a rollout"):
        asyncio.run(generate_rollout_async(None, 0, None))


def test_a_parameter_with_a_default_receives_what_is_passed(setup_run: Any) -> None:
    seen: list[bool] = []

    def generate_rollout(args: Any, data_source: Any, evaluation: bool = False) -> Any:
        seen.append(evaluation)
        return made_by(lambda groups: None)(args, data_source, evaluation)

    run = setup_run(generate_rollout=generate_rollout)
    run.train()
    run.evaluate()
    assert seen == [False, True]


# The current engine


def test_every_hook_of_a_rollout_sees_the_current_engine(setup_run: Any) -> None:
    seen: dict[str, list[Any]] = {}

    def saw(hook: str, answer: Any = None) -> Any:
        seen.setdefault(hook, []).append(current_engine())
        return answer

    def custom_rm(sample: Sample) -> float:
        return saw("custom_rm", 1.0)

    async def dynamic_sampling_filter(samples: Any) -> bool:
        return saw("dynamic_sampling_filter", True)

    async def buffer_filter(buffer: Any, num_samples: int) -> Any:
        return saw("buffer_filter", buffer[:num_samples])

    def rollout_sample_hook(sample: Sample) -> None:
        saw("rollout_sample_hook")

    def shape_reward(sample: Sample) -> float:
        return saw("shape_reward", 0.0)

    def rollout_sample_filter(samples: Any) -> None:
        saw("rollout_sample_filter")

    def process_all_samples(all_samples: Any) -> None:
        saw("process_all_samples")

    def log_rollout_data(samples: Any) -> bool:
        return saw("log_rollout_data", False)

    def log_eval_rollout_data(data: Any) -> bool:
        return saw("log_eval_rollout_data", False)

    hooks = [dynamic_sampling_filter, buffer_filter, rollout_sample_hook, shape_reward, rollout_sample_filter, process_all_samples]
    hooks += [log_rollout_data, log_eval_rollout_data]
    setup = setup_run(reward=custom_rm, **{hook.__name__: hook for hook in hooks})
    setup.source.add_samples(setup.source.get_samples(1))
    setup.evaluate()
    assert set(seen) == {"custom_rm", "rollout_sample_hook", "shape_reward", "log_eval_rollout_data"}
    setup.train()
    assert set(seen) == {"custom_rm", *(hook.__name__ for hook in hooks)}
    assert all(engine is setup.engine for engines in seen.values() for engine in engines)


# Log hooks


@pytest.mark.parametrize("answers", [(True, None), (None, True), (None, None)])
def test_every_log_hook_gets_the_metrics_and_the_run_keeps_them(setup_run: Any, answers: tuple[bool | None, bool | None]) -> None:
    got: list[dict[str, float]] = []

    def log(answer: bool | None) -> list[Any]:
        def log_rollout_data(rollout_extra_metrics: dict[str, float]) -> bool | None:
            got.append(dict(rollout_extra_metrics))
            return answer

        def log_eval_rollout_data(extra_metrics: dict[str, float]) -> bool | None:
            got.append(dict(extra_metrics))
            return answer

        return [log_rollout_data, log_eval_rollout_data]

    training, evaluation = zip(*map(log, answers), strict=True)
    setup = setup_run(log_rollout_data=list(training), log_eval_rollout_data=list(evaluation))
    rollout = setup.train()
    assert rollout.metrics["raw_reward"] == 0.5 and rollout.logged_by_plugin is (True in answers)
    assert got == [rollout.metrics] * 2
    got.clear()
    _, metrics, logged_by_plugin = setup.evaluate()
    assert metrics["held-out"] == 0.5 and logged_by_plugin is (True in answers)
    assert got == [metrics] * 2


# Counts and times of rewards


def test_rewards_that_fail_in_an_evaluation_are_counted(setup_run: Any) -> None:
    async def broken(sample: Sample) -> float:
        raise RuntimeError("no judge")

    _, metrics, _ = setup_run(reward=broken, on_reward_error="zero").evaluate()
    assert metrics["held-out"] == 0.0 and metrics["reward_errors/custom_rm-0/RuntimeError"] == 4.0
    assert metrics["held-out/failed_samples"] == 0 and "reward_time" not in metrics


def test_failed_samples_of_an_evaluation_are_counted_beside_their_errors(setup_run: Any) -> None:
    async def broken(sample: Sample) -> float:
        if sample.index == 0:
            raise RuntimeError("no judge")
        return 1.0

    _, metrics, _ = setup_run(reward=broken, on_reward_error="drop").evaluate()
    assert metrics["held-out"] == 0.75 and metrics["held-out/failed_samples"] == 1
    assert metrics["reward_errors/custom_rm-0/RuntimeError"] == 1.0


def test_a_rollout_has_the_time_of_its_rewards_and_the_counts_of_its_source(setup_run: Any) -> None:
    setup = setup_run(max_staleness=1)
    setup.source.weight_version = 5
    (stale,) = setup.source.get_samples(1)
    for sample in stale:
        sample.append_response_tokens(tokens=[1], log_probs=[-0.1], meta_info={"weight_version": 3})
        sample.status = Status.COMPLETED
    setup.source.add_samples([stale])
    metrics = setup.train().metrics
    assert metrics["reward_time"] > 0
    assert metrics["samples_stale"] == metrics["samples_from_buffer"] == 2
    assert metrics["epoch"] == 3 / 8
    into = metrics["samples_generated"] + metrics["samples_from_buffer"]
    assert into == metrics["samples_trained"] + metrics["samples_stale"]


# What a rollout function returns


def made_by(change: Any) -> Any:
    """A rollout function that makes valid groups with reward 1, after `change(groups)`."""

    def generate_rollout(args: Any, data_source: Any, evaluation: bool = False) -> Any:
        groups = data_source.get_samples(args.rollout_batch_size)
        for sample in (sample for group in groups for sample in group):
            sample.tokens = [1]
            sample.append_response_tokens(tokens=[2], log_probs=[-0.5])
            sample.reward, sample.status = 1.0, Status.COMPLETED
        change(groups)
        if evaluation:
            samples = [sample for group in groups for sample in group]
            return {"own": {"rewards": [s.reward for s in samples], "truncated": [False] * len(samples), "samples": samples}}
        return RolloutFnTrainOutput(groups)

    return generate_rollout


def with_reward(value: Any) -> Any:
    def change(groups: list[list[Sample]]) -> None:
        groups[1][0].reward = value

    return made_by(change)


WRONG_REWARDS = [
    ("abc", r"returned str 'abc' as the reward for sample 2 \(group 1\)"),
    (float("nan"), r"returned nan as the reward for sample 2 \(group 1\)"),
    (float("inf"), "returned inf as the reward for sample 2"),
]


@pytest.mark.parametrize(
    ("value", "message"),
    [*WRONG_REWARDS, (None, "left sample 2 without a reward"), ({"acc": 1.0}, r"returned a dict with the keys \['acc'\] for sample 2")],
)
def test_a_wrong_reward_of_a_rollout_function_names_it_and_the_sample(setup_run: Any, value: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        setup_run(generate_rollout=with_reward(value)).train()
    assert caught.value.message.startswith("plugin 'generate_rollout-0': group 1: generate_rollout ")


def test_a_wrong_value_under_the_reward_key_is_named(setup_run: Any) -> None:
    def change(groups: list[list[Sample]]) -> None:
        for sample in (sample for group in groups for sample in group):
            sample.reward = {"acc": 1.0 if sample.index != 3 else "high"}

    with pytest.raises(ContractError, match=r"generate_rollout returned str 'high' under 'acc' for sample 3 \(group 1\)"):
        setup_run(generate_rollout=made_by(change), reward_key="acc").train()


def test_rewards_of_other_number_types_become_floats(setup_run: Any) -> None:
    numpy = pytest.importorskip("numpy")
    groups = setup_run(generate_rollout=with_reward(numpy.float32(0.5))).train().groups
    assert type(groups[1][0].reward) is float and groups[1][0].reward == 0.5


@pytest.mark.parametrize(("value", "message"), [*WRONG_REWARDS, (None, r"returned None as the reward for sample 2 \(group 1\)")])
def test_a_wrong_reward_of_an_evaluation_function_names_dataset_and_sample(setup_run: Any, value: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        setup_run(generate_rollout=with_reward(value)).evaluate()
    assert caught.value.message.startswith("plugin 'generate_rollout-0': the evaluation of dataset 'own' ")


# Samples of the built-in evaluation


@pytest.mark.parametrize(("status", "who"), [(Status.ABORTED, "evaluation dataset 'held-out': "), (Status.PENDING, "")])
def test_an_evaluation_needs_finished_samples(setup_run: Any, status: Status, who: str) -> None:
    async def custom_generate(sample: Sample) -> Sample:
        sample.tokens = [1]
        sample.append_response_tokens(tokens=[2], log_probs=[-0.5])
        sample.status = status if sample.index == 2 else Status.COMPLETED
        return sample

    with pytest.raises(ContractError) as caught:
        setup_run(custom_generate=custom_generate).evaluate()
    expected = f"{who}plugin 'custom_generate-0': custom_generate left sample 2 with status "
    assert caught.value.message == f"{expected}{status.value}; expected completed or truncated"


def test_a_group_that_was_not_scored_is_an_error_and_not_a_score(setup_run: Any) -> None:
    async def custom_generate(sample: Sample) -> Sample:
        sample.tokens, sample.status = [1, 2], Status.COMPLETED if sample.index else Status.ABORTED
        return sample

    def custom_rm(samples: list[Sample]) -> list[float]:
        return [1.0] * len(samples)

    with pytest.raises(VimeError, match=r"evaluation dataset 'held-out': .* left sample 0 with status aborted"):
        setup_run(reward=custom_rm, custom_generate=custom_generate, group_rm=True).evaluate()


def test_siblings_of_an_evaluation_share_no_mutable_part(setup_run: Any) -> None:
    (first, second), _ = setup_run(prompt=[{"role": "user", "content": "p"}]).dataset.groups()
    assert (first.prompt, first.label, first.metadata["list"]) == (second.prompt, second.label, second.metadata["list"])
    first.prompt.append({"role": "assistant", "content": "x"})
    first.label.append("x")
    first.metadata["list"].append("x")
    assert len(second.prompt) == len(second.label) == len(second.metadata["list"]) == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
