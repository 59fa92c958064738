"""Ranks that hold a part of a row each score it, and learn, as one that holds it all."""

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from swe_rl.model import Context
from swe_rl.model.layout import Family
from swe_rl.model.view import view_row

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 0.05}

PROGRAM = """
import copy, sys
import torch
from swe_rl.model import recompute_activations, token_scores
from swe_rl.model.policy_dir import keep_float64
from swe_rl.train.ranks import join_ranks, leave_ranks

context = join_ranks(int(sys.argv[1])).context
plain, rows = torch.load(sys.argv[2], weights_only=False)
results = {}
for name in ("float64", "float32", "bfloat16"):
    model = copy.deepcopy(plain).to(torch.float64 if name == "float64" else torch.float32)
    if name == "float64":
        keep_float64(model)
    compute = torch.bfloat16 if name == "bfloat16" else None
    seen = []
    model.base_model.layers[0].mlp.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    for is_recomputed in (False, True):
        if is_recomputed:
            recompute_activations(model)
        for index, row in enumerate(rows):
            model.zero_grad()
            seen.clear()
            ids, document, is_tail, temperature, needed, weight = row
            scores = token_scores(model, ids, document, temperature, 7, needed, compute, 40, is_tail, context)
            value = torch.where(needed & ~scores.logprobs.isnan(), weight * (scores.logprobs + scores.entropy), 0.0)
            value.sum().backward()
            results[name, is_recomputed, index] = {
                "scores": torch.stack(scores).detach(),
                "gradients": {n: p.grad.clone() for n, p in model.named_parameters()},
                "tokens": max(seen),
            }
torch.save(results, f"{sys.argv[3]}.{context.rank}")
leave_ranks()
"""

FAMILIES = {
    "one document": [Family(61, ())],
    "documents": [Family(n, ()) for n in (7, 1, 30, 2, 12)],
    "a shared prefix longer than a part": [Family(41, (6, 1, 14))],
    "tails longer than a part": [Family(3, ()), Family(9, (30, 25, 1)), Family(2, (5,))],
    "parts of one token": [Family(1, (1, 2))],
    "fewer tokens than ranks": [Family(1, ()), Family(1, ())],
}


def _row(families: list[Family], seed: int, is_silent: bool = False) -> tuple[torch.Tensor, ...]:
    """(token ids, document, is_tail, temperature, needed, weight)"""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([n for family in families for n in (family.prefix, *family.tails)])
    tails = torch.tensor([is_tail for family in families for is_tail in (False, *(True for _ in family.tails))])
    ids = torch.randint(0, 97, (int(lengths.sum()),), generator=generator)
    document = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    needed = (torch.rand(ids.shape, generator=generator) < 0.7) & (not is_silent)
    temperature = torch.tensor([0.7, 1.0, 1.3])[document % 3]
    weight = torch.randn(ids.shape, generator=generator)
    return ids, document, torch.repeat_interleave(tails, lengths), temperature, needed, weight


@pytest.fixture(scope="module")
def rows() -> list[tuple[torch.Tensor, ...]]:
    plain = [_row(families, seed) for seed, families in enumerate(FAMILIES.values())]
    return [*plain, _row(FAMILIES["documents"], 99, is_silent=True)]


