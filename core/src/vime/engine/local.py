"""vLLM in this process: a thread steps the engine, asyncio code awaits its requests.

What was measured about vLLM on a CPU (start-up settings, weight reload, tied output heads) decides the details here;
the comments name the reason where a line looks odd.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime.engine.base import SamplingParams
from vime.engine.vllm_options import engine_options, prepare_environment, vllm_params
from vime.engine.vllm_repairs import repack_tied_head, shut_down
from vime.errors import EngineDeadError, EngineError
from vime.outputs import Generation

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

SETTLE_TURNS = 8
"""Turns of the event loop that a deterministic engine waits after results, so that follow-up requests join one wave."""


@dataclass(eq=False)
class _Request:
    request_id: str
    session_id: str | None
    token_ids: list[int]
    params: Any
    future: asyncio.Future[Generation]
    internal_id: str = ""


@dataclass
class _Inbox:
    """What other threads ask of the stepping thread, in order."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    items: list[Callable[[], None]] = field(default_factory=list)
    closed: bool = False


class LocalEngine:
    """A vLLM engine inside this process (`TrainableEngine`). Requests come from one event loop at a time."""

    def __init__(self, config: RunConfig, model_path: str, *, dtype: str, deterministic: bool, concurrency: int) -> None:
        """Load the model at `model_path`. `concurrency` is the number of requests a rollout has in flight at most."""
        prepare_environment()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.deterministic = deterministic
        options: dict[str, Any] = engine_options(config, model_path, dtype=dtype, concurrency=concurrency) | config.vllm_engine_args
        try:
            self.llm_engine: Any = LLMEngine.from_engine_args(EngineArgs(**options))
        except Exception as exc:
            raise EngineError(f"vLLM could not load {model_path}: {exc}", hint="see the engine options --vllm-*") from exc
        self.tokenizer: Any = self.llm_engine.get_tokenizer()
        self.max_model_len: int = self.llm_engine.model_config.max_model_len
        self._weight_version = 0
        self._ids = itertools.count()
        self._requests: dict[str, _Request] = {}
        self._inbox = _Inbox()
        self._wave: list[_Request] = []
        self._generated_tokens = self._prompt_tokens = self._cached_tokens = 0
        self._busy_seconds = 0.0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vime-engine", daemon=True)
        self._thread.start()

    @property
    def weight_version(self) -> int:
        return self._weight_version

    # --- the asyncio side ---------------------------------------------------------------------------------------

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        (generation,) = await self._run_wave([self._request(token_ids, sampling_params, session_id)])
        return generation

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        return await self._run_wave([self._request(token_ids, params, None) for token_ids, params in requests])

    async def _run_wave(self, wave: list[_Request]) -> list[Generation]:
        self._enqueue(wave)
        try:
            return list(await asyncio.gather(*(request.future for request in wave)))
        except BaseException:  # a caller that gave up, or a request that failed: the others must not run on unseen
            self._post(lambda: self._abort([request for request in wave if request.request_id in self._requests]))
            raise

    async def abort(self, session_id: str) -> None:
        await self._on_thread(lambda: self._abort([r for r in self._requests.values() if r.session_id == session_id]))

    async def abort_all(self) -> None:
        await self._on_thread(lambda: self._abort(list(self._requests.values())))

    def _request(self, token_ids: Sequence[int], params: SamplingParams, session_id: str | None) -> _Request:
        if self._failure is not None:
            raise EngineDeadError(f"the engine has failed: {self._failure}") from self._failure
        if not token_ids:
            raise EngineError("a request has no prompt tokens", hint="an empty prompt cannot be continued; give it at least one token")
        if len(token_ids) >= self.max_model_len:
            raise EngineError(
                f"a prompt of {len(token_ids)} tokens leaves no room in the model's {self.max_model_len} tokens",
                hint="set --rollout-max-prompt-len, or raise --vllm-max-model-len",
            )
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        return _Request(str(next(self._ids)), session_id, list(token_ids), vllm_params(params, self.max_model_len - len(token_ids)), future)

    def _enqueue(self, requests: list[_Request]) -> None:
        """Collect what is submitted in one turn of the loop and admit it between two engine steps, as one wave."""
        if not self._wave:
            asyncio.get_running_loop().call_soon(self._flush)
        self._wave.extend(requests)

    def _flush(self) -> None:
        wave, self._wave = self._wave, []
        self._post(lambda: self._admit(wave))

    async def _on_thread(self, action: Callable[[], None]) -> None:
        done: Future[None] = Future()
        if self._wave:
            self._flush()

        def run() -> None:
            try:
                action()
            except BaseException as exc:  # noqa: BLE001 - handed to the caller's thread
                done.set_exception(exc)
            else:
                done.set_result(None)

        self._post(run)
        await asyncio.wrap_future(done)

    def _post(self, item: Callable[[], None]) -> None:
        with self._inbox.condition:
            if self._inbox.closed:
                raise EngineDeadError("the engine is closed")
            self._inbox.items.append(item)
            self._inbox.condition.notify()

    # --- the stepping thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._inbox.condition:
                while not self._inbox.items and not self._inbox.closed and not self._requests:
                    self._inbox.condition.wait()
                items, self._inbox.items = self._inbox.items, []
                is_closed = self._inbox.closed
            try:
                for item in items:
                    item()
                if is_closed:
                    self._abort(list(self._requests.values()))
                    return
                if self._requests:
                    self._step()
            except BaseException as exc:  # noqa: BLE001 - handed to every waiting request
                self._fail(exc)
                if is_closed:
                    return

    def _admit(self, wave: list[_Request]) -> None:
        for request in wave:
            try:
                request.internal_id = self.llm_engine.add_request(
                    request.request_id, {"prompt_token_ids": request.token_ids}, request.params
                )
            except Exception as exc:  # noqa: BLE001 - handed to the caller of this request
                error = EngineError(f"vLLM refused a request of {len(request.token_ids)} prompt tokens: {exc}")
                _call_in_loop(request.future, lambda f=request.future, e=error: _set_exception(f, e))
            else:
                self._requests[request.request_id] = request
                self._prompt_tokens += len(request.token_ids)

    def _step(self) -> None:
        finished: list[tuple[_Request, Generation]] = []
        started = time.perf_counter()
        outputs = self.llm_engine.step()
        self._busy_seconds += time.perf_counter() - started
        for output in outputs:
            if output.finished:
                request = self._requests.pop(output.request_id, None)
                if request is not None:
                    self._cached_tokens += output.num_cached_tokens or 0
                    completion = output.outputs[0]
                    finished.append(
                        (
                            request,
                            self._generation(
                                request, completion.token_ids, completion.logprobs, completion.finish_reason or "stop", completion.text
                            ),
                        )
                    )
        self._deliver(finished)

    def _abort(self, requests: list[_Request]) -> None:
        """Stop these requests; what they have generated so far is taken out of the output processor first."""
        finished: list[tuple[_Request, Generation]] = []
        for request in requests:
            state = self.llm_engine.output_processor.request_states.get(request.internal_id)
            token_ids = list(state.detokenizer.output_token_ids) if state and state.detokenizer else []
            log_probs = state.logprobs_processor.logprobs if state and state.logprobs_processor else None
            finished.append((request, self._generation(request, token_ids, log_probs, "abort", "")))
            self._requests.pop(request.request_id, None)
        if requests:
            self.llm_engine.abort_request([request.internal_id for request in requests], internal=True)
        self._deliver(finished)

    def _generation(self, request: _Request, token_ids: Sequence[int], logprobs: Any, reason: str, text: str) -> Generation:
        token_ids = list(token_ids)
        log_probs = [] if logprobs is None else list(logprobs.logprobs)
        if logprobs is not None and len(log_probs) != len(token_ids):
            log_probs = [logprobs.logprobs[start] for start in logprobs.start_indices]  # entries of other tokens beside the sampled one
        self._generated_tokens += len(token_ids)
        if not request.params.detokenize or reason == "abort":
            ends_with_stop = reason == "stop" and bool(token_ids)
            text = self.tokenizer.decode(token_ids[:-1] if ends_with_stop else token_ids, skip_special_tokens=False)
        return Generation(token_ids, log_probs, text, reason, self._weight_version)

    def _deliver(self, finished: list[tuple[_Request, Generation]]) -> None:
        """Resolve futures in their loop, in one call; in deterministic mode wait until the loop has reacted."""
        if not finished:
            return
        loop = finished[0][0].future.get_loop()
        settled = threading.Event()

        def resolve() -> None:
            for request, generation in finished:
                if not request.future.done():
                    request.future.set_result(generation)
            if self.deterministic:
                _after_turns(loop, SETTLE_TURNS, settled.set)

        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:  # the loop was closed by an interrupt: nobody waits any more
            return
        if self.deterministic:
            settled.wait(timeout=5.0)

    def _fail(self, exc: BaseException) -> None:
        """An engine step raised: every request in flight fails with it."""
        self._failure = exc
        error = EngineDeadError(f"vLLM failed in an engine step: {type(exc).__name__}: {exc}", hint="VIME_VERBOSE=1 shows what vLLM says")
        error.__cause__ = exc
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            _call_in_loop(request.future, lambda f=request.future: _set_exception(f, error))

    # --- the runtime's side: called while no request is in flight ---------------------------------------------------

    def update_weights(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        def update() -> None:
            self._abort(list(self._requests.values()))
            self.llm_engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(named_tensors)})
            self.llm_engine.apply_model(repack_tied_head)
            self.llm_engine.reset_prefix_cache()
            self._weight_version = version

        self._sync_call(update)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of tokens 1..T-1 of each sequence, from vLLM's prompt log-probs (raw: temperature 1)."""
        from vllm import SamplingParams as VllmParams

        params = VllmParams(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=0.0)

        def score() -> list[list[float]]:
            self._abort(list(self._requests.values()))
            found: dict[str, list[float]] = {}
            asked: list[str] = []
            try:
                for i, ids in enumerate(sequences):
                    asked.append(self.llm_engine.add_request(f"score-{i}", {"prompt_token_ids": list(ids)}, params))
                while len(found) < len(sequences):
                    for output in self.llm_engine.step():
                        if output.finished:
                            pairs = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
                            found[output.request_id] = [position[token].logprob for position, token in pairs]
            except BaseException:
                self.llm_engine.abort_request(asked, internal=True)
                raise
            return [found[f"score-{i}"] for i in range(len(sequences))]

        return self._sync_call(score)

    def _sync_call(self, action: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except BaseException as exc:  # noqa: BLE001 - handed to the caller's thread
                done.set_exception(exc)

        self._post(run)
        return done.result()

    def stats(self) -> dict[str, float]:
        stats = {
            "prompt_tokens": float(self._prompt_tokens),
            "generated_tokens": float(self._generated_tokens),
            "cached_tokens": float(self._cached_tokens),
            "busy_seconds": self._busy_seconds,
        }
        self._prompt_tokens = self._generated_tokens = 0
        self._busy_seconds = 0.0
        return stats

    def close(self) -> None:
        """Stop the stepping thread and release the model."""
        with self._inbox.condition:
            self._inbox.closed = True
            self._inbox.condition.notify()
        self._thread.join(timeout=10.0)
        shut_down(self.llm_engine)
        del self.llm_engine


def _set_exception(future: asyncio.Future[Generation], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _call_in_loop(future: asyncio.Future[Generation], callback: Callable[[], None]) -> None:
    try:
        future.get_loop().call_soon_threadsafe(callback)
    except RuntimeError:  # the loop was closed by an interrupt: nobody waits any more
        return


def _after_turns(loop: asyncio.AbstractEventLoop, turns: int, callback: Callable[[], Any]) -> None:
    if turns == 0:
        callback()
    else:
        loop.call_soon(_after_turns, loop, turns - 1, callback)
