"""The index of a run: which groups and policies exist and what became of them.

SQLite in the run directory by default, PostgreSQL by URL. Writers are serialised (BEGIN IMMEDIATE, an advisory lock),
so a transaction here may look and then act. Arrays and weights aren't in it: they lie in files beside it.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    NullPool,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from swe_rl.errors import StoreError
from swe_rl.store.files import disk_error, is_disk_full

SCHEMA_VERSION = "1"
BUSY_TIMEOUT_S = 60
_ADVISORY_LOCK = 0x5E_11  # any constant: one per database

METADATA = MetaData()

FACTS = Table("facts", METADATA, Column("name", String(40), primary_key=True), Column("value", Text, nullable=False))

POLICIES = Table(
    "policies",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("directory", Text, nullable=False),  # relative to the run directory, so that a run can be moved
    Column("parent", Integer),
    Column("weights_sha256", String(64), nullable=False),
    Column("consumed", Text, nullable=False),  # JSON lists
    Column("splits", Text, nullable=False),
    Column("task_ids", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("is_pruned", Boolean, nullable=False, default=False),
)

GROUPS = Table(
    "groups",
    METADATA,
    Column("position", Integer, primary_key=True, autoincrement=False),  # Group.index
    Column("group_id", Text, nullable=False, unique=True),
    Column("task_id", Text, nullable=False),
    Column("split", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("file", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("claimed_for", Integer),  # the version of the policy that was being updated with it
    Column("consumed_by", Integer, ForeignKey("policies.version"), index=True),
    Column("dropped_at", Integer),  # the version at which it was found too stale
)

TRAJECTORIES = Table(
    "trajectories",
    METADATA,
    Column("trajectory_id", Text, primary_key=True),
    Column("position", Integer, ForeignKey("groups.position"), nullable=False, index=True),
    Column("num_tokens", Integer, nullable=False),
    Column("num_sampled", Integer, nullable=False),
    Column("num_turns", Integer, nullable=False),
    Column("stop_reason", Text, nullable=False),
    Column("outcome", Text),
    Column("reward", Float),
)


class Index:
    """One run's tables. Raises StoreError for whatever the database refuses; IntegrityError reaches the caller."""

    def __init__(self, run_dir: Path, url: str = "") -> None:
        self.run_dir = run_dir
        self._where = str(make_safe(url)) if url else str(run_dir / "index.sqlite")
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._engine = _open(url or f"sqlite:///{run_dir / 'index.sqlite'}")
            with _file_lock(run_dir / ".index.lock"):
                self._create(_run_id(run_dir))
        except OSError as error:
            raise error if isinstance(error, StoreError) else disk_error(run_dir, error) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view; nothing is written."""
        with self._transaction(is_writer=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """The only writer while the block lasts; all of it is committed or none."""
        with self._transaction(is_writer=True) as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self, is_writer: bool) -> Iterator[Connection]:
        try:
            options: dict[str, Any] = {"is_writer": is_writer}
            if not is_writer and self._engine.dialect.name == "postgresql":
                options["isolation_level"] = "REPEATABLE READ"  # else each statement sees what was committed before it
            with self._engine.connect().execution_options(**options) as connection, connection.begin():
                if is_writer and connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
                yield connection
        except DBAPIError as error:
            if type(error).__name__ == "IntegrityError":
                raise
            raise self._error(error) from error

    def _create(self, run_id: str) -> None:
        if self._engine.dialect.name == "sqlite":
            with closing(self._engine.raw_connection()) as connection:  # not inside a transaction
                connection.cursor().execute("PRAGMA journal_mode=WAL")  # the file remembers it
        with self.write() as connection:
            METADATA.create_all(connection)
            facts = {row.name: row.value for row in connection.execute(select(FACTS))}
            if not facts:
                rows = [{"name": "schema", "value": SCHEMA_VERSION}, {"name": "run_id", "value": run_id}]
                connection.execute(insert(FACTS), rows)
                return
        if facts.get("schema") != SCHEMA_VERSION:
            raise StoreError(
                f"{self._where}: schema version {facts.get('schema')}, expected {SCHEMA_VERSION}; use a new run "
                "directory, or the release that made this one"
            )
        if facts.get("run_id") != run_id:
            raise StoreError(
                f"{self._where}: holds the index of another run ({facts.get('run_id')}) than {self.run_dir} "
                f"({run_id}); give each run its own database"
            )

    def _error(self, error: DBAPIError) -> StoreError:
        if is_disk_full(error):
            return disk_error(Path(self._where), error)
        reason = " ".join(str(error.orig).split())
        advice = "check that it is reachable and writable"
        if "disk I/O error" in reason:  # SQLite's word also for a full disk, where it maps its shared memory
            advice = "if the disk is full, free some space; then start the same command again"
        return StoreError(f"{self._where}: the index failed: {reason}; {advice}")


def make_safe(url: str) -> str:
    """The URL without its password, for messages."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "(not a URL)"


def _open(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "postgresql":
            return create_engine(parsed, pool_pre_ping=True)
        engine = create_engine(parsed, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError) as error:
        raise StoreError(f"store url: {error}; expected sqlite:///FILE or postgresql://...") from error
    except ModuleNotFoundError as error:
        raise StoreError(
            f"store url {make_safe(url)}: no driver: {error}; for PostgreSQL: pip install -e '.[postgres]'"
        ) from error
    if engine.dialect.name != "sqlite":
        raise StoreError(f"store url {make_safe(url)}: expected sqlite:///FILE or postgresql://...")
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin by itself, and not IMMEDIATE
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
    connection.execute("PRAGMA synchronous=FULL")  # a committed row survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _on_begin(connection: Connection) -> None:
    is_writer = connection.get_execution_options().get("is_writer", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    # switching a fresh SQLite file to WAL fails at once, whatever the busy timeout, if two processes do it together
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _run_id(run_dir: Path) -> str:
    path = run_dir / ".run_id"
    if not path.exists() or not path.read_text(encoding="ascii").strip():
        path.write_text(uuid.uuid4().hex, encoding="ascii")
    return path.read_text(encoding="ascii").strip()
