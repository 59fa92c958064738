"""Log-probability and entropy of given tokens from hidden states, in tiles of C positions by W words.

No tensor is larger than a tile, the hidden states or the output matrix: peak memory doesn't depend on positions times
vocabulary, forward or backward. The softmax of each part of the vocabulary is fused; the parts are joined by their
log-sum-exps. The backward pass computes each tile's logits a second time.

    z = (h W^T + b) / T;  logp = z[target] - lse(z);  H = lse(z) - sum_v p_v z_v
    dlogp/dz_v = [v = target] - p_v;  dH/dz_v = -p_v (log p_v + H)
    over parts k:  lse = log sum_k exp(lse_k);  w_k = exp(lse_k - lse);  p_v = w_k softmax_k(z)_v
                   H = sum_k w_k (H_k - log w_k), which doesn't cancel as lse - sum p z would

Shapes: M positions, V vocabulary, E hidden size; K parts of the vocabulary; a tile has C positions and W words.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swe_rl.model.linear import linear


class Tile(NamedTuple):
    """The most positions and words whose logits exist at once."""

    positions: int
    words: int


class ChunkedScores(torch.autograd.Function):
    """(log-probability, entropy in nats) [M] each, of the type that `score_dtype` says; see the module."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ME: Tensor,
        weight_VE: Tensor,
        bias_V: Tensor | None,
        targets_M: Tensor,
        temperature_M: Tensor,
        tile: Tile,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """`dtype` is that of the products."""
        layer = _Layer(weight_VE, bias_V, dtype)
        vocabulary = list(_parts(len(weight_VE), tile.words))
        logprobs_M = torch.empty(len(targets_M), dtype=score_dtype(weight_VE), device=hidden_ME.device)
        entropy_M, lse_M = torch.empty_like(logprobs_M), torch.empty_like(logprobs_M)
        lse_MK = logprobs_M.new_empty(len(targets_M), len(vocabulary))
        with torch.autocast(hidden_ME.device.type, enabled=False):
            for part in _parts(len(targets_M), tile.positions):
                chosen_C = torch.zeros_like(logprobs_M[part])
                entropy_CK = torch.empty_like(lse_MK[part])
                for k, words in enumerate(vocabulary):
                    logits_CW = layer.logits(hidden_ME[part], words, temperature_M[part])
                    is_inside, column_C1 = _place(targets_M[part], words)
                    chosen_C = torch.where(is_inside, logits_CW.gather(1, column_C1).squeeze(1), chosen_C)
                    p_CW = torch.softmax(logits_CW, 1)
                    # the likeliest word's probability is 1 / sum exp(z - max z)
                    lse_MK[part, k] = logits_CW.amax(1) - p_CW.amax(1).log()
                    entropy_CK[:, k] = -torch.linalg.vecdot(p_CW, logits_CW.sub_(lse_MK[part, k, None]))
                lse_M[part] = torch.logsumexp(lse_MK[part], 1)
                logprobs_M[part] = chosen_C - lse_M[part]
                log_w_CK = torch.log_softmax(lse_MK[part], 1)
                entropy_M[part] = (log_w_CK.exp() * (entropy_CK - log_w_CK)).sum(1)
        ctx.save_for_backward(hidden_ME, weight_VE, bias_V, targets_M, temperature_M, entropy_M, lse_M, lse_MK)
        ctx.tile, ctx.dtype = tile, dtype
        ctx.set_materialize_grads(False)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_ME, weight_VE, bias_V, targets_M, temperature_M, entropy_M, lse_M, lse_MK = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        layer = _Layer(weight_VE, bias_V, ctx.dtype)
        grad_hidden_ME = torch.zeros_like(hidden_ME, dtype=lse_M.dtype)
        grad_weight_VE = torch.zeros_like(weight_VE) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V) if needs_bias else None
        slope_M = (torch.zeros_like(lse_M) if grads[0] is None else grads[0]) / temperature_M
        entropy_slope_M = None if grads[1] is None else grads[1] / temperature_M
        for part in _parts(len(targets_M), ctx.tile.positions):
            for k, words in enumerate(_parts(len(weight_VE), ctx.tile.words)):
                logits_CW = layer.logits(hidden_ME[part], words, temperature_M[part])
                share_C1 = (lse_MK[part, k] - lse_M[part]).exp()[:, None]
                factor = -share_C1 * slope_M[part, None]
                if entropy_slope_M is not None:
                    surprise_CW = logits_CW - (lse_M - entropy_M)[part, None]
                    factor = factor - share_C1 * entropy_slope_M[part, None] * surprise_CW
                grad_CW = torch.softmax(logits_CW, 1).mul_(factor)
                is_inside, column_C1 = _place(targets_M[part], words)
                grad_CW.scatter_add_(1, column_C1, torch.where(is_inside, slope_M[part], 0.0)[:, None])
                product_CW = grad_CW.to(ctx.dtype)
                grad_hidden_ME[part] += linear(product_CW, layer.words(words).T)
                if grad_weight_VE is not None:
                    grad_weight_VE[words] += linear(product_CW.T, hidden_ME[part].to(ctx.dtype).T)
                if grad_bias_V is not None:
                    grad_bias_V[words] += grad_CW.sum(0)
        return grad_hidden_ME.to(hidden_ME.dtype), grad_weight_VE, grad_bias_V, None, None, None, None


class _Layer(NamedTuple):
    weight_VE: Tensor
    bias_V: Tensor | None
    dtype: torch.dtype

    def words(self, words: slice) -> Tensor:
        return self.weight_VE[words].to(self.dtype)

    def logits(self, hidden_CE: Tensor, words: slice, temperature_C: Tensor) -> Tensor:
        """[C, W] after temperature."""
        bias_W = None if self.bias_V is None else self.bias_V[words].to(self.dtype)
        logits_CW = linear(hidden_CE.to(self.dtype), self.words(words), bias_W).to(score_dtype(self.weight_VE))
        return logits_CW.div_(temperature_C[:, None])


def score_dtype(weight: Tensor) -> torch.dtype:
    """The softmax never runs below float32, whatever the layers compute in."""
    return torch.promote_types(weight.dtype, torch.float32)


def _place(targets_C: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """(bool [C]: is the target one of these words, its column among them [C, 1], 0 where not)."""
    is_inside = (targets_C >= words.start) & (targets_C < words.stop)
    return is_inside, torch.where(is_inside, targets_C - words.start, 0)[:, None]


def _parts(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
