"""The gate before every route: who calls, may they call now, how large is the body; and what came of the call.

Plain ASGI, since each layer of a framework's middleware costs more than a short command does. It counts and logs every
answer with the ids of its request and session, and gives each request an id (X-Request-Id, the caller's own if it is
a harmless one).
"""

import logging
import re
import time
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swe_rl.errors import SweRlError
from swe_rl.service.failures import error_answer, plain_answer
from swe_rl.service.logs import CALLER, REQUEST_ID, SESSION_ID
from swe_rl.service.service import Service
from swe_rl.service.tokens import Caller

logger = logging.getLogger("swe_rl.service.access")

MAX_BODY_BYTES = 288 * 1024 * 1024  # the largest tree as an archive
_OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/openapi.json", "/docs", "/redoc"})
_MCP = re.compile(r"/v1/sessions/([^/]+)/mcp\Z")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class TooLarge(Exception):
    """More came than a body may have."""


class Gate:
    """Wraps the app. `scope["state"]["caller"]` is the Caller, or None on an open path or with a session's pass."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        given_id = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given_id if _REQUEST_ID.match(given_id) else uuid4().hex[:16]
        REQUEST_ID.set(request_id)
        SESSION_ID.set("")
        status, id_header = 500, (b"x-request-id", request_id.encode())

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            await send(message)

        try:
            caller = self._admit(scope["path"], headers)
            scope.setdefault("state", {})["caller"] = caller
            CALLER.set(caller.name if caller else "")
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length) > MAX_BODY_BYTES:
                raise TooLarge
            limited = _limited(receive) if b"transfer-encoding" in headers else receive
            await self._app(scope, limited, send_counted)
        except SweRlError as error:
            await error_answer(error)(scope, receive, send_counted)
        except TooLarge:
            answer = plain_answer(413, f"request: more than the {MAX_BODY_BYTES} bytes that a body may have")
            await answer(scope, receive, send_counted)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> Caller | None:
        """Raises AuthError or RateLimitError."""
        if path in _OPEN_PATHS:
            return None
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        mcp = _MCP.match(path)
        if mcp and self._service.tokens.is_session_pass(mcp[1], authorization):
            return None
        caller = self._service.tokens.find(authorization)
        caller.admit()
        return caller

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        verb = getattr(route, "name", "") if route is not None else "none"
        metrics = self._service.metrics
        metrics.calls.labels(verb, str(status)).inc()
        metrics.call_seconds.labels(verb).observe(seconds)
        if logger.isEnabledFor(logging.INFO):
            fields = {"verb": verb, "status": status, "duration_ms": round(seconds * 1e3, 2)}
            fields["session_id"] = scope.get("path_params", {}).get("session_id", "")
            logger.info("%s %s: %d", scope["method"], verb, status, extra=fields)


def _limited(receive: Receive) -> Receive:
    """A body of unknown length is counted as it comes."""
    seen = 0

    async def receive_counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise TooLarge
        return message

    return receive_counted
