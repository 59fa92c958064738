"""Several engines, or one, as one: a session stays with its replica's cache, every replica serves every policy.

A session goes to the replica with the fewest sessions and stays there until it is released. A replica that doesn't
answer is left out for a while, and its sessions' requests go on elsewhere: token ids are the whole state, so nothing is
lost but a cache, and a request that failed gave no token. When all have failed each is asked once more, as an engine
may start its server again. One that missed a policy is left out until it has loaded one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from swe_rl.errors import EngineError, EngineUnavailableError
from swe_rl.inference.engine import Completion, Engine, SamplingParams

logger = logging.getLogger(__name__)

_ATTEMPTS = 2


class ReplicatedEngine:
    """Implements `Engine`. `rest_s`: how long a replica that didn't answer gets no request."""

    def __init__(self, replicas: Sequence[Engine], *, rest_s: float = 30.0) -> None:
        if not replicas:
            raise EngineError("replicas: there are none, expected at least 1")
        self._replicas = tuple(replicas)
        self._rest_s = rest_s
        self._home: dict[str, int] = {}
        self._rests_until = [0.0] * len(replicas)
        self._has_policy = [False] * len(replicas)

    async def load(self, policy_dir: Path, version: int) -> None:
        """On all replicas at once. A replica that fails gets no request until a load succeeds there.

        Raises PolicyError if one of them refuses the policy, and the first replica's error if all of them failed.
        """
        results = await asyncio.gather(
            *(replica.load(policy_dir, version) for replica in self._replicas), return_exceptions=True
        )
        for index, result in enumerate(results):
            if result is None:
                self._has_policy[index], self._rests_until[index] = True, 0.0
            elif isinstance(result, EngineError):
                self._has_policy[index] = False
                logger.warning("replica %d: can't serve version %d and is left out: %s", index, version, result)
        errors = [result for result in results if isinstance(result, BaseException)]
        refusals = [error for error in errors if not isinstance(error, EngineError)]
        if refusals:
            raise refusals[0]
        if not any(self._has_policy):
            raise errors[0]

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """As the replica's; raises EngineUnavailableError only when no replica answers."""
        tried: Counter[int] = Counter()
        while True:
            index = self._replica_of(session_id, tried)
            try:
                return await self._replicas[index].generate(session_id, token_ids, sampling)
            except EngineUnavailableError as error:
                tried[index] += 1
                self._rests_until[index] = asyncio.get_running_loop().time() + self._rest_s
                self._home.pop(session_id, None)
                logger.warning("replica %d doesn't answer session %s: %s", index, session_id, error)
                if all(tried[one] >= _ATTEMPTS for one in self._usable()):
                    raise EngineUnavailableError(
                        f"none of {len(self._replicas)} replicas answers; the last: {error}"
                    ) from error

    async def release(self, session_id: str) -> None:
        """On the replica that has the session; one that has none is not asked."""
        index = self._home.pop(session_id, None)
        if index is not None:
            await self._replicas[index].release(session_id)

    async def close(self) -> None:
        """Closes all, also if one can't be closed; then raises what it raised."""
        self._home.clear()
        results = await asyncio.gather(*(replica.close() for replica in self._replicas), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _usable(self) -> list[int]:
        return [index for index, has_policy in enumerate(self._has_policy) if has_policy]

    def _replica_of(self, session_id: str, tried: Counter[int]) -> int:
        """The session's own, or the one with the fewest sessions; one that was tried or rests only after the others."""
        now = asyncio.get_running_loop().time()
        home = self._home.get(session_id)
        if home is not None and self._has_policy[home] and self._rests_until[home] <= now:
            return home
        usable = self._usable()
        if not usable:
            raise EngineError(f"none of {len(self._replicas)} replicas has a policy; call load first")
        num_sessions = [0] * len(self._replicas)
        for other in self._home.values():
            num_sessions[other] += 1
        chosen = min(
            usable, key=lambda index: (tried[index], self._rests_until[index] > now, num_sessions[index], index)
        )
        self._home[session_id] = chosen
        return chosen
