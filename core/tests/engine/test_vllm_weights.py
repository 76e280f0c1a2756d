"""In which order vLLM is told to sleep, to wake and to load, and the tied head that it forgets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vime.engine.vllm_repairs import share_tied_head
from vime.engine.vllm_weights import VllmWeights

NUM_GPUS = 0


class Recorder:
    """Takes the calls of vLLM's LLMEngine."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(("wake_up", tags))

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        self.calls.append((method, list(kwargs["weights_iterator"])))

    def apply_model(self, function: Any) -> None:
        self.calls.append(function.__name__)

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset_prefix_cache")


def test_a_sleeping_engine_takes_its_weights_back_for_a_push_and_its_cache_after_it() -> None:
    engine = Recorder()
    weights = VllmWeights(engine)
    weights.sleep()
    weights.replace([("a", 1)])
    assert engine.calls == [
        ("sleep", 1),
        ("wake_up", ["weights"]),
        ("reload_weights", [("a", 1)]),
        "share_tied_head",
        ("wake_up", ["kv_cache"]),
        "reset_prefix_cache",
    ]


def test_for_a_score_or_a_request_all_of_it_wakes_once() -> None:
    engine = Recorder()
    weights = VllmWeights(engine)
    weights.sleep()
    weights.wake()
    weights.wake()
    assert engine.calls == [("sleep", 1), ("wake_up", ["weights", "kv_cache"])]


def test_an_engine_sleeps_once_and_one_that_is_awake_is_left_alone() -> None:
    engine = Recorder()
    weights = VllmWeights(engine)
    weights.wake()
    weights.replace([])
    assert ("wake_up", ["weights"]) not in engine.calls
    weights.sleep()
    weights.sleep()
    assert engine.calls.count(("sleep", 1)) == 1


def model(*, is_tied: bool, **embedding: Any) -> Any:
    """What share_tied_head looks at of a vLLM model whose head has packed weights of its own."""
    return SimpleNamespace(
        config=SimpleNamespace(tie_word_embeddings=is_tied),
        lm_head=SimpleNamespace(cpu_linear="packed before"),
        model=SimpleNamespace(embed_tokens=SimpleNamespace(**embedding)),
    )


def test_a_tied_head_computes_with_the_packed_weight_of_its_embedding() -> None:
    tied = model(is_tied=True, cpu_linear="packed now")
    share_tied_head(tied)
    assert tied.lm_head.cpu_linear == "packed now"


@pytest.mark.parametrize("other", [model(is_tied=False, cpu_linear="packed now"), model(is_tied=True)])
def test_a_head_of_its_own_and_one_whose_embedding_is_not_packed_are_left_alone(other: Any) -> None:
    share_tied_head(other)
    assert other.lm_head.cpu_linear == "packed before"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
