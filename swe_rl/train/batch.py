"""Packs whole trajectories into flat rows of tokens for one optimiser step.

Groups of trajectories go in; out come rows of about `row_tokens` tokens in which every trajectory is one document, or
a document that continues its group's prompt (`packing`). A trajectory is never cut: one that is longer than a row has a
row of its own. What attends to what is the model's business; how the rows were packed must not change any number.
Trajectories that do not train (no advantage, see `advantage`) are left out of the rows but counted in the metrics.

Shapes: N tokens of one row. Every array is aligned to its own token, as `swe_rl.trajectory` says.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swe_rl.errors import TrajectoryError
from swe_rl.returns import ReturnRule
from swe_rl.train.advantage import Advantages, compute_advantages
from swe_rl.train.packing import Member, Piece, pack, shared_prompt
from swe_rl.trajectory import UNKNOWN_EXPERT, Group, StopReason, Trajectory

NO_TRAJECTORY = -1  # trajectory_N of a shared prompt's tokens, and of those that only round a row up


@dataclass(frozen=True, slots=True, eq=False)
class PackedRow:
    """One flat row. document_N ascends without gaps; padding is one last document that does not train.

    token_ids_N, document_N, trajectory_N, position_N int64; is_tail_N, trainable_N bool; infer_logprobs_N, advantage_N,
    temperature_N float32; version_N, segment_N, turn_N int32. trajectory_N indexes `TokenBatch.trajectories`; a tail
    continues the last document before it that is none, which then is a shared prompt. experts_NLK int16: see
    `Trajectory.routed_experts`; L is 0 where no trajectory of the batch has them.
    """

    token_ids_N: Tensor
    document_N: Tensor
    is_tail_N: Tensor
    trajectory_N: Tensor
    position_N: Tensor
    trainable_N: Tensor
    infer_logprobs_N: Tensor
    advantage_N: Tensor
    temperature_N: Tensor
    version_N: Tensor
    segment_N: Tensor
    turn_N: Tensor
    experts_NLK: Tensor

    def __len__(self) -> int:
        return int(self.token_ids_N.shape[0])

    def silenced(self) -> "PackedRow":
        """The same row with nothing to train."""
        return replace(self, trainable_N=torch.zeros_like(self.trainable_N))

    def to(self, device: torch.device) -> "PackedRow":
        return PackedRow(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The rows of one step, the trajectories they index (in a fixed order), and what the rollouts were like."""

    rows: tuple[PackedRow, ...]
    trajectories: tuple[Trajectory, ...]
    metrics: Mapping[str, float]

    @property
    def num_trainable(self) -> int:
        return sum(int(row.trainable_N.sum()) for row in self.rows)


def build_batch(
    groups: Sequence[Group],
    *,
    row_tokens: int = 2048,
    rule: ReturnRule | None = None,
    shuffle_seed: Sequence[int] | None = None,
    round_to: int = 1,
    shared_prefix: bool = False,
    replay_routing: bool = False,
) -> TokenBatch:
    """Computes advantages and packs. `round_to` pads rows to its multiples, so that a run has few tensor shapes.

    `shared_prefix`: siblings that lie in one row have their common prompt in it once. `replay_routing`: only as far as
    they have the same recorded experts in it.

    Raises TrajectoryError for a trajectory that was sampled greedily, as it has no policy gradient, and for one without
    recorded experts that are to be replayed.
    """
    advantages = compute_advantages(groups, rule, shuffle_seed)
    chosen: list[tuple[Trajectory, float]] = []
    members: list[Member] = []
    for group, values in zip(groups, advantages.values, strict=True):
        pairs = zip(group.trajectories, values, strict=True)
        training = [(t, value) for t, value in pairs if value is not None]
        for trajectory, _ in training:
            _check_temperature(trajectory)
            if replay_routing and trajectory.routed_experts is None:
                raise TrajectoryError(
                    f"trajectory {trajectory.trajectory_id}: train.replay_routing is true, but it has no recorded "
                    "experts; it was sampled without engine.return_routed_experts"
                )
        prefix = shared_prompt([t for t, _ in training], replay_routing) if training and shared_prefix else 0
        for trajectory, value in training:
            family = group.group_id if prefix else trajectory.trajectory_id
            members.append(Member(len(trajectory), family, prefix))
            chosen.append((trajectory, value))
    experts = _expert_shape([trajectory for trajectory, _ in chosen])
    rows = tuple(_row(chosen, pieces, round_to, experts) for pieces in pack(members, row_tokens))
    return TokenBatch(rows, tuple(t for t, _ in chosen), _describe(groups, advantages))


def _check_temperature(trajectory: Trajectory) -> None:
    if trajectory.temperature == 0.0:
        raise TrajectoryError(
            f"trajectory {trajectory.trajectory_id}: temperature is 0, greedy samples have no policy gradient; "
            "set sampling.temperature above 0"
        )


