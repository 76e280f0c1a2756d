"""Requests in flight go on through a change of weights: on the real vLLM, token by token what each part's weights make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.engine.base import SamplingParams
from vime.engine.continuation import rest_of
from vime.outputs import Generation
from vime.testing.placement import QUICKSTART

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROMPTS = ("12+3=", "What is 4+5?", "7*8", "1")


class Bench:
    """The quickstart's model in an engine, and two sets of weights for it."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from vime.engine.local import LocalEngine

        config = RunConfig(hf_checkpoint=str(QUICKSTART), rollout_batch_size=4, n_samples_per_prompt=4, num_rollout=1)
        self.engine = LocalEngine(config, str(QUICKSTART), dtype="float32", deterministic=False, concurrency=16)
        model = AutoModelForCausalLM.from_pretrained(QUICKSTART, dtype=torch.float32)
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        torch.manual_seed(0)  # far from the trained ones, which answer in a few tokens
        self.old, self.new = (
            {name: tensor + 0.5 * tensor.std() * torch.randn_like(tensor) for name, tensor in weights.items()} for _ in range(2)
        )
        self.prompts = [self.engine.tokenizer.encode(text) for text in PROMPTS]
        self.set(self.old, 1)

    def set(self, weights: dict[str, Any], version: int, **options: Any) -> None:
        self.engine.update_weights(weights.items(), version, **options)

    def generate(self, params: SamplingParams) -> list[Awaitable[Generation]]:
        return [asyncio.ensure_future(self.engine.generate(prompt, params)) for prompt in self.prompts]

    def plain(self, params: SamplingParams) -> list[Generation]:
        """What comes of the prompts when nothing is changed meanwhile."""

        async def run() -> list[Generation]:
            return list(await asyncio.gather(*self.generate(params)))

        return asyncio.run(run())

    def scores(self, generations: list[Generation]) -> list[list[float]]:
        sequences = [prompt + made.token_ids for prompt, made in zip(self.prompts, generations, strict=True)]
        return [found[len(prompt) - 1 :] for prompt, found in zip(self.prompts, self.engine.score(sequences), strict=True)]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.close()


@pytest.fixture
def seams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens that each request had when it was taken out of vLLM, as they come."""
    found: list[int] = []

    def noting(params: SamplingParams, done: int) -> SamplingParams:
        found.append(done)
        return rest_of(params, done)

    monkeypatch.setattr("vime.engine.local.rest_of", noting)
    return found


def test_threads_with_an_event_loop_each_are_all_answered(bench: Bench) -> None:
    """As synchronous custom_generate functions do that call asyncio.run; an answer for one loop must wake the others too."""
    bench.set(bench.old, 1)
    params: SamplingParams = {"temperature": 1.0, "max_new_tokens": 8, "min_new_tokens": 8, "seed": 3}

    def ask(prompt: list[int]) -> Generation:
        async def answered() -> Generation:
            return await bench.engine.generate(prompt, params)

        return asyncio.run(answered())

    with ThreadPoolExecutor(len(bench.prompts)) as threads:
        answers = list(threads.map(ask, bench.prompts, timeout=300.0))
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in bench.plain(params)]


def test_each_part_has_the_log_probs_of_the_weights_that_made_it(bench: Bench, seams: list[int]) -> None:
    bench.set(bench.old, 1)

    async def run() -> list[Generation]:
        tasks = bench.generate({"temperature": 1.0, "max_new_tokens": 60, "seed": 3})
        while not any(seams):  # until they have begun; a change for the same weights makes a seam that shows nowhere
            await asyncio.to_thread(bench.set, bench.old, 1, keep_requests=True)
        await asyncio.to_thread(bench.set, bench.new, 2, keep_requests=True)
        return list(await asyncio.gather(*tasks))

    generations = asyncio.run(run())
    by_new = bench.scores(generations)
    bench.set(bench.old, 1)
    by_old = bench.scores(generations)
    cuts: list[int] = []
    for made, old, new in zip(generations, by_old, by_new, strict=True):
        cut = seam(made.log_probs, old, new)
        cuts.append(cut)
        assert cut == len(made.token_ids) or cut in seams, "where the request was taken out of vLLM"
        assert len(made.token_ids) == len(made.log_probs) and made.finish_reason == ("stop" if len(made.token_ids) < 60 else "length")
        assert made.weight_version == (1 if cut else 2), "that of the oldest token"
    assert any(0 < cut < len(made.token_ids) for cut, made in zip(cuts, generations, strict=True))


def seam(log_probs: list[float], old: list[float], new: list[float]) -> int:
    """The number of tokens that are the old weights', all others being the new ones'."""

    def agree(ours: list[float], theirs: list[float]) -> bool:
        return all(abs(a - b) < 1e-4 for a, b in zip(ours, theirs, strict=True))

    fits = [cut for cut in range(len(log_probs) + 1) if agree(log_probs[:cut], old[:cut]) and agree(log_probs[cut:], new[cut:])]
    assert len(fits) == 1, f"{len(fits)} places divide the log-probs into those of the two weights"
    return fits[0]


def disturbed(bench: Bench, params: SamplingParams) -> list[Generation]:
    """Generate while the weights are replaced by themselves, and scores are asked for, after nearly every token."""

    async def run() -> list[Generation]:
        tasks = bench.generate(params)
        everything = asyncio.gather(*tasks)
        for turn in range(10_000):
            if everything.done():
                break
            if turn % 4 == 3:
                await asyncio.to_thread(bench.engine.score, [[5, 6, 7]])
            else:
                await asyncio.to_thread(bench.set, bench.old, 1, keep_requests=True)
        return list(await everything)

    return asyncio.run(run())


@pytest.mark.parametrize("min_new_tokens", [0, 12])
def test_many_seams_change_nothing_about_greedy_answers(bench: Bench, seams: list[int], min_new_tokens: int) -> None:
    """Tokens, log-probs, text, the reason of the end, the lengths: also where a stop string lies across a seam."""
    bench.set(bench.old, 1)
    greedy: SamplingParams = {"temperature": 0.0, "max_new_tokens": 40, "min_new_tokens": min_new_tokens}
    texts = [made.text for made in bench.plain({**greedy, "min_new_tokens": 40})]
    stops = [None, [texts[0][6:10], texts[1][9:12]], [texts[2][14:20], texts[3][3:5]]]
    for stop in stops:
        params: SamplingParams = {**greedy, "stop": stop}
        expected = bench.plain(params)
        seams.clear()
        made = disturbed(bench, params)
        assert len(set(seams)) > 1, "there were seams at several places"
        for one, other in zip(expected, made, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    assert any(made.finish_reason == "stop" for made in bench.plain({**greedy, "stop": stops[1]}))


def test_without_keeping_them_requests_are_aborted(bench: Bench, seams: list[int]) -> None:
    async def run() -> list[Generation]:
        tasks = bench.generate({"temperature": 1.0, "max_new_tokens": 100, "min_new_tokens": 100})
        while not any(seams):
            await asyncio.to_thread(bench.engine.score, [[5, 6, 7]])
        await asyncio.to_thread(bench.set, bench.old, 1)
        return list(await asyncio.gather(*tasks))

    for made in asyncio.run(run()):
        assert made.finish_reason == "abort" and len(made.token_ids) == len(made.log_probs) < 100


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
