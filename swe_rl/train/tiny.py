"""Makes the tiny policy that a CPU can train: its tokenizer, and a Qwen3 network that can copy from the start.

Copying a line exactly is what a small network learns last. `init_policy` therefore sets one previous-token head
(layer 0) and one induction head (layer 1) by hand: weights only, the architecture stays a plain Qwen3.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
VOCAB_SIZE = 1024
_ROPE_THETA = 1e6
# A word keeps its one leading space, so that a line has the same tokens in a file and inside a JSON string.
_WORDS = (
    r' ?[A-Z]?[a-z]+| ?[A-Z]+| ?[0-9]|\n+| ?"[^\sA-Za-z0-9"]*| ?[^\sA-Za-z0-9"]+| +'  # a quote ends a line's last token
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` tokens; every byte has one, so any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes what `transformers` and vLLM need to load the tokenizer beside a model."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
    )


def init_policy(seed: int, max_context: int = 2048) -> Qwen3ForCausalLM:
    """About 2 million parameters in float32, with the two copying heads set."""
    torch.manual_seed(seed)
    make: Any = Qwen3ForCausalLM  # transformers leaves its constructors untyped
    model: Qwen3ForCausalLM = make(
        Qwen3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=max_context,
            rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
            pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        )
    )
    with torch.no_grad():
        _set_copying_heads(model)
    return model


# The residual stream of the hand-set heads: [0, 96) a token's own content, [96, 160) the previous token's, and one
# dimension that is the same for every token.
_CONTENT = slice(0, 96)
_PREVIOUS = slice(96, 160)
_CONSTANT = 191
_SHARPNESS = 3.0  # factor on queries and on keys, carried by their norms' weights


def _set_copying_heads(model: Qwen3ForCausalLM) -> None:
    body: Any = model.model
    embedding = body.embed_tokens.weight
    embedding.zero_()
    embedding[:, _CONTENT] = torch.randn(VOCAB_SIZE, 96) / math.sqrt(96)
    embedding[:, _CONSTANT] = 1.0
    for layer in body.layers:  # quiet what is random, so that the heads are heard
        layer.mlp.down_proj.weight.mul_(0.1)
        layer.self_attn.o_proj.weight.mul_(0.1)
    basis = torch.linalg.qr(torch.randn(96, 64))[0].T  # [64, 96], orthonormal rows: what a head can carry of content
    _set_previous_token_head(body.layers[0].self_attn, basis)
    _set_induction_head(body.layers[1].self_attn, basis)


def _set_previous_token_head(attention: Any, basis: Tensor) -> None:
    """Head 0 looks one position back: q is the constant key turned back by one position of RoPE's fast frequencies.

    Writes the previous token's content into `_PREVIOUS`.
    """
    frequency = _ROPE_THETA ** (-torch.arange(32) / 32.0)
    num_fast = 8
    query, key = torch.zeros(64), torch.zeros(64)
    key[:num_fast] = 1.0
    query[:num_fast] = torch.cos(frequency[:num_fast])
    query[32 : 32 + num_fast] = -torch.sin(frequency[:num_fast])
    _clear_head_zero(attention)
    attention.q_proj.weight[:64, _CONSTANT] = query
    attention.k_proj.weight[:64, _CONSTANT] = key
    attention.v_proj.weight[:64, _CONTENT] = basis
    attention.o_proj.weight[_PREVIOUS, :64] = 0.2 * torch.eye(64)
    attention.q_norm.weight.fill_(_SHARPNESS)
    attention.k_norm.weight.fill_(_SHARPNESS)


def _set_induction_head(attention: Any, basis: Tensor) -> None:
    """Head 0 looks for a position whose previous token is the current one, and proposes that position's token.

    Only RoPE's slow pairs carry the match, so that the distance hardly turns it.
    """
    slow = torch.cat([torch.arange(18, 32), torch.arange(50, 64)])
    _clear_head_zero(attention)
    mixing = torch.linalg.qr(torch.randn(64, len(slow)))[0].T  # [28, 64]
    attention.q_proj.weight[slow, _CONTENT] = mixing @ basis
    attention.k_proj.weight[slow, _PREVIOUS] = mixing
    attention.v_proj.weight[:64, _CONTENT] = basis
    attention.o_proj.weight[_CONTENT, :64] = basis.T
    attention.q_norm.weight.fill_(_SHARPNESS)
    attention.k_norm.weight.fill_(_SHARPNESS)


def _clear_head_zero(attention: Any) -> None:
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[:64].zero_()
    attention.o_proj.weight[:, :64].zero_()