@pytest.fixture(scope="module")
def results(
    rows: list[tuple[torch.Tensor, ...]],
    make_model: Callable[..., PreTrainedModel],
    torchrun: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, list[dict[Any, Any]]]:
    """Number of ranks -> what each of them has."""
    directory = tmp_path_factory.mktemp("context")
    torch.save((make_model(), rows), directory / "input")
    found = {}
    for size in (1, 2, 3):
        torchrun(size, PROGRAM, size, directory / "input", directory / f"of{size}")
        found[size] = [torch.load(Path(f"{directory}/of{size}.{rank}"), weights_only=False) for rank in range(size)]
    return found


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [2, 3])
def test_scores_and_summed_gradients_are_those_of_one_rank(
    results: dict[int, list[dict[Any, Any]]], rows: list[Any], dtype: str, size: int
) -> None:
    for is_recomputed in (False, True):
        for index in range(len(rows)):
            expected = results[1][0][dtype, is_recomputed, index]
            found = [of_rank[dtype, is_recomputed, index] for of_rank in results[size]]
            for one in found:
                torch.testing.assert_close(
                    one["scores"], expected["scores"], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True
                )
            atol = TOLERANCE[dtype] * max(float(gradient.abs().max()) for gradient in expected["gradients"].values())
            for name, gradient in expected["gradients"].items():
                total = sum(one["gradients"][name] for one in found)
                torch.testing.assert_close(total, gradient, atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_have_the_same_scores_bit_by_bit(results: dict[int, list[dict[Any, Any]]], size: int) -> None:
    """Each masks the whole row by itself: a difference of a bit could keep a token on one and mask it on another."""
    first, *others = results[size]
    for case, one in first.items():
        for other in others:
            assert torch.equal(other[case]["scores"].nan_to_num(9.0), one["scores"].nan_to_num(9.0))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_layers_of_a_rank_run_on_its_part_of_the_tokens(
    results: dict[int, list[dict[Any, Any]]], rows: list[Any], size: int
) -> None:
    for of_rank in results[size]:
        for (_, _, index), one in of_rank.items():
            num_tokens = len(rows[index][0])
            expected = num_tokens if size == 1 else 2 * -(-num_tokens // (2 * size))
            assert one["tokens"] == expected


def test_a_part_is_silent_in_some_row_and_something_is_learned_in_others(
    results: dict[int, list[dict[Any, Any]]], rows: list[Any]
) -> None:
    norms = [
        sum(float(g.abs().sum()) for g in results[1][0]["float64", False, index]["gradients"].values())
        for index in range(len(rows))
    ]
    assert norms[-1] == 0.0
    assert all(norm > 0 for norm in norms[:5])


def _seen(families: list[Family]) -> Iterator[set[int]]:
    """For each token of the row the tokens that it sees, from what a family is."""
    start = 0
    for prefix, tails in families:
        yield from ({*range(start, start + i + 1)} for i in range(prefix))
        for first, end in pairwise(accumulate(tails, initial=start + prefix)):
            yield from ({*range(start, start + prefix), *range(first, i + 1)} for i in range(first, end))
        start += prefix + sum(tails)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.lists(st.integers(1, 9), max_size=4)), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_each_token_is_held_once_and_sees_what_its_family_says(
    drawn: list[tuple[int, list[int]]], num_ranks: int
) -> None:
    families = [Family(prefix, tuple(tails)) for prefix, tails in drawn]
    expected = list(_seen(families))
    found: dict[int, set[int]] = {}
    for rank in range(num_ranks):
        view = view_row(families, Context(rank, num_ranks))
        assert [t for held in view.held for t in held] == [t for span in view.spans for t in span.own]
        row = torch.arange(view.num_tokens)[None, None, :, None]
        pieces = view.split(row)
        for span in view.spans:
            before = set(view.join(pieces, span.seen).flatten().tolist()) if span.seen else set()
            assert view.join(pieces, [span.own]).flatten().tolist() == list(span.own)
            for first, end in pairwise(accumulate(span.lengths, initial=span.start)):
                for token in range(first, end):
                    assert token not in found
                    found[token] = before | set(range(first, token + 1))
        assert view.longest == max(prefix + max(tails, default=0) for prefix, tails in families)
    assert [found[token] for token in range(len(expected))] == expected


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_the_ranks_of_a_long_document_have_equally_many_keys_to_attend_to(num_ranks: int) -> None:
    views = [view_row([Family(48 * num_ranks, ())], Context(rank, num_ranks)) for rank in range(num_ranks)]
    assert len({sum(t + 1 for held in view.held for t in held) for view in views}) == 1
