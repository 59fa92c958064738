"""The live sessions: each one sandbox, leased to a caller for as long as it keeps calling.

A session is made where there is room for it, within its owner's quota, while the disk has space and the service isn't
shutting down. Every call renews it; the reaper ends what has expired, and every end has a reason. A session belongs to
the token that made it: for others it isn't there. Nothing here knows HTTP.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn
from uuid import uuid4

from swe_rl.errors import (
    CapacityError,
    PathError,
    SandboxError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SessionNotFoundError,
)
from swe_rl.sandbox.base import Command
from swe_rl.service.blueprint import Blueprint
from swe_rl.service.journal import Journal
from swe_rl.service.metrics import ServiceMetrics
from swe_rl.service.pool import Pool
from swe_rl.service.session import Session, Terms
from swe_rl.service.tokens import Token

logger = logging.getLogger(__name__)

CLOSE_ATTEMPTS = 3
PROBE_S = 10.0
MAX_REMEMBERED = 4096
_UNKNOWN = "it was closed, has expired, or never was"
_NOT_ITS_DEATH = (PathError, CapacityError, SandboxTimeoutError)


class Sessions:
    """Makes, finds and ends sessions. `disk_problem` says in one line why the disk forbids a new one, else it is ''."""

    def __init__(
        self,
        pool: Pool,
        metrics: ServiceMetrics,
        journal: Journal,
        max_sessions: int,
        disk_problem: Callable[[], str],
    ) -> None:
        self.max_sessions = max_sessions
        self.is_draining = False
        self._pool = pool
        self._metrics = metrics
        self._journal = journal
        self._disk_problem = disk_problem
        self._live: dict[str, Session] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._num_pending: Counter[str] = Counter()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._emptied, self._settled = asyncio.Event(), asyncio.Event()
        self._settled.set()

    def __len__(self) -> int:
        return len(self._live)

    def is_alive(self, session_id: str) -> bool:
        return session_id in self._live

    def select(self, owner: str | None = None, lease_id: str | None = None) -> list[Session]:
        """All, or those of an owner, or of one of its leases."""
        return [
            s for s in self._live.values() if owner in (None, s.terms.owner) and lease_id in (None, s.terms.lease_id)
        ]

    def find(self, session_id: str, owner: str | None) -> Session:
        """`owner` None: whoever made it. Raises SessionNotFoundError, with the reason of its end if that is known."""
        session = self._live.get(session_id)
        if session is None:
            self._raise_ended(session_id, None)
        if owner not in (None, session.terms.owner):
            raise SessionNotFoundError(f"session {session_id!r}: not alive; {_UNKNOWN}")
        return session

    @asynccontextmanager
    async def use(self, session_id: str, owner: str | None) -> AsyncIterator[Session]:
        """The session for the length of one call: it can't expire meanwhile, and its lifetime starts anew.

        Where the call meets a fault, the session is probed; one whose sandbox has died ends as "lost". A call during
        which the session ended raises SessionNotFoundError, whatever it met.
        """
        session = self.find(session_id, owner)
        session.num_calls += 1
        try:
            yield session
        except SandboxError as error:
            if session_id not in self._live:
                self._raise_ended(session_id, error)
            if not isinstance(error, _NOT_ITS_DEATH):
                self._probe_soon(session)
            raise
        finally:
            session.num_calls -= 1
            session.renew()

    async def open(self, blueprint: Blueprint, terms: Terms, quota: Token, count: int = 1) -> list[Session]:
        """`count` sessions, or none. Raises CapacityError, SandboxUnavailableError (shutting down) or SandboxError."""
        with self._room(quota, count):
            making = [asyncio.create_task(self._open_one(blueprint, terms)) for _ in range(count)]
            try:
                sessions = list(await asyncio.gather(*making))
            except BaseException:
                await asyncio.shield(self._abandon(making))
                raise
            if self.is_draining:
                await asyncio.gather(*(self.close(session.session_id, "drained") for session in sessions))
                raise _draining()
        return sessions

    async def close(self, session_id: str, reason: str = "closed") -> None:
        """Returns when its sandbox is gone, whoever asked first. Nothing happens where no such session lives."""
        session = self._live.pop(session_id, None)
        if session is not None:
            self._ended[session_id] = reason
            self._metrics.ended.labels(reason).inc()
            self._closing[session_id] = asyncio.create_task(self._close(session, reason))
        closing = self._closing.get(session_id)
        if closing is not None:
            await asyncio.shield(closing)

    async def reap(self) -> None:
        """Ends what is overdue."""
        overdue = [(session, reason) for session in self._live.values() if (reason := session.overdue())]
        for session, reason in overdue:
            logger.info("session %s: %s", session.session_id, reason, extra={"session_id": session.session_id})
        await asyncio.gather(*(self.close(session.session_id, reason) for session, reason in overdue))

    async def wait_empty(self, timeout_s: float) -> bool:
        """True as soon as no session lives, false when the time is over."""
        if self._live:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), timeout_s)
        return not self._live

    async def close_all(self) -> None:
        """Takes no more sessions and ends all that live, also those that are just being made."""
        self.is_draining = True
        ends = [self.close(session_id, "drained") for session_id in list(self._live)]
        await asyncio.gather(*ends, *self._closing.values(), *self._probes.values(), return_exceptions=True)
        await self._settled.wait()  # `open` ends those itself

    @contextmanager
    def _room(self, quota: Token, count: int) -> Iterator[None]:
        if self.is_draining:
            raise _draining()
        if problem := self._disk_problem():
            self._pool.evict()
            raise CapacityError(problem)
        mine = self._num_pending[quota.name] + sum(s.terms.owner == quota.name for s in self._live.values())
        if quota.max_sessions is not None and mine + count > quota.max_sessions:
            raise CapacityError(
                f"sandbox service: token {quota.name!r} has {mine} of its {quota.max_sessions} sessions in use; "
                f"wanted {count} more; close some, or try again later"
            )
        used = len(self._live) + self._num_pending.total()
        if used + count > self.max_sessions:
            raise CapacityError(
                f"sandbox service: {used} of all {self.max_sessions} sessions are in use; wanted {count} more; "
                "try again later"
            )
        self._num_pending[quota.name] += count
        self._settled.clear()
        try:
            yield
        finally:
            self._num_pending[quota.name] -= count
            if not self._num_pending.total():
                self._settled.set()

    async def _open_one(self, blueprint: Blueprint, terms: Terms) -> Session:
        sandbox, source = await self._pool.take(blueprint)
        session = Session(f"s-{uuid4().hex}", blueprint, sandbox, terms)
        self._live[session.session_id] = session
        self._metrics.created.labels(source).inc()
        self._journal.began(session)
        what = blueprint.task.task_id if blueprint.task else blueprint.language.language
        logger.info(
            "session %s: %s in sandbox %s", session.session_id, what, sandbox.sandbox_id,
            extra={"session_id": session.session_id},
        )  # fmt: skip
        return session

    async def _abandon(self, making: list[asyncio.Task[Session]]) -> None:
        for task in making:
            task.cancel()
        for made in await asyncio.gather(*making, return_exceptions=True):
            if isinstance(made, Session):
                await self.close(made.session_id, "abandoned")

    async def _close(self, session: Session, reason: str) -> None:
        try:
            if session.grading is not None and not session.grading.done():
                session.grading.cancel()
                await asyncio.wait({session.grading})
            await _close_sandbox(session)
        except SandboxError:
            logger.exception("session %s: its sandbox can't be removed", session.session_id)
        finally:
            self._forget(session, reason)

    def _forget(self, session: Session, reason: str) -> None:
        self._closing.pop(session.session_id, None)
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)
        self._journal.ended(session, reason)
        if not self._live:
            self._emptied.set()
        logger.info(
            "session %s: ended: %s", session.session_id, reason,
            extra={"session_id": session.session_id, "reason": reason},
        )  # fmt: skip

    def _raise_ended(self, session_id: str, cause: Exception | None) -> NoReturn:
        reason = self._ended.get(session_id)
        what = f"it ended: {reason}" if reason else _UNKNOWN
        raise SessionNotFoundError(f"session {session_id[:80]!r}: not alive; {what}") from cause

    def _probe_soon(self, session: Session) -> None:
        if session.session_id in self._live and session.session_id not in self._probes:
            self._probes[session.session_id] = asyncio.create_task(self._probe(session))

    async def _probe(self, session: Session) -> None:
        try:
            async with asyncio.timeout(PROBE_S):
                await session.sandbox.run(Command(("true",), timeout_s=PROBE_S))
        except (SandboxError, TimeoutError) as error:
            logger.warning("session %s: its sandbox is lost: %s", session.session_id, error)
            await self.close(session.session_id, "lost")
        finally:
            self._probes.pop(session.session_id, None)


async def _close_sandbox(session: Session) -> None:
    for attempt in range(1, CLOSE_ATTEMPTS + 1):
        try:
            await session.sandbox.close()
            return
        except SandboxError:
            if attempt == CLOSE_ATTEMPTS:
                raise
            await asyncio.sleep(0.5 * attempt)


def _draining() -> SandboxUnavailableError:
    return SandboxUnavailableError("sandbox service: shutting down; call another, or wait until it's back")
