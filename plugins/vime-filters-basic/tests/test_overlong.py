"""overlong adds DAPO's soft punishment to the reward of long training answers."""

import asyncio

import pytest

from vime.api import ConfigError, ContractError, PluginError, Sample, Status, hookimpl
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.rewards import RewardScorer
from vime_filters_basic.overlong import Overlong, punishment

NUM_GPUS = 0


def answer(length, **fields):
    return Sample(index=0, response_length=length, tokens=[0] * (1 + length), status=Status.COMPLETED, **fields)


def hooks(**settings):
    return PluginManager().add(Overlong, name="overlong", settings=settings).hooks


def shaped(sample, config=None, **settings):
    return hooks(**settings)["shape_reward"].call(args=config or RunConfig(), sample=sample)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 0.0),
        (16384, 0.0),
        (16385, -1 / 4096),
        (17408, -0.25),
        (18432, -0.5),
        (20479, -4095 / 4096),
        (20480, -1.0),
        (20481, -1.0),
        (99999, -1.0),
    ],
)
def test_equation_13_with_the_numbers_of_the_paper(length, expected):
    assert punishment(length, 20480, 4096) == expected
    assert shaped(answer(length), max_response_len=20480) == expected, "a fifth is the default buffer"
    assert shaped(answer(length), max_response_len=20480, buffer_len=4096, factor=0.5) == 0.5 * expected


@pytest.mark.parametrize(
    ("length", "max_len", "buffer_len", "expected"),
    [(10, 10, 0, 0.0), (11, 10, 0, -1.0), (0, 10, 10, 0.0), (1, 10, 10, -0.1), (10, 10, 10, -1.0), (9, 10, 1, 0.0), (10, 10, 1, -1.0)],
)
def test_the_ends_of_the_buffer(length, max_len, buffer_len, expected):
    assert punishment(length, max_len, buffer_len) == expected
    assert shaped(answer(length), max_response_len=max_len, buffer_len=buffer_len) == expected


def test_the_limit_of_the_run_is_the_default():
    config = RunConfig(rollout_max_response_len=100)
    assert [shaped(answer(length), config) for length in (80, 90, 100)] == [0.0, -0.5, -1.0]
    assert shaped(answer(90), config, max_response_len=1000) == 0.0
    assert [shaped(answer(length), RunConfig(rollout_max_response_len=3)) for length in (2, 3)] == [0.0, -1.0], "a buffer of at least 1"
    assert shaped(answer(90), config, buffer_len=40) == -0.75


def test_a_buffer_that_does_not_fit_the_limit_of_the_run_is_refused():
    with pytest.raises(ConfigError, match="overlong: buffer_len is 101, and --rollout-max-response-len is 100") as caught:
        shaped(answer(1), RunConfig(rollout_max_response_len=100), buffer_len=101)
    assert "at most 100" in (caught.value.hint or "")
    assert shaped(answer(1), RunConfig(rollout_max_response_len=100), buffer_len=100) == -0.01


def test_tool_output_counts_unless_the_user_says_otherwise():
    sample = Sample(tokens=[1], status=Status.COMPLETED)
    sample.append_response_tokens(tokens=[2] * 6, log_probs=[-0.1] * 6)
    sample.append_response_tokens(tokens=[3] * 4, trainable=False)
    assert shaped(sample, max_response_len=10, buffer_len=5) == -1.0
    assert shaped(sample, max_response_len=10, buffer_len=5, trained_only=True) == -0.2
    assert shaped(answer(10), max_response_len=10, buffer_len=5, trained_only=True) == -1.0


def test_evaluation_answers_are_not_punished():
    plugin = hooks(max_response_len=10)
    for evaluation, expected in ((True, None), (False, -1.0)):
        sample = answer(10)
        assert plugin["rollout_sample_hook"].call(args=RunConfig(), sample=sample, rollout_id=0, evaluation=evaluation) is None
        assert plugin["shape_reward"].call(args=RunConfig(), sample=sample) == expected


class Constant:
    """A reward that is the sample's label."""

    @hookimpl
    async def custom_rm(self, sample):
        return sample.label


def scored(samples, evaluation=False, **options):
    config = RunConfig(rollout_max_response_len=10, **options)
    plugins = PluginManager()
    plugins.add(Constant, name="constant")
    plugins.add(Overlong, name="overlong", settings={"buffer_len": 5})
    scorer = RewardScorer(config, plugins)
    try:
        asyncio.run(scorer.score(samples, evaluation=evaluation, rollout_id=0))
    finally:
        scorer.close()
    return [sample.reward for sample in samples]


def test_the_reward_of_a_run():
    failed = answer(10, label=1.0)
    failed.status = Status.FAILED
    assert scored([answer(5, label=1.0), answer(6, label=1.0), answer(10, label=0.0), failed]) == [1.0, 0.8, -1.0, None]
    assert scored([]) == []
    assert scored([answer(10, label=1.0)], evaluation=True) == [1.0]


def test_dict_rewards_by_their_key():
    assert scored([answer(10, label={"acc": 1.0, "len": 10})], reward_key="acc") == [{"acc": 0.0, "len": 10}]


def test_rollouts_of_several_samples_need_one_punishment():
    def rollout(*lengths):
        return [answer(length, label=1.0, rollout_id=3) for length in lengths]

    assert scored(rollout(2, 5)) == [1.0, 1.0]
    with pytest.raises(ContractError, match=r"rollout 3 .*have different rewards") as caught:
        scored(rollout(2, 10))
    assert "shape_reward" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_response_len": 10, "buffer_len": 11}, r"plugin 'overlong': .*buffer_len \(11\) is above max_response_len \(10\)"),
        ({"max_response_len": 0}, "plugin 'overlong': setting 'max_response_len'"),
        ({"buffer_len": -1}, "plugin 'overlong': setting 'buffer_len'"),
        ({"factor": -1.0}, "plugin 'overlong': setting 'factor'"),
        ({"factor": float("inf")}, "plugin 'overlong': setting 'factor'"),
        ({"buffer": 5}, "plugin 'overlong': unknown setting 'buffer'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(PluginError, match=message):
        PluginManager().add(Overlong, name="overlong", settings=settings)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
