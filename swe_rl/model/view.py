"""What the tokens that a rank holds of a row see of it, as attention reads it.

A *span* is consecutive held tokens that all see the same earlier keys in full, and each the keys of its own piece up to
itself. A document is a span that sees nothing before it; the tails of a prompt are one span of many pieces that sees
the prompt; the part of a document that a rank holds is a span that sees the part before.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from swe_rl.model.context import Context
from swe_rl.model.layout import Family


class Span(NamedTuple):
    """`seen`: ranges of the row; `start`: where the span begins in it; `lengths`: of its pieces, end to end."""

    seen: tuple[range, ...]
    start: int
    lengths: tuple[int, ...]

    @property
    def own(self) -> range:
        return range(self.start, self.start + sum(self.lengths))


@dataclass(frozen=True, slots=True)
class View:
    """Of a row of `num_tokens`, padding included. `held`: this rank's tokens; `spans`: the same, by what they see.

    `cuts`: where the row is split, so that every range is whole pieces; `longest`: tokens of its longest sequence.
    """

    num_tokens: int
    held: tuple[range, ...]
    spans: tuple[Span, ...]
    cuts: tuple[int, ...]
    longest: int
    context: Context

    def split(self, heads: Tensor) -> list[Tensor]:
        """[1, heads, tokens of the row, D] -> the pieces between cuts: their gradients are as small as they are."""
        return list(torch.split(heads, [b - a for a, b in pairwise(self.cuts)], dim=2))

    def join(self, pieces: Sequence[Tensor], ranges: Sequence[range]) -> Tensor:
        """The tokens of `ranges`, end to end."""
        cuts = self.cuts
        chosen = [p for r in ranges for p in pieces[bisect_left(cuts, r.start) : bisect_left(cuts, r.stop)]]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=2)


def view_row(families: Sequence[Family], context: Context) -> View:
    """Of the row that consists of `families`; padding is one more."""
    longest = max(family.prefix + max(family.tails, default=0) for family in families)
    num_tokens = sum(family.prefix + sum(family.tails) for family in families)
    if padding := context.num_padding(num_tokens):
        families = [*families, Family(padding, ())]
    held = context.held(num_tokens + padding)
    spans = tuple(span for part in held for span in _spans(families, part))
    ranges = [r for span in spans for r in (*span.seen, span.own)]
    cuts = {0, num_tokens + padding, *(r.start for r in ranges), *(r.stop for r in ranges)}
    return View(num_tokens + padding, held, spans, tuple(sorted(cuts)), longest, context)


def _spans(families: Sequence[Family], held: range) -> Iterator[Span]:
    start = 0
    for family in families:
        prefix = range(start, start + family.prefix)
        yield from _cut((), prefix.start, (family.prefix,), held)
        yield from _cut((prefix,), prefix.stop, family.tails, held)
        start = prefix.stop + sum(family.tails)


def _cut(seen: tuple[range, ...], start: int, lengths: Sequence[int], held: range) -> Iterator[Span]:
    """The held part of pieces that see `seen`: one span, before it another if its first piece has lost its begin."""
    pieces = [(a, max(a, held.start), min(b, held.stop)) for a, b in pairwise(accumulate(lengths, initial=start))]
    inside = [piece for piece in pieces if piece[1] < piece[2]]
    if inside and inside[0][0] < inside[0][1]:
        whole, first, stop = inside.pop(0)
        yield Span((*seen, range(whole, first)), first, (stop - first,))
    if inside:
        yield Span(seen, inside[0][1], tuple(stop - first for _, first, stop in inside))
