"""One live sandbox and what has been decided about it: its owner, its end, its processes, its verdict."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_rl.errors import CapacityError, ResourceNotFoundError
from swe_rl.sandbox.base import Command, FileEntry, Process, Sandbox
from swe_rl.service.blueprint import Blueprint
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Verdict

MAX_PROCESSES = 64
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Terms:
    """When a session ends by itself: `ttl_s` after its last call, `max_age_s` after its start, with its lease."""

    owner: str
    ttl_s: float
    max_age_s: float | None = None
    lease_id: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started in a session, and the beginning of its command."""

    process: Process
    command: str


@dataclass(eq=False)
class Session:
    """A live session; `Sessions` alone makes and ends them."""

    session_id: str
    blueprint: Blueprint
    sandbox: Sandbox
    terms: Terms
    begun_at: float = field(default_factory=time.monotonic)
    expires_at: float = field(init=False)
    num_calls: int = 0
    grading: "asyncio.Task[Verdict] | None" = None
    processes: dict[str, Started] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.renew()

    @property
    def task(self) -> TaskSpec | None:
        return self.blueprint.task

    @property
    def base(self) -> Mapping[str, FileEntry]:
        return self.blueprint.base

    @property
    def expires_in_s(self) -> float:
        return max(0.0, self.expires_at - time.monotonic())

    def renew(self) -> None:
        self.expires_at = time.monotonic() + self.terms.ttl_s
        if self.terms.max_age_s is not None:
            self.expires_at = min(self.expires_at, self.begun_at + self.terms.max_age_s)

    def overdue(self) -> str | None:
        """Why it must end now, or None. A call in progress holds off everything but the age."""
        now = time.monotonic()
        if self.terms.max_age_s is not None and now >= self.begun_at + self.terms.max_age_s:
            return "max_age"
        return "expired" if self.num_calls == 0 and now >= self.expires_at else None

    async def start_process(self, command: Command) -> Started:
        """Raises CapacityError where too many run; those that ended first are forgotten first."""
        for process_id, started in list(self.processes.items()):
            if len(self.processes) < MAX_PROCESSES:
                break
            if await started.process.wait(0) is not None:
                self.processes.pop(process_id, None)
        if len(self.processes) >= MAX_PROCESSES:
            raise CapacityError(f"session {self.session_id}: {MAX_PROCESSES} processes run already; kill one first")
        started = Started(await self.sandbox.start(command), " ".join(command.argv)[:_SHOWN])
        self.processes[started.process.process_id] = started
        return started

    def find_process(self, process_id: str) -> Started:
        """Raises ResourceNotFoundError."""
        try:
            return self.processes[process_id]
        except KeyError:
            raise ResourceNotFoundError(
                f"session {self.session_id}: process {process_id!r}: was never started, or ended long ago"
            ) from None
