"""The engine against a real server: what it reports is what the trainer computes, for the weights that it names."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from swe_rl.errors import EngineError, PolicyError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-4
NEVER = ()  # no stop token


async def test_logprobs_are_those_of_the_trainer_after_temperature(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any
) -> None:
    await server_engine.load(policies[0], 0)
    for temperature in (1.0, 0.7):
        ids = prompt(1, 300)
        completion = await server_engine.generate("s", ids, SamplingParams(temperature, 96, NEVER))
        assert len(completion.token_ids) == 96
        assert completion.finish_reason == "length"
        expected = score(policies[0], ids, completion.token_ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)
        assert np.abs(completion.logprobs - score(policies[1], ids, completion.token_ids, temperature)).max() > 0.1


async def test_greedy_tokens_repeat_and_carry_logprobs_at_temperature_one(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any
) -> None:
    await server_engine.load(policies[0], 0)
    ids = prompt(2, 50)
    sampled = SamplingParams(1.0, 32, NEVER)
    greedy = SamplingParams(0.0, 32, NEVER)
    # Together with sampled requests: a mixed batch takes another path through the sampler than a greedy one.
    first, _, second = await asyncio.gather(
        *(server_engine.generate("s", ids, params) for params in (greedy, sampled, greedy))
    )
    alone = await server_engine.generate("s", ids, greedy)
    assert first.token_ids.tolist() == second.token_ids.tolist() == alone.token_ids.tolist()
    for completion in (first, alone):
        expected = score(policies[0], ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


async def test_samples_of_one_prompt_differ(server_engine: VllmEngine, policies: list[Path], prompt: Any) -> None:
    await server_engine.load(policies[0], 0)
    ids = prompt(3, 20)
    params = SamplingParams(1.0, 64, NEVER)
    completions = await asyncio.gather(*(server_engine.generate(f"s{i}", ids, params) for i in range(16)))
    assert len({tuple(c.token_ids.tolist()) for c in completions}) == 16


async def test_stop_token_ends_the_completion_and_is_its_last_token(
    server_engine: VllmEngine, policies: list[Path], prompt: Any
) -> None:
    await server_engine.load(policies[0], 0)
    ids = prompt(4, 40)
    free = (await server_engine.generate("s", ids, SamplingParams(0.0, 16, NEVER))).token_ids.tolist()
    stop = free[5]
    stopped = await server_engine.generate("s", ids, SamplingParams(0.0, 16, (stop,)))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == free[: free.index(stop) + 1]


async def test_sixteen_concurrent_requests_each_get_their_own_logprobs(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any
) -> None:
    await server_engine.load(policies[0], 0)
    prompts = [prompt(100 + i, 30 + 40 * i) for i in range(16)]
    params = SamplingParams(1.0, 48, NEVER)
    completions = await asyncio.gather(*(server_engine.generate(f"s{i}", ids, params) for i, ids in enumerate(prompts)))
    for ids, completion in zip(prompts, completions, strict=True):
        expected = score(policies[0], ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


async def test_new_weights_are_used_and_the_prefix_cache_of_the_old_ones_is_not(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any
) -> None:
    await server_engine.load(policies[0], 0)
    shared = prompt(5, 700)
    params = SamplingParams(1.0, 32, NEVER)
    await server_engine.generate("s", shared, params)
    warm = await server_engine.generate("s", shared, params)
    assert warm.cached_tokens >= 512
    await server_engine.load(policies[1], 1)
    fresh = await server_engine.generate("s", shared, params)
    assert fresh.cached_tokens == 0
    assert set(fresh.policy_version.tolist()) == {1}
    expected = score(policies[1], shared, fresh.token_ids, 1.0)
    np.testing.assert_allclose(fresh.logprobs, expected, atol=TOLERANCE, rtol=0)
    again = await server_engine.generate("s", shared, params)
    assert again.cached_tokens >= 512
    expected = score(policies[1], shared, again.token_ids, 1.0)
    np.testing.assert_allclose(again.logprobs, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("in_flight", ["keep", "drain", "abort"])
async def test_each_token_of_an_interrupted_generation_names_the_weights_that_sampled_it(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any, monkeypatch: Any, in_flight: str
) -> None:
    config = server_engine._config.model_copy(update={"in_flight": in_flight})
    monkeypatch.setattr(server_engine, "_config", config)
    await server_engine.load(policies[0], 10)
    prompts = [prompt(200 + i, 200) for i in range(4)]
    params = SamplingParams(1.0, 900, NEVER)
    tasks = [asyncio.create_task(server_engine.generate(f"s{i}", ids, params)) for i, ids in enumerate(prompts)]
    await _wait_for_tokens(server_engine, 100)
    await server_engine.load(policies[1], 11)
    for ids, completion in zip(prompts, await asyncio.gather(*tasks), strict=True):
        assert (len(completion.token_ids), completion.finish_reason) == (900, "length")
        versions = completion.policy_version
        cut = int((versions == 10).sum())
        assert versions.tolist() == [10] * cut + [11] * (len(versions) - cut)
        assert cut == 900 if in_flight == "drain" else 0 < cut < 900
        old = score(policies[0], ids, completion.token_ids, 1.0)
        new = score(policies[1], ids, completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs[:cut], old[:cut], atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(completion.logprobs[cut:], new[cut:], atol=TOLERANCE, rtol=0)


async def test_release_aborts_the_running_generation_and_no_other(
    server_engine: VllmEngine, policies: list[Path], prompt: Any
) -> None:
    await server_engine.load(policies[0], 0)
    params = SamplingParams(1.0, 1400, NEVER)
    doomed = asyncio.create_task(server_engine.generate("doomed", prompt(6, 64), params))
    other = asyncio.create_task(server_engine.generate("other", prompt(7, 64), SamplingParams(1.0, 400, NEVER)))
    await _wait_for_tokens(server_engine, 20)
    await server_engine.release("doomed")
    aborted: Completion = await doomed
    assert aborted.finish_reason == "abort"
    assert len(aborted.token_ids) < 1400
    assert (await other).finish_reason == "length"
    await server_engine.release("never seen")


@pytest.mark.parametrize("in_flight", ["keep", "abort"])
async def test_a_generation_that_went_on_after_an_update_can_still_be_released(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any, monkeypatch: Any, in_flight: str
) -> None:
    config = server_engine._config.model_copy(update={"in_flight": in_flight})
    monkeypatch.setattr(server_engine, "_config", config)
    await server_engine.load(policies[0], 40)
    doomed = asyncio.create_task(server_engine.generate("doomed", prompt(11, 64), SamplingParams(1.0, 1400, NEVER)))
    await _wait_for_tokens(server_engine, 20)
    await server_engine.load(policies[1], 41)
    await _wait_for_tokens(server_engine, 20)
    await server_engine.release("doomed")
    aborted = await doomed
    assert aborted.finish_reason == "abort" and set(aborted.policy_version.tolist()) == {40, 41}
    completion = await server_engine.generate("s", prompt(12, 30), SamplingParams(1.0, 16, NEVER))
    expected = score(policies[1], prompt(12, 30), completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


async def test_weights_in_several_files_are_one_policy(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any, tmp_path: Path
) -> None:
    from transformers import Qwen3ForCausalLM

    await server_engine.load(policies[0], 50)
    shutil.copytree(policies[1], tmp_path / "sharded", ignore=shutil.ignore_patterns("*.safetensors"))
    Qwen3ForCausalLM.from_pretrained(policies[1]).save_pretrained(tmp_path / "sharded", max_shard_size="1MB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    await server_engine.load(tmp_path / "sharded", 51)
    completion = await server_engine.generate("s", prompt(13, 30), SamplingParams(1.0, 16, NEVER))
    assert set(completion.policy_version.tolist()) == {51}
    expected = score(policies[1], prompt(13, 30), completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


async def test_context_without_room_gives_an_empty_completion(
    server_engine: VllmEngine, policies: list[Path], prompt: Any
) -> None:
    await server_engine.load(policies[0], 0)
    full = await server_engine.generate("s", prompt(8, 1536), SamplingParams(1.0, 8, NEVER))
    assert (len(full.token_ids), full.finish_reason) == (0, "length")
    nearly = await server_engine.generate("s", prompt(8, 1532), SamplingParams(1.0, 8, NEVER))
    assert (len(nearly.token_ids), nearly.finish_reason) == (4, "length")


async def test_token_outside_the_vocabulary_and_tiny_temperature_are_engine_errors(
    server_engine: VllmEngine, policies: list[Path]
) -> None:
    await server_engine.load(policies[0], 0)
    with pytest.raises(EngineError, match="token 1024 isn't in the vocabulary"):
        await server_engine.generate("s", [1, 2, 1024], SamplingParams(1.0, 4, NEVER))
    with pytest.raises(EngineError, match=r"temperature is 0\.001"):
        await server_engine.generate("s", [1, 2, 3], SamplingParams(0.001, 4, NEVER))
    assert len((await server_engine.generate("s", [1, 2, 3], SamplingParams(1.0, 4, NEVER))).token_ids) == 4


def _edit_tensors(directory: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def _wrong_shape(directory: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    _edit_tensors(directory, lambda t: t.update({name: t[name][:, :-1].contiguous()}))


def _missing(directory: Path) -> None:
    _edit_tensors(directory, lambda t: t.pop("model.layers.0.self_attn.k_proj.weight"))


def _unknown(directory: Path) -> None:
    _edit_tensors(directory, lambda t: t.update({"model.layers.9.extra.weight": t["model.norm.weight"].clone()}))


def _not_finite(directory: Path) -> None:
    _edit_tensors(directory, lambda t: t["model.norm.weight"].fill_(float("nan")))


def _integers(directory: Path) -> None:
    _edit_tensors(directory, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].int()}))


def _truncated(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _other_network(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["rms_norm_eps"] = 0.1
    (directory / "config.json").write_text(json.dumps(config))


def _empty(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_wrong_shape, r"down_proj.weight has shape \[192, 511\], expected \[192, 512\]"),
        (_missing, "k_proj.weight is missing"),
        (_unknown, "model.layers.9.extra.weight is unknown"),
        (_not_finite, "model.norm.weight isn't finite"),
        (_integers, "model.norm.weight has dtype I32"),
        (_truncated, "bytes, expected"),
        (_other_network, "rms_norm_eps is 0.1, expected 1e-06"),
        (_empty, "holds no"),
    ],
)
async def test_policy_that_does_not_fit_is_refused_and_the_old_one_still_serves(
    server_engine: VllmEngine,
    policies: list[Path],
    prompt: Any,
    score: Any,
    tmp_path: Path,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    await server_engine.load(policies[0], 20)
    damaged = tmp_path / "damaged"
    shutil.copytree(policies[1], damaged)
    damage(damaged)
    with pytest.raises(PolicyError, match=message) as caught:
        await server_engine.load(damaged, 21)
    assert "\n" not in str(caught.value)
    ids = prompt(9, 30)
    completion = await server_engine.generate("s", ids, SamplingParams(1.0, 16, NEVER))
    assert set(completion.policy_version.tolist()) == {20}
    expected = score(policies[0], ids, completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


async def test_a_head_that_is_the_embedding_may_be_written_out_or_not(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, score: Any, tmp_path: Path
) -> None:
    written_out = tmp_path / "head"
    shutil.copytree(policies[1], written_out)

    def write_out(tensors: dict[str, Any]) -> None:
        assert "lm_head.weight" not in tensors
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    _edit_tensors(written_out, write_out)
    for version, policy in ((60, written_out), (61, policies[0])):
        await server_engine.load(policy, version)
        completion = await server_engine.generate("s", prompt(1, 50), SamplingParams(1.0, 32, NEVER))
        expected = score(policy, prompt(1, 50), completion.token_ids, 1.0)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE, rtol=0)


async def test_overflowing_weights_are_an_engine_error_and_good_ones_heal(
    server_engine: VllmEngine, policies: list[Path], prompt: Any, tmp_path: Path
) -> None:
    await server_engine.load(policies[0], 30)
    hot = tmp_path / "hot"
    shutil.copytree(policies[1], hot)
    _edit_tensors(hot, lambda t: t["model.norm.weight"].fill_(3e38))
    await server_engine.load(hot, 31)
    with pytest.raises(EngineError, match="isn't finite"):
        await server_engine.generate("s", prompt(10, 30), SamplingParams(1.0, 4, NEVER))
    await server_engine.load(policies[0], 32)
    assert len((await server_engine.generate("s", [1, 2, 3], SamplingParams(1.0, 4, NEVER))).token_ids) == 4


async def _wait_for_tokens(engine: VllmEngine, count: int) -> None:
    """Until the server has sampled `count` more tokens than when this was called."""
    async with httpx.AsyncClient(base_url=engine.url, timeout=120) as client:
        began = await _num_generated(client)
        while await _num_generated(client) < began + count:  # noqa: ASYNC110  (another process has no event)
            await asyncio.sleep(0.02)


async def _num_generated(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))
