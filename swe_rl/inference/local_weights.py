"""Weights of Llama-like decoders, fused and flat, as the local engine's forward reads them.

    transformers model -> check that the forward reproduces it -> DecoderWeights

Shapes: H query heads, K key-value heads, D head size, E hidden size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from swe_rl.errors import PolicyError
from swe_rl.inference.local_mlp import DenseMlp, SparseMlp

SUPPORTED_MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe")
_STATIC_ROPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """qkv [(H + 2K) D, E], qk_norm [H + K, D] or None, out [E, H D]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: DenseMlp | SparseMlp


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """embedding and head [V, E]; cos and sin [max_context, 1, D], the sine's first half negated: with that, rotating
    by halves is a roll."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


def read_weights(model: PreTrainedModel, max_context: int) -> DecoderWeights:
    """Raises PolicyError for a model that a plain Llama-like forward doesn't reproduce exactly."""
    config: Any = model.config
    _check_supported(config)
    state: Mapping[str, torch.Tensor] = {name: t.detach() for name, t in model.state_dict().items()}
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    cos, sin = _rotary_tables(model, max_context)
    return DecoderWeights(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        eps=config.rms_norm_eps,
        embedding=state["model.embed_tokens.weight"],
        layers=tuple(_read_layer(state, i, config) for i in range(config.num_hidden_layers)),
        final_norm=state["model.norm.weight"],
        head=state["lm_head.weight"],
        cos=cos,
        sin=sin,
    )


def _read_layer(state: Mapping[str, torch.Tensor], index: int, config: Any) -> LayerWeights:
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qkv = [f"{attention}{part}_proj" for part in "qkv"]
    qk_norm = None
    if f"{attention}q_norm.weight" in state:
        query = state[f"{attention}q_norm.weight"].expand(config.num_attention_heads, -1)
        key = state[f"{attention}k_norm.weight"].expand(config.num_key_value_heads, -1)
        qk_norm = torch.cat([query, key])
    return LayerWeights(
        input_norm=state[f"{prefix}input_layernorm.weight"],
        qkv=torch.cat([state[f"{name}.weight"] for name in qkv]),
        qkv_bias=_bias(state, qkv),
        qk_norm=qk_norm,
        out=state[f"{attention}o_proj.weight"],
        out_bias=state.get(f"{attention}o_proj.bias"),
        mlp_norm=state[f"{prefix}post_attention_layernorm.weight"],
        mlp=_read_experts(state, mlp, config) if f"{mlp}gate.weight" in state else _read_mlp(state, mlp),
    )


def _read_mlp(state: Mapping[str, torch.Tensor], prefix: str) -> DenseMlp:
    gate_up = [f"{prefix}{part}_proj" for part in ("gate", "up")]
    return DenseMlp(
        gate_up=torch.cat([state[f"{name}.weight"] for name in gate_up]),
        gate_up_bias=_bias(state, gate_up),
        down=state[f"{prefix}down_proj.weight"],
        down_bias=state.get(f"{prefix}down_proj.bias"),
    )


def _read_experts(state: Mapping[str, torch.Tensor], prefix: str, config: Any) -> SparseMlp:
    return SparseMlp(
        router=state[f"{prefix}gate.weight"],
        gate_up=state[f"{prefix}experts.gate_up_proj"],
        down=state[f"{prefix}experts.down_proj"],
        num_chosen=config.num_experts_per_tok,
        is_normalised=config.norm_topk_prob,
    )


def _bias(state: Mapping[str, torch.Tensor], names: list[str]) -> torch.Tensor | None:
    biases = [state[f"{name}.bias"] for name in names if f"{name}.bias" in state]
    return torch.cat(biases) if biases else None


def _rotary_tables(model: PreTrainedModel, max_context: int) -> tuple[torch.Tensor, torch.Tensor]:
    rotary: Any = model.base_model.rotary_emb
    cos, sin = rotary(torch.zeros(1, dtype=model.dtype), torch.arange(max_context)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return cos[0, :, None].contiguous(), signed[:, None].contiguous()


def _check_supported(config: Any) -> None:
    hint = "serve it with engine.kind = vllm"
    if config.model_type not in SUPPORTED_MODELS:
        raise PolicyError(
            f"local engine: model type {config.model_type!r}, expected one of {', '.join(SUPPORTED_MODELS)}; {hint}"
        )
    rope = config.rope_parameters["rope_type"]
    if rope not in _STATIC_ROPES:
        raise PolicyError(f"local engine: rotary type {rope!r}, expected one of {', '.join(_STATIC_ROPES)}; {hint}")
    if config.hidden_act != "silu":
        raise PolicyError(f"local engine: activation {config.hidden_act!r}, expected silu; {hint}")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise PolicyError(f"local engine: layers with sliding attention are not supported; {hint}")
