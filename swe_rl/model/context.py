"""Ranks that work on one row together: each runs the layers on a part of its tokens and sees the keys of all.

A row of 2 C equal chunks is dealt so that each of C ranks has as much to attend to in a document as long as the row:
rank c has chunks c and 2 C - 1 - c. A row is padded to such a number of tokens.

    chunks of a row, C = 3    0  1  2  3  4  5
    rank that holds them      0  1  2  2  1  0

Shapes: N tokens of the padded row, n = N / C that a rank holds, K heads, D head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Context:
    """This process's place among the ranks of one row; every method that speaks of all must be called by all."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def num_padding(self, num_tokens: int) -> int:
        return -num_tokens % (2 * self.size) if self.size > 1 else 0

    def held(self, num_tokens: int) -> tuple[range, ...]:
        """This rank's tokens of a padded row, in the order in which the layers run on them."""
        if self.size == 1:
            return (range(num_tokens),)
        chunk = num_tokens // (2 * self.size)
        first, second = self.rank * chunk, (2 * self.size - 1 - self.rank) * chunk
        return range(first, first + chunk), range(second, second + chunk)

    def gather(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """[1, K, n, D] of each rank -> [1, K, N, D] of the row, differentiable: gradients are summed over the ranks."""
        if self.size == 1:
            return key, value
        gather: Any = _Gather
        both = torch.stack([key, value]).movedim(-2, 0)
        first, second = gather.apply(both, self).unflatten(1, (2, -1)).unbind(1)
        row = torch.cat([first.flatten(0, 1), second.flip(0).flatten(0, 1)]).movedim(0, -2)
        return row[0], row[1]

    def complete(self, values: Tensor, is_own: Tensor) -> Tensor:
        """Each rank's own values, which no other has, on all of them; the gradient stays with the rank that owns."""
        if self.size == 1:
            return values
        everyone = torch.where(is_own, values.detach(), 0.0)
        dist.all_reduce(everyone, group=self.group)
        return torch.where(is_own, values, everyone)


class _Gather(torch.autograd.Function):
    """[n, ...] of each rank -> [C, n, ...]; backward: the sum over ranks of what each has for this one."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, context: Context) -> Tensor:
        ctx.context = context
        everyone = part.new_empty(context.size, *part.shape)
        dist.all_gather(list(everyone.unbind()), part.contiguous(), group=context.group)
        return everyone

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        received = torch.empty_like(grads[0], memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, grads[0].contiguous(), group=ctx.context.group)
        return received.sum(0), None


ALONE = Context()
