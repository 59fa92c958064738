"""Connections for many calls at once: small pools in turn.

httpx looks at every connection of a pool at each request and again at its end, with a system call for each, so that a
hundred calls at once in one pool cost more than all else that a rollout does.
"""

from itertools import cycle

import httpx

NUM_POOLS = 32


class SpreadTransport(httpx.AsyncBaseTransport):
    """`limits` are those of all pools together."""

    def __init__(self, limits: httpx.Limits) -> None:
        context = httpx.create_ssl_context(trust_env=False)
        self._pools = [
            httpx.AsyncHTTPTransport(verify=context, limits=_share(limits), trust_env=False) for _ in range(NUM_POOLS)
        ]
        self._turns = cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._turns).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


def _share(limits: httpx.Limits) -> httpx.Limits:
    """What one pool may have."""
    most, kept = (
        None if number is None else max(1, number // NUM_POOLS)
        for number in (limits.max_connections, limits.max_keepalive_connections)
    )
    return httpx.Limits(max_connections=most, max_keepalive_connections=kept, keepalive_expiry=limits.keepalive_expiry)
