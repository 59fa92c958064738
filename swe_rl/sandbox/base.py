"""The seam between the environment wing and whatever isolates a process: a `Backend` makes `Sandbox`es.

A sandbox is one working directory, private to one session, in which commands run without network and without a view
of the host. It knows nothing of tasks, tests or rewards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

WORKDIR = "/workspace"
REPORT_DIR = "/report"
RUNNER_DIR = "/runner"
StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use; a command's result reports a breach instead of hiding it.

    `timeout_s` holds for a command; memory, processes, CPU and disk are shared by all that runs in the sandbox.
    `disk_mb` counts what lies in the working directory and in /tmp (and in /dev/shm, where that isn't bounded itself).
    """

    timeout_s: float = 60.0
    memory_mb: int = 1024
    num_pids: int = 128
    cpus: float = 1.0
    file_size_mb: int = 256
    disk_mb: int = 2048


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a fresh sandbox holds: `source` is copied (never linked) into the working directory.

    `is_disposable`: the caller made `source` for this sandbox alone, so a backend may move it instead of copying.
    A snapshot (see `Sandbox.snapshot`) is a source too; `is_snapshot`: it's copied as it is, and gets no repository
    where the session had removed its own. `labels`: free words that what is made for the sandbox carries
    beside the backend's own mark, so that an operator can tell whose a container or a directory is.
    """

    source: Path
    language: str
    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict)
    is_disposable: bool = False
    is_snapshot: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


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
    tail around a line that counts what was left out. `oom`, `pids_exceeded`, `disk_full`: the sandbox met that limit
    while the command ran; where commands run side by side, each of them says so.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated_bytes: int
    timed_out: bool
    oom: bool
    duration_s: float
    pids_exceeded: bool = False
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a tree: `mode` as git writes it (100644, 100755, 120000 with the link's target as data)."""

    mode: str
    data: bytes


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of a stream: `data` begins at byte `offset` of all that was written.

    `dropped_bytes`: how many bytes between the offset asked for and `offset` are no longer held. `is_end`: nothing will
    ever follow `data`.
    """

    data: bytes
    offset: int
    dropped_bytes: int
    is_end: bool


class Process(Protocol):
    """A command that runs on its own, until it ends, its `timeout_s` has gone by, or its sandbox closes."""

    process_id: str

    async def read(self, stream: StreamName, offset: int, limit: int) -> OutputChunk:
        """At most `limit` bytes from `offset` on, without waiting; the last `output_limit_bytes` written are held."""
        ...

    async def wait(self, timeout_s: float) -> CommandResult | None:
        """The result, or None where the command hasn't ended after `timeout_s` (0: at once). Raises SandboxError."""
        ...

    async def kill(self) -> None:
        """Kills the command's whole tree; `wait` then gives its result (signal 9). Safe on one that has ended."""
        ...


class Sandbox(Protocol):
    """One live working directory. Every method raises SandboxError (or its kin) for a fault of the environment."""

    sandbox_id: str

    async def run(self, command: Command) -> CommandResult:
        """Ends with the command, or at the deadline with the partial output.

        What the command left running in the background lives on until the sandbox closes; at the deadline, or where the
        caller is cancelled, the command's whole tree dies (daemons that it started included) and the sandbox lives on.
        A command with `report_dir` or `runner_dir` leaves nothing behind.
        """
        ...

    async def start(self, command: Command) -> Process:
        """Starts a command and returns at once; it obeys `timeout_s` as in `run`."""
        ...

    async def snapshot(self, into: Path) -> None:
        """Copies the working directory (its files and `.git`; no processes, no /tmp) into `into`, which must not exist.

        Files are shared until they change where the file system can. Raises PathError for a tree beyond the limits.
        """
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
    """Makes sandboxes. `check` raises SandboxUnavailableError that says what is missing and what to do.

    All that it makes outside of a sandbox (containers, directories, mounts, control groups) carries `instance_id`.
    """

    name: str
    instance_id: str

    async def check(self) -> None: ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def reconcile(self) -> int:
        """Removes what dead instances left on this machine or engine; how many things that were. Safe at any time."""
        ...

    async def close(self) -> None:
        """Closes every sandbox that is still open, and what a crash left behind."""
        ...
