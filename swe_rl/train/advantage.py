"""From rewards to advantages: one number a trajectory, computed at train time from the facts in the store.

A member whose episode ended in a fault of the environment has no reward: it neither counts in its group's mean nor
trains. A group whose rewards are all equal says nothing about which episode was better: it is dropped and counted.
Nothing here sees tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from swe_rl.trajectory import Group, StopReason, Trajectory

AdvantageKind = Literal["group_mean", "group_std", "leave_one_out", "batch_std", "rejection"]


@dataclass(frozen=True, slots=True)
class Advantages:
    """`values[g][i]` belongs to trajectory i of group g; None: it does not train."""

    values: tuple[tuple[float | None, ...], ...]
    num_zero_variance_groups: int
    num_faulted: int


def compute_advantages(
    groups: Sequence[Group],
    kind: AdvantageKind = "group_mean",
    shuffle_seed: Sequence[int] | None = None,
    discount: float = 1.0,
    unsubmitted: float = 1.0,
) -> Advantages:
    """Advantages of all trajectories of a batch, from the returns R = reward * discount^(turns - 1).

    An episode that ended in any other way than by submitting has `unsubmitted` times that.

        group_mean   A = R - mean(R of the group)                               (Dr. GRPO)
        group_std    A = (R - mean(R of the group)) / std(R of the group)      (population std, GRPO)
        leave_one_out  A = R - mean(R of the group's others)                    (RLOO)
        batch_std    A = (R - mean(R of the group)) / std(those of the whole batch)   (REINFORCE++ with baseline)
        rejection    A = 1 where R > 0; the others don't train                  (supervised control)

    The tree is graded however an episode ends, so with both factors at 1 whatever follows a repair, be it garbage, is
    reinforced as much as the repair. `shuffle_seed` (e.g. seed and step) permutes the returns over the whole
    batch: a control under which no task can be learned. Raises ValueError for an unknown kind.
    """
    rewards = [[_return(t, discount, unsubmitted) for t in group.trajectories] for group in groups]
    if shuffle_seed is not None:
        rewards = _shuffle(rewards, shuffle_seed)
    values: list[tuple[float | None, ...]] = []
    num_zero_variance = 0
    for group in rewards:
        known = [r for r in group if r is not None]
        has_variance = len(set(known)) > 1
        num_zero_variance += not has_variance
        values.append(_group_values(group, known, kind, has_variance))
    if kind == "batch_std":
        values = _scaled_by_batch(values)
    num_faulted = sum(r is None for group in rewards for r in group)
    return Advantages(tuple(values), num_zero_variance, num_faulted)


def _return(trajectory: Trajectory, discount: float, unsubmitted: float) -> float | None:
    if trajectory.reward is None:
        return None
    factor = 1.0 if trajectory.stop_reason is StopReason.SUBMITTED else unsubmitted
    return factor * trajectory.reward * discount ** max(0, len(trajectory.turns) - 1)


def _group_values(
    group: Sequence[float | None], known: Sequence[float], kind: AdvantageKind, has_variance: bool
) -> tuple[float | None, ...]:
    if kind == "rejection":
        return tuple(1.0 if r is not None and r > 0 else None for r in group)
    if kind not in ("group_mean", "group_std", "leave_one_out", "batch_std"):
        raise ValueError(f"advantage {kind!r}, expected one of {', '.join(get_args(AdvantageKind))}")
    if not has_variance:
        return (None,) * len(group)
    mean = float(np.mean(known))
    scale = 1.0
    if kind == "group_std":
        scale = float(np.std(known))
    elif kind == "leave_one_out":  # R - mean of the others = (R - mean of all) * n / (n - 1)
        scale = (len(known) - 1) / len(known)
    return tuple(None if r is None else (r - mean) / scale for r in group)


def _scaled_by_batch(values: Sequence[Sequence[float | None]]) -> list[tuple[float | None, ...]]:
    """Divided by their root mean square over the batch; each group's mean is zero already."""
    known = [a for group in values for a in group if a is not None]
    scale = float(np.sqrt(np.mean(np.square(known)))) if known else 1.0
    return [tuple(None if a is None else a / scale for a in group) for group in values]


def _shuffle(rewards: list[list[float | None]], seed: Sequence[int]) -> list[list[float | None]]:
    """Permutes the rewards that exist; a faulted member stays faulted."""
    known = [r for group in rewards for r in group if r is not None]
    order = np.random.default_rng(list(seed)).permutation(len(known))
    shuffled = iter([known[i] for i in order])
    return [[None if r is None else next(shuffled) for r in group] for group in rewards]
