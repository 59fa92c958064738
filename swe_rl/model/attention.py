"""Causal attention over one flat row of packed documents, each of which sees what `layout` says.

The tokens of the row may lie on several ranks (`context`): keys and values are gathered, queries stay.

It is registered with transformers as an attention implementation, so that a model's own linear layers run once
over the whole row while attention costs the sum of len^2 and no [N, N] mask exists. Without a view
(an ordinary forward, `generate`) it is transformers' SDPA attention.

Shapes: N tokens of the row, n that this rank holds, H query heads, K key-value heads, D head size.
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
from swe_rl.model.prefix_attention import prefix_attention
from swe_rl.model.view import Span, View

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
    view: View | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, n, D], key and value [1, K, n, D] of held tokens -> [1, n, H, D]; the signature is transformers'."""
    if view is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if sliding_window is not None and sliding_window < view.longest:
        raise PolicyError(
            f"attention window of {sliding_window} tokens, a document has {view.longest}; "
            "sliding windows are not supported: use a model with full attention or shorter documents"
        )
    groups = query.shape[1] // key.shape[1]
    key, value = view.context.gather(key, value)
    if groups > 1:  # repeated once for the row: the grouped kernel of the CPU falls back to plain matrices
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    keys, values = view.split(key), view.split(value)
    queries = torch.split(query, [len(span.own) for span in view.spans], dim=2)
    outputs = [_attend(view, span, q, keys, values, scaling) for span, q in zip(view.spans, queries, strict=True)]
    return torch.cat([out.transpose(1, 2) for out in outputs], dim=1), None


def _attend(
    view: View, span: Span, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float | None
) -> Tensor:
    """[1, H, tokens of the span, D]"""
    key, value = view.join(keys, [span.own]), view.join(values, [span.own])
    if not span.seen:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    seen_key, seen_value = view.join(keys, span.seen), view.join(values, span.seen)
    return prefix_attention(query, seen_key, seen_value, key, value, span.lengths, scale)
