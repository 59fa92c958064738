"""The rollout store: groups in, each given to the trainer once.

A group is a file (written first) and an index row (written second); a file without a row is a crash's leftover and is
swept. `take` only claims: a group counts as consumed when the policy that was trained on it is published, in the same
transaction (see `policies`), so that a crash in between delivers the same groups again.
"""

import fcntl
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from swe_rl.errors import ChecksumError, StoreError
from swe_rl.store.blobs import decode_group, encode_group
from swe_rl.store.files import TEMP_PREFIX, held_write, is_abandoned, sha256_bytes
from swe_rl.store.rows import (
    GROUP_COLUMNS,
    TRAJECTORY_COLUMNS,
    WAITING,
    GroupCounts,
    GroupRow,
    TrajectoryRow,
    group_values,
    trajectory_values,
)
from swe_rl.store.schema import GROUPS, TRAJECTORIES, Index
from swe_rl.store.steps import StepRule
from swe_rl.trajectory import Group, Trajectory


class RolloutStore:
    """Groups of one run. Opening it sweeps what dead writers left. Several processes may append at once."""

    def __init__(self, run_dir: Path, url: str = "") -> None:
        self._index = Index(Path(run_dir), url)
        self._directory = self._index.run_dir / "rollouts"
        self._directory.mkdir(exist_ok=True)
        self._trainer_lock: int | None = None
        self._sweep()

    # producer

    def append(self, group: Group) -> bool:
        """Stores a group; False if its index is already taken (the first stays). Raises StoreError."""
        if self._row(group.index) is not None:
            return False
        data = encode_group(group)
        digest = sha256_bytes(data)
        # the digest in the name: a second writer of the same index can't replace the first one's bytes
        name = f"{quote(group.group_id, safe='')[:100]}.{digest[:12]}.safetensors"
        with held_write(self._directory / name, data):
            is_first = self._insert(group, name, digest)
        if not is_first and self._file_row(name) is None:
            (self._directory / name).unlink(missing_ok=True)
        return is_first

    def next_index(self) -> int:
        """One above the highest stored index."""
        with self._index.read() as connection:
            highest = connection.execute(select(func.max(GROUPS.c.position))).scalar_one()
        return 0 if highest is None else int(highest) + 1

    def missing_indices(self, up_to: int) -> list[int]:
        """Indices below `up_to` that no group holds, ascending."""
        with self._index.read() as connection:
            held = set(connection.execute(select(GROUPS.c.position).where(GROUPS.c.position < up_to)).scalars())
        return [index for index in range(up_to) if index not in held]

    def num_groups(self) -> int:
        """Stored groups without the dropped ones."""
        counts = self.counts()
        return counts.written - counts.dropped

    def num_missing(self, step: StepRule, num_steps: int) -> int:
        """How many groups more the run's first `num_steps` steps need at least: what back-pressure goes by.

        Steps whose groups are consumed are done. A dropped group is missing again, and with back-fill so is one that is
        found to carry no signal.
        """
        with self._index.read() as connection:
            consumed = select(func.count(GROUPS.c.consumed_by.distinct()))
            num_done = int(connection.execute(consumed).scalar_one())
            # the trainer's claim comes first though a lower index may have been filled since
            query = select(GROUPS.c.position).where(WAITING)
            rows = connection.execute(query.order_by(GROUPS.c.claimed_for.is_(None), GROUPS.c.position)).all()
            return step.num_missing(_signals(connection, rows, step), num_steps - num_done)

    # consumer

    def take(self, step: StepRule, version: int, max_staleness: int) -> list[Group] | None:
        """The waiting groups of lowest index that make a step, or None if they don't yet; the same ones if asked again.

        Groups sampled by a policy older than `version - max_staleness` are marked dropped, for good. Raises StoreError
        if another process is the trainer of this run, ChecksumError if a file isn't what was stored.
        """
        if max_staleness < 0:
            raise ValueError(f"take: max_staleness {max_staleness}, expected at least 0")
        self._become_trainer()
        with self._index.write() as connection:
            stale = WAITING & (GROUPS.c.policy_version < version - max_staleness)
            connection.execute(update(GROUPS).where(stale).values(dropped_at=version, claimed_for=None))
            query = select(GROUPS).where(WAITING).order_by(GROUPS.c.position).limit(step.limit)
            rows = connection.execute(query.where(GROUPS.c.claimed_for == version)).all()
            if step.size(_signals(connection, rows, step)) != len(rows):
                rows = connection.execute(query).all()
                size = step.size(_signals(connection, rows, step))
                if size is None:
                    return None
                rows = rows[:size]
                _claim(connection, [row.position for row in rows], version)
        return [self._load(row) for row in rows]

    # readers

    def get(self, index: int) -> Group:
        """Raises StoreError if there is no such group, ChecksumError if its file isn't what was stored."""
        row = self._row(index)
        if row is None:
            raise StoreError(f"{self._directory}: no group {index}; there are {self.counts().written}")
        return self._load(row)

    def find(self, trajectory_id: str) -> Trajectory:
        """Raises StoreError if no stored group holds it."""
        query = select(TRAJECTORIES.c.position).where(TRAJECTORIES.c.trajectory_id == trajectory_id)
        with self._index.read() as connection:
            index = connection.execute(query).scalar_one_or_none()
        if index is None:
            raise StoreError(
                f"{self._directory}: no trajectory {trajectory_id!r}; `swe-rl inspect RUN_DIR` lists the last"
            )
        return next(t for t in self.get(index).trajectories if t.trajectory_id == trajectory_id)

    def groups(self) -> list[GroupRow]:
        """All groups by index."""
        with self._index.read() as connection:
            rows = connection.execute(select(*GROUP_COLUMNS).order_by(GROUPS.c.position)).mappings().all()
        return [GroupRow(**row) for row in rows]

    def trajectories(self) -> list[TrajectoryRow]:
        """All trajectories by group."""
        query = select(*TRAJECTORY_COLUMNS).order_by(TRAJECTORIES.c.position, TRAJECTORIES.c.trajectory_id)
        with self._index.read() as connection:
            return [TrajectoryRow(**row) for row in connection.execute(query).mappings().all()]

    def counts(self) -> GroupCounts:
        query = select(func.count(), func.count(GROUPS.c.consumed_by), func.count(GROUPS.c.dropped_at)).select_from(
            GROUPS
        )
        with self._index.read() as connection:
            written, consumed, dropped = connection.execute(query).one()
        return GroupCounts(written, written - consumed - dropped, consumed, dropped)

    def close(self) -> None:
        """Gives up the trainer's place, if this process holds it through this store."""
        if self._trainer_lock is not None:
            os.close(self._trainer_lock)
            self._trainer_lock = None
        self._index.close()

    def _insert(self, group: Group, name: str, digest: str) -> bool:
        try:
            with self._index.write() as connection:
                taken = select(GROUPS.c.position).where(GROUPS.c.position == group.index)
                if connection.execute(taken).first() is not None:
                    return False
                connection.execute(insert(GROUPS).values(group_values(group, name, digest)))
                if group.trajectories:
                    connection.execute(insert(TRAJECTORIES), [trajectory_values(group, t) for t in group.trajectories])
        except IntegrityError as error:
            raise StoreError(
                f"group {group.group_id} (index {group.index}): its id, or one of its trajectories', is stored under "
                "another index; ids have to be unique in a run"
            ) from error
        return True

    def _become_trainer(self) -> None:
        # a record lock: the kernel drops it when the process dies, and one process may open several stores
        if self._trainer_lock is not None:
            return
        path = self._index.run_dir / ".trainer.lock"
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace")
            os.close(descriptor)
            raise StoreError(
                f"{self._index.run_dir}: another trainer is live ({holder}); a run has one, stop that or use "
                "another run directory"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
        self._trainer_lock = descriptor

    def _load(self, row: Row[Any]) -> Group:
        path = self._directory / row.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path}: group {row.position} can't be read: {error.strerror}; restore it") from error
        if sha256_bytes(data) != row.sha256:
            raise ChecksumError(
                f"{path}: sha256 {sha256_bytes(data)[:16]} ({len(data)} bytes), expected {row.sha256[:16]}; the file "
                "changed after it was stored: restore it from a copy, or start a new run"
            )
        return decode_group(data, str(path))

    def _row(self, index: int) -> Row[Any] | None:
        with self._index.read() as connection:
            return connection.execute(select(GROUPS).where(GROUPS.c.position == index)).first()

    def _file_row(self, name: str) -> Row[Any] | None:
        with self._index.read() as connection:
            return connection.execute(select(GROUPS.c.position).where(GROUPS.c.file == name)).first()

    def _sweep(self) -> None:
        with self._index.read() as connection:
            held = set(connection.execute(select(GROUPS.c.file)).scalars())
        for path in self._directory.iterdir():
            is_ours = path.name.startswith(TEMP_PREFIX) or path.suffix == ".safetensors"
            if is_ours and path.name not in held and is_abandoned(path) and self._file_row(path.name) is None:
                # asked again after the lock: a writer that let go since the first look has committed its row
                path.unlink(missing_ok=True)


def _claim(connection: Connection, positions: Sequence[int], version: int) -> None:
    connection.execute(update(GROUPS).where(WAITING).values(claimed_for=None))
    connection.execute(update(GROUPS).where(GROUPS.c.position.in_(positions)).values(claimed_for=version))


def _signals(connection: Connection, rows: Sequence[Row[Any]], step: StepRule) -> list[bool]:
    """Whether each of the groups carries a signal; nothing is read while it makes no difference."""
    if not step.max_extra:
        return [True] * len(rows)
    groups: dict[int, list[TrajectoryRow]] = {row.position: [] for row in rows}
    query = select(*TRAJECTORY_COLUMNS).where(TRAJECTORIES.c.position.in_(groups))
    for values in connection.execute(query).mappings():
        groups[values["index"]].append(TrajectoryRow(**values))
    return [step.has_signal(groups[row.position]) for row in rows]
