"""Attention of siblings that continue one prefix: each sees the prefix and its own earlier tokens, never the others.

On the CPU all siblings attend to the prefix in one unmasked call, and each to itself in a causal one; the two
softmaxes are joined by their log-sum-exps, which is exact, needs no mask, and reads the prefix's keys once. Elsewhere
each sibling is one call with a causal mask that is aligned to the last key, which the GPU's kernels know natively.

Shapes: H heads, P tokens of the prefix, T tokens of all siblings, D head size; [1, H, tokens, D] throughout.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right


def prefix_attention(
    query_T: Tensor,
    key_P: Tensor,
    value_P: Tensor,
    key_T: Tensor,
    value_T: Tensor,
    lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """The output of all siblings' tokens; `lengths` are those of the siblings, which lie end to end."""
    device = query_T.device.type
    if device != "cpu":
        return masked_prefix_attention(query_T, key_P, value_P, key_T, value_T, lengths, scale)
    tensors = [query_T, key_P, value_P, key_T, value_T]
    if torch.is_autocast_enabled(device):  # a function of one's own is on no list of autocast
        tensors = [tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors]
    joined: Any = _JoinedAttention
    out_T: Tensor = joined.apply(*tensors, list(lengths), scale)
    return out_T


def masked_prefix_attention(
    query_T: Tensor,
    key_P: Tensor,
    value_P: Tensor,
    key_T: Tensor,
    value_T: Tensor,
    lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """The same by one call a sibling."""
    parts = zip(*(torch.split(tensor, list(lengths), dim=2) for tensor in (query_T, key_T, value_T)), strict=True)
    outputs = [
        F.scaled_dot_product_attention(
            query,
            torch.cat([key_P, key], dim=2),
            torch.cat([value_P, value], dim=2),
            attn_mask=causal_lower_right(query.shape[2], key_P.shape[2] + key.shape[2]),
            scale=scale,
        )
        for query, key, value in parts
    ]
    return torch.cat(outputs, dim=2)


class _JoinedAttention(torch.autograd.Function):
    """o = w_P o_P + w_T o_T with w = exp(lse of the part - lse of all).

    A part's backward pass with the joined output and log-sum-exp is that of its own keys within the whole softmax.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query_T: Tensor,
        key_P: Tensor,
        value_P: Tensor,
        key_T: Tensor,
        value_T: Tensor,
        lengths: list[int],
        scale: float,
    ) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        of_prefix, lse_prefix = flash(query_T, key_P, value_P, 0.0, False, scale=scale)
        parts = zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query_T, key_T, value_T)), strict=True)
        own = [flash(query, key, value, 0.0, True, scale=scale) for query, key, value in parts]
        of_own, lse_own = (torch.cat([part[i] for part in own], dim=2) for i in (0, 1))
        lse = torch.logaddexp(lse_prefix, lse_own)
        joined = of_prefix * (lse_prefix - lse).exp()[..., None] + of_own * (lse_own - lse).exp()[..., None]
        out: Tensor = joined.to(query_T.dtype)
        ctx.save_for_backward(query_T, key_P, value_P, key_T, value_T, out, lse)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query_T, key_P, value_P, key_T, value_T, out, lse = ctx.saved_tensors
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grad = grads[0].contiguous()
        over_prefix, grad_key_P, grad_value_P = flash(
            grad, query_T, key_P, value_P, out, lse, 0.0, False, scale=ctx.scale
        )
        tensors = (grad, query_T, key_T, value_T, out, lse)
        parts = zip(*(torch.split(tensor, ctx.lengths, dim=2) for tensor in tensors), strict=True)
        own = [flash(*part, 0.0, True, scale=ctx.scale) for part in parts]
        grad_query, grad_key_T, grad_value_T = (torch.cat([part[i] for part in own], dim=2) for i in range(3))
        return over_prefix + grad_query, grad_key_P, grad_value_P, grad_key_T, grad_value_T, None, None
