"""What the documents of a flat row are to each other, and so what each token sees and is scored from.

A document attends to itself. A *tail* also attends to the document that it continues, the last one before it that is
no tail: a prompt that several siblings share stands in the row once, their own parts behind it.

    documents     prompt  tail  tail  tail   whole   prompt  tail  tail
    is_tail          no   yes   yes   yes      no       no   yes   yes

Shapes: N tokens of the row, D documents.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Family(NamedTuple):
    """Lengths of a document and of the tails that continue it; a document that stands alone has none."""

    prefix: int
    tails: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """positions_N: place in the whole sequence, prefix included. previous_N: index of the token before in the
    sequence, meaningless where has_previous_N is False."""

    families: tuple[Family, ...]
    positions_N: Tensor
    previous_N: Tensor
    has_previous_N: Tensor


def read_layout(document_N: Tensor, is_tail_N: Tensor | None = None) -> Layout:
    """`document_N` ascends, each id one contiguous run; `is_tail_N` bool, None: none is a tail.

    Raises ValueError if the row begins with a tail, or a document is one in part.
    """
    lengths_D = torch.unique_consecutive(document_N, return_counts=True)[1]
    starts_D = torch.cumsum(lengths_D, 0) - lengths_D
    if is_tail_N is None:
        is_tail_N = torch.zeros_like(document_N, dtype=torch.bool)
    is_tail_D = is_tail_N[starts_D]
    if bool(is_tail_D[0]) or not torch.equal(torch.repeat_interleave(is_tail_D, lengths_D), is_tail_N):
        raise ValueError(
            "is_tail is true at the row's start or in a part of a document, expected whole later documents"
        )
    order_D = torch.arange(len(lengths_D), device=document_N.device)
    continued_D = torch.where(is_tail_D, 0, order_D).cummax(0).values
    before_D = torch.where(is_tail_D, lengths_D[continued_D], 0)
    order_N = torch.arange(len(document_N), device=document_N.device)
    positions_N = order_N - torch.repeat_interleave(starts_D - before_D, lengths_D)
    previous_N = order_N - 1
    previous_N[starts_D] = (starts_D + lengths_D)[continued_D] - 1
    return Layout(_families(lengths_D.tolist(), is_tail_D.tolist()), positions_N, previous_N, positions_N > 0)


def _families(lengths: list[int], is_tail: list[bool]) -> tuple[Family, ...]:
    firsts = [index for index, tail in enumerate(is_tail) if not tail]
    ends = [*firsts[1:], len(lengths)]
    return tuple(
        Family(lengths[first], tuple(lengths[first + 1 : end])) for first, end in zip(firsts, ends, strict=True)
    )
