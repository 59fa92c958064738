"""The tokens of one episode while it runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from swe_rl.agent.record import Recording, check_completion
from swe_rl.agent.render import Message, ParsedCompletion, Rendered, Renderer, Result
from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion
from swe_rl.inference.routed_experts import RoutedExperts
from swe_rl.trajectory import Segment, StopReason


def _completion(ids: list[int], logprob: float = -0.5, version: int = 3) -> Completion:
    n = len(ids)
    return Completion(np.array(ids, np.int32), np.full(n, logprob, np.float32), np.full(n, version, np.int32), "stop")


def test_a_recording_becomes_a_trajectory_with_aligned_arrays(renderer: Renderer) -> None:
    recording = Recording()
    prompt = renderer.prompt([Message("user", "Fix.")])
    recording.add_rendered(prompt)
    ids = renderer.completion([("view", {"path": "a.py"})])
    recording.add_completion(_completion(ids), renderer.parse(ids, offset=len(recording)))
    observation = renderer.observation([Result("ok")], "<|im_end|>")
    recording.add_rendered(observation)
    recording.add_completion(_completion(ids[:5], version=4), renderer.parse(ids[:5], offset=len(recording)))
    t = recording.to_trajectory(
        ids=("t", "g", "task", "train"), temperature=1.0, stop_reason=StopReason.MALFORMED, verdict=None
    )
    a, b, c = len(prompt.token_ids), len(ids), len(observation.token_ids)
    assert t.token_ids.tolist() == prompt.token_ids + ids + observation.token_ids + ids[:5]
    assert [(turn.start, turn.end, turn.is_malformed) for turn in t.turns] == [
        (a, a + b, False),
        (a + b + c, a + b + c + 5, True),
    ]
    assert t.turn.tolist() == [-1] * a + [0] * (b + c) + [1] * 5
    assert t.policy_version.tolist() == [-1] * a + [3] * b + [-1] * c + [4] * 5
    assert t.sampled.tolist() == [False] * a + [True] * b + [False] * c + [True] * 5
    assert np.isnan(t.infer_logprobs[~t.sampled]).all()
    assert t.segment[a + b - 1] == Segment.STOP and t.segment[a + b] == Segment.TEMPLATE
    assert (t.turns[0].calls[0].start, t.turns[0].calls[0].end) == (a, a + b - 1)


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf, 0.5])
def test_a_sampled_token_without_a_true_logprob_is_the_engines_fault(logprob: float) -> None:
    with pytest.raises(EngineError, match="logprob"):
        check_completion(_completion([7, 8], logprob), 10, (2,), "s")


def test_a_version_below_zero_is_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="negative"):
        check_completion(_completion([7], version=-1), 10, (2,), "s")


def test_more_tokens_than_asked_for_are_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="at most 2"):
        check_completion(_completion([7, 8, 9]), 2, (2,), "s")


def test_a_stop_token_that_is_not_the_last_is_the_engines_fault() -> None:
    check_completion(_completion([7, 8, 2]), 3, (2,), "s")
    with pytest.raises(EngineError, match="went on after stop token 2"):
        check_completion(_completion([7, 2, 8]), 3, (2,), "s")


def _routed(ids: list[int], start: int, end: int) -> Completion:
    """A completion that tells experts of tokens start to end: token t's are (t, t + 1)."""
    experts = np.array([[[t, t + 1]] for t in range(start, end)], np.int16).reshape(-1, 1, 2)
    return replace(_completion(ids), routed_experts=RoutedExperts(start, experts))


def _plain(ids: list[int]) -> ParsedCompletion:
    return ParsedCompletion((), "", np.full(len(ids), Segment.TEXT, np.uint8), "")


def _conversation() -> Recording:
    """Three turns of two tokens, two tokens between them; the second turn tells what the first told already."""
    recording = Recording()
    for turn, known in enumerate((0, 1, 7)):
        recording.add_rendered(Rendered([5, 6], [int(Segment.OBSERVATION)] * 2))
        length = len(recording) + 2
        completion = _routed([7, 8], known, length - 1)
        if turn == 1:
            assert completion.routed_experts is not None
            completion.routed_experts.experts[:2] = 99  # computed anew: what the next token was drawn by stands
        recording.add_completion(completion, _plain([7, 8]))
    return recording


def _experts(recording: Recording) -> list[list[int]]:
    trajectory = recording.to_trajectory(
        ids=("t", "g", "task", "train"), temperature=1.0, stop_reason=StopReason.SUBMITTED, verdict=None
    )
    assert trajectory.routed_experts is not None
    return [experts[0].tolist() for experts in trajectory.routed_experts]


def test_experts_of_all_turns_stand_at_their_tokens_and_the_last_token_has_none() -> None:
    recording = _conversation()
    assert recording.num_routed == 11
    assert _experts(recording) == [*([t, t + 1] for t in range(11)), [-1, -1]]


def test_a_recording_that_goes_on_elsewhere_keeps_the_experts_of_what_it_shares() -> None:
    fork = _conversation().as_context(8)
    fork.add_rendered(Rendered([5], [int(Segment.OBSERVATION)]))
    assert fork.num_routed == 8
    fork.add_completion(_routed([9, 9], 8, 10), _plain([9, 9]))
    assert _experts(fork) == [*([t, t + 1] for t in range(10)), [-1, -1]]


@pytest.mark.parametrize(("start", "end", "message"), [(12, 14, "expected from 11"), (11, 15, "has 14 tokens")])
def test_experts_that_leave_tokens_out_or_go_beyond_the_end_are_the_engines_fault(
    start: int, end: int, message: str
) -> None:
    recording = _conversation()
    with pytest.raises(EngineError, match=message):
        recording.add_completion(_routed([7, 8], start, end), _plain([7, 8]))
    assert len(recording) == 12
