"""How the engine in this process lives: loads, aborts, full contexts, and faults that reach whoever waits."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from swe_rl.config import EngineConfig
from swe_rl.errors import EngineError, PolicyError
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.model import load_model, save_policy, token_logprobs

VOCAB = 97
MakePolicy = Callable[..., Path]
OpenEngine = Callable[..., Awaitable[LocalEngine]]


def _prompt(seed: int, length: int) -> list[int]:
    return [random.Random(f"{seed}/{i}").randrange(VOCAB) for i in range(length)]


def _sampling(max_tokens: int = 12, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(temperature, max_tokens, ())


async def test_after_a_load_no_token_comes_from_the_old_policy_or_its_cache(
    open_engine: OpenEngine, make_policy: MakePolicy
) -> None:
    engine = await open_engine()
    context = _prompt(7, 15)
    first = await engine.generate("s", context, _sampling(6))
    assert first.policy_version.tolist() == [0] * 6
    context += first.token_ids.tolist()
    await engine.load(make_policy(seed=1), 4)
    second = await engine.generate("s", context, _sampling(30))
    assert second.policy_version.tolist() == [4] * 30
    assert second.cached_tokens == 0
    ids = torch.tensor([*context, *second.token_ids.tolist()])
    with torch.no_grad():
        scored = token_logprobs(load_model(make_policy(seed=1), "float32"), ids, ids * 0, torch.ones(len(ids)), 64)
    np.testing.assert_allclose(second.logprobs, scored[-30:].numpy(), atol=1e-4)


async def test_a_load_lets_earlier_requests_finish_and_holds_back_later_ones(
    open_engine: OpenEngine, make_policy: MakePolicy
) -> None:
    engine = await open_engine(max_batch=2)
    before = [asyncio.create_task(engine.generate(f"b{i}", _prompt(i, 6), _sampling(40))) for i in range(5)]
    await asyncio.sleep(0)
    load = asyncio.create_task(engine.load(make_policy(seed=1), 1))
    await asyncio.sleep(0)
    after = [asyncio.create_task(engine.generate(f"a{i}", _prompt(i, 6), _sampling(10))) for i in range(5)]
    await load
    assert all(task.done() for task in before)
    versions = [set((await task).policy_version.tolist()) for task in [*before, *after]]
    assert versions == [{0}] * 5 + [{1}] * 5


async def test_a_policy_that_cant_be_loaded_leaves_the_old_one_in_place(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = await open_engine()
    with pytest.raises(PolicyError, match="no such directory"):
        await engine.load(tmp_path / "missing", 1)
    completion = await engine.generate("s", _prompt(1, 4), _sampling(3))
    assert completion.policy_version.tolist() == [0, 0, 0]


async def test_release_aborts_what_runs_and_keeps_the_tokens_so_far(open_engine: OpenEngine) -> None:
    engine = await open_engine(max_context=16384, max_batch=2)
    running = asyncio.create_task(engine.generate("s", _prompt(8, 4), _sampling(16000)))
    queued = [asyncio.create_task(engine.generate(f"q{i}", _prompt(i, 4), _sampling(16000))) for i in range(2)]
    await asyncio.sleep(0.1)
    await engine.release("q1")  # still waits for a slot
    await engine.release("s")
    aborted = await running
    assert aborted.finish_reason == "abort"
    assert len(aborted.token_ids) < 16000
    assert (await queued[1]).finish_reason == "abort"
    assert not queued[0].done()
    await engine.release("q0")
    again = await engine.generate("s", _prompt(8, 4), _sampling(3))
    assert (again.cached_tokens, again.finish_reason) == (0, "length")


async def test_a_release_while_a_load_waits_ends_what_runs_and_what_is_held_back(
    open_engine: OpenEngine, make_policy: MakePolicy
) -> None:
    engine = await open_engine(max_context=16384, max_batch=2)
    running = asyncio.create_task(engine.generate("s", _prompt(8, 4), _sampling(16000)))
    await asyncio.sleep(0.05)
    load = asyncio.create_task(engine.load(make_policy(seed=1), 1))
    await asyncio.sleep(0)
    held = [asyncio.create_task(engine.generate(f"h{i}", _prompt(i, 4), _sampling(3))) for i in range(2)]
    await asyncio.sleep(0)
    await engine.release("h0")
    with pytest.raises(EngineError, match="h0 was released"):
        await held[0]
    assert not load.done()
    await engine.release("s")
    aborted = await running
    assert aborted.finish_reason == "abort" and set(aborted.policy_version.tolist()) <= {0}
    await load
    assert (await held[1]).policy_version.tolist() == [1, 1, 1]
    assert len((await engine.generate("s", _prompt(8, 4), _sampling(3))).token_ids) == 3


async def test_a_cancelled_call_frees_its_slot(open_engine: OpenEngine) -> None:
    engine = await open_engine(max_context=16384, max_batch=1)
    running = asyncio.create_task(engine.generate("s", _prompt(8, 4), _sampling(16000)))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    other = await asyncio.wait_for(engine.generate("t", _prompt(9, 4), _sampling(3)), timeout=30)
    assert len(other.token_ids) == 3


async def test_a_full_context_ends_the_completion(open_engine: OpenEngine) -> None:
    engine = await open_engine(max_context=32)
    near = await engine.generate("near", _prompt(1, 30), _sampling(20))
    full = await engine.generate("full", _prompt(1, 32), _sampling(20))
    assert (len(near.token_ids), near.finish_reason) == (2, "length")
    assert (len(full.token_ids), full.finish_reason) == (0, "length")


async def test_a_fault_of_the_model_reaches_everyone_who_waits_and_a_good_policy_cures_it(
    open_engine: OpenEngine, make_policy: MakePolicy, tmp_path: Path
) -> None:
    model = load_model(make_policy(), "float32")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    save_policy(model, make_policy(), tmp_path / "broken")
    engine = await open_engine(max_batch=4)
    await engine.load(tmp_path / "broken", 1)
    calls = [engine.generate(f"s{i}", _prompt(i, 5), _sampling()) for i in range(7)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [EngineError] * 7
    assert "aren't finite under v1" in str(results[0])
    await engine.load(make_policy(), 2)
    cured = await asyncio.gather(*(engine.generate(f"s{i}", _prompt(i, 5), _sampling(9)) for i in range(7)))
    assert [completion.policy_version.tolist() for completion in cured] == [[2] * 9] * 7


async def test_a_context_that_breaks_the_model_poisons_no_later_request(
    open_engine: OpenEngine, make_policy: MakePolicy, tmp_path: Path
) -> None:
    model = load_model(make_policy("llama"), "float32")
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = float("nan")  # only contexts with token 5 are hit: nothing is tied to it
    save_policy(model, make_policy("llama"), tmp_path / "fragile")
    engine = await open_engine(tmp_path / "fragile", max_batch=1)
    with pytest.raises(EngineError, match="a step failed"):
        await engine.generate("s", [1, 2, 5, *range(6, 26)], _sampling(2))
    healthy = await engine.generate("t", [1, 2], _sampling(3, 0.0))
    assert healthy.token_ids[0] == model(input_ids=torch.tensor([[1, 2]])).logits[0, -1].argmax()


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ([], _sampling(), "no tokens"),
        ([1, VOCAB], _sampling(), f"span 1 to {VOCAB}"),
        ([-1, 2], _sampling(), "span -1 to 2"),
        ([1], _sampling(0), "max_tokens >= 1"),
        ([1], _sampling(1, -0.5), "temperature >= 0"),
        ([1], _sampling(1, float("nan")), "temperature >= 0"),
    ],
)
async def test_a_request_that_cant_run_fails_alone(
    open_engine: OpenEngine, ids: list[int], sampling: SamplingParams, message: str
) -> None:
    engine = await open_engine()
    good = asyncio.create_task(engine.generate("good", _prompt(1, 5), _sampling(30)))
    with pytest.raises(EngineError, match=message):
        await engine.generate("bad", ids, sampling)
    assert len((await good).token_ids) == 30


async def test_a_second_request_of_a_running_session_is_refused(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    first = asyncio.create_task(engine.generate("s", _prompt(1, 5), _sampling(100)))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="still running"):
        await engine.generate("s", _prompt(1, 5), _sampling(3))
    assert len((await first).token_ids) == 100


async def test_before_a_load_and_after_a_close_requests_are_refused() -> None:
    engine = LocalEngine(EngineConfig(dtype="float32", max_batch=2, max_context=64), 0)
    with pytest.raises(EngineError, match="no policy is loaded"):
        await engine.generate("s", [1], _sampling())
    await engine.close()
    await engine.close()
    await engine.release("s")
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate("s", [1], _sampling())


async def test_closing_fails_what_is_in_flight(make_policy: MakePolicy) -> None:
    engine = LocalEngine(EngineConfig(dtype="float32", max_batch=1, max_context=16384), 0)
    await engine.load(make_policy(), 0)
    calls = [asyncio.create_task(engine.generate(f"s{i}", [1, 2], _sampling(16000))) for i in range(3)]
    await asyncio.sleep(0.05)
    await engine.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [EngineError] * 3


async def test_a_model_that_the_forward_doesnt_reproduce_is_refused_by_name(
    make_policy: MakePolicy, tmp_path: Path
) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=64))
    save_policy(model, make_policy(), tmp_path / "gpt2")
    engine = LocalEngine(EngineConfig(dtype="float32", max_batch=1, max_context=64), 0)
    with pytest.raises(PolicyError, match=r"model type 'gpt2'.*vllm"):
        await engine.load(tmp_path / "gpt2", 0)
    await engine.close()