def _expert_shape(trajectories: Sequence[Trajectory]) -> tuple[int, int]:
    """(layers, experts a token) of what was recorded; (0, 0) if nothing was."""
    shapes = {t.routed_experts.shape[1:] for t in trajectories if t.routed_experts is not None}
    if len(shapes) > 1:
        raise TrajectoryError(f"recorded experts of {sorted(shapes)} layers and experts a token: not of one model")
    return shapes.pop() if shapes else (0, 0)


def _experts(trajectory: Trajectory, piece: Piece, shape: tuple[int, int]) -> NDArray[np.int16]:
    if trajectory.routed_experts is not None:
        return trajectory.routed_experts[piece.start : piece.stop]
    return np.full((piece.stop - piece.start, *shape), UNKNOWN_EXPERT, dtype=np.int16)


def _row(
    members: Sequence[tuple[Trajectory, float]], pieces: Sequence[Piece], round_to: int, experts: tuple[int, int]
) -> PackedRow:
    lengths = [piece.stop - piece.start for piece in pieces]
    num_padding = -sum(lengths) % round_to
    unknown = np.int16(UNKNOWN_EXPERT)

    def flat(parts: Sequence[NDArray[Any]], fill: float, dtype: type[Any]) -> Tensor:
        padding = np.full(num_padding, fill)
        return torch.from_numpy(np.concatenate([*parts, padding]).astype(dtype))

    def column(name: str, fill: float, dtype: type[Any]) -> Tensor:
        return flat([getattr(members[p.index][0], name)[p.start : p.stop] for p in pieces], fill, dtype)

    def spread(values: Sequence[float], fill: float, dtype: type[Any]) -> Tensor:
        return flat([np.full(n, v) for n, v in zip(lengths, values, strict=True)], fill, dtype)

    return PackedRow(
        token_ids_N=column("token_ids", 0, np.int64),
        document_N=spread(range(len(pieces)), len(pieces), np.int64),
        is_tail_N=spread([p.is_tail for p in pieces], 0, np.bool_),
        trajectory_N=spread([NO_TRAJECTORY if p.is_shared else p.index for p in pieces], NO_TRAJECTORY, np.int64),
        position_N=flat([np.arange(p.start, p.stop) for p in pieces], -1, np.int64),
        trainable_N=column("sampled", 0, np.bool_),
        infer_logprobs_N=column("infer_logprobs", np.nan, np.float32),
        advantage_N=spread([members[p.index][1] for p in pieces], 0.0, np.float32),
        temperature_N=spread([members[p.index][0].temperature for p in pieces], 1.0, np.float32),
        version_N=column("policy_version", -1, np.int32),
        segment_N=column("segment", 0, np.int32),
        turn_N=column("turn", -1, np.int32),
        experts_NLK=torch.from_numpy(
            np.concatenate(
                [
                    *(_experts(members[p.index][0], p, experts) for p in pieces),
                    np.full((num_padding, *experts), unknown),
                ]
            )
        ),
    )


def join_rows(rows: Sequence[PackedRow]) -> PackedRow:
    """One longer row; the documents are numbered on."""
    if len(rows) == 1:
        return rows[0]
    columns = {name: torch.cat([getattr(row, name) for row in rows]) for name in (f.name for f in fields(PackedRow))}
    firsts = [int(row.document_N[-1]) + 1 for row in rows]
    offsets = [sum(firsts[:i]) for i in range(len(rows))]
    columns["document_N"] = torch.cat([row.document_N + o for row, o in zip(rows, offsets, strict=True)])
    return PackedRow(**columns)


def _describe(groups: Sequence[Group], advantages: Advantages) -> dict[str, float]:
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    stops = Counter(t.stop_reason for t in trajectories)
    total = max(len(trajectories), 1)
    metrics = {
        "reward/mean": float(np.mean(rewards)) if rewards else float("nan"),
        "reward/num_zero_variance_groups": float(advantages.num_zero_variance_groups),
        "reward/num_faulted": float(advantages.num_faulted),
        "reward/num_overlong": float(advantages.num_overlong),
        "reward/signal_fraction": advantages.num_with_signal / max(len(groups), 1),
        "rollout/num_trajectories": float(len(trajectories)),
        "rollout/length_mean": float(np.mean([len(t) for t in trajectories] or [0])),
        "rollout/length_max": float(max((len(t) for t in trajectories), default=0)),
        "rollout/sampled_mean": float(np.mean([t.num_sampled for t in trajectories] or [0])),
        "rollout/turns_mean": float(np.mean([len(t.turns) for t in trajectories] or [0])),
    }
    return metrics | {f"rollout/stop_{reason.value}": stops[reason] / total for reason in StopReason}
