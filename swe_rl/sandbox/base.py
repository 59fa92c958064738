"""The seam between the environment wing and whatever isolates a process: a `Backend` makes `Sandbox`es.

A sandbox is one working directory, private to one session, in which commands run without network and without a view
of the host. It knows nothing of tasks, tests or rewards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

WORKDIR = "/workspace"
REPORT_DIR = "/report"
RUNNER_DIR = "/runner"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use; the sandbox reports a breach instead of hiding it."""

    timeout_s: float = 60.0
    memory_mb: int = 1024
    num_pids: int = 128
    cpus: float = 1.0
    file_size_mb: int = 256


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a fresh sandbox holds: `source` is copied (never linked) into the working directory.

    `is_disposable`: the caller made `source` for this sandbox alone, so a backend may move it instead of copying.
    """

    source: Path
    language: str
    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict)
    is_disposable: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One process to run: `argv` as it is (no shell). `cwd` is relative to the working directory.

    `report_dir`: a host directory that the command alone sees, writable, at /report; used by the grader only.
    `runner_dir`: a host directory with the language's test runner, bound read-only at /runner.
    """

    argv: tuple[str, ...]
    cwd: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout_s: float = 60.0
    output_limit_bytes: int = 64 * 1024
    report_dir: Path | None = None
    runner_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """`exit_code` is None where a signal or the deadline ended the command.

    A status of 128 + n is read as signal n, as every shell reports it. Output past the limit keeps its head and its
    tail around a line that counts what was left out.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated_bytes: int
    timed_out: bool
    oom: bool
    duration_s: float


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a tree: `mode` as git writes it (100644, 100755, 120000 with the link's target as data)."""

    mode: str
    data: bytes


class Sandbox(Protocol):
    """One live working directory. Every method raises SandboxError (or its kin) for a fault of the environment."""

    sandbox_id: str

    async def run(self, command: Command) -> CommandResult:
        """Ends at the deadline with the partial output; the whole process tree is dead when this returns."""
        ...

    async def read_file(self, path: str) -> bytes:
        """Raises PathError for a path that leaves the working directory, or isn't a regular file."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Creates parents; atomic; raises PathError as `read_file`."""
        ...

    async def read_tree(self) -> dict[str, FileEntry]:
        """Every file and link below the working directory except `.git`, by relative path; links aren't followed."""
        ...

    async def close(self) -> None:
        """Kills what runs and removes all; safe to call twice."""
        ...


class Backend(Protocol):
    """Makes sandboxes. `check` raises SandboxUnavailableError that says what is missing and what to do."""

    name: str

    async def check(self) -> None: ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def close(self) -> None:
        """Closes every sandbox that is still open, and what a crash left behind."""
        ...
