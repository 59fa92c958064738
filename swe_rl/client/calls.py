"""Each call to the service as a value: method, path, body, how its answer is read. Nothing here opens a connection."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter

from swe_rl.verdict import Level, Verdict
from swe_rl.wire import (
    CreateLease,
    CreateSession,
    CreateSnapshot,
    ExecRequest,
    ExecResult,
    Fork,
    GradePatch,
    Health,
    LeaseInfo,
    McpAccess,
    PatchBody,
    PoolInfo,
    Prefetch,
    ProcessEvent,
    ProcessInfo,
    Ready,
    SessionInfo,
    SessionLimits,
    SnapshotInfo,
    Stream,
    TaskInfo,
)

CALL_TIMEOUT_S = 90.0
LONG_TIMEOUT_S = 400.0
GRADE_TIMEOUT_S = 3700.0
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
Headers = Mapping[str, str]
_TASKS = TypeAdapter(list[TaskInfo])
_SESSIONS = TypeAdapter(list[SessionInfo])
_SNAPSHOTS = TypeAdapter(list[SnapshotInfo])
_PROCESSES = TypeAdapter(list[ProcessInfo])


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of a stream from `offset` on; `dropped_bytes` before them are gone; after `is_end` comes nothing."""

    data: bytes
    offset: int
    dropped_bytes: int
    is_end: bool


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """`read` makes the result of an answer's body and headers; it raises ValueError or KeyError where it can't.

    `is_repeatable`: made twice it does no harm. `good`: statuses beside 2xx whose body is a result, too.
    """

    method: str
    path: str
    read: Callable[[bytes, Headers], R]
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    timeout_s: float = CALL_TIMEOUT_S
    is_repeatable: bool = True
    good: tuple[int, ...] = ()


def health() -> Call[Health]:
    return Call("GET", "/health", _model(Health))


def ready() -> Call[Ready]:
    return Call("GET", "/ready", _model(Ready), good=(503,))


def metrics() -> Call[str]:
    return Call("GET", "/metrics", lambda body, _: body.decode())


def list_tasks(split: str | None) -> Call[list[TaskInfo]]:
    parameters = {} if split is None else {"split": split}
    # The first call after a start makes the service hash every task folder.
    return Call("GET", "/v1/tasks", _adapter(_TASKS), parameters, timeout_s=GRADE_TIMEOUT_S)


def create_session(body: CreateSession) -> Call[SessionInfo]:
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": uuid4().hex})  # so that it may be repeated
    return Call("POST", "/v1/sessions", _model(SessionInfo), content=_json(body))


def session_request(
    task_id: str | None,
    language: str | None,
    ttl_s: float,
    max_age_s: float | None,
    lease_id: str | None,
    idempotency_key: str | None,
    limits: SessionLimits | None,
    env: Mapping[str, str] | None,
) -> CreateSession:
    return CreateSession(
        task_id=task_id,
        language=language,
        ttl_s=ttl_s,
        max_age_s=max_age_s,
        lease_id=lease_id,
        idempotency_key=idempotency_key,
        limits=limits,
        env=dict(env or {}),
    )


def list_sessions() -> Call[list[SessionInfo]]:
    return Call("GET", "/v1/sessions", _adapter(_SESSIONS))


def get_session(session_id: str) -> Call[SessionInfo]:
    return Call("GET", _session(session_id), _model(SessionInfo))


def close_session(session_id: str) -> Call[None]:
    return Call("DELETE", _session(session_id), _nothing)


def fork(source: str, body: Fork) -> Call[list[SessionInfo]]:
    """`source`: the path of a session or a snapshot."""
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": uuid4().hex})
    return Call("POST", f"{source}/fork", _adapter(_SESSIONS), content=_json(body), timeout_s=LONG_TIMEOUT_S)


def create_snapshot(session_id: str, body: CreateSnapshot) -> Call[SnapshotInfo]:
    path = f"{_session(session_id)}/snapshots"
    return Call("POST", path, _model(SnapshotInfo), content=_json(body), timeout_s=LONG_TIMEOUT_S, is_repeatable=False)


def list_snapshots() -> Call[list[SnapshotInfo]]:
    return Call("GET", "/v1/snapshots", _adapter(_SNAPSHOTS))


def delete_snapshot(snapshot_id: str) -> Call[None]:
    return Call("DELETE", snapshot_path(snapshot_id), _nothing, timeout_s=LONG_TIMEOUT_S, is_repeatable=False)


def create_lease(ttl_s: float) -> Call[LeaseInfo]:
    return Call("POST", "/v1/leases", _model(LeaseInfo), content=_json(CreateLease(ttl_s=ttl_s)))


def renew_lease(lease_id: str) -> Call[LeaseInfo]:
    return Call("POST", f"/v1/leases/{quote(lease_id, '')}/renew", _model(LeaseInfo))


def end_lease(lease_id: str) -> Call[None]:
    path = f"/v1/leases/{quote(lease_id, '')}"
    return Call("DELETE", path, _nothing, timeout_s=LONG_TIMEOUT_S, is_repeatable=False)


def prefetch(task_id: str, count: int) -> Call[PoolInfo]:
    return Call("POST", "/v1/pool", _model(PoolInfo), content=_json(Prefetch(task_id=task_id, count=count)))


