"""From the masked rows of one step to `TokenColumns`: one entry a trainable token, however the rows were packed.

Shapes: N tokens of one row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from swe_rl.train.batch import PackedRow, TokenBatch
from swe_rl.train.mask import MaskResult, binary_kl
from swe_rl.train.token_log import COLUMN_DTYPES, TokenColumns


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    row: PackedRow
    train_logprobs_N: Tensor
    mask: MaskResult
    router_agreement_N: Tensor


def token_columns(batch: TokenBatch, parts: Sequence[Mapping[str, NDArray[Any]]], version: int) -> TokenColumns:
    """The trainable tokens of all microbatches, ordered by trajectory and position: however the rows were packed."""
    names = [f.name for f in fields(TokenColumns) if f.name not in ("staleness", "reward", "trajectory_ids")]
    flat = {name: np.concatenate([part[name] for part in parts] or [np.zeros(0)]) for name in names}
    order = np.lexsort((flat["position"], flat["trajectory"]))
    columns: dict[str, NDArray[Any]] = {
        name: values[order].astype(COLUMN_DTYPES[name]) for name, values in flat.items()
    }
    rewards = np.array([math.nan if t.reward is None else t.reward for t in batch.trajectories], np.float32)
    return TokenColumns(
        **columns,
        staleness=(version - columns["version"]).astype(np.int32),
        reward=rewards[columns["trajectory"]],
        trajectory_ids=np.array([t.trajectory_id for t in batch.trajectories], dtype=np.str_),
    )


def replay_columns(replay: Replay, eps_p: float) -> dict[str, NDArray[Any]]:
    """The trainable tokens of one row, in the row's order."""
    row, mask = replay.row, replay.mask
    train, infer = replay.train_logprobs_N, row.infer_logprobs_N
    tensors = {
        "trajectory": row.trajectory_N,
        "position": row.position_N,
        "token_id": row.token_ids_N,
        "segment": row.segment_N,
        "turn": row.turn_N,
        "version": row.version_N,
        "infer_logprobs": infer,
        "train_logprobs": train,
        "divergence_forward": binary_kl(train, infer, eps_p),
        "divergence_reverse": binary_kl(infer, train, eps_p),
        "kept": mask.keep,
        "weight": mask.weight,
        "reason": mask.reason,
        "advantage": row.advantage_N,
        "router_agreement": replay.router_agreement_N,
    }
    return {name: tensor[row.trainable_N].cpu().numpy() for name, tensor in tensors.items()}
