"""Log-probabilities of given tokens under a model, without ever holding [N, vocab] logits.

    flat packed row -> hidden states (documents isolated) -> output matrix over chunks of the needed positions

The only place that shifts: the score of token t comes from the hidden state at t - 1 and lands at t.

Shapes: N tokens of the packed row, M positions that are needed, C positions of a chunk, V vocabulary, E hidden size.
"""

import contextlib
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from swe_rl.model.attention import use_packed_attention
from swe_rl.model.linear import linear, onednn_linears


class TokenScores(NamedTuple):
    """[N] each, aligned to the token described; float64 for a float64 model, else float32; NaN where not computed.
    Entropy is that of the distribution (after temperature) the token was drawn from, in nats."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


def token_logprobs(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    document_N: torch.Tensor,
    temperature_N: torch.Tensor,
    chunk: int,
    needed_N: torch.Tensor | None = None,
    compute_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[N]: log p(token t | earlier tokens of its document) after temperature; see `token_scores`."""
    return _score_row(model, token_ids_N, document_N, temperature_N, chunk, needed_N, compute_dtype, False).logprobs


def token_scores(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    document_N: torch.Tensor,
    temperature_N: torch.Tensor,
    chunk: int,
    needed_N: torch.Tensor | None = None,
    compute_dtype: torch.dtype | None = None,
) -> TokenScores:
    """Scores one flat row of documents; differentiable in the model's weights.

    token_ids int64 [N]; document int64 [N], ascending ids, each a contiguous run; temperature float [N], where 0
    (greedy) counts as 1, as the engines report it; needed bool [N]: score these only (None: all). Each document's
    first token is NaN. `chunk`: positions whose logits exist at once. `compute_dtype` (e.g. bfloat16) runs the layers
    under autocast while weights and the softmax stay as they are. Raises ValueError for arrays that contradict.
    """
    return _score_row(model, token_ids_N, document_N, temperature_N, chunk, needed_N, compute_dtype, True)


def recompute_activations(model: PreTrainedModel) -> None:
    """From now on each layer's activations are computed anew in the backward pass: less memory, a forward more.

    transformers does so in training mode only; dropout has to be 0 for log-probabilities to repeat.
    """
    model.gradient_checkpointing_enable(
        {"use_reentrant": False, "context_fn": lambda: (contextlib.nullcontext(), onednn_linears())}
    )
    model.train()


def _score_row(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    document_N: torch.Tensor,
    temperature_N: torch.Tensor,
    chunk: int,
    needed_N: torch.Tensor | None,
    compute_dtype: torch.dtype | None,
    has_entropy: bool,
) -> TokenScores:
    _check_row(token_ids_N, document_N, temperature_N, needed_N)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, expected at least 1 position")
    lengths = _document_lengths(document_N)
    starts_M = torch.cumsum(lengths, 0) - lengths
    scored_N = torch.ones_like(token_ids_N, dtype=torch.bool) if needed_N is None else needed_N.clone()
    scored_N[starts_M] = False
    positions_M = scored_N.nonzero().squeeze(1)
    hidden_NE = _hidden_states(model, token_ids_N, lengths, starts_M, compute_dtype)
    head: Any = model.lm_head
    blank_N = torch.full(token_ids_N.shape, float("nan"), dtype=_score_dtype(head.weight), device=token_ids_N.device)
    scores: Any = _ChunkedScores
    temperature_M = temperature_N[positions_M].to(blank_N.dtype)
    logprobs_M, entropy_M = scores.apply(
        hidden_NE[positions_M - 1],
        head.weight,
        head.bias,
        token_ids_N[positions_M],
        torch.where(temperature_M == 0, 1.0, temperature_M),
        chunk,
        compute_dtype or head.weight.dtype,
        has_entropy,
    )
    return TokenScores(
        blank_N.index_put((positions_M,), logprobs_M),
        blank_N.index_put((positions_M,), entropy_M),
    )


def _hidden_states(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    compute_dtype: torch.dtype | None,
) -> torch.Tensor:
    use_packed_attention(model)
    positions_N = torch.arange(len(token_ids_N), device=token_ids_N.device)
    positions_N = positions_N - torch.repeat_interleave(starts, lengths)
    autocast = torch.autocast(token_ids_N.device.type, dtype=compute_dtype, enabled=compute_dtype is not None)
    with autocast, onednn_linears():
        output = model.base_model(
            input_ids=token_ids_N[None],
            position_ids=positions_N[None],
            # a ready four-dimensional mask keeps transformers from building its own [N, N]; ours is never read
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=token_ids_N.device),
            use_cache=False,
            document_lengths=lengths.tolist(),
        )
    hidden_NE: torch.Tensor = output.last_hidden_state[0]
    return hidden_NE


