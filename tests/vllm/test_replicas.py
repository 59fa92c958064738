"""Two real servers under a steady load of sessions, while their weights change ten times."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from swe_rl.config import EngineConfig
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.replicas import ReplicatedEngine
from swe_rl.inference.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

NUM_UPDATES = 10
NUM_SESSIONS = 6
TOLERANCE = 1e-4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    engine_config: EngineConfig, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[VllmEngine]]:
    engines = [
        VllmEngine(engine_config, tmp_path_factory.mktemp(f"replica{index}"), seed=index, replica=index)
        for index in range(2)
    ]
    yield engines
    for engine in engines:
        await engine.close()


async def test_every_token_has_the_log_probability_of_the_weights_that_it_names(
    replicas: list[VllmEngine], make_policy: Callable[..., Path], prompt: Any, score: Any
) -> None:
    """Nothing is lost, doubled, sampled by weights that it doesn't name, or from a stale cache."""
    policies = [make_policy(100 + index) for index in range(3)]
    engine = ReplicatedEngine(replicas)
    await engine.load(policies[0], 0)
    is_over = asyncio.Event()
    turns: list[tuple[list[int], Any]] = []
    finished: asyncio.Queue[None] = asyncio.Queue()

    async def session(number: int) -> Counter[int]:
        """Multi-turn episodes, one after another: each turn's context is the last one with what was sampled."""
        draw, urls = random.Random(number), Counter[int]()
        for episode in range(10**6):
            name = f"{number}-{episode}"
            context = prompt(1000 * number + episode, 150)
            for _ in range(draw.randint(1, 4)):
                completion = await engine.generate(name, context, SamplingParams(1.0, draw.randint(20, 120), (0,)))
                turns.append((context, completion))
                finished.put_nowait(None)
                context = [*context, *completion.token_ids.tolist(), *prompt(episode, 20)]
            urls[engine._home[name]] += 1
            await engine.release(name)
            if is_over.is_set():
                break
        return urls

    sessions = [asyncio.create_task(session(number)) for number in range(NUM_SESSIONS)]
    for version in range(1, NUM_UPDATES + 1):
        for _ in range(2 * NUM_SESSIONS):
            await finished.get()
        await engine.load(policies[version % len(policies)], version)
    is_over.set()
    homes = sum(await asyncio.gather(*sessions), Counter())
    assert set(homes) == {0, 1}

    seen = Counter(int(version) for _, completion in turns for version in completion.policy_version)
    assert set(seen) == set(range(NUM_UPDATES + 1))
    assert any(len(set(completion.policy_version.tolist())) > 1 for _, completion in turns)
    for context, completion in turns:
        versions = completion.policy_version
        assert np.all(np.diff(versions) >= 0)
        assert len(completion.token_ids) > 0
        expected = np.full(len(versions), np.nan, dtype=np.float32)
        for which in {int(version) % len(policies) for version in versions}:
            is_of = versions % len(policies) == which
            expected[is_of] = score(policies[which], context, completion.token_ids, 1.0)[is_of]
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)
    # The old weights say something else: a token of the wrong version would have been seen.
    context, completion = next((c, d) for c, d in turns if len(d.token_ids) > 10)
    wrong = score(policies[(int(completion.policy_version[0]) + 1) % len(policies)], context, completion.token_ids, 1.0)
    assert np.abs(completion.logprobs - wrong).max() > 100 * TOLERANCE


async def test_a_killed_replica_loses_no_request(
    replicas: list[VllmEngine], make_policy: Callable[..., Path], prompt: Any
) -> None:
    engine = ReplicatedEngine(replicas)
    await engine.load(make_policy(100), 20)
    params = SamplingParams(1.0, 200, ())
    running = [asyncio.create_task(engine.generate(f"s{i}", prompt(i, 100), params)) for i in range(6)]
    await asyncio.sleep(0.3)
    await asyncio.to_thread(replicas[0]._server.stop)
    completions = await asyncio.gather(*running)
    assert [len(completion.token_ids) for completion in completions] == [200] * 6
