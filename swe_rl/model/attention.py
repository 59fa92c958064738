"""Causal attention over one flat row of packed documents, each of which sees what `layout` says.

It is registered with transformers as an attention implementation, so that a model's own linear layers run once
over the whole row while attention costs the sum of len^2 and no [N, N] mask exists. Without a layout's families
(an ordinary forward, `generate`) it is transformers' SDPA attention.

Shapes: N tokens of the row, H query heads, K key-value heads, D head size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swe_rl.errors import PolicyError
from swe_rl.model.layout import Family
from swe_rl.model.prefix_attention import prefix_attention

PACKED_ATTENTION = "packed_documents"


def register_packed_attention() -> None:
    """Makes the name PACKED_ATTENTION known to transformers; idempotent."""
    if PACKED_ATTENTION not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, packed_attention_forward)
        ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, sdpa_mask)


def use_packed_attention(model: PreTrainedModel) -> None:
    """Switches a model that was not made by `load_model` (e.g. one with fresh weights); idempotent."""
    register_packed_attention()
    if model.config._attn_implementation != PACKED_ATTENTION:
        model.set_attn_implementation(PACKED_ATTENTION)


def packed_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    families: Sequence[Family] | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, N, D], key and value [1, K, N, D] -> [1, N, H, D]; the signature is transformers'."""
    if families is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    longest = max(family.prefix + max(family.tails, default=0) for family in families)
    if sliding_window is not None and sliding_window < longest:
        raise PolicyError(
            f"attention window of {sliding_window} tokens, a document has {longest}; "
            "sliding windows are not supported: use a model with full attention or shorter documents"
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # repeated once for the row: the grouped kernel of the CPU falls back to plain matrices
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    lengths = [family.prefix + sum(family.tails) for family in families]
    rows = zip(*(torch.split(heads, lengths, dim=2) for heads in (query, key, value)), strict=True)
    outputs = [_attend(family, q, k, v, scaling) for family, (q, k, v) in zip(families, rows, strict=True)]
    return torch.cat([out.transpose(1, 2) for out in outputs], dim=1), None


def _attend(family: Family, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """[1, H, tokens of the family, D]"""
    if not family.tails:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    sizes = [family.prefix, sum(family.tails)]
    (q_P, q_T), (k_P, k_T), (v_P, v_T) = (torch.split(heads, sizes, dim=2) for heads in (query, key, value))
    of_prefix = F.scaled_dot_product_attention(q_P, k_P, v_P, is_causal=True, scale=scale)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return torch.cat([of_prefix, prefix_attention(q_T, k_P, v_P, k_T, v_T, family.tails, scale)], dim=2)
