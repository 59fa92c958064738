"""Whole episodes against what an engine really sampled: nothing is re-encoded, shifted, lost or added.

The engine here samples one character a token, as no tokenizer would encode the text, gives every token a
log-probability of its own, and changes its version in the middle of completions.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tokenizers import Tokenizer

from swe_rl.agent.loop import run_episode
from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.trajectory import Segment, StopReason, Trajectory

MARKERS = re.compile("(<tool_call>|</tool_call>|<[|]im_end[|]>)")
TOKENS_A_VERSION = 7
MAX_TOKENS_A_TURN = 160

Reply = tuple[str, Literal["stop", "length", "abort"]]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SUBMIT: Reply = (call("submit") + "<|im_end|>", "stop")
TURNS: list[Reply] = [
    ("<think>\nüber this\n</think>\n\n" + call("bash", command="echo é; printf 'a\\n\\n'") + "<|im_end|>", "stop"),
    ("word  " * 200, "length"),
    (call("bash", command="echo one") + "\n" + call("view", path="no.py") + "<|im_end|>", "stop"),
    ("no call at all <|im_end|>", "stop"),
]


class CharacterEngine:
    """Implements `Engine`; remembers every request and what it gave for it."""

    def __init__(self, replies: Sequence[Reply], policy_dir: Path) -> None:
        self._replies = list(replies)
        self._tokenizer = Tokenizer.from_file(str(policy_dir / "tokenizer.json"))
        self._num_sampled = 0
        self.asked: list[tuple[list[int], SamplingParams]] = []
        self.given: list[Completion] = []

    async def load(self, policy_dir: Path, version: int) -> None: ...

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        text, finish_reason = self._replies[len(self.given)]
        parts = [part for piece in MARKERS.split(text) for part in ([piece] if MARKERS.match(piece) else piece)]
        ids = [i for part in parts for i in self._tokenizer.encode(part, add_special_tokens=False).ids]
        ids = ids[: sampling.max_tokens]
        numbers = np.arange(self._num_sampled, self._num_sampled + len(ids))
        self._num_sampled += len(ids)
        completion = Completion(
            token_ids=np.array(ids, np.int32),
            logprobs=(-0.01 - numbers / 1000).astype(np.float32),
            policy_version=(numbers // TOKENS_A_VERSION).astype(np.int32),
            finish_reason=finish_reason,
        )
        self.asked.append((list(token_ids), sampling))
        self.given.append(completion)
        return completion

    async def release(self, session_id: str) -> None: ...

    async def close(self) -> None: ...


async def run(engine: CharacterEngine, client: SandboxClient, policy_dir: Path) -> Trajectory:
    config = Config.model_validate(
        {
            "agent": {"prompt": "compact", "episode_timeout_s": 60.0, "max_malformed": 2},
            "engine": {"max_context": 4096},
            "sampling": {"max_tokens_per_turn": MAX_TOKENS_A_TURN, "temperature": 0.9},
        }
    )
    return await run_episode(
        (await client.list_tasks("train"))[0],
        client=client,
        engine=engine,
        renderer=Renderer.from_policy(policy_dir),
        config=config,
        trajectory_id="t0",
        group_id="g0",
        temperature=0.7,
    )


@pytest.mark.parametrize(
    ("last", "stop_reason"),
    [
        (SUBMIT, StopReason.SUBMITTED),
        (("half of an ans", "abort"), StopReason.ABORTED),
        (("", "abort"), StopReason.ABORTED),
    ],
)
async def test_a_trajectory_is_what_the_engine_saw_and_sampled_token_by_token(
    client: SandboxClient, policy_dir: Path, last: Reply, stop_reason: StopReason
) -> None:
    engine = CharacterEngine([*TURNS, last], policy_dir)
    t = await run(engine, client, policy_dir)
    assert t.stop_reason is stop_reason
    assert len(t.turns) == len(engine.given) == len(TURNS) + 1

    contexts = [context for context, _ in engine.asked]
    ends = [len(c) + len(g.token_ids) for c, g in zip(contexts, engine.given, strict=True)]
    assert [(turn.start, turn.end) for turn in t.turns] == [(len(c), e) for c, e in zip(contexts, ends, strict=True)]
    for context, given in zip(contexts, engine.given, strict=True):
        assert t.token_ids.tolist()[: len(context)] == context
        part = slice(len(context), len(context) + len(given.token_ids))
        np.testing.assert_array_equal(t.token_ids[part], given.token_ids)
        np.testing.assert_array_equal(t.infer_logprobs[part], given.logprobs)
        np.testing.assert_array_equal(t.policy_version[part], given.policy_version)
        assert t.sampled[part].all()
    assert t.num_sampled == sum(len(given.token_ids) for given in engine.given)
    assert t.num_sampled > MAX_TOKENS_A_TURN  # the limit is a turn's, not the episode's
    assert len(set(t.policy_version[t.sampled].tolist())) > len(t.turns)


async def test_what_stands_between_two_completions_is_template_around_the_observation(
    client: SandboxClient, policy_dir: Path
) -> None:
    """The separator after a stop token and the opening of the next completion are there, and nobody trains on them."""
    engine = CharacterEngine([*TURNS, SUBMIT], policy_dir)
    t = await run(engine, client, policy_dir)
    for before, after in pairwise(t.turns):
        between = t.segment[before.end : after.start].tolist()
        assert (between[0], between[-1]) == (Segment.TEMPLATE, Segment.TEMPLATE)
        assert set(between) == {Segment.TEMPLATE, Segment.OBSERVATION}
        assert not t.sampled[before.end : after.start].any()
    assert t.segment[t.turns[0].start - 1] == Segment.TEMPLATE


async def test_the_engine_samples_at_the_temperature_that_the_trajectory_names(
    client: SandboxClient, policy_dir: Path
) -> None:
    engine = CharacterEngine([*TURNS, SUBMIT], policy_dir)
    t = await run(engine, client, policy_dir)
    assert {sampling.temperature for _, sampling in engine.asked} == {t.temperature} == {0.7}


async def test_every_turn_may_end_on_each_of_the_policys_stop_tokens(client: SandboxClient, policy_dir: Path) -> None:
    engine = CharacterEngine([*TURNS, SUBMIT], policy_dir)
    await run(engine, client, policy_dir)
    stops = Renderer.from_policy(policy_dir).stop_token_ids
    assert stops and {sampling.stop_token_ids for _, sampling in engine.asked} == {stops}
