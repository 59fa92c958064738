"""The HTTP bodies that pass between the environment wing and everyone else. Nothing secret has a field here."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from swe_rl.verdict import Level

MAX_OUTPUT_BYTES = 64 * 1024
MAX_FORKS = 256
Stream = Literal["stdout", "stderr"]


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


def _request(**example: Any) -> ConfigDict:
    """A request's numbers are numbers: neither "60" nor true."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TaskInfo(Body):
    """A task as the policy side may see it."""

    task_id: str
    split: str
    language: str
    instruction: str
    content_sha256: str = Field(description="hash of the whole task folder, hidden tests included")
    labels: dict[str, str] = Field(default_factory=dict, description="free labels, e.g. the synthetic template's name")


class Health(Body):
    status: Literal["ok"]
    version: str
    backend: str
    num_sessions: int
    num_tasks: int


class Ready(Body):
    """`problems` says why no new session can be made; it is empty exactly if the service is ready."""

    is_ready: bool
    problems: list[str]


class SessionLimits(Body):
    """What a session may use; a value above the language's or the task's own is lowered to it."""

    model_config = _request(memory_mb=256)

    memory_mb: int | None = Field(default=None, ge=16)
    num_pids: int | None = Field(default=None, ge=1)
    cpus: float | None = Field(default=None, ge=0.01)
    disk_mb: int | None = Field(default=None, ge=1)


class CreateSession(Body):
    """Exactly one of `task_id` (a task's repository) and `language` (an empty directory with that toolchain)."""

    model_config = _request(task_id="python-ledger-rounding", ttl_s=900, idempotency_key="step-12-member-3")

    task_id: str | None = Field(default=None, max_length=200)
    language: str | None = Field(default=None, max_length=200)
    ttl_s: float = Field(default=900.0, gt=0, le=86_400, description="ends after so long without a call")
    max_age_s: float | None = Field(default=None, gt=0, le=604_800, description="ends after so long in any case")
    lease_id: str | None = Field(default=None, max_length=64, description="ends with this lease of the owner")
    idempotency_key: str | None = Field(
        default=None, max_length=200, description="the same key gives the same session for as long as it lives"
    )
    limits: SessionLimits | None = None
    env: dict[str, str] = Field(default_factory=dict, max_length=200, description="variables of every command")

    @model_validator(mode="after")
    def _one_source(self) -> "CreateSession":
        if (self.task_id is None) == (self.language is None):
            raise ValueError("give exactly one of task_id and language")
        return self


class SessionInfo(Body):
    session_id: str
    task: TaskInfo | None = Field(description="null for a session that was made of a language alone")
    language: str
    workdir: str = Field(description="absolute path of the repository inside the sandbox")
    files: list[str] = Field(description="paths of the repository's files at the start, relative, sorted")
    expires_in_s: float
    lease_id: str | None = None


class Fork(Body):
    """Makes `count` sessions that begin as copies; all of them are made, or none is."""

    model_config = _request(count=8, ttl_s=900, idempotency_key="group-12")

    count: int = Field(default=1, ge=1, le=MAX_FORKS)
    ttl_s: float = Field(default=900.0, gt=0, le=86_400)
    max_age_s: float | None = Field(default=None, gt=0, le=604_800)
    lease_id: str | None = Field(default=None, max_length=64)
    idempotency_key: str | None = Field(default=None, max_length=200)


class CreateSnapshot(Body):
    model_config = _request(ttl_s=3600)

    ttl_s: float = Field(default=3600.0, gt=0, le=604_800, description="removed after so long without a fork")
    lease_id: str | None = Field(default=None, max_length=64)


class SnapshotInfo(Body):
    snapshot_id: str
    session_id: str = Field(description="the session that it was taken of")
    task_id: str | None
    language: str
    expires_in_s: float
    lease_id: str | None = None


class CreateLease(Body):
    model_config = _request(ttl_s=60)

    ttl_s: float = Field(default=60.0, gt=0, le=86_400, description="ends after so long without a renewal")


class LeaseInfo(Body):
    lease_id: str
    expires_in_s: float
    num_sessions: int
    num_snapshots: int


class Prefetch(Body):
    model_config = _request(task_id="python-ledger-rounding", count=4)

    task_id: str = Field(max_length=200)
    count: int = Field(default=1, ge=0, le=MAX_FORKS, description="so many sandboxes should wait; 0: none")


class PoolInfo(Body):
    """`num_wanted` may be less than was asked for: the pool has bounds."""

    capacity: int
    num_warm: int
    num_wanted: int


class ExecRequest(Body):
    """Exactly one of `argv` (no shell) and `script` (run by bash)."""

    model_config = _example(script="grep -rn 'def total' src | head", timeout_s=30)

    argv: list[str] | None = None
    script: str | None = None
    cwd: str = Field(default=".", description="relative to the working directory")
    env: dict[str, str] = Field(default_factory=dict)
    stdin: str = ""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    output_limit_bytes: int = Field(default=MAX_OUTPUT_BYTES, gt=0, le=16 * 1024 * 1024)

    @model_validator(mode="after")
    def _one_command(self) -> "ExecRequest":
        if (self.argv is None) == (self.script is None) or self.argv == []:
            raise ValueError("give exactly one of argv (not empty) and script")
        parts = [*(self.argv or ()), self.script or "", self.cwd, *self.env, *self.env.values()]
        if any("\0" in part for part in parts):
            raise ValueError("a NUL byte in the command, the directory or the environment")
        return self


class ExecResult(Body):
    """`exit_code` is None where a signal ended the command or the deadline did; output is decoded with replacement."""

    exit_code: int | None
    signal: int | None = None
    stdout: str
    stderr: str
    truncated_bytes: int = 0
    timed_out: bool = False
    oom: bool = False
    pids_exceeded: bool = False
    disk_full: bool = False
    duration_s: float


class ProcessInfo(Body):
    """`result` is null for as long as it runs."""

    process_id: str
    command: str = Field(description="the beginning of the argv or script, for people")
    is_running: bool
    result: ExecResult | None = None


class ProcessEvent(Body):
    """One line of a process's stream: output, or at the end its result. `offset` counts bytes of that stream."""

    stream: Stream | None = None
    offset: int = 0
    text: str = ""
    result: ExecResult | None = None


class PatchBody(Body):
    patch: str = Field(description="git-style unified diff from the base to the working directory as it stands")
    sha256: str
    num_files: int


class GradePatch(Body):
    model_config = _request(task_id="python-ledger-rounding", patch="diff --git a/src/ledger.py b/src/ledger.py\n...")

    task_id: str = Field(max_length=200)
    patch: str
    level: Level | None = Field(default=None, description="how much is run; null: the service's own level")


class VerdictBody(Body):
    """A `Verdict` on the wire: see swe_rl.verdict."""

    outcome: str
    reward: float | None
    fail_to_pass: dict[str, int]
    pass_to_pass: dict[str, int]
    violations: list[dict[str, str]]
    signals: dict[str, Any]
    patch_sha256: str
    duration_s: float
    grader_version: str


class McpAccess(Body):
    """What an outside agent needs: it reaches the tools of this one session by it and nothing else."""

    path: str = Field(description="path of the MCP endpoint (streamable HTTP), below the service's address")
    token: str = Field(description="bearer token of that endpoint")


class ErrorBody(Body):
    """Every answer that isn't 2xx. `error` is the class name in swe_rl.errors; a client never evaluates it."""

    model_config = _example(error="SessionNotFoundError", message="session 's-0': not alive; it was closed")

    error: str
    message: str
    session_id: str | None = None
    request_id: str | None = None
