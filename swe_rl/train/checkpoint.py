"""The trainer's state between two steps, on disk: enough to go on exactly as if nothing had happened.

One directory a version, <run>/state/step_<version>/state.pt. It is written *before* the policy of that version is
published, so a crash between the two leaves a state that is newer than any published policy: it is ignored, and
overwritten when the version is reached again. What is in the state is the trainer's business.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from swe_rl.errors import StoreError

_NAME = re.compile(r"step_(\d{6,})")
_NUM_KEPT = 2


def save_state(state_dir: Path, version: int, state: Mapping[str, Any]) -> Path:
    """Writes the state of `version` atomically, then drops all but the last two and any of an abandoned future.

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
    _prune(state_dir, version)
    return path


def load_state(state_dir: Path, version: int) -> dict[str, Any]:
    """The state of exactly this version; raises StoreError if there is none, or it can't be read."""
    path = state_path(state_dir, version) / "state.pt"
    if not path.is_file():
        raise StoreError(
            f"{state_dir}: no state of version {version}, found {saved_versions(state_dir)}; "
            "resume needs the state of the latest published policy (train.save_every = 1), or start a new run from it"
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


def _prune(state_dir: Path, version: int) -> None:
    past = [v for v in saved_versions(state_dir) if v <= version]
    for other in set(saved_versions(state_dir)) - set(past[-_NUM_KEPT:]):
        shutil.rmtree(state_path(state_dir, other), ignore_errors=True)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
