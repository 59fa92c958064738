"""Log-probabilities of given tokens under a model, without ever holding [N, vocab] logits.

    flat packed row -> hidden states (see `layout`) -> scores of the needed positions, in tiles of the logits

The only place that shifts: the score of token t comes from the hidden state at t - 1 and lands at t.

Shapes: N tokens of the packed row, n that this rank holds, M positions that it scores, E hidden size.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from swe_rl.model.attention import use_packed_attention
from swe_rl.model.context import ALONE, Context
from swe_rl.model.layout import Layout, read_layout
from swe_rl.model.linear import onednn_linears
from swe_rl.model.routing import Routing, use_routing
from swe_rl.model.scores import ChunkedScores, Tile, score_dtype
from swe_rl.model.view import view_row

VOCAB_CHUNK = 2048


class TokenScores(NamedTuple):
    """[N] each, aligned to the token described; float64 for a float64 model, else float32; NaN where not computed.
    Entropy is that of the distribution (after temperature) the token was drawn from, in nats; router_agreement that of
    the token before, out of which it was drawn: see `Routing.agreement`."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    router_agreement: torch.Tensor


def token_logprobs(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    document_N: torch.Tensor,
    temperature_N: torch.Tensor,
    chunk: int,
    needed_N: torch.Tensor | None = None,
    compute_dtype: torch.dtype | None = None,
    vocab_chunk: int = VOCAB_CHUNK,
    is_tail_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """[N]: log p(token t | earlier tokens of its document) after temperature; see `token_scores`."""
    return token_scores(
        model, token_ids_N, document_N, temperature_N, chunk, needed_N, compute_dtype, vocab_chunk, is_tail_N
    ).logprobs


def token_scores(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    document_N: torch.Tensor,
    temperature_N: torch.Tensor,
    chunk: int,
    needed_N: torch.Tensor | None = None,
    compute_dtype: torch.dtype | None = None,
    vocab_chunk: int = VOCAB_CHUNK,
    is_tail_N: torch.Tensor | None = None,
    context: Context = ALONE,
    routing: Routing | None = None,
) -> TokenScores:
    """Scores one flat row of documents; differentiable in the model's weights.

    token_ids int64 [N]; document int64 [N], ascending ids, each a contiguous run; temperature float [N], where 0
    (greedy) counts as 1, as the engines report it; needed bool [N]: score these only (None: all); is_tail bool [N]: see
    `layout`. A sequence's first token is NaN. `chunk` positions by `vocab_chunk` words: the logits that exist at once.
    `compute_dtype` (e.g. bfloat16) runs the layers under autocast while weights and the softmax stay as they are.
    The ranks of `context` call it with the same row and have all scores; each has the gradient of its own tokens' part.
    `routing`: the row's recorded experts. Raises ValueError for arrays that contradict, TrajectoryError for experts of
    another model.
    """
    flags = {"needed": needed_N, "is_tail": is_tail_N}
    _check_row(token_ids_N, document_N, temperature_N, {name: f for name, f in flags.items() if f is not None})
    if chunk < 1 or vocab_chunk < 1:
        raise ValueError(f"chunk is {chunk} positions by {vocab_chunk} words, expected at least 1 of each")
    layout = read_layout(document_N, is_tail_N)
    scored_N = layout.has_previous_N if needed_N is None else layout.has_previous_N & needed_N
    hidden_nE, place_N, agreement_n = _hidden_states(model, token_ids_N, layout, compute_dtype, context, routing)
    place_N = place_N[layout.previous_N]  # the rank that has a token's predecessor scores it
    is_own_N = scored_N & (place_N >= 0)
    positions_M = is_own_N.nonzero().squeeze(1)
    head: Any = model.lm_head
    blank_N = torch.zeros(token_ids_N.shape, dtype=score_dtype(head.weight), device=token_ids_N.device)
    scores: Any = ChunkedScores
    temperature_M = temperature_N[positions_M].to(blank_N.dtype)
    scores_2M = scores.apply(
        hidden_nE[place_N[positions_M]],
        head.weight,
        head.bias,
        token_ids_N[positions_M],
        torch.where(temperature_M == 0, 1.0, temperature_M),
        Tile(chunk, vocab_chunk),
        compute_dtype or head.weight.dtype,
    )
    values_M = (
        [*scores_2M] if agreement_n is None else [*scores_2M, agreement_n[place_N[positions_M]].to(blank_N.dtype)]
    )
    everyone_N = [context.complete(blank_N.index_put((positions_M,), one_M), is_own_N) for one_M in values_M]
    unknown_N = [] if routing is not None else [torch.full_like(blank_N, torch.nan)]
    return TokenScores(*(torch.where(scored_N, one_N, torch.nan) for one_N in everyone_N), *unknown_N)


def recompute_activations(model: PreTrainedModel) -> None:
    """From now on each layer's activations are computed anew in the backward pass: less memory, a forward more.

    transformers does so in training mode only; dropout has to be 0 for log-probabilities to repeat.
    """
    model.gradient_checkpointing_enable(
        {"use_reentrant": False, "context_fn": lambda: (contextlib.nullcontext(), onednn_linears())}
    )
    model.train()


def _hidden_states(
    model: PreTrainedModel,
    token_ids_N: torch.Tensor,
    layout: Layout,
    compute_dtype: torch.dtype | None,
    context: Context,
    routing: Routing | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """([n, E] of the held tokens, int64 [N]: which of them each of the row is, -1 of one that another rank holds,
    [n]: how far their routers agree with the recorded experts)."""
    use_packed_attention(model)
    device = token_ids_N.device
    view = view_row(layout.families, context)
    held_n = torch.cat([torch.arange(part.start, part.stop, device=device) for part in view.held])
    place_N = torch.full((view.num_tokens,), -1, device=device)
    place_N[held_n] = torch.arange(len(held_n), device=device)
    padding = (0, view.num_tokens - len(token_ids_N))
    ids_n, positions_n = (F.pad(array_N, padding)[held_n] for array_N in (token_ids_N, layout.positions_N))
    held_routing = None if routing is None else routing.held(held_n, view.num_tokens)
    if held_routing is not None:
        use_routing(model, held_routing)
    autocast = torch.autocast(device.type, dtype=compute_dtype, enabled=compute_dtype is not None)
    with autocast, onednn_linears():
        output = model.base_model(
            input_ids=ids_n[None],
            position_ids=positions_n[None],
            # a ready four-dimensional mask keeps transformers from building its own [N, N]; ours is never read
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device),
            use_cache=False,
            view=view,
            **({} if held_routing is None else {"routing": held_routing}),
        )
    hidden_nE: torch.Tensor = output.last_hidden_state[0]
    return hidden_nE, place_N, None if held_routing is None else held_routing.agreement()


def _check_row(
    token_ids_N: torch.Tensor, document_N: torch.Tensor, temperature_N: torch.Tensor, flags: Mapping[str, torch.Tensor]
) -> None:
    arrays = {"token_ids": token_ids_N, "document": document_N, "temperature": temperature_N, **flags}
    for name, array in arrays.items():
        if array.ndim != 1 or array.shape != token_ids_N.shape or not len(array):
            raise ValueError(f"{name} has shape {tuple(array.shape)}, expected one row of {token_ids_N.numel()} tokens")
        if name in flags and array.dtype != torch.bool:
            raise ValueError(f"{name} is {array.dtype}, expected torch.bool")
    if bool((document_N[1:] < document_N[:-1]).any()):
        raise ValueError("document ids fall within the row, expected ascending ids, each one contiguous run")
    if bool(((temperature_N < 0) | ~torch.isfinite(temperature_N)).any()):
        raise ValueError(f"temperature is {temperature_N.min().item()} at its least, expected finite and >= 0")
