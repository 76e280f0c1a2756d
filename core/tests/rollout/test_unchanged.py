"""`--check-hooks`: a hook that changes what it may only read is named with the field; without the flag nobody looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime.api import Sample
from vime.errors import ContractError
from vime.rollout.unchanged import MAY_CHANGE

NUM_GPUS = 0

Run = Callable[..., Any]


def touch(sample: Sample) -> None:
    sample.response += "!"


def shape_reward(sample: Sample) -> None:
    touch(sample)


async def custom_rm(sample: Sample) -> float:
    touch(sample)
    return 1.0


def dynamic_sampling_filter(samples: list[Sample]) -> bool:
    touch(samples[0])
    return True


def buffer_filter(buffer: list[list[Sample]], num_samples: int) -> Any:
    touch(buffer[0][0])
    return buffer[:num_samples]


def rollout_sample_filter(samples: list[list[Sample]]) -> None:
    touch(samples[0][0])


def process_all_samples(all_samples: list[list[Sample]]) -> None:
    all_samples[0][0].tokens[0] += 1


def log_rollout_data(samples: list[Sample]) -> None:
    touch(samples[0])


def log_eval_rollout_data(data: dict[str, Any]) -> None:
    touch(data["held-out"]["samples"][0])


READERS = (
    custom_rm,
    shape_reward,
    dynamic_sampling_filter,
    buffer_filter,
    rollout_sample_filter,
    process_all_samples,
    log_rollout_data,
    log_eval_rollout_data,
)
IN_TRAINING = {"post_process_rewards", "convert_samples_to_train_data"}
"""Those that build_train_batch calls are tested beside it."""


def one_round(run: Any) -> None:
    run.source.add_samples(run.source.get_samples(1))
    run.train()
    run.evaluate()


@pytest.mark.parametrize("function", READERS, ids=lambda function: function.__name__)
def test_a_change_is_named(setup_run: Run, function: Any) -> None:
    hook = function.__name__
    hooks = {"reward": function} if hook == "custom_rm" else {hook: function}
    one_round(setup_run(**hooks))
    with pytest.raises(ContractError, match=r"changed what it was shown: sample 0 \(group 0\): (response|tokens) .* -> ") as caught:
        one_round(setup_run(**hooks, check_hooks=True))
    assert caught.value.message.startswith(f"plugin '{hook}-0': {hook} ")
    assert caught.value.hint


def test_every_reading_hook_is_tested() -> None:
    assert {function.__name__ for function in READERS} | IN_TRAINING == set(MAY_CHANGE)


def test_what_a_hook_may_write_is_no_change(setup_run: Run) -> None:
    async def custom_rm(sample: Sample) -> float:
        sample.metadata["parsed"] = 4
        return 1.0

    def rollout_sample_filter(samples: list[list[Sample]]) -> None:
        samples[0][0].remove_sample = True

    def process_all_samples(all_samples: list[list[Sample]]) -> None:
        all_samples[0][0].metadata["seen"] = True

    one_round(
        setup_run(reward=custom_rm, rollout_sample_filter=rollout_sample_filter, process_all_samples=process_all_samples, check_hooks=True)
    )


@pytest.mark.parametrize("hook", ["custom_generate", "rollout_sample_hook", "generate_rollout", "make_data_source"])
def test_hooks_that_write_samples_leave_the_configuration_alone(setup_run: Run, hook: str) -> None:
    def changing(args: Any) -> Any:
        args.plugin.append("another")

    with pytest.raises(ContractError, match=rf"{hook} changed what it was shown: args.plugin \[\] -> \['another'"):
        one_round(setup_run(**{hook: changing}, check_hooks=True))


@pytest.mark.parametrize("policy", ["raise", "drop", "zero"])
def test_a_reward_in_a_worker_process_is_watched_there(
    setup_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    source = "def reward(args, sample):\n    sample.tokens.append(1)\n    return 1.0\n"
    (tmp_path / "changing.py").write_text(source)
    options = {"custom_rm_path": f"{tmp_path}/changing.py:reward", "reward_isolation": "process", "on_reward_error": policy}
    setup_run(**options).train()
    with pytest.raises(ContractError, match=r"custom_rm changed what it was shown: sample \d \(group \d\): tokens"):
        setup_run(**options, check_hooks=True).train()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
