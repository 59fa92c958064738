"""One exec by the engine with its three streams over one socket, under asyncio.

The engine's framing (8 bytes: stream, three zeros, length) is taken apart here; what the bytes mean isn't known here.
Works over a Unix socket or plain TCP; what TLS needs isn't built.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docker.models.containers import Container

from swe_rl.errors import SandboxError, SandboxTimeoutError, SandboxUnavailableError
from swe_rl.sandbox.base import StreamName

_HEADER = 8
_CHUNK = 262_144
_NAMES: dict[int, StreamName] = {1: "stdout", 2: "stderr"}


@dataclass(frozen=True, slots=True)
class OpenedExec:
    """One exec that runs. `head`: the beginning of its output, which came with the head of the engine's answer."""

    container: Container
    exec_id: str
    socket: socket.socket
    head: bytes

    def frames(self, stdin: bytes, timeout_s: float) -> Iterator[tuple[StreamName, bytes]]:
        """Blocking: its whole output as it comes. Raises SandboxTimeoutError, SandboxError.

        The engine never ends an exec whose container dies in an unlucky moment, hence the time-out of each step.
        """
        with self.socket as opened:
            opened.settimeout(timeout_s)
            found, held = split_frames(self.head)
            try:
                opened.sendall(stdin)
                opened.shutdown(socket.SHUT_WR)
                yield from found
                while chunk := opened.recv(_CHUNK):
                    found, held = split_frames(held + chunk)
                    yield from found
            except TimeoutError as error:
                raise SandboxTimeoutError(f"container {self.container.name}: no end within {timeout_s:g} s") from error
            except OSError as error:
                raise SandboxError(f"container {self.container.name}: a command was cut off: {error}") from error

    def exit_code(self) -> int:
        """Blocking, once it has ended. Raises SandboxError where the engine doesn't know."""
        code = self.container.client.api.exec_inspect(self.exec_id)["ExitCode"]
        if code is None:
            name = self.container.name
            raise SandboxError(f"docker: container {name}: the engine lost a command; is it still running?")
        return int(code)


def run_exec(
    container: Container, argv: Sequence[str], user: str, stdin: bytes, timeout_s: float, is_privileged: bool = False
) -> tuple[int, bytes]:
    """Blocking: exit code and both output streams. Raises the SDK's errors, SandboxTimeoutError, SandboxError."""
    opened = open_exec(container, argv, user, {}, is_privileged)
    output = b"".join([payload for _, payload in opened.frames(stdin, timeout_s)])
    return opened.exit_code(), output


def open_exec(
    container: Container, argv: Sequence[str], user: str, env: Mapping[str, str], is_privileged: bool = False
) -> OpenedExec:
    """Blocking: starts `argv` in the container. Raises the SDK's errors, SandboxUnavailableError for TLS."""
    api = container.client.api
    created = api.exec_create(
        container.id,
        list(argv),
        stdin=True,
        stdout=True,
        stderr=True,
        user=user,
        environment=dict(env),
        workdir="/",
        privileged=is_privileged,
    )
    answer: Any = api.exec_start(created["Id"], socket=True)
    raw = getattr(answer, "_sock", answer)
    if isinstance(raw, ssl.SSLSocket):
        raise SandboxUnavailableError("docker: an engine behind TLS isn't supported; forward its socket by ssh")
    # The SDK gives the socket below the reader of its HTTP library, which may have read on into the output.
    raw.settimeout(0)
    head = answer._response.raw._fp.fp.peek() if hasattr(answer, "_response") else b""
    ours = socket.socket(fileno=os.dup(raw.fileno()))
    with contextlib.suppress(OSError):
        answer.close()
    ours.setblocking(False)
    return OpenedExec(container, created["Id"], ours, bytes(head))


class ExecStream:
    """Calls `on_data(stream, chunk)` as output comes, and `on_end` once when the exec has ended."""

    def __init__(
        self,
        opened: OpenedExec,
        on_data: Callable[[StreamName, bytes], object],
        on_end: Callable[[], object],
    ) -> None:
        self.on_data, self.on_end = on_data, on_end
        self._socket = opened.socket
        self._held = b""
        self._writing: asyncio.Task[None] | None = None
        self.is_open = True
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)
        if opened.head:
            asyncio.get_running_loop().call_soon(self._take, opened.head)

    def write_soon(self, data: bytes, is_last: bool = False) -> None:
        """In the background: a command needn't read all of its input. `is_last`: then the input ends."""
        if self.is_open:
            self._writing = asyncio.create_task(self._write(data, is_last))

    def close(self) -> None:
        """Safe to call twice."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            if self._writing is not None:
                self._writing.cancel()
            self._socket.close()

    async def _write(self, data: bytes, is_last: bool) -> None:
        with contextlib.suppress(OSError):  # an exec that has ended says so by the end of its output
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
            if is_last:
                self._socket.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            self.on_end()
            return
        self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        frames, self._held = split_frames(self._held + chunk)
        for name, payload in frames:
            self.on_data(name, payload)


def split_frames(data: bytes) -> tuple[list[tuple[StreamName, bytes]], bytes]:
    """The whole frames at the beginning, and the rest."""
    frames, begin = [], 0
    while len(data) - begin >= _HEADER:
        size = int.from_bytes(data[begin + 4 : begin + _HEADER], "big")
        if len(data) - begin < _HEADER + size:
            break
        name = _NAMES.get(data[begin])
        if name is not None:
            frames.append((name, data[begin + _HEADER : begin + _HEADER + size]))
        begin += _HEADER + size
    return frames, data[begin:]
