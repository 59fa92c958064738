"""The processes that train one policy together, as `torchrun` starts them; a process that is alone is a rank of one.

Who has which microbatches, sums over all ranks, and values that one rank makes for all. No weights here. Ranks that lie
side by side may work on one microbatch together, as the context that they are (`swe_rl.model.context`):

    4 ranks, context_ranks = 2    rank           0  1  2  3
                                  microbatches   a  a  b  b
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from swe_rl.errors import ConfigError
from swe_rl.model import ALONE, Context

T = TypeVar("T")

# The others wait in a collective while the first rank waits for rollouts; torchrun ends them all if one dies.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place. Every method that speaks of all ranks must be called by all of them, in one order."""

    rank: int
    size: int
    device: torch.device
    context: Context = ALONE

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, items: Sequence[T], padding: Callable[[T], T]) -> list[T]:
        """Its context's share of `items`, the same number on each rank: `padding(item)` fills up the shorter ones."""
        num_contexts = self.size // self.context.size
        mine = list(items[self.rank // self.context.size :: num_contexts])
        num_each = -(-len(items) // num_contexts)
        return mine + [padding(items[0])] * (num_each - len(mine))

    def sum(self, *values: float) -> list[float]:
        """Each value's sum over all contexts, whose ranks have it all alike."""
        if self.size == 1:
            return list(values)
        counted = values if self.context.rank == 0 else [0.0] * len(values)
        total = torch.tensor(counted, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def gather(self, part: T) -> list[T]:
        """Every context's part, whose ranks have it all alike, in the order of ranks."""
        if self.size == 1:
            return [part]
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part if self.context.rank == 0 else None)
        return parts[:: self.context.size]

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


def join_ranks(context_ranks: int = 1) -> Ranks:
    """The rank that `torchrun` gave this process by its environment variables; joins the group on the first call.

    So many neighbours are a context. Raises ConfigError if there are ranks left over.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size % context_ranks:
        raise ConfigError(
            f"train.context_ranks is {context_ranks}, expected a divisor of the number of ranks, which is {size}; "
            "set train.num_ranks, or torchrun's --nproc-per-node, to a multiple of it"
        )
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if has_gpu else "gloo", timeout=_PATIENCE)
    if context_ranks == 1:
        return Ranks(rank, size, device)
    divide: Any = dist.new_subgroups  # torch leaves it untyped
    return Ranks(rank, size, device, Context(rank % context_ranks, context_ranks, divide(context_ranks)[0]))


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
