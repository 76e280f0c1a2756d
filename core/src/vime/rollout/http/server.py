"""The HTTP endpoint of a run: a server on the loopback address, in a thread of its own, in front of the engine.

Requests are handed to the run's event loop, where the engine is. Between rollouts that loop stands still while the
trainer works; a request that comes then is told so (503).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import secrets
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vime.engine.base import SamplingParams
from vime.errors import ConfigError, EngineError, MissingExtraError
from vime.outputs import Generation
from vime.rollout.http.protocol import ChatRequest, CompletionRequest, RequestRefused, chat_response, completion_response
from vime.rollout.http.sessions import Piece, Session, Transcript
from vime.sample import Sample

if TYPE_CHECKING:
    from vime.engine.base import Engine

HOST = "127.0.0.1"
_POLL = 0.05
"""Seconds between two looks at whether the run's event loop still runs, while a request waits for it."""
GONE, BUSY = 410, 503


class HttpSession:
    """What `http_session(sample, sampling_params)` gives: where the agent's client goes, and what came of it."""

    def __init__(self, session: Session, base_url: str) -> None:
        self._session = session
        self.base_url = base_url
        """For an OpenAI client: every request under it belongs to this session."""
        self.session_id = session.session_id
        self.aborted = False
        """Whether the rollout ended while the agent was at work."""

    def samples(self) -> list[Sample]:
        """The conversations as samples, tokens and log-probs as the engine gave them. Raises ContractError where there are none."""
        return self._session.samples()


