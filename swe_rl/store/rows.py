"""What the index knows without reading a group's file: rows of groups and trajectories, and the values behind them."""

import time
from dataclasses import dataclass
from typing import Any

from swe_rl.store.schema import GROUPS, TRAJECTORIES
from swe_rl.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class GroupRow:
    """What the index knows of a group without reading its file."""

    index: int
    group_id: str
    task_id: str
    split: str
    policy_version: int
    created_at: float
    consumed_by: int | None
    dropped_at: int | None


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """What the index knows of a trajectory; `outcome` and `reward` are None where there are none."""

    trajectory_id: str
    index: int
    num_tokens: int
    num_sampled: int
    num_turns: int
    stop_reason: str
    outcome: str | None
    reward: float | None


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Every stored group is in exactly one of the last three."""

    written: int
    waiting: int
    consumed: int
    dropped: int


WAITING = GROUPS.c.consumed_by.is_(None) & GROUPS.c.dropped_at.is_(None)
GROUP_COLUMNS = [
    GROUPS.c.position.label("index"),
    *(GROUPS.c[name] for name in ("group_id", "task_id", "split", "policy_version")),
    *(GROUPS.c[name] for name in ("created_at", "consumed_by", "dropped_at")),
]
TRAJECTORY_COLUMNS = [c.label("index") if c.name == "position" else c for c in TRAJECTORIES.c]


def group_values(group: Group, name: str, digest: str) -> dict[str, Any]:
    """`name` and `digest` of its file."""
    return {
        "position": group.index,
        "group_id": group.group_id,
        "task_id": group.task_id,
        "split": group.split,
        "policy_version": group.policy_version,
        "file": name,
        "sha256": digest,
        "created_at": time.time(),
    }


def trajectory_values(group: Group, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory.trajectory_id,
        "position": group.index,
        "num_tokens": trajectory.num_tokens,
        "num_sampled": trajectory.num_sampled,
        "num_turns": trajectory.num_turns,
        "stop_reason": trajectory.stop_reason.value,
        "outcome": None if trajectory.verdict is None else trajectory.verdict.outcome.value,
        "reward": trajectory.reward,
    }
