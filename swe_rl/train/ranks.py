"""The processes that train one policy together, as `torchrun` starts them; a process that is alone is a rank of one.

Who has which microbatches, sums over all ranks, and values that one rank makes for all. No weights here.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place. Every method that speaks of all ranks must be called by all of them, in one order."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, items: Sequence[T], padding: Callable[[T], T]) -> list[T]:
        """This rank's share of `items`, the same number on each rank: `padding(item)` fills up the shorter ones."""
        mine = list(items[self.rank :: self.size])
        num_each = -(-len(items) // self.size)
        return mine + [padding(items[0])] * (num_each - len(mine))

    def sum(self, *values: float) -> list[float]:
        """Each value's sum over all ranks."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def gather(self, part: T) -> list[T]:
        """Every rank's part, in the order of ranks."""
        if self.size == 1:
            return [part]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part)
        return parts

    def share(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on all ranks; what it raises, all raise."""
        if self.size == 1:
            return make()
        made: list[Any] = [None, None]
        if self.is_first:
            try:
                made[0] = make()
            except Exception as error:  # handed on: the others wait for this very call
                made[1] = error
        dist.broadcast_object_list(made, src=0)
        if made[1] is not None:
            raise made[1]
        result: T = made[0]
        return result


def join_ranks() -> Ranks:
    """The rank that `torchrun` gave this process by its environment variables; joins the group on the first call."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if has_gpu else "gloo")
    return Ranks(int(os.environ.get("RANK", "0")), size, device)


def leave_ranks() -> None:
    """Call it last: with other ranks about, this process ends here, with status 0; a rank that is alone goes on.

    The group's threads outlive the group (torch 2.13) and let go of tensors for a moment after the last collective. One
    that does so while Python is going down aborts the process, so Python isn't taken down.
    """
    if dist.is_initialized():
        dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
