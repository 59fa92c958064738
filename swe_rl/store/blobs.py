"""One group as bytes and back: its trajectories' arrays as safetensors, everything else as JSON in the header.

NaN, exact float32 bits and any string survive. Whether the bytes are the recorded ones is the caller's question.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from swe_rl.errors import StoreError, TrajectoryError
from swe_rl.trajectory import Group, StopReason, ToolCall, Trajectory, Turn
from swe_rl.verdict import Verdict

ARRAYS = ("token_ids", "sampled", "infer_logprobs", "policy_version", "segment", "turn")
EXPERTS = "routed_experts"
"""An array that a trajectory may lack."""
_FORMAT = 1
_KEY = "swe_rl_group"
_HEADER_LENGTH = 8  # safetensors: a little-endian u64, then that many bytes of JSON


def encode_group(group: Group) -> bytes:
    """The same group always gives the same bytes."""
    arrays = {
        f"{number}.{name}": np.ascontiguousarray(getattr(trajectory, name))
        for number, trajectory in enumerate(group.trajectories)
        for name in ARRAYS + ((EXPERTS,) if trajectory.routed_experts is not None else ())
    }
    header = {
        "format": _FORMAT,
        "group_id": group.group_id,
        "task_id": group.task_id,
        "split": group.split,
        "index": group.index,
        "policy_version": group.policy_version,
        "trajectories": [_trajectory_header(t) for t in group.trajectories],
    }
    # ASCII escapes also carry lone surrogates, which a model's arguments may hold and UTF-8 can't
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":"))
    return save(arrays, metadata={_KEY: text})  # one key: the library writes several in random order


def decode_group(data: bytes, where: str) -> Group:
    """Inverse of `encode_group`; raises StoreError that names `where`."""
    try:
        arrays, group = load(data), json.loads(_metadata(data)[_KEY])
        if (version := group.pop("format")) != _FORMAT:
            raise StoreError(f"{where}: format {version!r}, expected {_FORMAT}; read it with the release that wrote it")
        rows = enumerate(group.pop("trajectories"))
        trajectories = tuple(_trajectory(group, row, arrays, number) for number, row in rows)
        return Group(**group, trajectories=trajectories)
    except (SafetensorError, TrajectoryError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{where}: not a group file of this release: {error!r}") from error


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:_HEADER_LENGTH], "little")
    header = json.loads(data[_HEADER_LENGTH : _HEADER_LENGTH + length])
    return dict(header.get("__metadata__", {}))


def _trajectory_header(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory.trajectory_id,
        "temperature": trajectory.temperature,
        "stop_reason": trajectory.stop_reason.value,
        "verdict": None if trajectory.verdict is None else trajectory.verdict.to_dict(),
        "turns": [_turn_header(turn) for turn in trajectory.turns],
    }


def _turn_header(turn: Turn) -> dict[str, Any]:
    return {
        "start": turn.start,
        "end": turn.end,
        "calls": [{"name": c.name, "arguments": dict(c.arguments), "start": c.start, "end": c.end} for c in turn.calls],
        "is_malformed": turn.is_malformed,
        "exit_code": turn.exit_code,
        "seconds": turn.seconds,
    }


def _trajectory(
    group: Mapping[str, Any], row: dict[str, Any], arrays: Mapping[str, NDArray[Any]], number: int
) -> Trajectory:
    verdict = row["verdict"]
    return Trajectory(
        trajectory_id=row["trajectory_id"],
        group_id=group["group_id"],
        task_id=group["task_id"],
        split=group["split"],
        turns=tuple(Turn(**(turn | {"calls": tuple(ToolCall(**c) for c in turn["calls"])})) for turn in row["turns"]),
        temperature=row["temperature"],
        stop_reason=StopReason(row["stop_reason"]),
        verdict=None if verdict is None else Verdict.from_dict(verdict),
        routed_experts=arrays.get(f"{number}.{EXPERTS}"),
        **{name: arrays[f"{number}.{name}"] for name in ARRAYS},
    )
