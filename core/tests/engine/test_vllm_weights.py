"""In which order vLLM is told to sleep, to wake and to load, and what is repaired about its output heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vime.engine.vllm_repairs import pack_float32_head, share_tied_head
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
        "pack_float32_head",  # of the weights that it was loaded with
        ("sleep", 1),
        ("wake_up", ["weights"]),
        ("reload_weights", [("a", 1)]),
        "share_tied_head",
        "pack_float32_head",
        ("wake_up", ["kv_cache"]),
        "reset_prefix_cache",
    ]


def test_for_a_score_or_a_request_all_of_it_wakes_once() -> None:
    engine = Recorder()
    weights = VllmWeights(engine)
    weights.sleep()
    weights.wake()
    weights.wake()
    assert engine.calls == ["pack_float32_head", ("sleep", 1), ("wake_up", ["weights", "kv_cache"])]


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


class Processor:
    """What pack_float32_head looks at of vLLM's LogitsProcessor, which converts the weight in each call."""

    def __init__(self, head_dtype: Any) -> None:
        self.head_dtype = head_dtype

    def _apply_head(self, head: Any, hidden: Any, bias: Any) -> Any:
        return "vLLM's own"


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_answers_with_float32_products_of_the_weights_that_it_had_when_it_was_packed(bias: bool) -> None:
    import torch

    torch.manual_seed(0)
    head = SimpleNamespace(weight=torch.randn(40, 64).bfloat16())
    model = SimpleNamespace(lm_head=head, logits_processor=Processor(torch.float32))
    offset = torch.randn(40).bfloat16() if bias else None
    hidden = torch.randn(2, 3, 64).bfloat16()
    answers = []
    for _ in range(2):
        pack_float32_head(model)
        logits = model.logits_processor._apply_head(head, hidden, offset)
        expected = hidden.double() @ head.weight.double().t() + (0 if offset is None else offset.double())
        assert logits.dtype is torch.float32
        torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=0)
        answers.append(logits)
        head.weight.neg_()
    assert not torch.equal(*answers)
    assert model.logits_processor._apply_head(SimpleNamespace(weight=head.weight), hidden, None) == "vLLM's own"


@pytest.mark.parametrize(
    ("dtype", "head_dtype", "shape"), [("float32", "float32", (4, 4)), ("bfloat16", "bfloat16", (4, 4)), ("bfloat16", "float32", (0,))]
)
def test_other_heads_are_left_to_vllm(dtype: str, head_dtype: str, shape: tuple[int, ...]) -> None:
    import torch

    head = SimpleNamespace(weight=torch.zeros(shape, dtype=getattr(torch, dtype)))
    model = SimpleNamespace(lm_head=head, logits_processor=Processor(getattr(torch, head_dtype)))
    pack_float32_head(model)
    assert model.logits_processor._apply_head(head, None, None) == "vLLM's own"
    pack_float32_head(SimpleNamespace())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
