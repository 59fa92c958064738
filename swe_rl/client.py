"""The policy side's only way to a sandbox: an asynchronous client of the sandbox service.

Calls that may be repeated safely are retried after failures of the connection; a command never is, since it may have
run. An answer that isn't 2xx becomes the class of swe_rl.errors that it names, through a fixed table.
"""

import asyncio
import os
import random
from typing import Any, TypeVar
from uuid import uuid4

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

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
    TrajectoryError,
)
from swe_rl.verdict import Verdict
from swe_rl.wire import CreateSession, ErrorBody, ExecRequest, ExecResult, Health, PatchBody, SessionInfo, TaskInfo

TOKEN_VARIABLE = "SWE_RL_SANDBOX_TOKEN"
MAX_ATTEMPTS = 5
FIRST_DELAY_S = 0.2
CALL_TIMEOUT_S = 90.0
GRADE_TIMEOUT_S = 3700.0

_ERRORS: dict[str, type[SweRlError]] = {
    cls.__name__: cls
    for cls in (
        AuthError,
        CapacityError,
        ConfigError,
        PatchError,
        PathError,
        SandboxError,
        SandboxTimeoutError,
        SandboxUnavailableError,
        SessionNotFoundError,
        TaskError,
    )
}
_TASKS = TypeAdapter(list[TaskInfo])
M = TypeVar("M", bound=BaseModel)


class SandboxClient:
    """One connection pool to one service. `token` defaults to the variable SWE_RL_SANDBOX_TOKEN."""

    def __init__(
        self, base_url: str, token: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Raises ConfigError without a token."""
        token = token or os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigError(f"sandbox client: no token; set {TOKEN_VARIABLE} to the one of the service at {base_url}")
        self._base_url = base_url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self._base_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(CALL_TIMEOUT_S, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=60.0),
            transport=transport,
            trust_env=False,  # a proxy of the environment has no business with a local service
        )

    async def health(self) -> Health:
        return self._parse(Health, await self._call("GET", "/health"))

    async def list_tasks(self, split: str | None = None) -> list[TaskInfo]:
        """All tasks, or those of one split; TaskError if the split has none."""
        parameters = {} if split is None else {"split": split}
        # The first call after a start makes the service hash every task folder.
        answer = await self._call("GET", "/v1/tasks", params=parameters, timeout=GRADE_TIMEOUT_S)
        try:
            return _TASKS.validate_json(answer.content)
        except ValidationError as error:
            raise self._unreadable(answer, error) from error

    async def create_session(
        self, task_id: str, ttl_s: float = 900.0, idempotency_key: str | None = None
    ) -> SessionInfo:
        """Raises TaskError, CapacityError (try again later) or SandboxError."""
        body = CreateSession(task_id=task_id, ttl_s=ttl_s, idempotency_key=idempotency_key or uuid4().hex)
        return self._parse(SessionInfo, await self._call("POST", "/v1/sessions", json=body.model_dump()))

    async def exec(self, session_id: str, request: ExecRequest) -> ExecResult:
        """Runs one command. It isn't repeated after a lost connection: SandboxUnavailableError tells of it instead."""
        answer = await self._call(
            "POST",
            f"/v1/sessions/{session_id}/exec",
            json=request.model_dump(),
            timeout=request.timeout_s + CALL_TIMEOUT_S,
            is_repeatable=False,
        )
        return self._parse(ExecResult, answer)

    async def read_file(self, session_id: str, path: str) -> bytes:
        return (await self._call("GET", f"/v1/sessions/{session_id}/files", params={"path": path})).content

    async def write_file(self, session_id: str, path: str, data: bytes) -> None:
        await self._call("PUT", f"/v1/sessions/{session_id}/files", params={"path": path}, content=data)

    async def run_tests(self, session_id: str) -> ExecResult:
        """The tests that the agent may see."""
        path = f"/v1/sessions/{session_id}/run_tests"
        return self._parse(ExecResult, await self._call("POST", path, timeout=GRADE_TIMEOUT_S, is_repeatable=False))

    async def patch(self, session_id: str) -> PatchBody:
        return self._parse(PatchBody, await self._call("GET", f"/v1/sessions/{session_id}/patch"))

    async def grade(self, session_id: str) -> Verdict:
        """The session's verdict; the service keeps it, so a repeated call gives the same one."""
        answer = await self._call("POST", f"/v1/sessions/{session_id}/grade", timeout=GRADE_TIMEOUT_S)
        try:
            return Verdict.from_dict(answer.json())
        except (ValueError, TrajectoryError) as error:
            raise self._unreadable(answer, error) from error

    async def close_session(self, session_id: str) -> None:
        """Safe to call twice."""
        await self._call("DELETE", f"/v1/sessions/{session_id}")

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> "SandboxClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _call(
        self, method: str, path: str, *, is_repeatable: bool = True, timeout: float = CALL_TIMEOUT_S, **parts: Any
    ) -> httpx.Response:
        where = f"sandbox service at {self._base_url}: {method} {path}"
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                answer = await self._http.request(method, path, timeout=httpx.Timeout(timeout, connect=10.0), **parts)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # never sent: any call may be repeated
                failure: Exception = error
            except httpx.TimeoutException as error:
                raise SandboxTimeoutError(f"{where}: no answer within {timeout:g} s") from error
            except httpx.TransportError as error:
                if not is_repeatable:
                    raise SandboxUnavailableError(f"{where}: the connection was lost: {error!r}") from error
                failure = error
            else:
                if answer.is_success:
                    return answer
                raise _error(answer, where)
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(FIRST_DELAY_S * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
        raise SandboxUnavailableError(
            f"{where}: no connection in {MAX_ATTEMPTS} attempts: {failure!r}; is the service running?"
        ) from failure

    def _parse(self, model: type[M], answer: httpx.Response) -> M:
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            raise self._unreadable(answer, error) from error

    def _unreadable(self, answer: httpx.Response, error: Exception) -> SandboxError:
        return SandboxError(f"sandbox service: {answer.request.method} {answer.url}: can't read the answer: {error}")


def _error(answer: httpx.Response, where: str) -> SweRlError:
    try:
        body = ErrorBody.model_validate_json(answer.content)
    except ValidationError:
        return SandboxError(f"{where}: status {answer.status_code}: {answer.text[:200]!r}; is it a swe-rl service?")
    return _ERRORS.get(body.error, SandboxError)(body.message)
