"""All parts of the sandbox service, wired together, and its life: start, reaping, drain, end. No HTTP here."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from swe_rl.errors import RateLimitError
from swe_rl.grade.grader import Grader
from swe_rl.sandbox.backend import default_scratch_dir
from swe_rl.sandbox.base import Backend
from swe_rl.sandbox.scratch import ScratchDir
from swe_rl.service.blueprint import Blueprint, Blueprints
from swe_rl.service.creations import Creations
from swe_rl.service.grading import Gradings
from swe_rl.service.journal import Journal
from swe_rl.service.leases import Lease, Leases
from swe_rl.service.metrics import ServiceMetrics
from swe_rl.service.pool import Pool
from swe_rl.service.session import Session, Terms
from swe_rl.service.sessions import Sessions
from swe_rl.service.snapshots import Snapshot, Snapshots
from swe_rl.service.tokens import Caller, Tokens
from swe_rl.task.language import LanguageSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.verdict import Level
from swe_rl.wire import CreateSession, Fork

logger = logging.getLogger(__name__)

REAP_EVERY_S = 0.5
RECONCILE_EVERY_S = 300.0
DISK_EVERY = 4  # reaper's rounds


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """An operator's knobs. A `scratch_dir` on the backend's own file system lets trees be moved instead of copied."""

    max_sessions: int = 256
    max_commands: int = 512
    grade_concurrency: int = 4
    grade_level: Level = "standard"
    scratch_dir: Path | None = None
    pool_size: int = 0
    min_free_mb: int = 512
    journal_url: str = ""


class Service:
    """Owns the backend: `close` ends every session, and the backend."""

    def __init__(
        self,
        backend: Backend,
        languages: Mapping[str, LanguageSpec],
        tasks: TaskSet,
        tokens: Tokens,
        options: ServiceOptions,
    ) -> None:
        self.backend, self.languages, self.tasks, self.tokens, self.options = backend, languages, tasks, tokens, options
        self.metrics = ServiceMetrics()
        scratch_dir = options.scratch_dir or default_scratch_dir()
        self._scratch = ScratchDir(scratch_dir, "service")
        grading_dir, empty_dir = self._scratch.path / "grading", self._scratch.path / "empty"
        self._directories = (grading_dir, empty_dir, self._scratch.path / "snapshots")
        grader = Grader(backend, dict(languages), options.grade_concurrency, grading_dir, options.grade_level)
        self.journal = Journal(options.journal_url, backend.instance_id or uuid4().hex, self.metrics)
        self.pool = Pool(backend, self.metrics, options.pool_size)
        self.blueprints = Blueprints(tasks, languages, empty_dir)
        self.sessions = Sessions(
            self.pool, self.metrics, self.journal, options.max_sessions, lambda: self._disk_problem
        )
        self.creations = Creations(self.sessions.is_alive)
        self.leases = Leases()
        self.snapshots = Snapshots(self._scratch.path / "snapshots", lambda: self._disk_problem)
        self.gradings = Gradings(grader, tasks, languages, self.metrics, self.journal)
        self._scratch_dir = scratch_dir
        self._disk_problem = ""
        self._num_commands = 0
        self._reaper: asyncio.Task[None] | None = None
        self._add_gauges()

    async def open(self) -> None:
        """Removes what a crash left, and begins to reap. Raises ConfigError or SandboxUnavailableError."""
        await asyncio.to_thread(self._make_directories)
        await self.journal.open()
        await self._reconcile()
        self._look_at_disk()
        self._reaper = asyncio.create_task(self._reap_forever())

    async def close(self) -> None:
        """Ends everything that lives, each part whatever those before it raise."""
        async with contextlib.AsyncExitStack() as parts:
            parts.push_async_callback(asyncio.to_thread, self._scratch.close)
            for end in (self.journal.close, self.backend.close, self.snapshots.clear, self.pool.close):
                parts.push_async_callback(end)  # the last one first
            parts.push_async_callback(self.sessions.close_all)
            if self._reaper is not None:
                self._reaper.cancel()
                await asyncio.wait({self._reaper})

    def begin_drain(self) -> None:
        """From now on no session begins; those that live go on until `close`."""
        self.sessions.is_draining = True
        self.pool.evict()

    def problems(self) -> list[str]:
        """Why no new session can be made now; empty if it can."""
        found = [self._disk_problem, self.journal.problem]
        if self.sessions.is_draining:
            found.append("shutting down: no new sessions")
        if len(self.sessions) >= self.sessions.max_sessions:
            found.append(f"all {self.sessions.max_sessions} sessions are in use")
        return [problem for problem in found if problem]

    @contextmanager
    def command_slot(self) -> Iterator[None]:
        """One of the commands that may run at once. Raises RateLimitError where all are taken."""
        if self._num_commands >= self.options.max_commands:
            raise RateLimitError(
                f"sandbox service: {self._num_commands} commands run, as many as may at once; repeat this one later"
            )
        self._num_commands += 1
        try:
            yield
        finally:
            self._num_commands -= 1

    async def create(self, request: CreateSession, caller: Caller) -> Session:
        """Raises TaskError, ConfigError, CapacityError or SandboxError."""
        terms = self._terms(caller, request.ttl_s, request.max_age_s, request.lease_id)

        async def make() -> list[Session]:
            return await self.sessions.open(await self.blueprints.of_request(request), terms, caller.token)

        what = request.model_dump_json()
        return (await self.creations.once(caller.name, request.idempotency_key, what, make))[0]

    async def fork(self, source: Session | Snapshot, request: Fork, caller: Caller) -> list[Session]:
        """`request.count` copies of a session as it stands, or of a snapshot. Raises as `create`."""
        terms = self._terms(caller, request.ttl_s, request.max_age_s, request.lease_id)

        async def make() -> list[Session]:
            if isinstance(source, Snapshot):
                async with self.snapshots.use(source) as blueprint:
                    return await self.sessions.open(blueprint, terms, caller.token, request.count)
            snapshot = await self.snapshots.take(source, request.ttl_s, None)
            try:
                async with self.snapshots.use(snapshot) as blueprint:
                    return await self.sessions.open(blueprint, terms, caller.token, request.count)
            finally:
                await self.snapshots.delete(snapshot)

        what = f"fork {source.session_id} {getattr(source, 'snapshot_id', '')} {request.model_dump_json()}"
        return await self.creations.once(caller.name, request.idempotency_key, what, make)

    async def blueprint(self, task_id: str) -> Blueprint:
        return await self.blueprints.of_task(task_id)

    async def end_lease(self, lease: Lease, reason: str = "lease") -> None:
        """Ends what was made under it; safe to call twice."""
        self.leases.end(lease.lease_id)
        sessions = self.sessions.select(lease.owner, lease.lease_id)
        await asyncio.gather(
            *(self.sessions.close(session.session_id, reason) for session in sessions),
            *(self.snapshots.delete(snapshot) for snapshot in self.snapshots.select(lease.owner, lease.lease_id)),
        )

    def _terms(self, caller: Caller, ttl_s: float, max_age_s: float | None, lease_id: str | None) -> Terms:
        if lease_id is not None:
            self.leases.find(lease_id, caller.name)
        return Terms(caller.name, ttl_s, max_age_s, lease_id)

    async def _reap_forever(self) -> None:
        num_rounds, reconcile_rounds = 0, int(RECONCILE_EVERY_S / REAP_EVERY_S)
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            num_rounds += 1
            try:
                await self._reap()
                if num_rounds % DISK_EVERY == 0:
                    self._look_at_disk()
                if num_rounds % reconcile_rounds == 0:
                    await self._reconcile()
            except Exception:  # a round that failed mustn't be the last
                logger.exception("reaper: a round failed")

    async def _reap(self) -> None:
        for lease in self.leases.take_expired():
            logger.warning("lease %s of %s: expired; what was made under it ends", lease.lease_id, lease.owner)
            await self.end_lease(lease)
        await self._end_leaseless()
        await self.sessions.reap()
        for snapshot in self.snapshots.take_expired():
            await self.snapshots.delete(snapshot)
        self.pool.reap()
        self.creations.purge()

    async def _end_leaseless(self) -> None:
        """What was still being made when its lease ended has no owner any more."""
        for session in self.sessions.select():
            if self._is_leaseless(session.terms.lease_id):
                await self.sessions.close(session.session_id, "lease")
        for snapshot in self.snapshots.select():
            if self._is_leaseless(snapshot.lease_id):
                await self.snapshots.delete(snapshot)

    def _is_leaseless(self, lease_id: str | None) -> bool:
        return lease_id is not None and not self.leases.is_live(lease_id)

    async def _reconcile(self) -> None:
        found = await self.backend.reconcile()
        if found:
            self.metrics.leaks.inc(found)
            logger.warning("%d leftovers of dead services were removed", found)

    def _look_at_disk(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            free_mb = shutil.disk_usage(self._scratch_dir).free >> 20
            want_mb = self.options.min_free_mb
            self._disk_problem = (
                f"sandbox service: {free_mb} MB are free below the scratch directory, want {want_mb}; try again later"
                if free_mb < want_mb
                else ""
            )

    def _make_directories(self) -> None:
        self._scratch.open()
        for directory in self._directories:
            directory.mkdir(mode=0o700)

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("sessions", "Sessions that live", lambda: len(self.sessions))
        gauge("snapshots", "Snapshots that are kept", lambda: len(self.snapshots))
        gauge("pool_warm", "Sandboxes that wait in the pool", self.pool.num_warm)
        gauge("commands_running", "Commands that run for callers", lambda: self._num_commands)
        gauge("draining", "1 while the service shuts down", lambda: self.sessions.is_draining)
        gauge("scratch_free_bytes", "Free bytes below the scratch directory", self._free_bytes)

    def _free_bytes(self) -> float:
        try:
            return shutil.disk_usage(self._scratch_dir).free
        except FileNotFoundError:
            return 0.0
