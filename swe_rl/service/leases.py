"""Leases of owners: whoever makes sessions renews one lease; when it ends, all that was made under it ends, too.

A rollout worker that dies so frees everything within its lease's time, whatever each session's own lifetime says.
"""

import time
from dataclasses import dataclass
from uuid import uuid4

from swe_rl.errors import CapacityError, ResourceNotFoundError

MAX_LEASES = 4096


@dataclass(slots=True)
class Lease:
    """One owner's promise to call again within `ttl_s`."""

    lease_id: str
    owner: str
    ttl_s: float
    expires_at: float

    @property
    def expires_in_s(self) -> float:
        return max(0.0, self.expires_at - time.monotonic())


class Leases:
    """All leases that run."""

    def __init__(self) -> None:
        self._live: dict[str, Lease] = {}

    def create(self, owner: str, ttl_s: float) -> Lease:
        """Raises CapacityError where there are too many."""
        if len(self._live) >= MAX_LEASES:
            raise CapacityError(f"sandbox service: all {MAX_LEASES} leases are in use; end some, or try again later")
        lease = Lease(f"l-{uuid4().hex}", owner, ttl_s, time.monotonic() + ttl_s)
        self._live[lease.lease_id] = lease
        return lease

    def find(self, lease_id: str, owner: str) -> Lease:
        """Raises ResourceNotFoundError for one that has ended, or is another's."""
        lease = self._live.get(lease_id)
        if lease is None or lease.owner != owner or time.monotonic() >= lease.expires_at:
            raise ResourceNotFoundError(f"lease {lease_id!r}: has ended or never was; make a new one")
        return lease

    def is_live(self, lease_id: str) -> bool:
        return lease_id in self._live

    def renew(self, lease_id: str, owner: str) -> Lease:
        lease = self.find(lease_id, owner)
        lease.expires_at = time.monotonic() + lease.ttl_s
        return lease

    def select(self, owner: str) -> list[Lease]:
        return [lease for lease in self._live.values() if lease.owner == owner]

    def end(self, lease_id: str) -> None:
        """Safe to call twice."""
        self._live.pop(lease_id, None)

    def take_expired(self) -> list[Lease]:
        """Ends what has expired, and returns it."""
        now = time.monotonic()
        expired = [lease for lease in self._live.values() if now >= lease.expires_at]
        for lease in expired:
            self.end(lease.lease_id)
        return expired
