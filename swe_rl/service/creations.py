"""Idempotent creation: a key makes its sessions once, however often and from wherever the request is repeated."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import ConfigError
from swe_rl.service.session import Session


@dataclass(frozen=True, slots=True)
class _Creation:
    fingerprint: str
    task: "asyncio.Task[list[Session]]"


class Creations:
    """The keys of all owners. `is_alive` says whether a session lives; a key is free again when one of its ends."""

    def __init__(self, is_alive: Callable[[str], bool]) -> None:
        self._is_alive = is_alive
        self._by_key: dict[tuple[str, str], _Creation] = {}

    async def once(
        self,
        owner: str,
        key: str | None,
        fingerprint: str,
        make: Callable[[], Coroutine[Any, Any, "list[Session]"]],
    ) -> "list[Session]":
        """The sessions that `make` gives, now or at an earlier call with this key.

        A caller that goes away doesn't stop the making. Raises ConfigError where the key came with another
        `fingerprint`, i.e. another request, and whatever `make` raises.
        """
        if key is None:
            return await make()
        found = self._by_key.get((owner, key))
        if found is None or self._is_over(found):
            found = _Creation(fingerprint, asyncio.create_task(make()))
            self._by_key[owner, key] = found
            found.task.add_done_callback(lambda task: self._drop_failed(owner, key, task))
        if found.fingerprint != fingerprint:
            raise ConfigError(f"request: idempotency_key {key[:40]!r} was used with another request; use a new key")
        return await asyncio.shield(found.task)

    def purge(self) -> None:
        """Forgets keys whose sessions have ended."""
        for where, creation in list(self._by_key.items()):
            if self._is_over(creation):
                del self._by_key[where]

    def _is_over(self, creation: _Creation) -> bool:
        task = creation.task
        if not task.done():
            return False
        return task.cancelled() or task.exception() is not None or not all(
            self._is_alive(session.session_id) for session in task.result()
        )  # fmt: skip

    def _drop_failed(self, owner: str, key: str, task: "asyncio.Task[list[Session]]") -> None:
        found = self._by_key.get((owner, key))
        if found is not None and found.task is task and (task.cancelled() or task.exception() is not None):
            del self._by_key[owner, key]
