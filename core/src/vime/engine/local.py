"""vLLM in this process: one thread steps the engine (`vime.engine.stepping`), asyncio code awaits its requests.

What was measured about vLLM on a CPU (start-up settings, weight reload, tied output heads) decides the details here;
the comments name the reason where a line looks odd.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from vime.engine.base import SamplingParams
from vime.engine.continuation import rest_of
from vime.engine.loops import after_turns, set_exception
from vime.engine.stepping import Stepper
from vime.engine.vllm_options import engine_options, own_process_group, prepare_environment, vllm_params
from vime.engine.vllm_repairs import shut_down
from vime.engine.vllm_request import VllmRequest, sampled
from vime.engine.vllm_weights import VllmWeights
from vime.errors import EngineDeadError, EngineError
from vime.heavy import heavy_imports
from vime.outputs import Generation

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

T = TypeVar("T")

SETTLE_TURNS = 8
"""Turns of the event loop that a deterministic engine waits after results, so that follow-up requests join one wave."""


class LocalEngine:
    """A vLLM engine inside this process (`TrainableEngine`), in a thread of its own. Requests come from any event loop."""

    own_thread = True

    def __init__(self, config: RunConfig, model_path: str, *, dtype: str, deterministic: bool, concurrency: int) -> None:
        """Load the model at `model_path`. `concurrency` is the number of requests a rollout has in flight at most."""
        prepare_environment()
        with heavy_imports():
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

        self.deterministic = deterministic
        if config.engine_tp == 1:  # else vLLM has a process for each shard
            own_process_group()
        options: dict[str, Any] = engine_options(config, model_path, dtype=dtype, concurrency=concurrency) | config.vllm_engine_args
        try:
            self.llm_engine: Any = LLMEngine.from_engine_args(EngineArgs(**options))
        except Exception as exc:
            raise EngineError(f"vLLM could not load {model_path}: {exc}", hint="see the engine options --vllm-*") from exc
        self._weights = VllmWeights(self.llm_engine, is_in_process=config.engine_tp == 1)
        self.tokenizer: Any = self.llm_engine.get_tokenizer()
        self.max_model_len: int = self.llm_engine.model_config.max_model_len
        self.steps = 0
        self._weight_version = 0
        self._ids = itertools.count()
        self._requests: dict[str, VllmRequest] = {}
        self._wave: list[VllmRequest] = []
        self._wave_lock = threading.Lock()
        self._generated_tokens = self._prompt_tokens = self._cached_tokens = 0
        self._busy_seconds = 0.0
        self._told: dict[str, float] = {}
        self._update = ExitStack()
        self._held: list[VllmRequest] | None = None
        """During a weight transfer: the requests that came meanwhile."""
        self._failure: BaseException | None = None
        self._stepper = Stepper(self._step, lambda: bool(self._requests), self._fail, own_thread=self.own_thread)

    @property
    def weight_version(self) -> int:
        return self._weight_version

    # --- the asyncio side ---------------------------------------------------------------------------------------

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        (generation,) = await self._run_wave([self._request(token_ids, sampling_params, session_id)])
        return generation

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        return await self._run_wave([self._request(token_ids, params, None) for token_ids, params in requests])

    async def _run_wave(self, wave: list[VllmRequest]) -> list[Generation]:
        self._enqueue(wave)
        try:
            return list(await asyncio.gather(*(request.future for request in wave)))
        except BaseException:  # a caller that gave up, or a request that failed: the others must not run on unseen
            self._stepper.post(lambda: self._abort([request for request in wave if request.request_id in self._requests]))
            raise

    async def abort(self, session_id: str) -> None:
        await self._between_steps(lambda: self._abort([r for r in self._requests.values() if r.session_id == session_id]))

    async def abort_all(self) -> None:
        await self._between_steps(self._abort_all)

    async def _between_steps(self, action: Callable[[], None]) -> None:
        if self._wave:
            self._flush()
        await self._stepper.calling(action)

    def _request(self, token_ids: Sequence[int], params: SamplingParams, session_id: str | None) -> VllmRequest:
        self._stepper.check_at_work()
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
        vllm = vllm_params(params, self.max_model_len - len(token_ids))
        return VllmRequest(str(next(self._ids)), session_id, list(token_ids), params, vllm, future)

    def _enqueue(self, requests: list[VllmRequest]) -> None:
        """Collect what is submitted in one turn of the loop and admit it between two engine steps, as one wave."""
        with self._wave_lock:
            if not self._wave:
                asyncio.get_running_loop().call_soon(self._flush)
            self._wave.extend(requests)

    def _flush(self) -> None:
        with self._wave_lock:
            wave, self._wave = self._wave, []
        self._stepper.post(lambda: self._admit(wave))

    # --- the stepping thread ------------------------------------------------------------------------------------

    def _admit(self, wave: list[VllmRequest]) -> None:
        if self._held is not None:
            self._held += wave
            return
        self._weights.wake()
        for request in wave:
            try:
                token_ids = request.token_ids + request.done_ids
                request.internal_id = self.llm_engine.add_request(request.request_id, {"prompt_token_ids": token_ids}, request.params)
            except Exception as exc:  # noqa: BLE001 - handed to the caller of this request
                error = EngineError(f"vLLM refused a request of {len(request.token_ids)} prompt tokens: {exc}")
                set_exception(request.future, error)
            else:
                self._requests[request.request_id] = request
                self._prompt_tokens += len(token_ids)
                if request.done_text:  # a stop string may begin before the seam and end after it
                    self.llm_engine.output_processor.request_states[request.internal_id].detokenizer.output_text = request.done_text

    def _step(self) -> None:
        finished: list[tuple[VllmRequest, Generation]] = []
        started = time.perf_counter()
        outputs = self.llm_engine.step()
        self.steps += 1
        self._busy_seconds += time.perf_counter() - started
        for output in outputs:
            if output.finished:
                request = self._requests.pop(output.request_id, None)
                if request is not None:
                    self._cached_tokens += output.num_cached_tokens or 0
                    made = output.outputs[0]
                    reason = made.finish_reason or "stop"
                    generation = self._generation(request, made.token_ids, made.logprobs, reason, made.text, output.metrics)
                    finished.append((request, generation))
        self._deliver(finished)

    def _abort_all(self) -> None:
        self._abort(list(self._requests.values()))

    def _abort(self, requests: list[VllmRequest]) -> None:
        """Stop these requests; what they have generated so far is taken out of the output processor first."""
        finished: list[tuple[VllmRequest, Generation]] = []
        for request in requests:
            token_ids, log_probs, _ = self._so_far(request)
            state = self.llm_engine.output_processor.request_states.get(request.internal_id)
            finished.append((request, self._generation(request, token_ids, log_probs, "abort", "", state and state.stats)))
            self._requests.pop(request.request_id, None)
        if requests:
            self.llm_engine.abort_request([request.internal_id for request in requests], internal=True)
        self._deliver(finished)

    def _so_far(self, request: VllmRequest) -> tuple[list[int], Any, str]:
        """Token ids, vLLM's log-probs and (where it looks for stop strings) the text of a request that runs."""
        state = self.llm_engine.output_processor.request_states.get(request.internal_id)
        token_ids = list(state.detokenizer.output_token_ids) if state and state.detokenizer else []
        log_probs = state.logprobs_processor.logprobs if state and state.logprobs_processor else None
        return token_ids, log_probs, getattr(state.detokenizer, "output_text", "") if state else ""

    @contextmanager
    def _parked(self) -> Iterator[None]:
        """For the block, take what runs out of vLLM; afterwards it goes on from what it has, under the weights of then."""
        parked = list(self._requests.values())
        for request in parked:
            token_ids, log_probs, request.done_text = self._so_far(request)
            request.done_ids += token_ids
            request.done_log_probs += sampled(log_probs, len(token_ids))
            if request.version is None and token_ids:
                request.version = self._weight_version
        if parked:
            self.llm_engine.abort_request([request.internal_id for request in parked], internal=True)
        self._requests.clear()
        try:
            yield
        finally:
            for request in parked:
                request.request_id = str(next(self._ids))
                room = self.max_model_len - len(request.token_ids) - len(request.done_ids)
                request.params = vllm_params(rest_of(request.asked, len(request.done_ids)), room)
            self._admit(parked)

    def _generation(self, request: VllmRequest, token_ids: Sequence[int], logprobs: Any, reason: str, text: str, times: Any) -> Generation:
        log_probs = request.done_log_probs + sampled(logprobs, len(token_ids))
        token_ids = request.done_ids + list(token_ids)
        self._generated_tokens += len(token_ids)
        if not request.params.detokenize or reason == "abort":
            ends_with_stop = reason == "stop" and bool(token_ids)
            text = self.tokenizer.decode(token_ids[:-1] if ends_with_stop else token_ids, skip_special_tokens=False)
        version = self._weight_version if request.version is None else request.version
        began = getattr(times, "scheduled_ts", None) or None
        return Generation(token_ids, log_probs, text, reason, version, began)

    def _deliver(self, finished: list[tuple[VllmRequest, Generation]]) -> None:
        """Resolve futures in their loops, in one call for each; in deterministic mode wait until the loops have reacted."""
        if not finished:
            return
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[VllmRequest, Generation]]] = {}
        for request, generation in finished:
            by_loop.setdefault(request.future.get_loop(), []).append((request, generation))
        reacting = [(loop, self._resolve(loop, results)) for loop, results in by_loop.items()]
        if self.deterministic:
            self._stepper.wait_until(lambda: all(settled.is_set() or not loop.is_running() for loop, settled in reacting), 5.0)

    def _resolve(self, loop: asyncio.AbstractEventLoop, results: list[tuple[VllmRequest, Generation]]) -> threading.Event:
        """Resolve these futures of a loop; what comes back is set once the loop has reacted, in deterministic mode."""
        settled = threading.Event()

        def settle() -> None:
            settled.set()
            self._stepper.wake()

        def resolve() -> None:
            for request, generation in results:
                if not request.future.done():
                    request.future.set_result(generation)
            if self.deterministic:
                after_turns(loop, SETTLE_TURNS, settle)

        with contextlib.suppress(RuntimeError):  # the loop was closed by an interrupt: nobody waits any more
            loop.call_soon_threadsafe(resolve)
        return settled

    def _fail(self, exc: BaseException) -> None:
        """An engine step raised: every request in flight fails with it."""
        self._failure = exc
        error = EngineDeadError(f"vLLM failed in an engine step: {type(exc).__name__}: {exc}", hint="VIME_VERBOSE=1 shows what vLLM says")
        error.__cause__ = exc
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            set_exception(request.future, error)

    # --- the runtime's side -------------------------------------------------------------------------------------

    def update_weights(self, named_tensors: Iterable[tuple[str, Any]], version: int, *, keep_requests: bool = False) -> None:
        def update() -> None:
            if not keep_requests:
                self._abort_all()
            with self._parked():
                self._weights.replace(named_tensors)
                self._weight_version = version

        self._stepper.call(update)

    def transfer(self, method: str, arguments: dict[str, Any]) -> None:
        """One of the calls of vLLM's weight transfer. From `start_weight_update` to `finish_weight_update`, which is given the
        version, nothing is generated; with `keep_requests` what was in flight then goes on.
        """
        arguments = dict(arguments)
        version, keep_requests = arguments.pop("version", None), arguments.pop("keep_requests", False)

        def transfer() -> None:
            if method == "start_weight_update":
                if not keep_requests:
                    self._abort_all()
                self._update.enter_context(self._parked())
                self._held = []
            self._weights.transfer(method, arguments)
            if method == "finish_weight_update":
                self._weight_version = version
                held, self._held = self._held or [], None
                self._update.close()
                self._admit(held)

        self._stepper.call(transfer)

    def sleep(self) -> None:
        def sleep() -> None:
            self._abort_all()
            self._weights.sleep()

        self._stepper.call(sleep)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of tokens 1..T-1 of each sequence, from vLLM's prompt log-probs (raw: temperature 1)."""
        from vllm import SamplingParams as VllmParams

        params = VllmParams(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=0.0)

        def score() -> list[list[float]]:
            self._weights.wake()
            with self._parked():
                return scored()

        def scored() -> list[list[float]]:
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

        return self._stepper.call(score)

    def stats(self) -> dict[str, float]:
        counts = {
            "prompt_tokens": float(self._prompt_tokens),
            "generated_tokens": float(self._generated_tokens),
            "cached_tokens": float(self._cached_tokens),
            "busy_seconds": self._busy_seconds,
        }
        told, self._told = self._told, counts  # only the stepping thread changes the counters: it may be at work
        return {name: count - told.get(name, 0.0) for name, count in counts.items()}

    def close(self) -> None:
        """Stop stepping and release the model."""
        self._stepper.close(self._abort_all)
        shut_down(self.llm_engine)
        del self.llm_engine


class SteppedEngine(LocalEngine):
    """The same without a thread of its own: the thread that waits for its results steps it (`vime.engine.base.Stepped`)."""

    own_thread = False

    def work_for(self, begin: Callable[[], Future[T]]) -> T:
        return self._stepper.work_for(begin)