class _ChunkedScores(torch.autograd.Function):
    """Log-probability and entropy from hidden states; backward computes each chunk's logits a second time.

    z = (h W^T + b) / T;  logp = z[target] - lse(z);  H = lse(z) - sum_v p_v z_v
    dlogp/dz_v = [v = target] - p_v;  dH/dz_v = -p_v (log p_v + H)
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ME: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_M: torch.Tensor,
        temperature_M: torch.Tensor,
        chunk: int,
        dtype: torch.dtype,
        has_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_M = torch.empty(len(targets_M), dtype=_score_dtype(weight_VE), device=hidden_ME.device)
        entropy_M = torch.full_like(logprobs_M, float("nan"))
        with torch.autocast(hidden_ME.device.type, enabled=False):
            for part in _parts(len(targets_M), chunk):
                log_p_CV = _log_softmax(hidden_ME[part], weight_VE, bias_V, temperature_M[part], dtype)
                logprobs_M[part] = log_p_CV.gather(1, targets_M[part, None]).squeeze(1)
                if has_entropy:
                    entropy_M[part] = -(log_p_CV.exp() * log_p_CV).nan_to_num_(0.0).sum(1)
        ctx.save_for_backward(hidden_ME, weight_VE, bias_V, targets_M, temperature_M, entropy_M)
        ctx.chunk, ctx.dtype, ctx.has_entropy = chunk, dtype, has_entropy
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_ME, weight_VE, bias_V, targets_M, temperature_M, entropy_M = ctx.saved_tensors
        grad_logprobs_M, grad_entropy_M = grads
        grad_hidden_ME = torch.empty_like(hidden_ME)
        grad_weight_VE = torch.zeros_like(weight_VE)
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        for part in _parts(len(targets_M), ctx.chunk):
            log_p_CV = _log_softmax(hidden_ME[part], weight_VE, bias_V, temperature_M[part], ctx.dtype)
            slope_C1 = grad_logprobs_M[part, None]
            if ctx.has_entropy:
                slope_C1 = slope_C1 + grad_entropy_M[part, None] * (log_p_CV + entropy_M[part, None])
            grad_CV = log_p_CV.exp_().mul_(slope_C1).neg_()
            grad_CV.scatter_add_(1, targets_M[part, None], grad_logprobs_M[part, None])
            grad_CV = grad_CV.div_(temperature_M[part, None]).to(ctx.dtype)
            grad_hidden_ME[part] = linear(grad_CV, weight_VE.to(ctx.dtype).T).to(hidden_ME.dtype)
            grad_weight_VE += linear(grad_CV.T, hidden_ME[part].to(ctx.dtype).T)
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(0)
        return grad_hidden_ME, grad_weight_VE, grad_bias_V, None, None, None, None, None


def _log_softmax(
    hidden_CE: torch.Tensor,
    weight_VE: torch.Tensor,
    bias_V: torch.Tensor | None,
    temperature_C: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    bias_V = None if bias_V is None else bias_V.to(dtype)
    logits_CV = linear(hidden_CE.to(dtype), weight_VE.to(dtype), bias_V).to(_score_dtype(weight_VE))
    return torch.log_softmax(logits_CV.div_(temperature_C[:, None]), dim=-1)


def _score_dtype(weight: torch.Tensor) -> torch.dtype:
    """The softmax never runs below float32, whatever the layers compute in."""
    return torch.promote_types(weight.dtype, torch.float32)


def _parts(total: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, total)) for start in range(0, total, chunk)]


def _document_lengths(document_N: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.unique_consecutive(document_N, return_counts=True)[1]
    return lengths


def _check_row(
    token_ids_N: torch.Tensor, document_N: torch.Tensor, temperature_N: torch.Tensor, needed_N: torch.Tensor | None
) -> None:
    arrays = {"token_ids": token_ids_N, "document": document_N, "temperature": temperature_N}
    if needed_N is not None:
        arrays["needed"] = needed_N
    for name, array in arrays.items():
        if array.ndim != 1 or array.shape != token_ids_N.shape or not len(array):
            raise ValueError(f"{name} has shape {tuple(array.shape)}, expected one row of {token_ids_N.numel()} tokens")
    if needed_N is not None and needed_N.dtype != torch.bool:
        raise ValueError(f"needed is {needed_N.dtype}, expected torch.bool")
    if bool((document_N[1:] < document_N[:-1]).any()):
        raise ValueError("document ids fall within the row, expected ascending ids, each one contiguous run")
    if bool(((temperature_N < 0) | ~torch.isfinite(temperature_N)).any()):
        raise ValueError(f"temperature is {temperature_N.min().item()} at its least, expected finite and >= 0")
