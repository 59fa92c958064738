"""The policy store: published weights, each auditable to the groups it was trained on.

A policy is a Hugging Face directory `policies/v00012`, renamed into place inside the transaction that inserts its row
and marks its groups consumed. A directory without a row is a crash's leftover and is overwritten. Nothing here loads
weights.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from swe_rl.errors import ChecksumError, PolicyError, StoreError
from swe_rl.store.files import (
    TEMP_PREFIX,
    disk_error,
    is_abandoned,
    is_disk_full,
    sha256_bytes,
    sha256_file,
    sync_directory,
    sync_tree,
    temp_directory,
    write_durably,
)
from swe_rl.store.schema import GROUPS, POLICIES, Index

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class PolicyManifest:
    """Where a policy's weights are and what they were trained on.

    `consumed`: ids of the groups of this one update; `splits` and `task_ids`: of all updates up to this one, and of
    what the first policy was made from.
    """

    version: int
    path: Path
    parent: int | None
    weights_sha256: str
    consumed: tuple[str, ...]
    splits: tuple[str, ...]
    task_ids: tuple[str, ...]
    created_at: float
    is_pruned: bool = False

    @classmethod
    def read(cls, policy_dir: Path) -> "PolicyManifest | None":
        """The manifest that lies in a policy's directory, None if there is none. Raises PolicyError if it is broken."""
        path = policy_dir / MANIFEST_NAME
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                version=int(data["version"]),
                path=policy_dir,
                parent=data["parent"],
                weights_sha256=str(data["weights_sha256"]),
                consumed=tuple(data["consumed"]),
                splits=tuple(data["splits"]),
                task_ids=tuple(data["task_ids"]),
                created_at=float(data["created_at"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PolicyError(f"{path}: not a policy manifest: {error!r}; copy the policy again") from error


def hash_weights(policy_dir: Path) -> str:
    """sha256 over the names and contents of all *.safetensors files. Raises PolicyError if there is none."""
    files = sorted(policy_dir.glob("*.safetensors"))
    if not files:
        raise PolicyError(f"{policy_dir}: no *.safetensors file, expected a Hugging Face policy directory")
    return sha256_bytes("".join(f"{file.name} {sha256_file(file)}\n" for file in files).encode())


class PolicyStore:
    """Policies of one run, by version. One process publishes; any number read."""

    def __init__(self, run_dir: Path, url: str = "") -> None:
        self._index = Index(Path(run_dir), url)
        self._directory = self._index.run_dir / "policies"
        self._directory.mkdir(exist_ok=True)

    def latest(self) -> PolicyManifest | None:
        """The highest published version, None before the first."""
        with self._index.read() as connection:
            row = _latest(connection)
        return None if row is None else self._manifest(row)

    def get(self, version: int) -> PolicyManifest:
        """Raises StoreError if it was never published."""
        with self._index.read() as connection:
            row = connection.execute(select(POLICIES).where(POLICIES.c.version == version)).first()
        if row is None:
            raise StoreError(f"{self._directory}: no policy version {version}; published are {self.versions()}")
        return self._manifest(row)

    def versions(self) -> list[int]:
        """All published versions, pruned ones too, ascending."""
        with self._index.read() as connection:
            return list(connection.execute(select(POLICIES.c.version).order_by(POLICIES.c.version)).scalars())

    def verify(self, version: int) -> PolicyManifest:
        """As `get`, after hashing the weights. Raises ChecksumError if they aren't what was published."""
        manifest = self.get(version)
        if manifest.is_pruned:
            raise StoreError(f"{manifest.path}: version {version} was pruned; keep more with prune's options")
        if (digest := hash_weights(manifest.path)) != manifest.weights_sha256:
            raise ChecksumError(
                f"{manifest.path}: weights sha256 {digest[:16]}, expected {manifest.weights_sha256[:16]}; the files "
                "changed after they were published: restore them from a copy"
            )
        return manifest

    def publish(
        self,
        write: Callable[[Path], Any],
        version: int,
        consumed: Sequence[str] = (),
        splits: Sequence[str] = (),
    ) -> PolicyManifest:
        """Makes what `write(directory)` puts there version `version`, and its groups consumed: both or neither.

        Raises StoreError if the version isn't above the latest, or a group is unknown, dropped or already consumed.
        A manifest.json that `write` leaves (a policy of another run) hands on its splits and tasks.
        """
        with self._index.read() as connection:
            self._check_version(_latest(connection), version)
        self._sweep()
        target = self._directory / f"v{version:05d}"
        try:
            with temp_directory(self._directory) as temp:
                write(temp)
                digest = hash_weights(temp)
                inherited = PolicyManifest.read(temp)
                sync_tree(temp)
                with self._index.write() as connection:
                    parent = _latest(connection)
                    self._check_version(parent, version)
                    values = _values(connection, version, target, parent, digest, consumed, splits, inherited)
                    connection.execute(insert(POLICIES).values(_row_values(values)))
                    _consume(connection, consumed, version)
                    _write_manifest(temp, values)
                    _replace_directory(temp, target)
        except Exception as error:
            if is_disk_full(error) and not isinstance(error, StoreError):
                raise disk_error(target, error) from error
            raise
        return self.get(version)

    def prune(self, keep_last: int, keep_every: int = 0) -> list[int]:
        """Deletes the weights of older versions; the rows stay. Returns the versions that went.

        Kept are the last `keep_last` and, if `keep_every` is above 0, each version it divides.
        """
        if keep_last < 1:
            raise ValueError(f"prune: keep_last {keep_last}, expected at least 1")
        with self._index.write() as connection:
            query = select(POLICIES.c.version).where(POLICIES.c.is_pruned.is_(False)).order_by(POLICIES.c.version)
            versions = list(connection.execute(query).scalars())[:-keep_last]
            doomed = [v for v in versions if not keep_every or v % keep_every]
            connection.execute(update(POLICIES).where(POLICIES.c.version.in_(doomed)).values(is_pruned=True))
        for version in doomed:
            shutil.rmtree(self._directory / f"v{version:05d}", ignore_errors=True)
        return doomed

    def close(self) -> None:
        self._index.close()

    def _check_version(self, latest: Row[Any] | None, version: int) -> None:
        if version < 0 or (latest is not None and version <= latest.version):
            have = "none" if latest is None else f"v{latest.version}"
            raise StoreError(
                f"{self._directory}: version {version} can't be published, the latest is {have}; versions only rise: "
                "is another trainer at work on this run?"
            )

    def _manifest(self, row: Row[Any]) -> PolicyManifest:
        return PolicyManifest(
            version=row.version,
            path=self._index.run_dir / row.directory,
            parent=row.parent,
            weights_sha256=row.weights_sha256,
            consumed=tuple(json.loads(row.consumed)),
            splits=tuple(json.loads(row.splits)),
            task_ids=tuple(json.loads(row.task_ids)),
            created_at=row.created_at,
            is_pruned=bool(row.is_pruned),
        )

    def _sweep(self) -> None:
        for path in self._directory.glob(f"{TEMP_PREFIX}*"):
            if is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _latest(connection: Connection) -> Row[Any] | None:
    return connection.execute(select(POLICIES).order_by(POLICIES.c.version.desc()).limit(1)).first()


def _values(
    connection: Connection,
    version: int,
    target: Path,
    parent: Row[Any] | None,
    digest: str,
    consumed: Sequence[str],
    splits: Sequence[str],
    inherited: PolicyManifest | None,
) -> dict[str, Any]:
    rows = connection.execute(select(GROUPS.c.task_id, GROUPS.c.split).where(GROUPS.c.group_id.in_(consumed))).all()
    all_splits, tasks = set(splits) | {row.split for row in rows}, {row.task_id for row in rows}
    if parent is not None:
        all_splits |= set(json.loads(parent.splits))
        tasks |= set(json.loads(parent.task_ids))
    if inherited is not None:
        all_splits |= set(inherited.splits)
        tasks |= set(inherited.task_ids)
    return {
        "version": version,
        "directory": f"{target.parent.name}/{target.name}",
        "parent": None if parent is None else parent.version,
        "weights_sha256": digest,
        "consumed": list(consumed),
        "splits": sorted(all_splits),
        "task_ids": sorted(tasks),
        "created_at": time.time(),
    }


def _row_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in values.items()}


def _write_manifest(directory: Path, values: dict[str, Any]) -> None:
    content = {name: value for name, value in values.items() if name != "directory"}
    write_durably(directory / MANIFEST_NAME, (json.dumps(content, indent=1) + "\n").encode())


def _replace_directory(temp: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)  # no row has this version: a publish died here
    os.rename(temp, target)
    sync_directory(target.parent)


def _consume(connection: Connection, consumed: Sequence[str], version: int) -> None:
    if not consumed:
        return
    waiting = GROUPS.c.consumed_by.is_(None) & GROUPS.c.dropped_at.is_(None)
    query = update(GROUPS).where(GROUPS.c.group_id.in_(consumed) & waiting).values(consumed_by=version)
    marked = connection.execute(query).rowcount
    if marked != len(consumed):
        raise StoreError(
            f"policy version {version}: {len(consumed)} groups to consume, {marked} of them stored and waiting; the "
            "others are unknown, dropped, named twice or already consumed. Nothing was published"
        )
