"""The routes of the HTTP endpoint. Imported when an endpoint is opened, since it needs FastAPI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from vime.errors import EngineError
from vime.rollout.http.protocol import MODEL_NAME, ChatRequest, CompletionRequest, RequestRefused, as_chunks

if TYPE_CHECKING:
    from vime.rollout.http.server import HttpEndpoint

SessionHeader = Annotated[str | None, Header(alias="X-Session-Id")]


def build_app(endpoint: HttpEndpoint) -> FastAPI:
    """Chat completions, completions and the list of models, plain and under /sessions/ID."""
    app = FastAPI(title="vime", docs_url=None, redoc_url=None, openapi_url=None)

    async def respond(request: ChatRequest | CompletionRequest, session_id: str | None) -> Any:
        answer = await endpoint.answer(request, session_id or request.session_id)
        return StreamingResponse(_events(as_chunks(answer)), media_type="text/event-stream") if request.stream else answer

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, session: SessionHeader = None) -> Any:
        return await respond(request, session)

    @app.post("/v1/completions")
    async def complete(request: CompletionRequest, session: SessionHeader = None) -> Any:
        return await respond(request, session)

    @app.post("/sessions/{session_id}/v1/chat/completions")
    async def session_chat(session_id: str, request: ChatRequest) -> Any:
        return await respond(request, session_id)

    @app.post("/sessions/{session_id}/v1/completions")
    async def session_complete(session_id: str, request: CompletionRequest) -> Any:
        return await respond(request, session_id)

    @app.get("/v1/models")
    @app.get("/sessions/{session_id}/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "vime"}]}

    @app.exception_handler(RequestRefused)
    async def refused(_: Request, error: RequestRefused) -> JSONResponse:
        return _problem(error.status, error.message, error.code)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return _problem(400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}", "invalid_request")

    @app.exception_handler(EngineError)
    async def failed(_: Request, error: EngineError) -> JSONResponse:
        return _problem(500, error.message, "engine_error")

    return app


def _problem(status: int, message: str, code: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "vime", "code": code, "param": None}}, status)


def _events(chunks: Sequence[dict[str, Any]]) -> Iterator[str]:
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"
