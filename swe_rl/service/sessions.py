"""The live sessions: each one sandbox of one task, leased to a caller for as long as it keeps calling.

A lease is renewed by every call and never ends while a call runs; the reaper closes what has expired. Nothing here
knows HTTP, and no method gives hidden tests or solutions away.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

from swe_rl.errors import CapacityError, PatchError, PathError, SandboxUnavailableError, SessionNotFoundError
from swe_rl.grade.grader import Grader, task_limits
from swe_rl.grade.patch import make_patch
from swe_rl.sandbox.base import RUNNER_DIR, Backend, Command, CommandResult, FileEntry, Sandbox, SandboxSpec
from swe_rl.sandbox.tree import read_tree
from swe_rl.task.language import LanguageSpec, fill_command
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.verdict import Outcome, TestCounts, Verdict

logger = logging.getLogger(__name__)

REAP_EVERY_S = 1.0
SLACK_S = 60.0
MAX_HELD_TREES = 512


@dataclass
class Session:
    """One live sandbox, and what has been decided about it."""

    session_id: str
    task: TaskSpec
    sandbox: Sandbox
    base: Mapping[str, FileEntry]
    ttl_s: float
    expires_at: float
    num_calls: int = 0
    grading: "asyncio.Task[Verdict] | None" = None
    idempotency_key: str | None = None

    @property
    def expires_in_s(self) -> float:
        return max(0.0, self.expires_at - time.monotonic())

    @property
    def is_expired(self) -> bool:
        return self.num_calls == 0 and time.monotonic() >= self.expires_at


@dataclass
class Sessions:
    """Makes, finds and ends sessions; `languages` must have every task's language."""

    backend: Backend
    tasks: TaskSet
    languages: Mapping[str, LanguageSpec]
    grader: Grader
    max_sessions: int = 256
    _live: dict[str, Session] = field(default_factory=dict)
    _creating: "dict[str, asyncio.Task[Session]]" = field(default_factory=dict)
    _trees: dict[str, Mapping[str, FileEntry]] = field(default_factory=dict)
    _num_pending: int = 0
    _is_draining: bool = False

    def __len__(self) -> int:
        return len(self._live)

    def list(self) -> list[Session]:
        return list(self._live.values())

    def find(self, session_id: str) -> Session:
        """Raises SessionNotFoundError."""
        try:
            return self._live[session_id]
        except KeyError:
            raise SessionNotFoundError(
                f"session {session_id!r}: not alive; it was closed, has expired, or never was"
            ) from None

    @asynccontextmanager
    async def use(self, session_id: str) -> AsyncIterator[Session]:
        """The session for the length of one call: it can't expire meanwhile, and its lease starts anew."""
        session = self.find(session_id)
        session.num_calls += 1
        try:
            yield session
        finally:
            session.num_calls -= 1
            session.expires_at = time.monotonic() + session.ttl_s

    async def create(self, task_id: str, ttl_s: float, idempotency_key: str | None) -> Session:
        """The same key gives the same session while it lives. Raises TaskError, CapacityError or SandboxError."""
        if idempotency_key is None:
            return await self._create(task_id, ttl_s, None)
        creation = self._creating.get(idempotency_key)
        if creation is None:
            creation = asyncio.create_task(self._create(task_id, ttl_s, idempotency_key))
            self._creating[idempotency_key] = creation
        try:
            return await asyncio.shield(creation)
        except Exception:
            self._creating.pop(idempotency_key, None)
            raise

    async def run_visible_tests(self, session: Session) -> CommandResult:
        """The tests that the agent may see, with the language's runner at /runner."""
        language = self.languages[session.task.language]
        limits = task_limits(session.task, language)
        argv = session.task.visible_command or language.visible_command
        command = Command(
            argv=fill_command(argv, report="/tmp/visible.report", runner=RUNNER_DIR, nonce="/tmp/visible.nonce"),
            env=language.env,
            timeout_s=limits.timeout_s,
            runner_dir=language.runner_dir,
        )
        return await session.sandbox.run(command)

    async def capture_patch(self, session: Session) -> str:
        """The difference between the base and the working directory, computed on the host. Raises PathError."""
        language = self.languages[session.task.language]
        tree = await session.sandbox.read_tree()
        return await asyncio.to_thread(make_patch, session.base, tree, language.ignored_globs)

    async def grade(self, session: Session) -> Verdict:
        """Grades once: a repeated call gives the first verdict, except where the environment failed."""
        earlier = session.grading
        if earlier is None or (earlier.done() and not _is_final(earlier)):
            earlier = session.grading = asyncio.create_task(self._grade(session))
        return await asyncio.shield(earlier)

    async def close(self, session_id: str) -> None:
        """Nothing happens where no such session lives."""
        session = self._live.pop(session_id, None)
        if session is None:
            return
        if session.idempotency_key is not None:
            self._creating.pop(session.idempotency_key, None)
        if session.grading is not None and not session.grading.done():
            session.grading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await session.grading
        await session.sandbox.close()
        logger.info("session %s: closed", session_id)

    async def reap_forever(self) -> None:
        """Closes expired sessions until cancelled."""
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            for session in [s for s in self._live.values() if s.is_expired]:
                logger.info("session %s: expired after %g s without a call", session.session_id, session.ttl_s)
                try:
                    await self.close(session.session_id)
                except Exception:
                    logger.exception("session %s: can't be closed", session.session_id)

    async def drain(self) -> None:
        """Takes no more sessions and closes all that live."""
        self._is_draining = True
        results = await asyncio.gather(
            *(self.close(session_id) for session_id in list(self._live)), return_exceptions=True
        )
        for error in (result for result in results if isinstance(result, Exception)):
            logger.error("a session can't be closed: %s", error)

    async def _create(self, task_id: str, ttl_s: float, idempotency_key: str | None) -> Session:
        task = self.tasks.get(task_id)
        if self._is_draining:
            raise SandboxUnavailableError("sandbox service: shutting down; call another, or wait until it's back")
        if len(self._live) + self._num_pending >= self.max_sessions:
            raise CapacityError(f"sandbox service: all {self.max_sessions} sessions are in use; try again later")
        self._num_pending += 1
        try:
            base = await self._base_tree(task)
            language = self.languages[task.language]
            spec = SandboxSpec(task.environment_dir, task.language, task_limits(task, language), language.env)
            sandbox = await self.backend.create(spec)
        finally:
            self._num_pending -= 1
        session_id = f"s-{uuid4().hex}"
        session = Session(
            session_id, task, sandbox, base, ttl_s, time.monotonic() + ttl_s, idempotency_key=idempotency_key
        )
        self._live[session_id] = session
        logger.info("session %s: task %s in sandbox %s", session_id, task_id, sandbox.sandbox_id)
        if self._is_draining:
            await self.close(session_id)
            raise SandboxUnavailableError("sandbox service: shutting down; call another, or wait until it's back")
        return session

    async def _base_tree(self, task: TaskSpec) -> Mapping[str, FileEntry]:
        found = self._trees.get(task.task_id)
        if found is None:
            found = await asyncio.to_thread(read_tree, task.environment_dir)
            while len(self._trees) >= MAX_HELD_TREES:
                self._trees.pop(next(iter(self._trees)))
            self._trees[task.task_id] = found
        return found

    async def _grade(self, session: Session) -> Verdict:
        try:
            patch = await self.capture_patch(session)
        except (PathError, PatchError) as error:  # what the agent left can't be a patch: its own doing, not a fault
            task = session.task
            return Verdict(
                Outcome.PATCH_FAILED,
                0.0,
                TestCounts(0, len(task.fail_to_pass)),
                TestCounts(0, len(task.pass_to_pass)),
                signals={"patch": str(error)},
            )
        return _without_words(await self.grader.grade(session.task, patch))


def _without_words(verdict: Verdict) -> Verdict:
    """A fault keeps its class alone: its words, which the grader has logged, may name hidden files."""
    fault = verdict.signals.get("fault")
    if fault is None:
        return verdict
    return replace(verdict, signals=verdict.signals | {"fault": str(fault).partition(":")[0]})


def _is_final(grading: "asyncio.Task[Verdict]") -> bool:
    if grading.cancelled() or grading.exception() is not None:
        return False
    return grading.result().outcome is not Outcome.ENVIRONMENT_ERROR
