"""An endpoint that any scaffold can talk to as it is, and whose every sampled token becomes training data.

    POST   /sessions                 a session and its key                               (the operator's token)
    DELETE /sessions/{id}            ends it and returns its trajectories, token by token         (the same)
    POST   /policies                 new weights, by their directory and version                  (the same)
    POST   /v1/chat/completions      OpenAI's API; the key is the client's API key
    POST   /v1/responses, /v1/completions                                                         (the same)
    POST   /v1/messages              Anthropic's; the same
    GET    /v1/models, /health

Keys are all that tells scaffolds apart. Nothing here runs a tool or knows a reward: whoever ran the scaffold says how
it ended.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_rl.errors import AuthError, EngineError, EngineUnavailableError, PolicyError, SessionNotFoundError
from swe_rl.gateway import anthropic, openai_chat, openai_responses, openai_text
from swe_rl.gateway.gateway import Gateway
from swe_rl.gateway.messages import ChatRequest, RequestError
from swe_rl.gateway.session import Answer, SessionIds
from swe_rl.trajectory import Trajectory

MODEL_NAME = "policy"
MAX_BODY_BYTES = 64 * 1024 * 1024
_IGNORED_HEADER = "x-swe-rl-ignored"
_SURROGATE = re.compile(rb"\\u[dD]")


B = TypeVar("B", bound=BaseModel)


class OpenSession(BaseModel):
    """`temperature` is that of every completion, whatever the scaffold asks for."""

    model_config = ConfigDict(extra="forbid")

    trajectory_id: str
    group_id: str = ""
    task_id: str = ""
    split: str = "train"
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class LoadPolicy(BaseModel):
    """A Hugging Face directory that the engine can read."""

    model_config = ConfigDict(extra="forbid")

    path: Path
    version: int = Field(ge=0)


def create_app(gateway: Gateway, token: str, model: str = MODEL_NAME) -> FastAPI:
    """`token` is the operator's. The engine is the caller's to load and to close."""

    app = FastAPI(title="swe-rl gateway", openapi_url=None)

    @app.exception_handler(RequestError)
    @app.exception_handler(AuthError)
    @app.exception_handler(SessionNotFoundError)
    @app.exception_handler(EngineError)
    @app.exception_handler(PolicyError)
    async def on_error(request: Request, error: Exception) -> Response:
        status, kind = _status(error)
        if request.url.path == "/v1/messages":
            body = anthropic.error_body(str(error), kind)
        else:
            body = openai_chat.error_body(str(error), kind, getattr(error, "code", ""))
        return JSONResponse(body, status)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "swe-rl"}]}

    @app.post("/sessions")
    async def open_session(request: Request) -> dict[str, str]:
        body = await _operator_body(request, token, OpenSession)
        ids = SessionIds(body.trajectory_id, body.group_id or body.trajectory_id, body.task_id, body.split)
        return {"key": gateway.open(ids, body.temperature)}

    @app.delete("/sessions/{trajectory_id}")
    async def close_session(trajectory_id: str, request: Request) -> dict[str, Any]:
        _check_operator(request, token)
        return {"trajectories": [_columns(one) for one in await gateway.close(trajectory_id)]}

    @app.post("/policies")
    async def load_policy(request: Request) -> dict[str, int]:
        body = await _operator_body(request, token, LoadPolicy)
        await gateway.load(body.path, body.version)
        return {"version": body.version}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        answer, asked = await _complete(gateway, request, openai_chat.read_request)
        return _reply(
            asked,
            openai_chat.completion_body(answer, model),
            openai_chat.completion_chunks(answer, model, asked.has_usage),
        )

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        answer, asked = await _complete(gateway, request, openai_responses.read_request)
        return _reply(
            asked, openai_responses.response_body(answer, model), openai_responses.response_events(answer, model)
        )

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        answer, asked = await _complete_text(gateway, request)
        return _reply(
            asked,
            openai_text.completion_body(answer, model),
            openai_text.completion_chunks(answer, model, asked.has_usage),
        )

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        answer, asked = await _complete(gateway, request, anthropic.read_request)
        return _reply(asked, anthropic.message_body(answer, model), anthropic.message_events(answer, model))

    return app


async def _complete(
    gateway: Gateway, request: Request, read: Callable[[Any], ChatRequest]
) -> tuple[Answer, ChatRequest]:
    """The key is looked at before the body is read."""
    session = gateway.session(_key(request))
    asked = read(await _json(request))
    return await session.complete(asked.messages, asked.tools, asked.max_tokens), asked


async def _complete_text(gateway: Gateway, request: Request) -> tuple[Answer, ChatRequest]:
    session = gateway.session(_key(request))
    asked = openai_text.read_request(await _json(request))
    return await session.complete_text(asked.messages[0].text, asked.max_tokens), asked


def _key(request: Request) -> str:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return bearer or request.headers.get("x-api-key", "")


def _check_operator(request: Request, token: str) -> None:
    if not hmac.compare_digest(_key(request).encode(), token.encode()):
        raise AuthError("the operator's token is missing or wrong")


async def _operator_body(request: Request, token: str, kind: type[B]) -> B:
    """Raises AuthError before anything is read, then RequestError."""
    _check_operator(request, token)
    body = await _json(request)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        if first["type"] == "missing":
            raise RequestError(f"{where} isn't in the body, which needs it") from error
        raise RequestError(f"{where} is {first.get('input')!r:.60}: {first['msg']}") from error


async def _json(request: Request) -> Any:
    """Raises RequestError."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise RequestError(f"the body has more than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(data)
        if _SURROGATE.search(data):  # no tokenizer takes half a pair
            json.dumps(body, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body isn't JSON: {error}") from error
    return body


def _reply(asked: ChatRequest, body: Mapping[str, Any], events: Iterable[str]) -> Response:
    if asked.is_streamed:
        return StreamingResponse(iter(events), media_type="text/event-stream", headers=_headers(asked))
    return JSONResponse(body, headers=_headers(asked))


def _headers(asked: ChatRequest) -> dict[str, str]:
    return {_IGNORED_HEADER: ", ".join(asked.ignored)} if asked.ignored else {}


def _status(error: Exception) -> tuple[int, str]:
    if isinstance(error, AuthError):
        return 401, "authentication_error"
    if isinstance(error, SessionNotFoundError):
        return 404, "not_found_error"
    if isinstance(error, EngineUnavailableError):
        return 503, "overloaded_error"
    if isinstance(error, EngineError):
        return 500, "api_error"
    return 400, "invalid_request_error"


def _columns(trajectory: Trajectory) -> dict[str, Any]:
    """What a trainer needs of each token; log-probability and version are null where nothing was sampled."""
    sampled = trajectory.sampled.tolist()
    logprobs, versions = trajectory.infer_logprobs.tolist(), trajectory.policy_version.tolist()
    experts = trajectory.routed_experts
    return {
        "trajectory_id": trajectory.trajectory_id,
        "token_ids": trajectory.token_ids.tolist(),
        "sampled": sampled,
        "logprobs": [value if is_ours else None for value, is_ours in zip(logprobs, sampled, strict=True)],
        "policy_version": [value if is_ours else None for value, is_ours in zip(versions, sampled, strict=True)],
        "segment": trajectory.segment.tolist(),
        "turn": trajectory.turn.tolist(),
        **({} if experts is None else {"routed_experts": experts.tolist()}),
    }
