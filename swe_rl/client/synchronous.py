"""The synchronous client, for scripts and threads: the same methods as the asynchronous one."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import httpx

from swe_rl.client import calls
from swe_rl.client.attempts import LIMITS, Attempts, Endpoint, is_good, read_answer
from swe_rl.client.calls import Call, Output
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


class SyncSandboxClient:
    """`token` defaults to the variable SWE_RL_SANDBOX_TOKEN. It may be used from several threads at once."""

    def __init__(
        self, base_url: str, token: str | None = None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Raises ConfigError without a token."""
        self._endpoint = Endpoint(base_url, token)
        self._transport = transport or httpx.HTTPTransport(limits=LIMITS, trust_env=False)

    def health(self) -> Health:
        return self._do(calls.health())

    def ready(self) -> Ready:
        """Whether the service takes sessions now, and if not why."""
        return self._do(calls.ready())

    def metrics(self) -> str:
        """Prometheus's text format."""
        return self._do(calls.metrics())

    def list_tasks(self, split: str | None = None) -> list[TaskInfo]:
        """All tasks, or those of one split; TaskError if the split has none."""
        return self._do(calls.list_tasks(split))

    def create_session(
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
        return self._do(calls.create_session(body))

    def list_sessions(self) -> list[SessionInfo]:
        return self._do(calls.list_sessions())

    def get_session(self, session_id: str) -> SessionInfo:
        return self._do(calls.get_session(session_id))

    def close_session(self, session_id: str) -> None:
        """Safe to call twice."""
        self._do(calls.close_session(session_id))

    def fork(
        self, session_id: str, count: int = 1, ttl_s: float = 900.0, *, lease_id: str | None = None
    ) -> list[SessionInfo]:
        """`count` sessions that begin with this one's files as they are now: all of them, or none."""
        body = Fork(count=count, ttl_s=ttl_s, lease_id=lease_id)
        return self._do(calls.fork(calls.session_path(session_id), body))

    def create_snapshot(self, session_id: str, ttl_s: float = 3600.0, *, lease_id: str | None = None) -> SnapshotInfo:
        return self._do(calls.create_snapshot(session_id, CreateSnapshot(ttl_s=ttl_s, lease_id=lease_id)))

    def list_snapshots(self) -> list[SnapshotInfo]:
        return self._do(calls.list_snapshots())

    def fork_snapshot(
        self, snapshot_id: str, count: int = 1, ttl_s: float = 900.0, *, lease_id: str | None = None
    ) -> list[SessionInfo]:
        body = Fork(count=count, ttl_s=ttl_s, lease_id=lease_id)
        return self._do(calls.fork(calls.snapshot_path(snapshot_id), body))

    def delete_snapshot(self, snapshot_id: str) -> None:
        self._do(calls.delete_snapshot(snapshot_id))

    def create_lease(self, ttl_s: float = 60.0) -> LeaseInfo:
        """What is made under it ends when it isn't renewed for `ttl_s`."""
        return self._do(calls.create_lease(ttl_s))

    def renew_lease(self, lease_id: str) -> LeaseInfo:
        return self._do(calls.renew_lease(lease_id))

    def end_lease(self, lease_id: str) -> None:
        self._do(calls.end_lease(lease_id))

    def prefetch(self, task_id: str, count: int) -> PoolInfo:
        """Asks the service to have `count` sandboxes of a task wait."""
        return self._do(calls.prefetch(task_id, count))

    def exec(self, session_id: str, request: ExecRequest) -> ExecResult:
        """Runs one command. It isn't repeated after a lost connection: SandboxUnavailableError tells of it instead."""
        return self._do(calls.run_command(session_id, request))

    def run_tests(self, session_id: str) -> ExecResult:
        """The tests that the agent may see."""
        return self._do(calls.run_tests(session_id))

    def start(self, session_id: str, request: ExecRequest) -> ProcessInfo:
        """Starts a process that runs on its own until its `timeout_s`."""
        return self._do(calls.start_process(session_id, request))

    def list_processes(self, session_id: str) -> list[ProcessInfo]:
        return self._do(calls.list_processes(session_id))

    def poll(self, session_id: str, process_id: str, wait_s: float = 0.0) -> ProcessInfo:
        """Waits up to `wait_s` (at most 60) for its end."""
        return self._do(calls.poll_process(session_id, process_id, wait_s))

    def read_output(
        self, session_id: str, process_id: str, stream: Stream = "stdout", offset: int = 0, limit: int = 1 << 20
    ) -> Output:
        """The bytes of a stream from `offset` on, without waiting."""
        return self._do(calls.read_output(session_id, process_id, stream, offset, limit))

    def kill(self, session_id: str, process_id: str) -> ProcessInfo:
        """Kills its whole tree; safe to call twice."""
        return self._do(calls.kill_process(session_id, process_id))

    def stream(self, session_id: str, process_id: str) -> Iterator[ProcessEvent]:
        """Output as it comes, and the result at the end. Raises SandboxUnavailableError where the stream breaks off."""
        call = calls.stream_process(session_id, process_id)
        answer = self._answer(call)
        has_result, rest = False, b""
        try:
            for chunk in answer.iter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = read_answer(call, line, {})
                    has_result = event.result is not None
                    yield event
        except httpx.TransportError as error:
            raise SandboxUnavailableError(f"process {process_id}: its stream broke off: {error!r}") from error
        finally:
            answer.close()
        if not has_result:
            raise SandboxUnavailableError(f"process {process_id}: its stream ended without a result; session closed?")

    def read_file(self, session_id: str, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        return self._do(calls.read_file(session_id, path, offset, limit))

    def write_file(self, session_id: str, path: str, data: bytes) -> None:
        self._do(calls.write_file(session_id, path, data))

    def read_archive(self, session_id: str, path: str = ".") -> bytes:
        """A directory as a plain tar. Extract it with tarfile's filter "data": what it holds is untrusted."""
        return self._do(calls.read_archive(session_id, path))

    def write_archive(self, session_id: str, data: bytes, path: str = ".") -> None:
        """Unpacks a plain tar below `path`, inside the sandbox."""
        self._do(calls.write_archive(session_id, path, data))

    def patch(self, session_id: str) -> PatchBody:
        return self._do(calls.get_patch(session_id))

    def grade(self, session_id: str) -> Verdict:
        """The session's verdict; the service keeps it, so a repeated call gives the same one."""
        return self._do(calls.grade(session_id))

    def grade_patch(self, task_id: str, patch: str, level: Level | None = None) -> Verdict:
        """The verdict on a patch that no session made; `level`: instead of the service's own."""
        return self._do(calls.grade_patch(task_id, patch, level))

    def mcp_access(self, session_id: str) -> McpAccess:
        """What an outside agent needs for the tools of this session."""
        return self._do(calls.get_mcp_access(session_id))

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> "SyncSandboxClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, call: Call[R]) -> R:
        answer = self._answer(call, is_whole=True)
        return read_answer(call, answer.content, answer.headers)

    def _answer(self, call: Call[Any], is_whole: bool = False) -> httpx.Response:
        """A good answer, of which the body is read if `is_whole`."""
        attempts = Attempts(call, self._endpoint.base_url)
        while True:
            try:
                answer = self._transport.handle_request(self._endpoint.request(call))
                if is_good(call, answer):
                    if is_whole:
                        _read(answer)
                    return answer
                _read(answer)
            except httpx.TransportError as error:
                wait_s = attempts.after_error(error)
            else:
                wait_s = attempts.after_refusal(answer)
            time.sleep(wait_s)


def _read(answer: httpx.Response) -> None:
    """The whole body; the connection is free afterwards, whatever happens."""
    try:
        answer.read()
    finally:
        answer.close()
