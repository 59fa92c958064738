"""Random policies on disk and engines that serve them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from swe_rl.config import EngineConfig
from swe_rl.inference.local import LocalEngine
from swe_rl.model import save_policy

CONFIGS = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig, "qwen3_moe": Qwen3MoeConfig}
# of three layers the middle one is dense
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}
EXPERTS |= {"num_hidden_layers": 3, "mlp_only_layers": [1]}
VOCAB = 97
MakePolicy = Callable[..., Path]
OpenEngine = Callable[..., object]


@pytest.fixture(scope="session")
def make_policy(tmp_path_factory: pytest.TempPathFactory) -> MakePolicy:
    """make_policy(family, seed): a random policy whose predictions are far from uniform."""
    made: dict[tuple[str, int], Path] = {}

    def make(family: str = "qwen3", seed: int = 0) -> Path:
        if (family, seed) not in made:
            directory = tmp_path_factory.mktemp(f"{family}-{seed}")
            Tokenizer(models.BPE()).save(str(directory / "tokenizer.json"))
            save_policy(_model(family, seed), directory, directory)
            made[family, seed] = directory
        return made[family, seed]

    return make


def _model(family: str, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    options = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": family != "llama",
        **({} if family == "qwen2" else {"head_dim": 16}),
        **(EXPERTS if family == "qwen3_moe" else {}),
    }
    config = CONFIGS[family](**options)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0, 0.1) if parameter.ndim == 1 else parameter.normal_(0.0, 0.15)
    return model


@pytest.fixture
async def open_engine(make_policy: MakePolicy) -> AsyncIterator[OpenEngine]:
    async with AsyncExitStack() as stack:

        async def make(policy: Path | None = None, seed: int = 0, **config: object) -> LocalEngine:
            values = {"dtype": "float32", "max_batch": 8, "max_context": 128} | config
            engine = LocalEngine(EngineConfig.model_validate(values), seed)
            stack.push_async_callback(engine.close)
            await engine.load(policy or make_policy(), 0)
            return engine

        yield make
