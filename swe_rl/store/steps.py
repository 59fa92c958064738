"""Which waiting groups make a step, and how many more the next steps need: the one rule of both loops.

Groups are known here by whether they carry a signal, in the order in which they are consumed. With back-fill a step has
`num_groups` groups that carry one, and those without that lie between; without it any `num_groups` groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.config.rollout import RolloutConfig

HasSignal = Callable[[Sequence[Any]], bool]
"""Of the rows, or the trajectories, of one group."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """A step is complete with `num_groups` groups that carry a signal, or with `max_extra` groups more than that.

    `has_signal` isn't asked while `max_extra` is 0.
    """

    num_groups: int
    max_extra: int = 0
    has_signal: HasSignal = bool

    def __post_init__(self) -> None:
        if self.num_groups < 1 or self.max_extra < 0:
            raise ValueError(f"step of {self.num_groups} groups and {self.max_extra} more, expected at least 1 and 0")

    @classmethod
    def of(cls, rollout: RolloutConfig, has_signal: HasSignal) -> "StepRule":
        return cls(rollout.groups_per_step, rollout.num_backfill, has_signal)

    @property
    def limit(self) -> int:
        """The most groups of a step."""
        return self.num_groups + self.max_extra

    def size(self, signals: Sequence[bool]) -> int | None:
        """How many groups, from the first on, are the next step; None if it isn't complete."""
        found = 0
        for number, signal in enumerate(signals[: self.limit], 1):
            found += signal
            if found == self.num_groups or number == self.limit:
                return number
        return None

    def num_missing(self, signals: Sequence[bool], num_steps: int) -> int:
        """How many groups more the next `num_steps` steps need at least: if all that come carry a signal."""
        for step in range(num_steps):
            size = self.size(signals)
            if size is None:
                missing = min(self.num_groups - sum(signals), self.limit - len(signals))
                return missing + (num_steps - step - 1) * self.num_groups
            signals = signals[size:]
        return 0
