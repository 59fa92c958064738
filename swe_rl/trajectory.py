"""What one episode was, token by token.

One convention holds everywhere: **every per-token array has length T and is aligned to the token that it
describes: `logprobs[t] = log p(token_ids[t] | token_ids[:t])`.** Only `swe_rl.model` ever shifts.

Nothing here knows of torch, of a tokenizer or of hidden tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_rl.errors import TrajectoryError
from swe_rl.verdict import Verdict


class Segment(IntEnum):
    """What a token belongs to. The first three are never sampled, the others always are."""

    TEMPLATE = 0
    PROMPT = 1
    OBSERVATION = 2
    REASONING = 3
    TEXT = 4
    TOOL_NAME = 5
    TOOL_ARGS = 6
    DIFF = 7
    STOP = 8


UNKNOWN_EXPERT = -1
"""Stands in `Trajectory.routed_experts` where no forward pass is known."""

SAMPLED_SEGMENTS = frozenset(s for s in Segment if s >= Segment.REASONING)


class StopReason(StrEnum):
    """Why an episode ended. The last three are faults of the environment wing or the engine, not of the policy.

    TIME_LIMIT is the episode's own deadline; GROUP_LIMIT an earlier one, as most of its group had ended.
    """

    SUBMITTED = "submitted"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    TIME_LIMIT = "time_limit"
    GROUP_LIMIT = "group_limit"
    MALFORMED = "malformed"
    ABORTED = "aborted"
    ENGINE_ERROR = "engine_error"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One parsed tool call; `start:end` are positions in `Trajectory.token_ids`."""

    name: str
    arguments: Mapping[str, Any]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion and what came back: token span of the completion, its calls, and how the tools ended."""

    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()
    is_malformed: bool = False
    exit_code: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One episode. Arrays as the module says; raises TrajectoryError if they contradict each other.

    token_ids int32 [T], sampled bool [T], infer_logprobs float32 [T] (NaN where not sampled),
    policy_version int32 [T] (-1 where not sampled), segment uint8 [T], turn int16 [T] (-1 in the prompt).
    `verdict` is None only when the episode never reached grading.

    routed_experts int16 [T, L, K], if the engine recorded them: which K experts of each of the model's L layers the
    token passed through when the engine first computed it; UNKNOWN_EXPERT for a token that no engine computed (the last
    sampled one) and in layers that have no experts.
    """

    trajectory_id: str
    group_id: str
    task_id: str
    split: str
    token_ids: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    infer_logprobs: NDArray[np.float32]
    policy_version: NDArray[np.int32]
    segment: NDArray[np.uint8]
    turn: NDArray[np.int16]
    turns: tuple[Turn, ...]
    temperature: float
    stop_reason: StopReason
    verdict: Verdict | None
    routed_experts: NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_experts(self)
        _check_sampled(self)
        _check_turns(self)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    @property
    def num_sampled(self) -> int:
        return int(self.sampled.sum())

    @property
    def reward(self) -> float | None:
        """None where there is no verdict, or where the environment failed."""
        return None if self.verdict is None else self.verdict.reward

    def with_verdict(self, verdict: Verdict) -> "Trajectory":
        return replace(self, verdict=verdict)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """G trajectories of one task. `index` is the position in the producer's deterministic order of groups."""

    group_id: str
    task_id: str
    split: str
    index: int
    policy_version: int
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        for t in self.trajectories:
            if (t.group_id, t.task_id, t.split) != (self.group_id, self.task_id, self.split):
                raise TrajectoryError(
                    f"group {self.group_id}: holds trajectory {t.trajectory_id} of group {t.group_id}, "
                    f"task {t.task_id}, split {t.split}; expected task {self.task_id}, split {self.split}"
                )


_DTYPES = {
    "token_ids": np.int32,
    "sampled": np.bool_,
    "infer_logprobs": np.float32,
    "policy_version": np.int32,
    "segment": np.uint8,
    "turn": np.int16,
}


def _fail(trajectory: Trajectory, message: str) -> TrajectoryError:
    return TrajectoryError(f"trajectory {trajectory.trajectory_id}: {message}")


def _check_arrays(t: Trajectory) -> None:
    length = len(t.token_ids)
    for name, dtype in _DTYPES.items():
        array = getattr(t, name)
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (length,):
            got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise _fail(t, f"{name} is {got}, expected {np.dtype(dtype)} ({length},)")
    if length == 0:
        raise _fail(t, "has no tokens, expected at least a prompt")
    if (t.token_ids < 0).any():
        raise _fail(t, f"token id {int(t.token_ids.min())} at position {int(t.token_ids.argmin())}, expected >= 0")
    if t.sampled[0]:
        raise _fail(t, "token 0 is sampled, expected a prompt before it")


def _check_experts(t: Trajectory) -> None:
    experts = t.routed_experts
    if experts is None:
        return
    if experts.dtype != np.int16 or experts.ndim != 3 or len(experts) != len(t) or 0 in experts.shape:
        raise _fail(t, f"routed_experts is {experts.dtype} {experts.shape}, expected int16 ({len(t)}, layers, experts)")
    if experts.min() < UNKNOWN_EXPERT:
        raise _fail(t, f"routed_experts holds {experts.min()}, expected at least {UNKNOWN_EXPERT}")


def _check_sampled(t: Trajectory) -> None:
    finite = np.isfinite(t.infer_logprobs)
    for position in np.flatnonzero(finite != t.sampled)[:1]:
        raise _fail(
            t,
            f"infer_logprobs[{position}] is {t.infer_logprobs[position]} where sampled is "
            f"{bool(t.sampled[position])}; expected finite exactly where sampled (NaN elsewhere)",
        )
    for position in np.flatnonzero(t.sampled & (t.infer_logprobs > 1e-6))[:1]:
        raise _fail(t, f"infer_logprobs[{position}] is {t.infer_logprobs[position]}, expected at most 0")
    for position in np.flatnonzero((t.policy_version >= 0) != t.sampled)[:1]:
        raise _fail(
            t,
            f"policy_version[{position}] is {t.policy_version[position]} where sampled is "
            f"{bool(t.sampled[position])}; expected >= 0 exactly where sampled, -1 elsewhere",
        )
    if t.segment.size and int(t.segment.max()) > max(Segment):
        raise _fail(t, f"segment tag {int(t.segment.max())}, expected one of {[int(s) for s in Segment]}")
    for position in np.flatnonzero((t.segment >= Segment.REASONING) != t.sampled)[:1]:
        raise _fail(
            t,
            f"segment[{position}] is {Segment(int(t.segment[position])).name} where sampled is "
            f"{bool(t.sampled[position])}",
        )


def _check_turns(t: Trajectory) -> None:
    if (t.sampled & (t.turn < 0)).any():
        raise _fail(t, "a sampled token has turn -1, expected its turn's index")
    if (np.diff(t.turn) < 0).any():
        raise _fail(t, "turn indices fall, expected them to rise with the position")
    if not (t.temperature >= 0.0 and np.isfinite(t.temperature)):
        raise _fail(t, f"temperature is {t.temperature}, expected finite and >= 0")
    last = 0
    for index, turn in enumerate(t.turns):
        if not last <= turn.start <= turn.end <= len(t):
            raise _fail(t, f"turn {index} spans {turn.start}:{turn.end}, expected within {last}:{len(t)}")
        for call in turn.calls:
            if not turn.start <= call.start <= call.end <= turn.end:
                raise _fail(t, f"turn {index}: call {call.name!r} spans {call.start}:{call.end}, outside its turn")
        last = turn.end
