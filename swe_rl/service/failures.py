"""How an error becomes an answer: one table from the classes of swe_rl.errors to HTTP statuses."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from swe_rl.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    PatchError,
    PathError,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SessionNotFoundError,
    SweRlError,
    TaskError,
)
from swe_rl.wire import ErrorBody

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
# In order: a class stands before its parents.
STATUSES: tuple[tuple[type[SweRlError], int], ...] = (
    (AuthError, 401),
    (TaskError, 404),
    (SessionNotFoundError, 404),
    (PathError, 422),
    (PatchError, 422),
    (ConfigError, 422),
    (CapacityError, 429),
    (SandboxUnavailableError, 503),
    (SandboxTimeoutError, 504),
    (SandboxError, 500),
)


def install_handlers(app: FastAPI) -> None:
    """Every answer that isn't 2xx gets an ErrorBody."""
    app.add_exception_handler(SweRlError, _answer_known)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(Exception, _answer_unknown)


async def _answer_known(request: Request, error: Exception) -> JSONResponse:
    known, status = next(((cls, code) for cls, code in STATUSES if isinstance(error, cls)), (SandboxError, 500))
    headers = {}
    if status == 429:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status >= 500:
        logger.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return _answer(request, status, known.__name__, str(error), headers)


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _answer(request, 422, ConfigError.__name__, f"request: {where}: {first['msg']}")


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _answer(
        request, error.status_code, ConfigError.__name__, f"{request.method} {request.url.path}: {error.detail}"
    )


async def _answer_unknown(request: Request, error: Exception) -> JSONResponse:
    # The server logs the traceback itself; the caller learns the kind, never the details of the host.
    return _answer(request, 500, SandboxError.__name__, f"sandbox service: internal error: {type(error).__name__}")


def _answer(
    request: Request, status: int, name: str, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    body = ErrorBody(error=name, message=message, session_id=request.path_params.get("session_id"))
    return JSONResponse(body.model_dump(), status, headers)
