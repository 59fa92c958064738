"""Random policies of a few thousand parameters, of three model families, with a toy tokenizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

CONFIGS = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig, "qwen3_moe": Qwen3MoeConfig}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["def area(width, height):\n    return width * height\n"], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def make_model() -> Callable[..., PreTrainedModel]:
    """make_model(family): weights wide enough that predictions are far from uniform."""

    def make(family: str = "qwen3", seed: int = 0, is_tied: bool = True) -> PreTrainedModel:
        torch.manual_seed(seed)
        config = CONFIGS[family](
            vocab_size=97,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=is_tied,
            **({} if family == "qwen2" else {"head_dim": 16}),
            **(EXPERTS if family == "qwen3_moe" else {}),
        )
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0, 0.1) if parameter.ndim == 1 else parameter.normal_(0.0, 0.15)
        return model.eval()

    return make
