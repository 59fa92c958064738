"""Other models and precisions than the dense one in float32: experts, as exact; bfloat16, near and not equal."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer, models
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from swe_rl.config import EngineConfig
from swe_rl.errors import EngineUnavailableError
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.routed_experts import join_experts
from swe_rl.inference.vllm import VllmEngine
from swe_rl.model import load_model

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

VOCABULARY = 512
PARAMS = SamplingParams(0.8, 200, ())


@pytest.fixture(scope="module")
def make_moe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """make_moe(seed) -> a policy of 16 experts, of which a token passes through 4."""

    def make(seed: int) -> Path:
        torch.manual_seed(seed)
        config = Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            moe_intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            num_experts=16,
            num_experts_per_tok=4,
            norm_topk_prob=True,
            max_position_embeddings=2048,
            initializer_range=0.08,
            bos_token_id=None,
            eos_token_id=0,
        )
        directory = tmp_path_factory.mktemp(f"moe{seed}")
        Qwen3MoeForCausalLM(config).to(torch.float32).save_pretrained(directory)
        Tokenizer(models.BPE()).save(str(directory / "tokenizer.json"))
        return directory

    return make


@pytest_asyncio.fixture(loop_scope="module")
async def open_engine(
    engine_config: EngineConfig, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[..., VllmEngine]]:
    engines: list[VllmEngine] = []

    def open_one(**changes: Any) -> VllmEngine:
        config = engine_config.model_copy(update={"max_context": 512, **changes})
        engines.append(VllmEngine(config, tmp_path_factory.mktemp("vllm"), seed=3))
        return engines[-1]

    yield open_one
    for engine in engines:
        await engine.close()


def _prompt(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCABULARY, 100).tolist()


async def test_experts_are_exact_before_and_after_an_update(
    open_engine: Callable[..., VllmEngine], make_moe: Callable[[int], Path], score: Any
) -> None:
    engine = open_engine()
    policies = [make_moe(0), make_moe(1)]
    for version in range(3):
        policy = policies[version % 2]
        await engine.load(policy, version)
        completion = await engine.generate("s", _prompt(version), PARAMS)
        assert set(completion.policy_version.tolist()) == {version}
        expected = score(policy, _prompt(version), completion.token_ids, PARAMS.temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4, rtol=0)
        other = score(policies[(version + 1) % 2], _prompt(version), completion.token_ids, PARAMS.temperature)
        assert np.abs(completion.logprobs - other).mean() > 0.1


async def test_bfloat16_differs_by_its_rounding_and_no_more(
    open_engine: Callable[..., VllmEngine], policies: list[Path], score: Any
) -> None:
    engine = open_engine(dtype="bfloat16")
    for version, policy in enumerate(policies):
        await engine.load(policy, version)
        completion = await engine.generate("s", _prompt(version), PARAMS)
        expected = score(policy, _prompt(version), completion.token_ids, PARAMS.temperature)
        assert 1e-5 < np.abs(completion.logprobs - expected).mean() < 0.05
        assert np.abs(completion.logprobs - expected).max() < 0.5


async def test_experts_are_those_of_a_whole_forward_pass_or_the_server_refuses_at_its_start(
    open_engine: Callable[..., VllmEngine], make_moe: Callable[[int], Path]
) -> None:
    policy, prompt = make_moe(0), _prompt(3)
    engine = open_engine(return_routed_experts=True)
    try:
        await engine.load(policy, 0)
    except EngineUnavailableError as error:
        assert "Model Runner V2" in str(error) and "engine.return_routed_experts" in str(error)
        pytest.skip("this vLLM has no Model Runner V2, so it doesn't tell experts; it said so")
    first = await engine.generate("s", prompt, PARAMS)
    context = [*prompt, *first.token_ids.tolist(), 5, 6, 7]
    assert first.routed_experts is not None
    second = await engine.generate("s", context, replace(PARAMS, experts_from=first.routed_experts.end))
    told = join_experts([first.routed_experts, second.routed_experts])
    assert told is not None and told.start == 0
    model = load_model(policy, torch.float32)
    with torch.no_grad():
        token_ids = torch.tensor([[*context, *second.token_ids.tolist()[:-1]]])
        logits = model(token_ids, output_router_logits=True).router_logits
    expected = torch.stack([layer.softmax(-1).topk(4).indices for layer in logits], 1).sort().values
    # sets: a server need not keep the order, and near ties may fall either way
    assert (np.sort(told.experts) == expected.numpy()).all(-1).mean() > 0.99
