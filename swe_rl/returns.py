"""What an episode is worth to training, and which groups can train at all: one rule for the worker and the trainer.

The facts of episodes go in: trajectories, or their rows in the store. The worker fills steps by `has_signal`, the
trainer makes advantages of `value`, so that both mean the same groups. Stored rewards are never changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swe_rl.config import AdvantageKind, Config
from swe_rl.trajectory import StopReason


class Episode(Protocol):
    """The facts that matter here."""

    @property
    def reward(self) -> float | None: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def num_turns(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sampled(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ReturnRule:
    """From facts to returns, by the keys of `[train]` that have these names.

        R       = reward * discount^(turns - 1) [* unsubmitted, without a submission]
        penalty = overlong_penalty * min(1, max(0, tokens - (max_context - overlong_buffer)) / overlong_buffer)

    The penalty is DAPO's soft overlong punishment (arXiv 2503.14476), for the length of a whole episode. An episode
    that ended in one of the ways `overlong` doesn't train, but counts in its group's mean (DAPO's filtering).
    """

    advantage: AdvantageKind = "group_mean"
    discount: float = 1.0
    unsubmitted: float = 1.0
    overlong: tuple[str, ...] = ()
    overlong_penalty: float = 0.0
    overlong_buffer: int = 1
    max_context: int = 1

    @classmethod
    def of(cls, config: Config) -> "ReturnRule":
        train = config.train
        return cls(
            train.advantage,
            train.discount,
            train.unsubmitted,
            tuple(train.overlong),
            train.overlong_penalty,
            train.overlong_buffer,
            config.engine.max_context,
        )

    def value(self, episode: Episode) -> float | None:
        """R, None where there is no reward."""
        if episode.reward is None:
            return None
        factor = 1.0 if episode.stop_reason == StopReason.SUBMITTED else self.unsubmitted
        return factor * episode.reward * self.discount ** max(0, episode.num_turns - 1)

    def penalty(self, episode: Episode) -> float:
        """What an episode's length costs, 0 up to the buffer."""
        excess = episode.num_tokens - (self.max_context - self.overlong_buffer)
        return self.overlong_penalty * min(1.0, max(0.0, excess / self.overlong_buffer))

    def is_overlong(self, episode: Episode) -> bool:
        return episode.stop_reason in self.overlong

    def trains(self, episode: Episode) -> bool:
        """Whether it could move the policy, whatever its group is like."""
        return episode.reward is not None and episode.num_sampled > 0 and not self.is_overlong(episode)

    def has_signal(self, group: Sequence[Episode]) -> bool:
        """Whether some member of the group has an advantage: see `has_variance`."""
        values = [self.value(episode) for episode in group]
        if self.advantage == "rejection":
            return any(self.trains(e) and v is not None and v > 0 for e, v in zip(group, values, strict=True))
        return any(map(self.trains, group)) and self.has_variance(group, values)

    def has_variance(self, group: Sequence[Episode], values: Sequence[float | None]) -> bool:
        """Whether the returns differ, with penalties and without: length alone is no signal."""
        known = [(v, v - self.penalty(e)) for e, v in zip(group, values, strict=True) if v is not None]
        return all(len(set(column)) > 1 for column in zip(*known, strict=True)) if known else False
