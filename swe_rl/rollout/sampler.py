"""Which task a group works on: a fixed function of the seed and the group's index.

Nothing is remembered between calls, so a producer that restarts, or fills a gap, gives a group the task it had before.
"""

import random
from collections.abc import Sequence

from swe_rl.errors import ConfigError


class Sampler:
    """Goes through all tasks in a shuffled order, in another order each time round."""

    def __init__(self, task_ids: Sequence[str], seed: int) -> None:
        """The order of `task_ids` plays no part. Raises ConfigError if there are none."""
        self._task_ids = sorted(set(task_ids))
        self._seed = seed
        if not self._task_ids:
            raise ConfigError("sampler: no tasks, expected at least one; check rollout.split and the service's tasks")
        self._round = -1
        self._order: list[str] = []

    def task(self, index: int) -> str:
        """The id of group `index`'s task."""
        round_, position = divmod(index, len(self._task_ids))
        if round_ != self._round:
            self._order = list(self._task_ids)
            random.Random(f"{self._seed}:{round_}").shuffle(self._order)
            self._round = round_
        return self._order[position]
