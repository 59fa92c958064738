"""Runs an app under uvicorn on an address that is known before the first call: the socket is bound first.

The first SIGTERM or SIGINT drains: no new sessions, those that live are served until they end or the deadline comes.
A second one is the deadline; a third ends the service whatever runs.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
from fastapi import FastAPI

from swe_rl.errors import ConfigError, SandboxUnavailableError
from swe_rl.service.service import Service

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 5


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # uvicorn's own would raise the signal again after the shutdown, and hide that it went well


class _Drain:
    """What a signal does to a server."""

    def __init__(self, server: _Server, service: Service, drain_s: float) -> None:
        self._server, self._service, self._drain_s = server, service, drain_s
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()

    def on_signal(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        elif not self._is_over.is_set():
            self._is_over.set()
        else:
            self._server.should_exit = True

    async def _drain(self) -> None:
        self._service.begin_drain()
        num_sessions = len(self._service.sessions)
        if num_sessions:
            logger.info("draining: %d sessions live; waiting up to %g s", num_sessions, self._drain_s)
        waiting = [asyncio.create_task(self._service.sessions.wait_empty(self._drain_s)),
                   asyncio.create_task(self._is_over.wait())]  # fmt: skip
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        # Before the server stops, so that calls in progress are still told how their session ended.
        await self._service.sessions.close_all()
        self._server.should_exit = True


async def serve(app: FastAPI, host: str, port: int, on_ready: Callable[[str], None], drain_s: float = 0.0) -> None:
    """Serves until SIGINT or SIGTERM; `on_ready` gets the URL. Raises ConfigError if the address can't be bound."""
    loop = asyncio.get_running_loop()
    with _bind(host, port) as bound:
        server = _Server(_config(app), lambda: on_ready(_url(bound)))
        drain = _Drain(server, app.state.service, drain_s)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, drain.on_signal)
        try:
            await server.serve([bound])
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        if not server.started:
            raise SandboxUnavailableError("sandbox service: ended while it was starting; its log says why")


@contextlib.asynccontextmanager
async def running(app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves in this event loop for the length of the block, which gets the URL; signals are left alone."""
    ready = asyncio.Event()
    with _bind(host, port) as bound:
        server = _Server(_config(app), ready.set)
        task = asyncio.create_task(server.serve([bound]))
        waiter = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.is_set():
                raise SandboxUnavailableError("sandbox service: ended while it was starting; its log says why")
            yield _url(bound)
        finally:
            waiter.cancel()
            server.should_exit = True
            await task


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        backlog=1024,
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that name their protocol: without it, an answer takes 40 ms more.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"sandbox service: {host}:{port} can't be bound: {error}; use port 0 for a free one"
        ) from error
    return bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
