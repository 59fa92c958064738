"""How an error becomes an answer: one table from the classes of swe_rl.errors to HTTP statuses, and their meaning."""

import logging
import math
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from swe_rl.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    PatchError,
    PathError,
    RateLimitError,
    ResourceNotFoundError,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SessionNotFoundError,
    SweRlError,
    TaskError,
)
from swe_rl.service.logs import REQUEST_ID
from swe_rl.wire import ErrorBody

logger = logging.getLogger(__name__)

# In order: a class stands before its parents.
STATUSES: tuple[tuple[type[SweRlError], int], ...] = (
    (AuthError, 401),
    (TaskError, 404),
    (SessionNotFoundError, 404),
    (ResourceNotFoundError, 404),
    (PathError, 422),
    (PatchError, 422),
    (ConfigError, 422),
    (RateLimitError, 429),
    (CapacityError, 429),
    (SandboxUnavailableError, 503),
    (SandboxTimeoutError, 504),
    (SandboxError, 500),
)
UNAVAILABLE_RETRY_S = 5
_MEANINGS = {
    400: "The body can't be read.",
    401: "The bearer token is missing or wrong.",
    404: "No such task, session, process, snapshot or lease; or it is another token's.",
    405: "Not a method of this path.",
    413: "The body is larger than the service takes.",
    422: "The request makes no sense: the message names the field.",
    429: "Too many sessions or calls now, or the disk is full. Nothing was done; repeat it after Retry-After.",
    500: "The environment failed; the agent isn't to blame.",
    503: "The service is shutting down, or its engine doesn't answer.",
    504: "An operation of the environment itself ran too long.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` of a route for these and those that every route may give."""
    every = {400, 401, 413, 422, 429, 500, 503, 504, *statuses}
    return {
        status: {"model": ErrorBody, "description": _MEANINGS[status]}
        | ({"headers": {"Retry-After": _RETRY_AFTER}} if status in (429, 503) else {})
        for status in sorted(every)
    }


_RETRY_AFTER = {"description": "seconds to wait", "schema": {"type": "integer"}, "required": True}


def install_handlers(app: FastAPI) -> None:
    """Every answer that isn't 2xx gets an ErrorBody."""
    app.add_exception_handler(SweRlError, _answer_known)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(ValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_unknown)


def error_answer(error: SweRlError, session_id: str | None = None) -> JSONResponse:
    """The answer that tells of `error`."""
    known, status = next(((cls, code) for cls, code in STATUSES if isinstance(error, cls)), (SandboxError, 500))
    headers = {}
    if isinstance(error, CapacityError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if status == 503:
        headers["Retry-After"] = str(UNAVAILABLE_RETRY_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _answer(status, known.__name__, str(error), session_id, headers)


def plain_answer(status: int, message: str) -> JSONResponse:
    """A refusal that no error class stands for, e.g. a body that is too large."""
    return _answer(status, ConfigError.__name__, message, None)


async def _answer_known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SweRlError)
    answer = error_answer(error, request.path_params.get("session_id"))
    if answer.status_code >= 500:
        logger.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return answer


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | ValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    message = f"request: {where}: {first['msg']}"
    return _answer(422, ConfigError.__name__, message, request.path_params.get("session_id"))


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return _answer(error.status_code, ConfigError.__name__, message, request.path_params.get("session_id"), headers)


def _methods(request: Request) -> list[str]:
    """All methods of a path: the framework knows those of one of its routes only."""
    found: list[str] = []
    for template, operations in request.app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), request.url.path):
            found += [method.upper() for method in operations]
    return sorted(found)


async def _answer_unknown(request: Request, error: Exception) -> JSONResponse:
    # The server logs the traceback itself; the caller learns the kind, never the details of the host.
    message = f"sandbox service: internal error: {type(error).__name__}"
    headers = {"X-Request-Id": REQUEST_ID.get()}  # this answer doesn't pass the gate, which gives it to all others
    return _answer(500, SandboxError.__name__, message, request.path_params.get("session_id"), headers)


def _answer(status: int, name: str, message: str, session_id: str | None, headers: Any = None) -> JSONResponse:
    body = ErrorBody(error=name, message=message, session_id=session_id, request_id=REQUEST_ID.get() or None)
    # A message may quote what isn't text, e.g. a lone surrogate of a path.
    shown = {
        k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in body.model_dump().items()
    }
    return JSONResponse(shown, status, headers)
