"""The trainer's state between two steps, on disk: enough to go on exactly as if nothing had happened.

One directory a version, <run>/state/step_<version>/state.pt, whole or absent. It is written beside the training, so a
crash may leave the newest state older than the newest policy, or newer: `loop` begins at the newest that isn't newer,
and repeats the steps since. What is in the state is the trainer's business.
"""

import copy
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from swe_rl.errors import StoreError

_NAME = re.compile(r"step_(\d{6,})")


class StateWriter:
    """Writes one state at a time in a thread of its own."""

    def __init__(self, state_dir: Path, keep_last: int, keep_every: int) -> None:
        self._state_dir, self._keep_last, self._keep_every = state_dir, keep_last, keep_every
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._running: Future[Path] | None = None

    def start(self, version: int, state: Mapping[str, Any]) -> None:
        """Copies the state and returns; if the one before is still being written, waits for it, and raises its error.

        So at most one copy exists, and a disk that is slower than the training slows it instead of filling memory.
        """
        self.wait()
        copied = copy.deepcopy(dict(state))
        self._running = self._pool.submit(
            save_state, self._state_dir, version, copied, self._keep_last, self._keep_every
        )

    def wait(self) -> None:
        """Until the last state is on the disk. Raises StoreError if the disk refused it."""
        running, self._running = self._running, None
        if running is not None:
            running.result()


def save_state(
    state_dir: Path, version: int, state: Mapping[str, Any], keep_last: int = 2, keep_every: int = 0
) -> Path:
    """Writes the state of `version` atomically, then drops older ones and any of an abandoned future.

    Kept are the last `keep_last` and, if `keep_every` is above 0, each version it divides.

    Raises StoreError if the disk refuses; the older states then stand untouched.
    """
    path = state_path(state_dir, version)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with (temporary / "state.pt").open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
        _fsync_directory(state_dir)
    except (OSError, RuntimeError) as error:  # torch's zip writer turns a failed write into a RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        reason = str(error).splitlines()[0]
        raise StoreError(f"{path}: state of version {version} can't be written: {reason}; free some disk") from error
    _prune(state_dir, version, keep_last, keep_every)
    return path


def load_state(state_dir: Path, version: int) -> dict[str, Any]:
    """The state of exactly this version; raises StoreError if there is none, or it can't be read."""
    path = state_path(state_dir, version) / "state.pt"
    if not path.is_file():
        raise StoreError(
            f"{state_dir}: no state of version {version}, found {saved_versions(state_dir)}; "
            "name one of them, or start a new run"
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen kinds for a damaged file
        raise StoreError(f"{path}: not a readable state: {str(error).splitlines()[0]}; start a new run") from error
    return dict(state)


def saved_versions(state_dir: Path) -> list[int]:
    if not state_dir.is_dir():
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in state_dir.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def state_path(state_dir: Path, version: int) -> Path:
    return state_dir / f"step_{version:06d}"


def _prune(state_dir: Path, version: int, keep_last: int, keep_every: int) -> None:
    past = [v for v in saved_versions(state_dir) if v <= version]
    kept = {*past[-keep_last:], *(v for v in past if keep_every and v % keep_every == 0)}
    for other in set(saved_versions(state_dir)) - kept:
        shutil.rmtree(state_path(state_dir, other), ignore_errors=True)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
