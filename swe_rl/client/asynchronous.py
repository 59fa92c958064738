"""The asynchronous client: one connection pool to one service, for as many calls at once as you like."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import httpx

from swe_rl.client import calls
from swe_rl.client.attempts import LIMITS, Attempts, Endpoint, is_good, read_answer
from swe_rl.client.calls import Call, Output
from swe_rl.connections import SpreadTransport
from swe_rl.errors import SandboxUnavailableError
from swe_rl.verdict import Level, Verdict
from swe_rl.wire import (
    CreateSnapshot,
    ExecRequest,
    ExecResult,
    Fork,
    Health,
    LeaseInfo,
    McpAccess,
    PatchBody,
    PoolInfo,
    ProcessEvent,
    ProcessInfo,
    Ready,
    SessionInfo,
    SessionLimits,
    SnapshotInfo,
    Stream,
    TaskInfo,
)

R = TypeVar("R")


class SandboxClient:
    """`token` defaults to the variable SWE_RL_SANDBOX_TOKEN. Every method may raise SandboxError or its kin."""

    def __init__(
        self, base_url: str, token: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Raises ConfigError without a token."""
        self._endpoint = Endpoint(base_url, token)
        self._transport = transport or SpreadTransport(LIMITS)

    async def health(self) -> Health:
        return await self._do(calls.health())

    async def ready(self) -> Ready:
        """Whether the service takes sessions now, and if not why."""
        return await self._do(calls.ready())

    async def metrics(self) -> str:
        """Prometheus's text format."""
        return await self._do(calls.metrics())

    async def list_tasks(self, split: str | None = None) -> list[TaskInfo]:
        """All tasks, or those of one split; TaskError if the split has none."""
        return await self._do(calls.list_tasks(split))

    async def create_session(
        self,
        task_id: str | None = None,
        ttl_s: float = 900.0,
        idempotency_key: str | None = None,
        *,
        language: str | None = None,
        max_age_s: float | None = None,
        lease_id: str | None = None,
        limits: SessionLimits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SessionInfo:
        """Of a task, or of a language alone. Raises TaskError, CapacityError (try again later) or SandboxError."""
        body = calls.session_request(task_id, language, ttl_s, max_age_s, lease_id, idempotency_key, limits, env)
        return await self._do(calls.create_session(body))

    async def list_sessions(self) -> list[SessionInfo]:
        return await self._do(calls.list_sessions())

    async def get_session(self, session_id: str) -> SessionInfo:
        return await self._do(calls.get_session(session_id))

    async def close_session(self, session_id: str) -> None:
        """Safe to call twice."""
        await self._do(calls.close_session(session_id))

    async def fork(
        self, session_id: str, count: int = 1, ttl_s: float = 900.0, *, lease_id: str | None = None
    ) -> list[SessionInfo]:
        """`count` sessions that begin with this one's files as they are now: all of them, or none."""
        body = Fork(count=count, ttl_s=ttl_s, lease_id=lease_id)
        return await self._do(calls.fork(calls.session_path(session_id), body))

    async def create_snapshot(
        self, session_id: str, ttl_s: float = 3600.0, *, lease_id: str | None = None
    ) -> SnapshotInfo:
        return await self._do(calls.create_snapshot(session_id, CreateSnapshot(ttl_s=ttl_s, lease_id=lease_id)))

    async def list_snapshots(self) -> list[SnapshotInfo]:
        return await self._do(calls.list_snapshots())

    async def fork_snapshot(
        self, snapshot_id: str, count: int = 1, ttl_s: float = 900.0, *, lease_id: str | None = None
    ) -> list[SessionInfo]:
        body = Fork(count=count, ttl_s=ttl_s, lease_id=lease_id)
        return await self._do(calls.fork(calls.snapshot_path(snapshot_id), body))

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._do(calls.delete_snapshot(snapshot_id))

    async def create_lease(self, ttl_s: float = 60.0) -> LeaseInfo:
        """What is made under it ends when it isn't renewed for `ttl_s`."""
        return await self._do(calls.create_lease(ttl_s))

    async def renew_lease(self, lease_id: str) -> LeaseInfo:
        return await self._do(calls.renew_lease(lease_id))

    async def end_lease(self, lease_id: str) -> None:
        await self._do(calls.end_lease(lease_id))

    async def prefetch(self, task_id: str, count: int) -> PoolInfo:
        """Asks the service to have `count` sandboxes of a task wait."""
        return await self._do(calls.prefetch(task_id, count))

    async def exec(self, session_id: str, request: ExecRequest) -> ExecResult:
        """Runs one command. It isn't repeated after a lost connection: SandboxUnavailableError tells of it instead."""
        return await self._do(calls.run_command(session_id, request))

    async def run_tests(self, session_id: str) -> ExecResult:
        """The tests that the agent may see."""
        return await self._do(calls.run_tests(session_id))

    async def start(self, session_id: str, request: ExecRequest) -> ProcessInfo:
        """Starts a process that runs on its own until its `timeout_s`."""
        return await self._do(calls.start_process(session_id, request))

    async def list_processes(self, session_id: str) -> list[ProcessInfo]:
        return await self._do(calls.list_processes(session_id))

    async def poll(self, session_id: str, process_id: str, wait_s: float = 0.0) -> ProcessInfo:
        """Waits up to `wait_s` (at most 60) for its end."""
        return await self._do(calls.poll_process(session_id, process_id, wait_s))

    async def read_output(
        self, session_id: str, process_id: str, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20
    ) -> Output:
        """The bytes of a stream from `offset` on, without waiting."""
        return await self._do(calls.read_output(session_id, process_id, stream, offset, limit))

    async def kill(self, session_id: str, process_id: str) -> ProcessInfo:
        """Kills its whole tree; safe to call twice."""
        return await self._do(calls.kill_process(session_id, process_id))

    async def stream(self, session_id: str, process_id: str) -> AsyncIterator[ProcessEvent]:
        """Output as it comes, and the result at the end. Raises SandboxUnavailableError where the stream breaks off."""
        call = calls.stream_process(session_id, process_id)
        answer = await self._answer(call)
        has_result, rest = False, b""
        try:
            async for chunk in answer.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = read_answer(call, line, {})
                    has_result = event.result is not None
                    yield event
        except httpx.TransportError as error:
            raise SandboxUnavailableError(f"process {process_id}: its stream broke off: {error!r}") from error
        finally:
            await answer.aclose()
        if not has_result:
            raise SandboxUnavailableError(f"process {process_id}: its stream ended without a result; session closed?")

    async def read_file(self, session_id: str, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._do(calls.read_file(session_id, path, offset, limit))

    async def write_file(self, session_id: str, path: str, data: bytes) -> None:
        await self._do(calls.write_file(session_id, path, data))

    async def read_archive(self, session_id: str, path: str = ".") -> bytes:
        """A directory as a plain tar. Extract it with tarfile's filter "data": what it holds is untrusted."""
        return await self._do(calls.read_archive(session_id, path))

    async def write_archive(self, session_id: str, data: bytes, path: str = ".") -> None:
        """Unpacks a plain tar below `path`, inside the sandbox."""
        await self._do(calls.write_archive(session_id, path, data))

    async def patch(self, session_id: str) -> PatchBody:
        return await self._do(calls.get_patch(session_id))

    async def grade(self, session_id: str) -> Verdict:
        """The session's verdict; the service keeps it, so a repeated call gives the same one."""
        return await self._do(calls.grade(session_id))

    async def grade_patch(self, task_id: str, patch: str, level: Level | None = None) -> Verdict:
        """The verdict on a patch that no session made; `level`: instead of the service's own."""
        return await self._do(calls.grade_patch(task_id, patch, level))

    async def mcp_access(self, session_id: str) -> McpAccess:
        """What an outside agent needs for the tools of this session."""
        return await self._do(calls.get_mcp_access(session_id))

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> "SandboxClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _do(self, call: Call[R]) -> R:
        answer = await self._answer(call, is_whole=True)
        return read_answer(call, answer.content, answer.headers)

    async def _answer(self, call: Call[Any], is_whole: bool = False) -> httpx.Response:
        """A good answer, of which the body is read if `is_whole`."""
        attempts = Attempts(call, self._endpoint.base_url)
        while True:
            try:
                answer = await self._transport.handle_async_request(self._endpoint.request(call))
                if is_good(call, answer):
                    if is_whole:
                        await _read(answer)
                    return answer
                await _read(answer)
            except httpx.TransportError as error:
                wait_s = attempts.after_error(error)
            else:
                wait_s = attempts.after_refusal(answer)
            await asyncio.sleep(wait_s)


async def _read(answer: httpx.Response) -> None:
    """The whole body; the connection is free afterwards, whatever happens."""
    try:
        await answer.aread()
    finally:
        await answer.aclose()
