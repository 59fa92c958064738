"""What the engine in this process samples and reports, against plain transformers."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.model import load_model, token_logprobs

VOCAB = 97
STOP = 7
MakePolicy = Callable[..., Path]
OpenEngine = Callable[..., Awaitable[LocalEngine]]
Episode = tuple[list[int], list[float], list[Completion]]


def _prompt(seed: int, length: int) -> list[int]:
    return [random.Random(f"{seed}/{i}").randrange(VOCAB) for i in range(length)]


def _sampling(max_tokens: int = 12, temperature: float = 1.0, stop: tuple[int, ...] = ()) -> SamplingParams:
    return SamplingParams(temperature, max_tokens, stop)


async def _episode(
    engine: LocalEngine, index: int, turns: int, temperature: float = 1.0, pause_s: float = 0.0, longest: int = 20
) -> Episode:
    """Token ids and log-probabilities (NaN where not sampled) of a conversation with random turns."""
    rng = random.Random(index)
    ids = _prompt(index, rng.randrange(1, longest))
    logprobs = [float("nan")] * len(ids)
    completions = []
    for _ in range(turns):
        completion = await engine.generate(f"s{index}", ids, _sampling(rng.randrange(1, 14), temperature, (STOP,)))
        completions.append(completion)
        observation = [rng.randrange(VOCAB) for _ in range(rng.randrange(0, 9))]
        ids = [*ids, *completion.token_ids.tolist(), *observation]
        logprobs += [*completion.logprobs.tolist(), *[float("nan")] * len(observation)]
        await asyncio.sleep(rng.random() * pause_s)
    return ids, logprobs, completions


def _assert_exact(
    policy: Path, episodes: list[tuple[list[int], list[float], list[Completion]]], temperature: float
) -> None:
    ids = torch.tensor([token for episode in episodes for token in episode[0]])
    document = torch.tensor([index for index, episode in enumerate(episodes) for _ in episode[0]])
    reported = torch.tensor([value for episode in episodes for value in episode[1]])
    with torch.no_grad():
        scored = token_logprobs(load_model(policy, "float32"), ids, document, torch.full(ids.shape, temperature), 64)
    sampled = ~reported.isnan()
    assert sampled.sum() > 20
    assert (scored - reported)[sampled].abs().max() < 1e-4


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "qwen3_moe"])
async def test_float32_scores_equal_the_trainers_over_turns(
    make_policy: MakePolicy, open_engine: OpenEngine, family: str
) -> None:
    engine = await open_engine(make_policy(family))
    episodes = await asyncio.gather(*(_episode(engine, i, turns=4, temperature=0.7, pause_s=0.01) for i in range(6)))
    assert any(completion.cached_tokens > 0 for _, _, completions in episodes for completion in completions)
    _assert_exact(make_policy(family), episodes, 0.7)


async def test_scores_stay_exact_when_sessions_evict_each_other(
    make_policy: MakePolicy, open_engine: OpenEngine
) -> None:
    engine = await open_engine(max_batch=3)
    episodes = await asyncio.gather(*(_episode(engine, i, turns=4, pause_s=0.004) for i in range(10)))
    _assert_exact(make_policy(), episodes, 1.0)


async def test_64_sessions_with_random_turns_lose_and_duplicate_nothing(
    make_policy: MakePolicy, open_engine: OpenEngine
) -> None:
    """Contexts of very different length in more rows than one attention block holds, fewer slots than sessions."""
    engine = await open_engine(max_batch=56, max_context=512)
    turns = [random.Random(i).randrange(1, 6) for i in range(64)]
    episodes = await asyncio.gather(*(_episode(engine, i, n, pause_s=0.02, longest=300) for i, n in enumerate(turns)))
    for (_, _, completions), expected in zip(episodes, turns, strict=True):
        assert len(completions) == expected
        assert all(1 <= len(c.token_ids) <= 13 for c in completions)
    _assert_exact(make_policy(), episodes, 1.0)


async def test_company_doesnt_change_what_is_sampled(open_engine: OpenEngine) -> None:
    alone = await open_engine(seed=5)
    first = await _episode(alone, 3, turns=3)
    crowded = await open_engine(seed=5, max_batch=4)
    many = await asyncio.gather(*(_episode(crowded, i, turns=3, pause_s=0.003) for i in range(12)))
    assert many[3][0] == first[0]
    other_seed = await open_engine(seed=6)
    assert (await _episode(other_seed, 3, turns=3))[0] != first[0]


async def test_a_repeated_request_of_a_session_draws_anew(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    draws = []
    for _ in range(4):
        draws.append(tuple((await engine.generate("s", _prompt(1, 5), _sampling(12))).token_ids.tolist()))
        await engine.release("s")
    assert len(set(draws)) == 4


async def test_samples_follow_the_distribution_they_report(open_engine: OpenEngine, make_policy: MakePolicy) -> None:
    engine = await open_engine(max_batch=64)
    prompt = _prompt(2, 8)
    drawn = await asyncio.gather(*(engine.generate(f"s{i}", prompt, _sampling(1, 1.4)) for i in range(1500)))
    counts = np.bincount([int(c.token_ids[0]) for c in drawn], minlength=VOCAB)
    with torch.no_grad():
        logits = load_model(make_policy(), "float32")(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = torch.softmax(logits / 1.4, -1).numpy() * 1500
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 160  # 96 degrees of freedom: far beyond 1 in 10,000


async def test_greedy_equals_transformers_generate_and_reports_scores_at_temperature_one(
    open_engine: OpenEngine, make_policy: MakePolicy
) -> None:
    engine = await open_engine()
    model = load_model(make_policy(), "float32")
    for index in range(4):
        prompt = _prompt(index, 9)
        got = await engine.generate(f"s{index}", prompt, _sampling(20, 0.0))
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None
        )
        assert got.token_ids.tolist() == expected[0, 9:].tolist()
        ids = torch.tensor(prompt + got.token_ids.tolist())
        with torch.no_grad():
            scored = token_logprobs(model, ids, torch.zeros_like(ids), torch.zeros(len(ids)), 64)
        np.testing.assert_allclose(got.logprobs, scored[9:].numpy(), atol=1e-4)


async def test_bfloat16_is_as_near_to_float32_as_transformers_own(
    open_engine: OpenEngine, make_policy: MakePolicy
) -> None:
    engine = await open_engine(dtype="bfloat16", max_batch=16)
    episodes = await asyncio.gather(*(_episode(engine, i, turns=3) for i in range(16)))
    ids = torch.tensor([token for episode in episodes for token in episode[0]])
    document = torch.tensor([index for index, episode in enumerate(episodes) for _ in episode[0]])
    reported = torch.tensor([value for episode in episodes for value in episode[1]])
    ones = torch.ones(len(ids))
    with torch.no_grad():
        exact, rough = (
            token_logprobs(load_model(make_policy(), dtype), ids, document, ones, 64)
            for dtype in ("float32", "bfloat16")
        )
    ours, theirs = (exact - reported).abs().nanmean(), (exact - rough)[~reported.isnan()].abs().mean()
    assert 0 < ours < 2 * theirs


async def test_the_stop_token_is_part_of_the_completion_and_ends_it(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    free = await engine.generate("free", _prompt(4, 6), _sampling(20, 0.0))
    stop = int(free.token_ids[5])
    stopped = await engine.generate("stopped", _prompt(4, 6), _sampling(20, 0.0, (stop,)))
    end = free.token_ids.tolist().index(stop) + 1
    assert stopped.token_ids.tolist() == free.token_ids[:end].tolist()
    assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")


async def test_the_next_turn_prefills_only_what_is_new(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    prompt = _prompt(5, 10)
    first = await engine.generate("s", prompt, _sampling(6))
    context = [*prompt, *first.token_ids.tolist(), 1, 2, 3]
    second = await engine.generate("s", context, _sampling(6))
    # the last sampled token was never fed to the model
    assert (first.cached_tokens, second.cached_tokens) == (0, 15)


async def test_a_context_that_departs_from_the_cache_is_recomputed_from_there(
    open_engine: OpenEngine, make_policy: MakePolicy
) -> None:
    engine = await open_engine()
    prompt = _prompt(6, 20)
    await engine.generate("s", prompt, _sampling(6))
    changed = [*prompt[:8], (prompt[8] + 1) % VOCAB, *prompt[9:]]
    for context, cached in ((changed, 8), (changed[:5], 4), (changed[:5] + prompt[:3], 5)):
        got = await engine.generate("s", context, _sampling(1))
        ids = torch.tensor([*context, *got.token_ids.tolist()])
        with torch.no_grad():
            scored = token_logprobs(load_model(make_policy(), "float32"), ids, ids * 0, torch.ones(len(ids)), 64)
        assert got.cached_tokens == cached
        assert abs(float(scored[-1]) - float(got.logprobs[0])) < 1e-4
