"""From rewards to advantages: one number a trajectory, computed at train time from the facts in the store.

A member whose episode ended in a fault of the environment has no reward: it neither counts in its group's mean nor
trains. One that is overlong (`ReturnRule`) counts in the mean and doesn't train. A group whose returns are all equal
says nothing about which episode was better: it is dropped and counted. Nothing here sees tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from swe_rl.config import AdvantageKind
from swe_rl.returns import ReturnRule
from swe_rl.trajectory import Group


@dataclass(frozen=True, slots=True)
class Advantages:
    """`values[g][i]` belongs to trajectory i of group g; None: it does not train."""

    values: tuple[tuple[float | None, ...], ...]
    num_zero_variance_groups: int
    num_faulted: int
    num_overlong: int

    @property
    def num_with_signal(self) -> int:
        """Groups of which some member trains."""
        return sum(any(a is not None for a in group) for group in self.values)


def compute_advantages(
    groups: Sequence[Group], rule: ReturnRule | None = None, shuffle_seed: Sequence[int] | None = None
) -> Advantages:
    """Advantages of all trajectories of a batch, from the returns R of `rule`, less its penalties.

        group_mean   A = R - mean(R of the group)                               (Dr. GRPO)
        group_std    A = (R - mean(R of the group)) / std(R of the group)      (population std, GRPO)
        leave_one_out  A = R - mean(R of the group's others)                    (RLOO)
        batch_std    A = (R - mean(R of the group)) / std(those of the whole batch)   (REINFORCE++ with baseline)
        rejection    A = 1 where R > 0, penalties aside; the others don't train   (supervised control)

    The tree is graded however an episode ends, so with both of the rule's factors at 1 whatever follows a repair, be it
    garbage, is reinforced as much as the repair. `shuffle_seed` (e.g. seed and step) permutes the returns over the
    whole batch: a control under which no task can be learned. Raises ValueError for an unknown kind.
    """
    rule = rule or ReturnRule()
    if rule.advantage not in get_args(AdvantageKind):
        raise ValueError(f"advantage {rule.advantage!r}, expected one of {', '.join(get_args(AdvantageKind))}")
    returns = [[rule.value(t) for t in group.trajectories] for group in groups]
    if shuffle_seed is not None:
        returns = _shuffle(returns, shuffle_seed)
    have_variance = [rule.has_variance(g.trajectories, known) for g, known in zip(groups, returns, strict=True)]
    values = [_group_values(*each, rule) for each in zip(groups, returns, have_variance, strict=True)]
    if rule.advantage == "batch_std":
        values = _scaled_by_batch(values)
    members = [t for group in groups for t in group.trajectories]
    return Advantages(
        tuple(_of_training(group, of_group, rule) for group, of_group in zip(groups, values, strict=True)),
        num_zero_variance_groups=have_variance.count(False),
        num_faulted=sum(t.reward is None for t in members),
        num_overlong=sum(t.reward is not None and rule.is_overlong(t) for t in members),
    )


def _group_values(
    group: Group, returns: Sequence[float | None], has_variance: bool, rule: ReturnRule
) -> tuple[float | None, ...]:
    """Of all members with a reward, those that don't train included."""
    if rule.advantage == "rejection":
        return tuple(1.0 if r is not None and r > 0 else None for r in returns)
    if not has_variance:
        return (None,) * len(returns)
    pairs = zip(group.trajectories, returns, strict=True)
    priced = [None if r is None else r - rule.penalty(t) for t, r in pairs]
    known = [r for r in priced if r is not None]
    mean = float(np.mean(known))
    centred = [None if r is None else r - mean for r in priced]
    if rule.advantage == "group_std":
        return _scaled(centred, known=[r - mean for r in known])
    # R - mean of the others = (R - mean of all) * n / (n - 1)
    scale = (len(known) - 1) / len(known) if rule.advantage == "leave_one_out" else 1.0
    return tuple(None if a is None else a / scale for a in centred)


def _of_training(group: Group, values: Sequence[float | None], rule: ReturnRule) -> tuple[float | None, ...]:
    pairs = zip(group.trajectories, values, strict=True)
    return tuple(a if rule.trains(t) else None for t, a in pairs)


def _scaled_by_batch(values: Sequence[Sequence[float | None]]) -> list[tuple[float | None, ...]]:
    """Divided by their root mean square over the batch; each group's mean is zero already."""
    known = [a for group in values for a in group if a is not None]
    return [_scaled(group, known) for group in values]


def _scaled(values: Sequence[float | None], known: Sequence[float]) -> tuple[float | None, ...]:
    """Divided by the root mean square of what is known, without its squares: those of small returns would be 0."""
    norm = math.hypot(*known)
    return tuple(None if a is None else a / norm * math.sqrt(len(known)) for a in values)


def _shuffle(rewards: list[list[float | None]], seed: Sequence[int]) -> list[list[float | None]]:
    """Permutes the rewards that exist; a faulted member stays faulted."""
    known = [r for group in rewards for r in group if r is not None]
    order = np.random.default_rng(list(seed)).permutation(len(known))
    shuffled = iter([known[i] for i in order])
    return [[None if r is None else next(shuffled) for r in group] for group in rewards]
