"""The end that a group sets to the episodes it still waits for, so that a straggler doesn't hold it to its deadline.

Ends of a group's members flow in; the time limits of the turns of the others come nearer. What an episode does then is
the loop's business, and setting up a session is never cut short here: that isn't the policy's time.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager


class Cutoff:
    """One group's. Once the `quorum` share of its `size` members has ended, turns have `grace_s` left.

    The grace of an episode whose turns begin later than that begins with them.
    """

    def __init__(self, size: int, quorum: float, grace_s: float) -> None:
        self._num_awaited = max(1, math.ceil(quorum * size - 1e-9))  # 0.7 of 10 is 7, whatever its product is in binary
        self._grace_s = grace_s
        self._scopes: set[asyncio.Timeout] = set()

    def count_end(self) -> None:
        """One more member has ended for good."""
        self._num_awaited -= 1
        if self._num_awaited == 0:
            for scope in self._scopes:
                self._shorten(scope)

    @contextmanager
    def over(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Within the block `scope`, which is entered already, may be shortened; never lengthened."""
        self._scopes.add(scope)
        if self._num_awaited <= 0:
            self._shorten(scope)
        try:
            yield
        finally:
            self._scopes.discard(scope)

    def _shorten(self, scope: asyncio.Timeout) -> None:
        until = asyncio.get_running_loop().time() + self._grace_s
        before = scope.when()
        if not scope.expired() and (before is None or until < before):
            scope.reschedule(until)
