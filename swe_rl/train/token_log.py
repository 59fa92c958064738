"""What became of every trainable token, on disk: one file a step under <run>/tokens/.

The columns of `TokenColumns` go in and come out, aligned to each other, one entry a trainable token of the step. This
is the material of the mismatch report; nothing here computes, and nothing here decides what was kept.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from swe_rl.errors import StoreError


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """M trainable tokens of one step, in the batch's order; every array [M] except `trajectory_ids` [number of them].

    train_logprobs: the trainer's replay; divergence_forward = D(p_train || p_infer), divergence_reverse the other
    way round, NaN where a log-probability is not finite. reason: `swe_rl.train.mask.Reason`. staleness: version
    about to be updated minus the version that sampled. trajectory indexes `trajectory_ids`. router_agreement: share of
    the layers with experts in which the trainer's router would have chosen the recorded ones, in the forward pass that
    the token was drawn from; NaN where none are recorded.
    """

    trajectory: NDArray[np.int32]
    position: NDArray[np.int32]
    token_id: NDArray[np.int32]
    segment: NDArray[np.uint8]
    turn: NDArray[np.int16]
    version: NDArray[np.int32]
    staleness: NDArray[np.int32]
    infer_logprobs: NDArray[np.float32]
    train_logprobs: NDArray[np.float32]
    divergence_forward: NDArray[np.float32]
    divergence_reverse: NDArray[np.float32]
    kept: NDArray[np.bool_]
    weight: NDArray[np.float32]
    reason: NDArray[np.uint8]
    advantage: NDArray[np.float32]
    reward: NDArray[np.float32]
    router_agreement: NDArray[np.float32]
    trajectory_ids: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.token_id)


COLUMN_DTYPES: Mapping[str, type] = {
    "trajectory": np.int32,
    "position": np.int32,
    "token_id": np.int32,
    "segment": np.uint8,
    "turn": np.int16,
    "version": np.int32,
    "staleness": np.int32,
    "infer_logprobs": np.float32,
    "train_logprobs": np.float32,
    "divergence_forward": np.float32,
    "divergence_reverse": np.float32,
    "kept": np.bool_,
    "weight": np.float32,
    "reason": np.uint8,
    "advantage": np.float32,
    "reward": np.float32,
    "router_agreement": np.float32,
}


_LATER = "router_agreement"


def token_log_path(run_dir: Path, step: int) -> Path:
    return run_dir / "tokens" / f"step_{step:06d}.npz"


def write_token_log(run_dir: Path, step: int, columns: TokenColumns) -> Path:
    """Replaces the file of this step atomically; raises StoreError if the disk refuses."""
    path = token_log_path(run_dir, step)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **{f.name: getattr(columns, f.name) for f in fields(TokenColumns)})
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: token log can't be written: {error.strerror}; free some disk") from error
    return path


def read_token_log(run_dir: Path, step: int) -> TokenColumns:
    """Raises StoreError for a file that is missing or is not a token log."""
    path = token_log_path(run_dir, step)
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {f.name: file[f.name] for f in fields(TokenColumns) if f.name != _LATER or _LATER in file}
            # a log that was written before there was such a column
            columns.setdefault(_LATER, np.full(len(columns["token_id"]), np.nan, np.float32))
            return TokenColumns(**columns)
    except (OSError, KeyError, ValueError, BadZipFile) as error:
        raise StoreError(f"{path}: not a readable token log: {error}") from error


def logged_steps(run_dir: Path) -> list[int]:
    """Steps that have a token log, in order."""
    return sorted(int(path.stem.removeprefix("step_")) for path in (run_dir / "tokens").glob("step_*.npz"))
