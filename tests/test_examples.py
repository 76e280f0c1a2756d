"""The agents of examples/ with a fake engine: what they generate, what is trained of it."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.engine.base import SamplingParams, set_current_engine
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.generate import generate_sample
from vime.rollout.http.server import serving
from vime.rollout.rewards import RewardScorer
from vime.sample import Sample, Status
from vime.testing.fakes import FakeEngine
from vime.train.batch import build_train_batch

NUM_GPUS = 0

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=60, stop=None, seed=3)


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def calculated(policy: dict[str, str], settings: dict[str, Any] | None = None, params: SamplingParams = PARAMS) -> Sample:
    """One sample of the prompt `q`, through the hook as the rollout calls it."""
    plugins = PluginManager()
    plugins.add(module("calculator/calculator.py").Calculator, name="calculator", settings=settings)
    engine = FakeEngine(policy=policy)
    config = RunConfig(rm_type="none")
    context = RolloutContext(config, engine, plugins, None, deterministic=True)
    (sample,) = asyncio.run(generate_sample(context, Sample(index=0, group_index=0, prompt="q"), params))
    return sample


def trained(sample: Sample, text: str) -> list[str]:
    """The stretches of the response that are trained; one character is one token, apart from the end."""
    assert sample.loss_mask is not None
    marks = "".join(char if flag else "\x00" for char, flag in zip(text, sample.loss_mask, strict=False))
    return [part for part in marks.split("\x00") if part]


def test_the_result_is_inserted_and_not_trained() -> None:
    sample = calculated({"q": "it is <calc>4+9</calc>", "qit is <calc>4+9</calc> = 13 ": "pens"})
    assert sample.response == "it is <calc>4+9</calc> = 13 pens<|im_end|>"
    assert trained(sample, "it is <calc>4+9</calc> = 13 pens.") == ["it is <calc>4+9</calc>", "pens."]
    assert sample.status is Status.COMPLETED
    sample.reward = 1.0
    batch = build_train_batch(RunConfig(n_samples_per_prompt=1, rollout_batch_size=1), None, [[sample]])
    assert batch.loss_masks == [sample.loss_mask]
    assert batch.rollout_log_probs is not None and len(batch.rollout_log_probs[0]) == len(sample.loss_mask)


def test_an_answer_without_a_call_is_plain() -> None:
    sample = calculated({"q": "13"})
    assert (sample.response, sample.loss_mask, sample.status) == ("13<|im_end|>", None, Status.COMPLETED)


def test_calls_end_with_the_room_and_with_their_number() -> None:
    short = calculated({"q": "<calc>1</calc>"}, params=SamplingParams(**{**PARAMS, "max_new_tokens": 16}))
    assert (short.response_length, short.status) == (14 + 5, Status.TRUNCATED)
    settings = {"max_calls": 1, "open": "[", "close": "]"}
    twice = calculated({"q": "[1]", "q[1] = 1 ": "[2]"}, settings)
    assert twice.response == "[1] = 1 [2]<|im_end|>"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("4 + 9", "13"),
        ("7/2", "7/2"),
        ("-3 * (2 - 5)", "9"),
        ("1/0", "error"),
        ("2**9", "error"),
        ("__import__('os')", "error"),
        ("", "error"),
        ("(" * 200 + "1", "error"),
        ("1.5", "error"),
        ("True", "error"),
    ],
)
def test_only_arithmetic_is_calculated(expression: str, value: str) -> None:
    assert module("calculator/calculator.py").calculate(expression) == value


def test_the_http_agent_gives_one_sample_of_two_turns() -> None:
    pytest.importorskip("openai")
    pytest.importorskip("uvicorn")
    policy = iter(["12", "13"])

    async def main() -> list[Sample]:
        engine = FakeEngine(policy=lambda prompt, params: next(policy))
        config = RunConfig(custom_generate_function_path=f"{EXAMPLES}/http_agent/agent.py:generate", plugin=["math"])
        plugins = PluginManager.load(config)
        scorer = RewardScorer(config, plugins)
        with serving(engine, asyncio.get_running_loop(), SamplingParams(max_new_tokens=16)) as endpoint:
            set_current_engine(engine, endpoint)
            context = RolloutContext(config, engine, plugins, scorer, deterministic=True, endpoint=endpoint)
            made = await generate_sample(
                context, Sample(index=0, group_index=0, prompt="4+9?", label="13"), PARAMS | {"max_new_tokens": 200}
            )
            await scorer.score(made)
        scorer.close()
        return made

    (sample,) = asyncio.run(main())
    assert "Check it, and answer once more." in sample.response
    assert sample.loss_mask is not None
    assert sum(sample.loss_mask) == 6, "two characters and the end, twice"
    assert sample.reward == 1.0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
