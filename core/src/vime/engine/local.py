"""vLLM in this process: a thread steps the engine, asyncio code awaits its requests.

What was measured about vLLM on a CPU (start-up settings, weight reload, tied output heads) decides the details here;
the comments name the reason where a line looks odd.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import importlib.util
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.engine.base import SamplingParams
from vime.errors import EngineError
from vime.outputs import Generation

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

SETTLE_TURNS = 8
"""Turns of the event loop that a deterministic engine waits after results, so that follow-up requests join one wave."""


def prepare_environment() -> None:
    """Set what vLLM reads when it is first imported. A value that the user has set stays."""
    if importlib.util.find_spec("vllm") is not None and _is_cpu_build():
        # Without it the first generation compiles sampling kernels for up to 20 s; eager mode has no use for them.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


def _is_cpu_build() -> bool:
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


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
        options = _engine_options(config, model_path, concurrency) | {"dtype": dtype} | config.vllm_engine_args
        try:
            self.llm_engine = LLMEngine.from_engine_args(EngineArgs(**options))
        except Exception as exc:
            raise EngineError(f"vLLM could not load {model_path}: {exc}", hint="see the engine options --vllm-*") from exc
        self.tokenizer: Any = self.llm_engine.get_tokenizer()
        self.max_model_len: int = self.llm_engine.model_config.max_model_len
        self._weight_version = 0
        self._ids = itertools.count()
        self._requests: dict[str, _Request] = {}
        self._inbox = _Inbox()
        self._wave: list[_Request] = []
        self._generated_tokens = self._prompt_tokens = 0
        self._busy_seconds = 0.0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vime-engine", daemon=True)
        self._thread.start()

    @property
    def weight_version(self) -> int:
        return self._weight_version

    # --- the asyncio side ---------------------------------------------------------------------------------------

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        request = self._request(token_ids, sampling_params, session_id)
        self._enqueue([request])
        return await request.future

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        wave = [self._request(token_ids, params, None) for token_ids, params in requests]
        self._enqueue(wave)
        return list(await asyncio.gather(*(request.future for request in wave)))

    async def abort(self, session_id: str) -> None:
        await self._on_thread(lambda: self._abort([r for r in self._requests.values() if r.session_id == session_id]))

    async def abort_all(self) -> None:
        await self._on_thread(lambda: self._abort(list(self._requests.values())))

    def _request(self, token_ids: Sequence[int], params: SamplingParams, session_id: str | None) -> _Request:
        if self._failure is not None:
            raise EngineError(f"the engine has failed: {self._failure}") from self._failure
        if len(token_ids) >= self.max_model_len:
            raise EngineError(
                f"a prompt of {len(token_ids)} tokens leaves no room in the model's {self.max_model_len} tokens",
                hint="set --rollout-max-prompt-len, or raise --vllm-max-model-len",
            )
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        return _Request(
            str(next(self._ids)), session_id, list(token_ids), _vllm_params(params, self.max_model_len - len(token_ids)), future
        )

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
            self._inbox.items.append(item)
            self._inbox.condition.notify()

    # --- the stepping thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._inbox.condition:
                while not self._inbox.items and not self._inbox.closed and not self._requests:
                    self._inbox.condition.wait()
                if self._inbox.closed:
                    return
                items, self._inbox.items = self._inbox.items, []
            try:
                for item in items:
                    item()
                if self._requests:
                    self._step()
            except Exception as exc:  # noqa: BLE001 - handed to every waiting request
                self._fail(exc)

    def _admit(self, wave: list[_Request]) -> None:
        for request in wave:
            try:
                request.internal_id = self.llm_engine.add_request(
                    request.request_id, {"prompt_token_ids": request.token_ids}, request.params
                )
            except ValueError as exc:
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
                    completion = output.outputs[0]  # type: ignore[union-attr]
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
        self.llm_engine.abort_request([request.internal_id for request in requests], internal=True)
        self._deliver(finished)

    def _generation(self, request: _Request, token_ids: Sequence[int], logprobs: Any, reason: str, text: str) -> Generation:
        token_ids = list(token_ids)
        log_probs = [0.0] * 0 if logprobs is None else list(logprobs.logprobs)
        if len(log_probs) != len(token_ids):  # flat logprobs hold one entry a position, plus one when the sampled token is not the best
            log_probs = [logprobs.logprobs[start] for start in logprobs.start_indices]
        self._generated_tokens += len(token_ids)
        if not request.params.detokenize:
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
        error = EngineError(f"the engine failed: {type(exc).__name__}: {exc}")
        error.__cause__ = exc
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            _call_in_loop(request.future, lambda f=request.future: _set_exception(f, error))

    # --- the runtime's side: called while no request is in flight ---------------------------------------------------

    def update_weights(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        def update() -> None:
            self.llm_engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(named_tensors)})
            self.llm_engine.apply_model(_repack_tied_head)
            self.llm_engine.reset_prefix_cache()
            self._weight_version = version

        self._sync_call(update)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of tokens 1..T-1 of each sequence, from vLLM's prompt log-probs (raw: temperature 1)."""
        from vllm import SamplingParams as VllmParams

        def score() -> list[list[float]]:
            params = VllmParams(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=0.0)
            for i, ids in enumerate(sequences):
                self.llm_engine.add_request(f"score-{i}", {"prompt_token_ids": list(ids)}, params)
            found: dict[str, list[float]] = {}
            while len(found) < len(sequences):
                for output in self.llm_engine.step():
                    if output.finished:
                        found[output.request_id] = [
                            position[token].logprob
                            for position, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
                        ]
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
            "busy_seconds": self._busy_seconds,
        }
        self._prompt_tokens = self._generated_tokens = 0
        self._busy_seconds = 0.0
        return stats

    def sleep(self) -> None:
        """Free the GPU for the trainer. On a CPU there is nothing to free."""
        if self._on_gpu():
            self._sync_call(lambda: self.llm_engine.sleep(level=2))

    def wake(self) -> None:
        if self._on_gpu():
            self._sync_call(self.llm_engine.wake_up)

    def _on_gpu(self) -> bool:
        return self.llm_engine.vllm_config.device_config.device_type == "cuda"

    def close(self) -> None:
        """Stop the stepping thread and release the model."""
        with self._inbox.condition:
            self._inbox.closed = True
            self._inbox.condition.notify()
        self._thread.join(timeout=10.0)
        _shut_down(self.llm_engine)
        del self.llm_engine


