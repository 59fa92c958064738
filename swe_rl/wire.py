"""The HTTP bodies that pass between the environment wing and everyone else. Nothing secret has a field here."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_OUTPUT_BYTES = 64 * 1024


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


class CreateSession(Body):
    task_id: str
    ttl_s: float = Field(default=900.0, gt=0, le=86_400)
    idempotency_key: str | None = Field(default=None, max_length=200)


class SessionInfo(Body):
    session_id: str
    task: TaskInfo
    workdir: str = Field(description="absolute path of the repository inside the sandbox")
    files: list[str] = Field(description="paths of the repository's files at the start, relative, sorted")
    expires_in_s: float


class ExecRequest(Body):
    """Exactly one of `argv` (no shell) and `script` (run by bash)."""

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
    duration_s: float


class PatchBody(Body):
    patch: str = Field(description="git-style unified diff from the base to the working directory as it stands")
    sha256: str
    num_files: int


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


class ErrorBody(Body):
    """Every answer that isn't 2xx. `error` is the class name in swe_rl.errors; a client never evaluates it."""

    error: str
    message: str
    session_id: str | None = None
