"""A durable record of every session and verdict, in a database (SQLite or PostgreSQL), for audits and after crashes.

Calls only note down; a task of its own writes, in a thread, and repeats what failed until it succeeds, in order. A
session that a killed service left open is marked "lost": at once where that service ran on this machine, else once its
heartbeat has stopped, so every session has an end. Without a URL nothing is kept. No patch, instruction or hidden test
is ever written.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Engine, Float, MetaData, String, Table, create_engine, delete, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from swe_rl.errors import ConfigError
from swe_rl.sandbox.instance import is_dead
from swe_rl.service.metrics import ServiceMetrics
from swe_rl.verdict import Verdict

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import UpdateBase

    from swe_rl.service.session import Session

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
DEAD_AFTER_S = 60.0
MAX_WAITING = 100_000
CLOSE_S = 10.0
MAX_INSTANCE_ID = 128  # a host name of 64, and what makes it unique
_METADATA = MetaData()
INSTANCES = Table(
    "service_instances",
    _METADATA,
    Column("instance_id", String(MAX_INSTANCE_ID), primary_key=True),
    Column("seen_at", Float),
)
SESSIONS = Table(
    "service_sessions",
    _METADATA,
    Column("session_id", String(64), primary_key=True),
    Column("instance_id", String(MAX_INSTANCE_ID), index=True),
    Column("owner", String(200)),
    Column("task_id", String(200)),
    Column("language", String(200)),
    Column("begun_at", Float),
    Column("ended_at", Float),
    Column("reason", String(32)),
)
VERDICTS = Table(
    "service_verdicts",
    _METADATA,
    Column("session_id", String(64), index=True),
    Column("owner", String(200)),
    Column("task_id", String(200)),
    Column("outcome", String(32)),
    Column("reward", Float),
    Column("patch_sha256", String(64)),
    Column("duration_s", Float),
    Column("given_at", Float),
)


class Journal:
    """`url` is SQLAlchemy's, e.g. sqlite:////var/lib/swe-rl/journal.sqlite; '' keeps nothing."""

    def __init__(self, url: str, instance_id: str, metrics: ServiceMetrics) -> None:
        """Raises ConfigError for a URL that can't be understood."""
        self.problem = ""
        self._instance_id = instance_id
        self._metrics = metrics
        self._waiting: deque[UpdateBase] = deque()
        self._writing = threading.Lock()
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        if url:
            try:
                self._engine = create_engine(url, pool_pre_ping=True)
            except (SQLAlchemyError, ImportError) as error:
                raise ConfigError(
                    f"journal: {type(error).__name__}: the URL isn't a database's, or its driver isn't installed; "
                    "for PostgreSQL: pip install -e '.[postgres]'"
                ) from error

    async def open(self) -> None:
        """Makes the tables and begins to write. Raises ConfigError where the database doesn't answer."""
        if self._engine is None:
            return
        try:
            await asyncio.to_thread(_METADATA.create_all, self._engine)
            await asyncio.to_thread(self._beat)
        except SQLAlchemyError as error:
            raise ConfigError(f"journal: {self._engine.url!r} can't be used: {_first_line(error)}") from error
        self._task = asyncio.create_task(self._write_forever())

    async def close(self) -> None:
        """Writes what is left, for a while."""
        if self._engine is None:
            return
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._note(delete(INSTANCES).where(INSTANCES.c.instance_id == self._instance_id))
            try:
                await asyncio.wait_for(asyncio.to_thread(self._write), CLOSE_S)
            except (SQLAlchemyError, TimeoutError) as error:
                logger.error("journal: %d notes are lost: %s", len(self._waiting), _first_line(error))
        await asyncio.to_thread(self._engine.dispose)

    def began(self, session: "Session") -> None:
        row = {
            "session_id": session.session_id,
            "instance_id": self._instance_id,
            "owner": session.terms.owner,
            "task_id": session.task.task_id if session.task else None,
            "language": session.blueprint.language.language,
            "begun_at": time.time(),
        }
        self._note(insert(SESSIONS).values(row))

    def ended(self, session: "Session", reason: str) -> None:
        mine = SESSIONS.c.session_id == session.session_id
        self._note(update(SESSIONS).where(mine).values(ended_at=time.time(), reason=reason))

    def graded(self, session_id: str | None, owner: str, task_id: str, verdict: Verdict) -> None:
        row = {
            "session_id": session_id,
            "owner": owner,
            "task_id": task_id,
            "outcome": verdict.outcome.value,
            "reward": verdict.reward,
            "patch_sha256": verdict.patch_sha256,
            "duration_s": verdict.duration_s,
            "given_at": time.time(),
        }
        self._note(insert(VERDICTS).values(row))

    def _note(self, statement: "UpdateBase") -> None:
        if self._engine is None:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._metrics.journal_failures.inc()
            logger.error("journal: %d notes wait for the database; one is dropped", MAX_WAITING)
            return
        self._waiting.append(statement)
        self._noted.set()

    async def _write_forever(self) -> None:
        delay_s, beat_at = 1.0, time.monotonic() + HEARTBEAT_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._noted.wait(), max(0.1, beat_at - time.monotonic()))
            self._noted.clear()
            try:
                await asyncio.to_thread(self._write)
                if time.monotonic() >= beat_at:
                    await asyncio.to_thread(self._beat)
                    beat_at = time.monotonic() + HEARTBEAT_S
                delay_s, self.problem = 1.0, ""
            except SQLAlchemyError as error:
                self.problem = f"journal: the database doesn't take notes: {_first_line(error)}"
                self._metrics.journal_failures.inc()
                logger.error("%s; trying again in %g s", self.problem, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(30.0, 2 * delay_s)
                self._noted.set()

    def _write(self) -> None:
        """One transaction for all that waits; nothing is taken away unless it was committed or can never be."""
        assert self._engine is not None
        with self._writing:  # a cancelled writer's thread may still be at it when `close` writes the rest
            notes = list(self._waiting)
            try:
                self._commit(notes)
            except (IntegrityError, DataError):  # by one note, which mustn't hold up the others for ever
                for note in notes:
                    try:
                        self._commit([note])
                    except (IntegrityError, DataError) as error:  # e.g. committed before, and the answer was lost
                        self._metrics.journal_failures.inc()
                        logger.error("journal: a note is dropped, the database refuses it: %s", _first_line(error))
                        self._waiting.popleft()

    def _commit(self, notes: "list[UpdateBase]") -> None:
        assert self._engine is not None
        if not notes:
            return
        with self._engine.begin() as connection:
            for note in notes:
                connection.execute(note)
        for _ in notes:
            self._waiting.popleft()

    def _beat(self) -> None:
        """Says that this instance lives, and ends the sessions of those that no longer say so."""
        assert self._engine is not None
        now = time.time()
        alive = select(INSTANCES.c.instance_id).where(INSTANCES.c.seen_at >= now - DEAD_AFTER_S)
        ends: dict[str, Any] = {"ended_at": now, "reason": "lost"}
        with self._engine.begin() as connection:
            # Without looking at a clock, which may have jumped since the dead one's last heartbeat.
            for dead in filter(is_dead, connection.scalars(select(INSTANCES.c.instance_id)).all()):
                connection.execute(delete(INSTANCES).where(INSTANCES.c.instance_id == dead))
            mine = INSTANCES.c.instance_id == self._instance_id
            if not connection.execute(update(INSTANCES).where(mine).values(seen_at=now)).rowcount:
                connection.execute(insert(INSTANCES).values(instance_id=self._instance_id, seen_at=now))
            orphans = SESSIONS.c.ended_at.is_(None) & SESSIONS.c.instance_id.not_in(alive)
            num_lost = connection.execute(update(SESSIONS).where(orphans).values(ends)).rowcount
            connection.execute(delete(INSTANCES).where(INSTANCES.c.seen_at < now - DEAD_AFTER_S))
        if num_lost:
            logger.warning("journal: %d sessions of a dead service are marked as lost", num_lost)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
