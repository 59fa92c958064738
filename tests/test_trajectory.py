"""Construction-time validation of trajectories: every contradiction is refused with what, where, got and expected."""

from dataclasses import replace

import numpy as np
import pytest

from swe_rl.errors import TrajectoryError
from swe_rl.trajectory import SAMPLED_SEGMENTS, Group, Segment, StopReason, ToolCall, Trajectory, Turn
from swe_rl.verdict import Outcome, Verdict

SAMPLED = np.array([False, False, True, True, False, True])
NAN = np.nan


def make_trajectory(**changes: object) -> Trajectory:
    fields: dict[str, object] = {
        "trajectory_id": "t0",
        "group_id": "g0",
        "task_id": "task",
        "split": "train",
        "token_ids": np.arange(6, dtype=np.int32),
        "sampled": SAMPLED.copy(),
        "infer_logprobs": np.array([NAN, NAN, -0.5, -1.0, NAN, 0.0], dtype=np.float32),
        "policy_version": np.array([-1, -1, 3, 3, -1, 4], dtype=np.int32),
        "segment": np.array([1, 1, 4, 8, 2, 8], dtype=np.uint8),
        "turn": np.array([-1, -1, 0, 0, 0, 1], dtype=np.int16),
        "turns": (Turn(2, 4, (ToolCall("view", {}, 2, 3),)), Turn(5, 6)),
        "temperature": 1.0,
        "stop_reason": StopReason.SUBMITTED,
        "verdict": None,
    }
    return Trajectory(**(fields | changes))  # type: ignore[arg-type]


def test_a_consistent_trajectory_is_accepted_and_counts_its_sampled_tokens() -> None:
    trajectory = make_trajectory()
    assert len(trajectory) == 6
    assert trajectory.num_sampled == 3
    assert trajectory.reward is None


@pytest.mark.parametrize("name", ["sampled", "infer_logprobs", "policy_version", "segment", "turn"])
def test_an_array_of_another_length_or_dtype_is_refused_by_name(name: str) -> None:
    array = getattr(make_trajectory(), name)
    with pytest.raises(TrajectoryError, match=f"t0: {name}"):
        make_trajectory(**{name: array[:-1]})
    with pytest.raises(TrajectoryError, match=f"t0: {name}"):
        make_trajectory(**{name: array.astype(np.float64)})
    with pytest.raises(TrajectoryError, match=f"t0: {name}"):
        make_trajectory(**{name: array.tolist()})


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("bad", [NAN, np.inf, -np.inf, -0.1])
def test_logprobs_are_finite_exactly_where_a_token_was_sampled(position: int, bad: float) -> None:
    logprobs = make_trajectory().infer_logprobs.copy()
    logprobs[position] = bad
    fits = np.isfinite(bad) == SAMPLED[position]
    if fits or (not SAMPLED[position] and not np.isfinite(bad)):
        make_trajectory(infer_logprobs=logprobs)
    else:
        with pytest.raises(TrajectoryError, match=rf"infer_logprobs\[{position}\]"):
            make_trajectory(infer_logprobs=logprobs)


def test_a_log_probability_above_zero_is_refused() -> None:
    logprobs = make_trajectory().infer_logprobs.copy()
    logprobs[3] = 0.01
    with pytest.raises(TrajectoryError, match=r"infer_logprobs\[3\]"):
        make_trajectory(infer_logprobs=logprobs)


@pytest.mark.parametrize("position", range(6))
def test_a_version_stands_exactly_where_a_token_was_sampled(position: int) -> None:
    versions = make_trajectory().policy_version.copy()
    versions[position] = -1 if SAMPLED[position] else 0
    with pytest.raises(TrajectoryError, match=rf"policy_version\[{position}\]"):
        make_trajectory(policy_version=versions)


@pytest.mark.parametrize("segment", list(Segment))
@pytest.mark.parametrize("position", range(6))
def test_a_segment_tag_agrees_with_sampled(position: int, segment: Segment) -> None:
    segments = make_trajectory().segment.copy()
    segments[position] = segment
    if (segment in SAMPLED_SEGMENTS) == SAMPLED[position]:
        make_trajectory(segment=segments)
    else:
        with pytest.raises(TrajectoryError, match=rf"segment\[{position}\] is {segment.name}"):
            make_trajectory(segment=segments)


def test_an_unknown_tag_is_refused() -> None:
    segments = make_trajectory().segment.copy()
    segments[2] = 9
    with pytest.raises(TrajectoryError, match="segment tag 9"):
        make_trajectory(segment=segments)


def test_turns_rise_and_cover_what_was_sampled() -> None:
    turn = make_trajectory().turn.copy()
    turn[5] = -1
    with pytest.raises(TrajectoryError, match="turn -1"):
        make_trajectory(turn=turn)
    falling = np.array([-1, -1, 1, 0, 0, 1], dtype=np.int16)
    with pytest.raises(TrajectoryError, match="fall"):
        make_trajectory(turn=falling)


@pytest.mark.parametrize("turns", [(Turn(4, 7),), (Turn(3, 2),), (Turn(2, 4), Turn(3, 5))])
def test_a_turn_outside_its_place_is_refused(turns: tuple[Turn, ...]) -> None:
    with pytest.raises(TrajectoryError, match=r"turn \d spans"):
        make_trajectory(turns=turns)


def test_a_call_outside_its_turn_is_refused() -> None:
    with pytest.raises(TrajectoryError, match="outside its turn"):
        make_trajectory(turns=(Turn(2, 4, (ToolCall("view", {}, 2, 5),)),))


@pytest.mark.parametrize("temperature", [-1.0, NAN, np.inf])
def test_a_temperature_that_is_no_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(TrajectoryError, match="temperature"):
        make_trajectory(temperature=temperature)


def test_a_sampled_first_token_has_no_context_and_is_refused() -> None:
    with pytest.raises(TrajectoryError, match="token 0"):
        make_trajectory(
            sampled=np.array([True, False, True, True, False, True]),
            turn=np.array([0, 0, 0, 0, 0, 1], dtype=np.int16),
        )


def test_a_group_holds_trajectories_of_its_own_task_only() -> None:
    trajectory = make_trajectory()
    assert Group("g0", "task", "train", 0, 3, (trajectory,)).trajectories == (trajectory,)
    with pytest.raises(TrajectoryError, match="group g0"):
        Group("g0", "task", "train", 0, 3, (replace(trajectory, task_id="other"),))


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_an_environment_error_has_no_reward(outcome: Outcome) -> None:
    is_fault = outcome is Outcome.ENVIRONMENT_ERROR
    verdict = Verdict(outcome, None if is_fault else 0.0)
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    with pytest.raises(TrajectoryError, match="reward"):
        Verdict(outcome, 0.0 if is_fault else None)


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (np.zeros((6, 2, 3), np.int32), r"int32 \(6, 2, 3\), expected int16 \(6, layers, experts\)"),
        (np.zeros((5, 2, 3), np.int16), r"int16 \(5, 2, 3\), expected"),
        (np.zeros((6, 2), np.int16), r"int16 \(6, 2\), expected"),
        (np.zeros((6, 0, 3), np.int16), r"int16 \(6, 0, 3\), expected"),
        (np.full((6, 2, 3), -2, np.int16), "holds -2, expected at least -1"),
    ],
)
def test_experts_that_are_not_one_set_for_each_token_and_layer_are_refused(experts: np.ndarray, message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        make_trajectory(routed_experts=experts)