def run_command(session_id: str, request: ExecRequest) -> Call[ExecResult]:
    return Call(
        "POST",
        f"{_session(session_id)}/exec",
        _model(ExecResult),
        content=_json(request),
        timeout_s=request.timeout_s + CALL_TIMEOUT_S,
        is_repeatable=False,
    )


def run_tests(session_id: str) -> Call[ExecResult]:
    path = f"{_session(session_id)}/run_tests"
    return Call("POST", path, _model(ExecResult), timeout_s=GRADE_TIMEOUT_S, is_repeatable=False)


def start_process(session_id: str, request: ExecRequest) -> Call[ProcessInfo]:
    path = f"{_session(session_id)}/processes"
    return Call("POST", path, _model(ProcessInfo), content=_json(request), is_repeatable=False)


def list_processes(session_id: str) -> Call[list[ProcessInfo]]:
    return Call("GET", f"{_session(session_id)}/processes", _adapter(_PROCESSES))


def poll_process(session_id: str, process_id: str, wait_s: float) -> Call[ProcessInfo]:
    path, parameters = process_path(session_id, process_id), {"wait_s": str(wait_s)}
    return Call("GET", path, _model(ProcessInfo), parameters, timeout_s=wait_s + CALL_TIMEOUT_S)


def read_output(session_id: str, process_id: str, stream: Stream, offset: int, limit: int) -> Call[Output]:
    parameters = {"stream": stream, "offset": str(offset), "limit": str(limit)}
    return Call("GET", f"{process_path(session_id, process_id)}/output", _output, parameters)


def stream_process(session_id: str, process_id: str) -> Call[ProcessEvent]:
    """`read` makes one event of one line."""
    path = f"{process_path(session_id, process_id)}/stream"
    return Call("GET", path, _model(ProcessEvent), timeout_s=GRADE_TIMEOUT_S)


def kill_process(session_id: str, process_id: str) -> Call[ProcessInfo]:
    return Call("POST", f"{process_path(session_id, process_id)}/kill", _model(ProcessInfo))


def read_file(session_id: str, path: str, offset: int, limit: int | None) -> Call[bytes]:
    parameters = {"path": path} | ({"offset": str(offset)} if offset else {})
    parameters |= {"limit": str(limit)} if limit is not None else {}
    return Call("GET", f"{_session(session_id)}/files", _body, parameters)


def write_file(session_id: str, path: str, data: bytes) -> Call[None]:
    return Call("PUT", f"{_session(session_id)}/files", _nothing, {"path": path}, data)


def read_archive(session_id: str, path: str) -> Call[bytes]:
    return Call("GET", f"{_session(session_id)}/archive", _body, {"path": path}, timeout_s=LONG_TIMEOUT_S)


def write_archive(session_id: str, path: str, data: bytes) -> Call[None]:
    return Call("PUT", f"{_session(session_id)}/archive", _nothing, {"path": path}, data, LONG_TIMEOUT_S)


def get_patch(session_id: str) -> Call[PatchBody]:
    return Call("GET", f"{_session(session_id)}/patch", _model(PatchBody))


def grade(session_id: str) -> Call[Verdict]:
    return Call("POST", f"{_session(session_id)}/grade", _verdict, timeout_s=GRADE_TIMEOUT_S)


def grade_patch(task_id: str, patch: str, level: Level | None) -> Call[Verdict]:
    body = _json(GradePatch(task_id=task_id, patch=patch, level=level))
    return Call("POST", "/v1/grades", _verdict, content=body, timeout_s=GRADE_TIMEOUT_S)


def get_mcp_access(session_id: str) -> Call[McpAccess]:
    return Call("GET", f"{_session(session_id)}/mcp_access", _model(McpAccess))


def session_path(session_id: str) -> str:
    return _session(session_id)


def snapshot_path(snapshot_id: str) -> str:
    return f"/v1/snapshots/{quote(snapshot_id, '')}"


def process_path(session_id: str, process_id: str) -> str:
    return f"{_session(session_id)}/processes/{quote(process_id, '')}"


def _session(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, '')}"


def _json(body: BaseModel) -> bytes:
    """A lone surrogate, e.g. of a policy's own text, crosses as a JSON escape."""
    try:
        return body.model_dump_json(exclude_unset=True).encode()
    except ValueError:
        return json.dumps(body.model_dump(exclude_unset=True)).encode()


def _model(model: type[M]) -> Callable[[bytes, Headers], M]:
    return lambda body, _: model.model_validate_json(body)


def _adapter(adapter: TypeAdapter[R]) -> Callable[[bytes, Headers], R]:
    return lambda body, _: adapter.validate_json(body)


def _body(body: bytes, _: Headers) -> bytes:
    return body


def _nothing(body: bytes, _: Headers) -> None:
    return None


def _output(body: bytes, headers: Headers) -> Output:
    is_end = headers["x-is-end"] == "true"
    return Output(body, int(headers["x-offset"]), int(headers["x-dropped-bytes"]), is_end)


def _verdict(body: bytes, _: Headers) -> Verdict:
    data: dict[str, Any] = json.loads(body)
    return Verdict.from_dict(data)
