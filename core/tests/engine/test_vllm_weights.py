"""In which order vLLM is told to sleep, to wake and to load, and what is repaired about its output heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vime.engine.vllm_repairs import pack_float32_heads, share_tied_head
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
        "pack_float32_heads",  # of the weights that it was loaded with
        ("sleep", 1),
        ("wake_up", ["weights"]),
        ("reload_weights", [("a", 1)]),
        "share_tied_head",
        "pack_float32_heads",
        ("wake_up", ["kv_cache"]),
        "reset_prefix_cache",
    ]


def test_for_a_score_or_a_request_all_of_it_wakes_once() -> None:
    engine = Recorder()
    weights = VllmWeights(engine)
    weights.sleep()
    weights.wake()
    weights.wake()
    assert engine.calls == ["pack_float32_heads", ("sleep", 1), ("wake_up", ["weights", "kv_cache"])]


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
    """What pack_float32_heads looks at of vLLM's LogitsProcessor, which converts the weight in each call."""

    def __init__(self, head_dtype: Any) -> None:
        self.head_dtype = head_dtype

    def _apply_head(self, head: Any, hidden: Any, bias: Any) -> Any:
        return "vLLM's own"


class Head:
    def __init__(self, weight: Any) -> None:
        self.weight = weight


def packs() -> bool:
    """Whether this build of vLLM can pack a weight: that for GPUs cannot."""
    from vllm import _custom_ops as ops

    return ops._supports_onednn


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_heads_answer_with_float32_products_of_the_weights_that_they_have_after_a_load(dtype: str, bias: bool) -> None:
    import torch

    if not packs():
        pytest.skip("this vLLM is not for CPUs")
    torch.manual_seed(0)
    heads = [Head(torch.randn(40, 64).to(getattr(torch, dtype))) for _ in range(2)]
    processor = Processor(torch.float32)
    model = SimpleNamespace(modules=lambda: [object(), processor])
    offset = torch.randn(40).to(getattr(torch, dtype)) if bias else None
    hidden = torch.randn(2, 3, 64).to(getattr(torch, dtype))
    for _ in range(2):
        pack_float32_heads(model)
        for head in heads:
            logits = processor._apply_head(head, hidden, offset)
            expected = hidden.double() @ head.weight.double().t() + (0 if offset is None else offset.double())
            assert logits.dtype is torch.float32
            torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=0)
            head.weight.neg_()


OTHER_HEADS = [("float32", "float32", (4, 4)), ("bfloat16", "bfloat16", (4, 4)), ("bfloat16", "float32", (0,)), ("int8", "float32", (4, 4))]


@pytest.mark.parametrize(("dtype", "head_dtype", "shape"), OTHER_HEADS)
def test_other_heads_are_left_to_vllm(dtype: str, head_dtype: str, shape: tuple[int, ...]) -> None:
    import torch

    processor = Processor(getattr(torch, head_dtype))
    pack_float32_heads(SimpleNamespace(modules=lambda: [processor]))
    assert processor._apply_head(Head(torch.zeros(shape, dtype=getattr(torch, dtype))), None, None) == "vLLM's own"


def test_a_head_that_onednn_refuses_is_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from vllm import _custom_ops as ops

    def refuse(*_: Any) -> None:
        raise RuntimeError("no primitive")

    monkeypatch.setattr(ops, "_supports_onednn", True)
    monkeypatch.setattr(ops, "create_onednn_mm", refuse)
    processor = Processor(torch.float32)
    pack_float32_heads(SimpleNamespace(modules=lambda: [processor]))
    for _ in range(2):
        assert processor._apply_head(Head(torch.zeros(4, 4, dtype=torch.bfloat16)), None, None) == "vLLM's own"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