class HttpEndpoint:
    """Serves one engine. `start` opens the port, `close` closes it; sessions are opened in the run's event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, defaults: SamplingParams, listener: socket.socket) -> None:
        """`listener` is the port of `open_port`; `defaults` are the parameters of requests without a session."""
        import uvicorn

        from vime.rollout.http.app import build_app

        self._engine, self._loop, self._defaults = engine, loop, defaults
        self._sessions: dict[str, tuple[Session, HttpSession]] = {}
        self._socket = listener
        self.host, self.port = HOST, int(listener.getsockname()[1])
        self._server = uvicorn.Server(uvicorn.Config(build_app(self), log_level="error", access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, name="vime-http", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Serve, and return once the port answers."""
        self._thread.start()
        deadline = time.monotonic() + 30.0
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise EngineError(f"the HTTP endpoint on {self.url} did not start")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving; requests that wait are ended."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()

    @contextmanager
    def session(self, sample: Sample, sampling_params: SamplingParams) -> Iterator[HttpSession]:
        """Open a session for one sample. An agent that fails because the rollout has ended is not an error: its sample is ABORTED."""
        session_id = sample.session_id or secrets.token_urlsafe(12)
        if session_id in self._sessions:
            raise ConfigError(f"there is an open HTTP session {session_id!r} already", hint="give each sample its own session_id, or none")
        session = Session(session_id, sample, sampling_params, self._engine.tokenizer)
        handle = HttpSession(session, f"{self.url}/sessions/{session_id}/v1")
        self._sessions[session_id] = (session, handle)
        try:
            yield handle
        except Exception:
            if not handle.aborted:
                raise
        finally:
            del self._sessions[session_id]

    # --- what the routes call, in the server's thread ---------------------------------------------------------------

    async def answer(self, request: ChatRequest | CompletionRequest, session_id: str | None) -> dict[str, Any]:
        """Generate for one request, in the run's event loop. Raises RequestRefused."""
        future = self._in_run_loop(self._generate(request, session_id))
        wrapped = asyncio.wrap_future(future)
        try:
            while not wrapped.done():
                await asyncio.wait([wrapped], timeout=_POLL)
                if not self._loop.is_running() and not wrapped.done():
                    raise RequestRefused(BUSY, "the rollout has ended and the weights are being trained", "training")
            return wrapped.result()
        finally:
            future.cancel()

    def _in_run_loop(self, coroutine: Coroutine[Any, Any, dict[str, Any]]) -> concurrent.futures.Future[dict[str, Any]]:
        if not self._loop.is_running():
            coroutine.close()
            raise RequestRefused(BUSY, "there is no rollout at the moment: the weights are being trained", "training")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _generate(self, request: ChatRequest | CompletionRequest, session_id: str | None) -> dict[str, Any]:
        session, handle = self._find(request, session_id)
        transcript, added = _continued(session, request)
        transcript.busy = True
        try:
            branches = [transcript, *(transcript.branch() for _ in range(request.n - 1))]
            generations = await asyncio.gather(*(self._turn(session, branch, added, request) for branch in branches))
        finally:
            transcript.busy = False
        if any(generation.finish_reason == "abort" for generation in generations):
            handle.aborted = True
            raise RequestRefused(GONE, "the rollout has ended; this session is over", "aborted")
        tokenizer = self._engine.tokenizer
        pieces = [[tokenizer.decode([token]) for token in generation.token_ids] for generation in generations]
        respond = chat_response if isinstance(request, ChatRequest) else completion_response
        prompt_ids = transcript.token_ids[: len(transcript.token_ids) - len(generations[0].token_ids)]
        return respond(prompt_ids, generations, pieces)

    def _find(self, request: ChatRequest | CompletionRequest, session_id: str | None) -> tuple[Session, HttpSession]:
        """The open session; for a request that names none, one that nobody keeps: what it generates is not trained."""
        if session_id is None:
            session = Session("", Sample(), self._defaults | request.distribution(), self._engine.tokenizer)
            return session, HttpSession(session, "")
        found = self._sessions.get(session_id)
        if found is None:
            raise RequestRefused(404, f"there is no open session {session_id!r}", "unknown_session")
        if found[1].aborted:
            raise RequestRefused(GONE, "the rollout has ended; this session is over", "aborted")
        return found

    async def _turn(
        self, session: Session, transcript: Transcript, added: Piece | None, request: ChatRequest | CompletionRequest
    ) -> Generation:
        params = session.request_params(request.sampling_params(), transcript, added)
        if params is None:
            transcript.finish_reason = "length"
            return Generation([], [], "", "length", self._engine.weight_version)
        prompt = transcript.token_ids + (added.token_ids if added else [])
        generation = await self._engine.generate(prompt, params, session_id=session.session_id or None)
        answer = {"role": "assistant", "content": generation.text} if isinstance(request, ChatRequest) else None
        if isinstance(request, ChatRequest):
            transcript.messages = [*request.messages]
        session.record(transcript, added, generation, answer)
        return generation


def _continued(session: Session, request: ChatRequest | CompletionRequest) -> tuple[Transcript, Piece | None]:
    try:
        if isinstance(request, ChatRequest):
            return session.continue_chat(request.messages, request.template_options())
        return session.continue_text(request.prompt)
    except Exception as error:  # a chat template is a program of the model's author, and raises what it likes
        raise RequestRefused(400, f"the prompt cannot be rendered: {type(error).__name__}: {error}", "bad_prompt") from error


def open_port(port: int) -> socket.socket:
    """A listening socket on the loopback address; 0 takes any free port. Raises ConfigError where it is taken."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise MissingExtraError("--serve-engine needs fastapi and uvicorn", hint="pip install fastapi uvicorn")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--serve-engine {port}: the port cannot be opened: {error.strerror}", hint="choose another, or leave the number out"
        ) from None
    return listener


def address_of(listener: socket.socket) -> dict[str, Any]:
    """The endpoint as fields of the configuration, where upstream's functions look for it."""
    host, port = listener.getsockname()
    return {"vllm_router_ip": host, "vllm_router_port": port}


@contextmanager
def serving(
    engine: Engine, loop: asyncio.AbstractEventLoop, defaults: SamplingParams, listener: socket.socket | None = None
) -> Iterator[HttpEndpoint]:
    """An endpoint that is closed at the end."""
    endpoint = HttpEndpoint(engine, loop, defaults, listener or open_port(0))
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.close()
