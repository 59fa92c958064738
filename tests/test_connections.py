"""Many calls at once over small connection pools."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from swe_rl.connections import NUM_POOLS, SpreadTransport

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=60.0)


class Meeting:
    """A server that answers only when `expected` requests wait for their answers at the same time."""

    def __init__(self) -> None:
        self.expected, self.num_waiting, self.num_open = 1, 0, 0
        self.is_left = asyncio.Event()
        self._all_here = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.num_waiting += 1
                if self.num_waiting == self.expected:
                    self._all_here.set()
                await self._all_here.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.num_open -= 1
            if not self.num_open:
                self.is_left.set()
            writer.close()


@pytest.fixture
async def meeting() -> AsyncIterator[tuple[Meeting, str]]:
    meeting = Meeting()
    server = await asyncio.start_server(meeting.serve, "127.0.0.1", 0)
    yield meeting, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def call(transport: SpreadTransport, url: str) -> bytes:
    answer = await transport.handle_async_request(httpx.Request("GET", url))
    try:
        return await answer.aread()
    finally:
        await answer.aclose()


async def test_more_calls_than_pools_are_under_way_at_once(meeting: tuple[Meeting, str]) -> None:
    server, url = meeting
    server.expected = 3 * NUM_POOLS + 1
    transport = SpreadTransport(LIMITS)
    answers = await asyncio.wait_for(asyncio.gather(*(call(transport, url) for _ in range(server.expected))), 30)
    assert answers == [b"ok"] * server.expected
    await transport.aclose()
    await asyncio.wait_for(server.is_left.wait(), 30)


async def test_connections_are_used_again(meeting: tuple[Meeting, str]) -> None:
    server, url = meeting
    transport = SpreadTransport(LIMITS)
    for _ in range(3 * NUM_POOLS):
        assert await call(transport, url) == b"ok"
    assert server.num_open == NUM_POOLS
    await transport.aclose()


async def test_a_bound_on_connections_holds_for_all_pools_together(meeting: tuple[Meeting, str]) -> None:
    server, url = meeting
    server.expected = 2 * NUM_POOLS
    bounded = httpx.Limits(max_connections=NUM_POOLS, max_keepalive_connections=None, keepalive_expiry=60.0)
    transport = SpreadTransport(bounded)
    calls = [asyncio.create_task(call(transport, url)) for _ in range(server.expected)]
    await asyncio.sleep(1.0)
    assert server.num_waiting == NUM_POOLS
    for waiting in calls:
        waiting.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await transport.aclose()