def _shut_down(llm_engine: Any) -> None:
    """vLLM's own shutdown, without the process group that it would destroy too: the trainer shares that one."""
    from vllm.distributed import parallel_state

    client = llm_engine.engine_core
    client._finalizer.detach()
    client.engine_core.model_executor.shutdown()
    client.engine_core.scheduler.shutdown()
    parallel_state.destroy_model_parallel()
    if parallel_state._WORLD is not None:
        parallel_state._WORLD.destroy()
        parallel_state._WORLD = None
    gc.unfreeze()


def _engine_options(config: RunConfig, model_path: str, concurrency: int) -> dict[str, Any]:
    """vLLM's engine arguments for this configuration."""
    import torch

    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = {
        "model": model_path,
        "enforce_eager": not on_gpu if config.vllm_enforce_eager is None else config.vllm_enforce_eager,
        "enable_prefix_caching": config.vllm_enable_prefix_caching,
        "max_num_batched_tokens": config.vllm_max_num_batched_tokens,
        "max_num_seqs": config.vllm_max_num_seqs or max(1, min(256, concurrency)),
        "max_model_len": config.vllm_max_model_len,
        "seed": config.rollout_seed,
        "disable_log_stats": True,
        "logprobs_mode": "processed_logprobs",
        "distributed_executor_backend": "uni",
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
    }
    if on_gpu:
        options |= {"gpu_memory_utilization": config.vllm_gpu_memory_utilization or 0.6, "enable_sleep_mode": True}
    else:
        options["kv_cache_memory_bytes"] = int(
            (config.vllm_kv_cache_gib or _kv_cache_gib(config, model_path, options["max_num_seqs"])) * 2**30
        )
    return options


def _kv_cache_gib(config: RunConfig, model_path: str, max_num_seqs: int) -> float:
    """Room for the requests of a rollout at full length on a CPU, between 0.25 and 4 GiB."""
    import json

    model = json.loads((Path(model_path) / "config.json").read_text())
    heads = model["num_attention_heads"]
    head_dim = model.get("head_dim") or model["hidden_size"] // heads
    per_token = 2 * model["num_hidden_layers"] * model.get("num_key_value_heads", heads) * head_dim * 4
    longest = config.vllm_max_model_len or model.get("max_position_embeddings", 4096)
    wanted = per_token * max(longest, max_num_seqs * min(longest, config.rollout_max_response_len + (config.rollout_max_prompt_len or 512)))
    return min(4.0, max(0.25, 1.1 * wanted / 2**30))


def _vllm_params(params: SamplingParams, room: int) -> Any:
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    stop = params.get("stop") or None
    return VllmParams(
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p", 1.0),
        top_k=max(0, params.get("top_k", -1)),
        max_tokens=max(1, min(params.get("max_new_tokens", room), room)),
        min_tokens=params.get("min_new_tokens", 0) or 0,
        stop=stop,
        stop_token_ids=params.get("stop_token_ids") or None,
        repetition_penalty=params.get("repetition_penalty", 1.0),
        seed=params.get("seed"),
        logprobs=0,
        flat_logprobs=True,
        detokenize=stop is not None,  # vLLM needs the text only to find stop strings
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _repack_tied_head(model: Any) -> None:
    """Rebuild the packed copy of a tied output head.

    vLLM's CPU linear layers keep a pre-packed copy of their weight. A reload refreshes it for every layer but a head
    that shares the embedding's parameter, which would go on answering with the old weights.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    method = getattr(head, "quant_method", None)
    if head is not None and embedding is not None and method is not None and getattr(model.config, "tie_word_embeddings", False):
        method.process_weights_after_loading(head)


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
