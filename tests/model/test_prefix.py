"""Siblings behind one prefix score, and learn, exactly as each would alone with a prefix of its own."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from swe_rl.model import recompute_activations, token_scores
from swe_rl.model.layout import Family, read_layout
from swe_rl.model.policy_dir import keep_float64
from swe_rl.model.prefix_attention import masked_prefix_attention, prefix_attention

MakeModel = Callable[..., PreTrainedModel]
PREFIX, TAILS, ALONE = 9, (6, 1, 14), 5
EXACT = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


def _shared_row() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(token ids, document, is_tail): one whole document, a family, and another family of the same tokens."""
    lengths = torch.tensor([ALONE, PREFIX, *TAILS, PREFIX, *TAILS])
    tails = torch.tensor([False] + 2 * [False, True, True, True])
    ids = torch.randint(0, 97, (int(lengths.sum()),), generator=torch.Generator().manual_seed(4))
    family = PREFIX + sum(TAILS)
    ids[ALONE + family :] = ids[ALONE : ALONE + family]
    document = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return ids, document, torch.repeat_interleave(tails, lengths)


def _unshared(ids: torch.Tensor, document: torch.Tensor, is_tail: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(token ids, document, index in the shared row of every token) with each tail behind a copy of its prefix."""
    parts: list[torch.Tensor] = []
    prefix = torch.tensor([])
    for index in document.unique():
        own = (document == index).nonzero().squeeze(1)
        if is_tail[own[0]]:
            parts.append(torch.cat([prefix, own]))
        else:
            prefix = own
            if index == 0:
                parts.append(own)
    where = torch.cat(parts)
    lengths = torch.tensor([len(part) for part in parts])
    return ids[where], torch.repeat_interleave(torch.arange(len(parts)), lengths), where


@pytest.mark.parametrize(("dtype", "tolerance"), EXACT)
@pytest.mark.parametrize("is_recomputed", [False, True])
def test_a_shared_prefix_changes_neither_scores_nor_gradients(
    make_model: MakeModel, dtype: torch.dtype, tolerance: float, is_recomputed: bool
) -> None:
    model = make_model().to(dtype)
    if dtype == torch.float64:
        keep_float64(model)
    if is_recomputed:
        recompute_activations(model)
    ids, document, is_tail = _shared_row()
    alone_ids, alone_document, where = _unshared(ids, document, is_tail)
    needed = is_tail | (document == 0)
    weight = torch.randn(len(ids), generator=torch.Generator().manual_seed(5)).to(dtype)
    results = []
    for row_ids, row_document, row_is_tail, index in (
        (ids, document, is_tail, torch.arange(len(ids))),
        (alone_ids, alone_document, None, where),
    ):
        model.zero_grad()
        temperature = torch.full(row_ids.shape, 0.7)
        scores = token_scores(model, row_ids, row_document, temperature, 8, needed[index], is_tail_N=row_is_tail)
        torch.where(scores.logprobs.isnan(), 0.0, weight[index] * (scores.logprobs + scores.entropy)).sum().backward()
        found = torch.full(ids.shape, torch.nan, dtype=dtype)
        is_scored = ~scores.logprobs.isnan()
        found[index[is_scored]] = scores.logprobs.detach()[is_scored]
        results.append([found, *(parameter.grad.clone() for parameter in model.parameters())])
    assert int((~results[0][0].isnan()).sum()) == int(needed.sum()) - 1  # all tails, the document but its first token
    for ours, expected in zip(*results, strict=True):
        scale = float(expected.nan_to_num().abs().max())
        assert scale > 0
        torch.testing.assert_close(ours, expected, atol=tolerance * scale, rtol=0, equal_nan=True)


def test_siblings_do_not_see_each_other(make_model: MakeModel) -> None:
    model = make_model()
    ids, document, is_tail = _shared_row()
    other = ids.clone()
    other[document == 2] = (other[document == 2] + 1) % 97
    with torch.no_grad():
        first, second = (
            token_scores(model, row, document, torch.ones(len(ids)), 64, is_tail_N=is_tail).logprobs
            for row in (ids, other)
        )
    same = (document != 2) & ~first.isnan()
    assert torch.equal(first[same], second[same])
    assert not torch.allclose(first[document == 2], second[document == 2])


def _attention_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    sizes = (sum(TAILS), PREFIX, PREFIX, sum(TAILS), sum(TAILS))
    return [torch.randn(1, 3, n, 8, generator=generator, dtype=dtype).requires_grad_() for n in sizes]


@pytest.mark.parametrize(("dtype", "tolerance"), EXACT)
@pytest.mark.parametrize("attend", [prefix_attention, masked_prefix_attention])
def test_attention_over_prefix_and_self_is_the_softmax_over_both(
    attend: Callable[..., torch.Tensor], dtype: torch.dtype, tolerance: float
) -> None:
    inputs = _attention_inputs(dtype)
    query, key_prefix, value_prefix, key, value = inputs
    starts = [sum(TAILS[:i]) for i in range(len(TAILS))]
    plain = []
    for start, length in zip(starts, TAILS, strict=True):
        own = slice(start, start + length)
        scores = 0.4 * query[:, :, own] @ torch.cat([key_prefix, key[:, :, own]], 2).transpose(2, 3)
        future = torch.ones(length, PREFIX + length).triu(PREFIX + 1).bool()
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        plain.append(weights @ torch.cat([value_prefix, value[:, :, own]], 2))
    expected = torch.cat(plain, 2)
    out = attend(*inputs, TAILS, 0.4)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=0)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=dtype)
    ours, theirs = (torch.autograd.grad((weight * result).sum(), inputs) for result in (out, expected))
    for grad, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(grad, other, atol=10 * tolerance, rtol=0)


def test_under_autocast_it_computes_in_the_lower_type_and_stays_near() -> None:
    inputs = _attention_inputs(torch.float32)
    exact = prefix_attention(*inputs, TAILS, 0.4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = prefix_attention(*inputs, TAILS, 0.4)
    assert rough.dtype == torch.bfloat16
    assert F.l1_loss(rough.float(), exact) < 0.02


def test_a_tail_goes_on_where_its_prefix_ends() -> None:
    layout = read_layout(torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4]), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 0]).bool())
    assert layout.families == (Family(2, ()), Family(3, (1, 2)), Family(1, ()))
    assert layout.positions_N.tolist() == [0, 1, 0, 1, 2, 3, 3, 4, 0]
    assert layout.has_previous_N.tolist() == [False, True, False, True, True, True, True, True, False]
    assert layout.previous_N[layout.has_previous_N].tolist() == [0, 2, 3, 4, 4, 6]


@pytest.mark.parametrize("is_tail", [[1, 1, 0], [0, 0, 1]])
def test_a_row_that_begins_with_a_tail_or_a_document_that_is_one_in_part_is_refused(is_tail: list[int]) -> None:
    with pytest.raises(ValueError, match="expected whole later documents"):
        read_layout(torch.tensor([0, 1, 1]), torch.tensor(is_tail).bool())
