"""Completions of a text that the scaffold renders itself."""

import random
from dataclasses import replace

import numpy as np
import openai
import pytest

from swe_rl.agent.render import Renderer
from swe_rl.errors import EngineError
from swe_rl.gateway.session import GatewaySession, SessionIds
from swe_rl.inference.routed_experts import RoutedExperts
from swe_rl.inference.scripted import ScriptedEngine
from swe_rl.trajectory import StopReason, Trajectory


@pytest.fixture
def client(stage, key) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=f"{stage.url}/v1", max_retries=0)


def text_of(stage, trajectory: Trajectory) -> str:
    return stage.renderer.decode(trajectory.token_ids.tolist())


async def complete(client: openai.AsyncOpenAI, prompt: str, **more) -> str:
    answer = await client.completions.create(model="policy", prompt=prompt, **more)
    return answer.choices[0].text


async def test_a_prompt_that_goes_on_is_one_trajectory_of_the_scaffold_s_own_text(stage, client, script) -> None:
    script("  one ", "two")
    stop = stage.renderer.decode(stage.renderer.stop_token_ids[:1])
    prompt = f"{stop}user\nMend it.{stop}\n"
    first = await complete(client, prompt)
    assert first == "  one "
    prompt += f"{first}{stop}\nSo?{stop}\n"
    assert await complete(client, prompt) == "two"
    (trajectory,) = await stage.close()
    assert text_of(stage, trajectory) == f"{prompt}two{stop}"
    assert stage.contexts[-1] == prompt
    assert stage.sampled_texts(trajectory) == [f"  one {stop}", f"two{stop}"]


async def test_special_tokens_that_the_prompt_spells_are_those_tokens(stage, client) -> None:
    (stop, *_) = stage.renderer.stop_token_ids
    await complete(client, f"a{stage.renderer.decode([stop])}b")
    (trajectory,) = await stage.close()
    assert (trajectory.token_ids[~trajectory.sampled] == stop).sum() == 1


async def test_an_answer_that_was_cut_can_be_gone_on_with_as_it_is(stage, client, script) -> None:
    script("one two three four five six", " seven")
    answer = await client.completions.create(model="policy", prompt="Count: ", max_tokens=3)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)
    await complete(client, "Count: " + answer.choices[0].text)
    (trajectory,) = await stage.close()
    assert [(turn.start, turn.end) for turn in trajectory.turns][1][0] == trajectory.turns[0].end


async def test_a_scaffold_that_goes_on_without_the_stop_token_has_a_branch_of_its_own(stage, client, script) -> None:
    script("one", "two")
    first = await complete(client, "Say: ")
    await complete(client, f"Say: {first}, and")
    trajectories = await stage.close()
    assert len(trajectories) == 2
    assert stage.contexts[-1] == f"Say: {first}, and"


async def test_text_and_chat_never_share_a_branch(stage, client, key, script) -> None:
    await complete(client, "Mend it.")
    await stage.chat(key, [{"role": "user", "content": "Mend it."}])
    assert len(await stage.close()) == 2


async def test_a_stream_brings_the_same_text_and_the_usage(client, script) -> None:
    script("all of it")
    stream = await client.completions.create(
        model="policy", prompt="a", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "all of it"
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_is_gone_on_with_the_engine_sees_the_prompt_and_each_answer_is_sampled_once(
    stage, client, script, seed
) -> None:
    draw = random.Random(seed)
    stop = stage.renderer.decode(stage.renderer.stop_token_ids[:1])
    script(*[f"answer {number} é" for number in range(20)])
    known = ["Begin: "]
    answers = []
    for number in range(12):
        prompt = draw.choice(known) + draw.choice(["", f"more {number}", "x"])
        answer = await client.completions.create(model="policy", prompt=prompt)
        assert stage.contexts[-1] == prompt
        answers.append(answer.choices[0].text + stop)
        known.append(f"{prompt}{answer.choices[0].text}{stop}")
        if len(stage.gateway.session(client.api_key)._branches) == 4:
            break
    trajectories = await stage.close()
    assert sorted(text for one in trajectories for text in stage.sampled_texts(one)) == sorted(answers)


class Routed(ScriptedEngine):
    """Says which experts each token had, as vLLM does: only from a token of the context on."""

    async def generate(self, session_id, token_ids, sampling):
        completion = await super().generate(session_id, token_ids, sampling)
        start = sampling.experts_from
        if start >= len(token_ids):
            raise EngineError(f"engine: experts from {start} on, the context has {len(token_ids)} tokens")
        experts = np.zeros((len(token_ids) + len(completion.token_ids) - 1 - start, 1, 1), dtype=np.int16)
        return replace(completion, routed_experts=RoutedExperts(start, experts))


async def test_a_fork_whose_experts_are_all_known_asks_for_those_of_its_last_token(policy_dir, limits) -> None:
    engine = Routed(lambda *_: "one two three four", policy_dir / "tokenizer.json")
    await engine.load(policy_dir, 0)
    renderer = Renderer.from_policy(policy_dir)
    session = GatewaySession(
        SessionIds("t", "g", "task", "train"), engine=engine, renderer=renderer, temperature=1.0, limits=limits
    )
    begun = "Count: " + (await session.complete_text("Count: ", 3)).message.text
    for _ in range(3):
        await session.complete_text(begun, 1)
    for trajectory in session.trajectories(StopReason.SUBMITTED, None):
        assert (trajectory.routed_experts[:-1] == 0).all()


@pytest.mark.parametrize("seed", range(10))
async def test_the_engine_sees_the_prompt_where_the_same_text_was_sampled_with_and_without_its_end(
    stage, client, script, seed
) -> None:
    draw = random.Random(seed)
    stop = stage.renderer.decode(stage.renderer.stop_token_ids[:1])
    script("one two")
    length = len(stage.renderer.raw("one two").token_ids)
    asked = [("Say: ", limit) for limit in draw.sample([length, length + 1], 2)]
    for _ in range(6):
        rest = draw.choice(["one two", f"one two{stop}"]) + draw.choice(["", ", ", "one two", f"{stop}, "])
        asked.append((f"Say: {rest}", draw.choice([length, length + 1])))
    for prompt, limit in asked:
        await client.completions.create(model="policy", prompt=prompt, max_tokens=limit)
        assert stage.contexts[-1] == prompt
        if len(stage.gateway.session(client.api_key)._branches) == 4:
            break


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body is a list"),
        ({}, "prompt is None"),
        ({"prompt": ""}, "prompt is ''"),
        ({"prompt": ["a", "b"]}, "prompt is ['a', 'b']"),
        ({"prompt": [1, 2]}, "prompt is [1, 2]"),
        ({"prompt": "a", "n": 2}, "n is 2"),
        ({"prompt": "a", "best_of": 2}, "best_of is 2"),
        ({"prompt": "a", "echo": True}, "echo isn't served here"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
    ],
)
async def test_a_bad_request_says_what_is_wrong_and_leaves_no_trace(stage, key, body, message) -> None:
    response = await stage.post(key, body, "/v1/completions")
    assert (response.status_code, message in response.json()["error"]["message"]) == (400, True), response.text
    assert await stage.close() == []
