"""The tokens of one episode while it runs."""

import math

import numpy as np
import pytest

from swe_rl.agent.record import Recording, check_completion
from swe_rl.agent.render import Message, Renderer, Result
from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion
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
