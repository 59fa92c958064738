"""An exec's output over the engine's socket, from an engine that sends the first of it along with its answer's head."""

import asyncio
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

docker = pytest.importorskip("docker", reason="the package docker isn't installed")

from docker.models.containers import Container  # noqa: E402

from swe_rl.sandbox.base import SandboxSpec  # noqa: E402
from swe_rl.sandbox.docker_container import LiveContainer  # noqa: E402
from swe_rl.sandbox.docker_engine import Engine  # noqa: E402
from swe_rl.sandbox.docker_shell import ShellSandbox  # noqa: E402
from swe_rl.sandbox.docker_stream import ExecStream, open_exec, run_exec, split_frames  # noqa: E402

OUTPUT = [(1, b"first\n"), (2, b"error\n"), (1, b"x" * 300_000)]


def frame(stream: int, payload: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


class _Engine(socketserver.StreamRequestHandler):
    """Answers what the SDK asks for one exec; head and output leave in one piece."""

    output = OUTPUT

    def handle(self) -> None:
        while line := self.rfile.readline():
            length = 0
            while (header := self.rfile.readline().strip()) != b"":
                name, _, value = header.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            if b"/start" in line:
                head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
                self.wfile.write(head + b"".join(frame(*part) for part in self.output))
                self.go_on()
                return
            body = json.dumps({"Id": "e", "ExitCode": 3}).encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            self.wfile.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def go_on(self) -> None:
        """What comes later."""


class _EngineOfLateGreeting(_Engine):
    output = [(2, b"word 0 0 0 4 4\n")]  # noqa: RUF012

    def go_on(self) -> None:
        time.sleep(0.3)
        self.wfile.write(frame(1, b"7 12.5\n"))
        self.rfile.read()


@pytest.fixture
def handler() -> type[_Engine]:
    return _Engine


@pytest.fixture
def container(tmp_path: Path, handler: type[_Engine]) -> Iterator[Container]:
    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(tmp_path / "engine"), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = docker.DockerClient(base_url=f"unix://{tmp_path}/engine", version="1.41", timeout=20)
        yield Container(attrs={"Id": "c", "Name": "/c"}, client=client)
        client.close()
        server.shutdown()


def test_a_short_command_loses_no_output(container: Container) -> None:
    expected = b"".join(payload for _, payload in OUTPUT)
    for _ in range(20):
        assert run_exec(container, ("true",), "0:0", b"", 20.0) == (3, expected)


async def test_a_stream_loses_no_output(container: Container) -> None:
    heard: list[tuple[str, bytes]] = []
    ended = asyncio.Event()
    opened = await asyncio.to_thread(open_exec, container, ("true",), "0:0", {})
    ExecStream(opened, lambda name, chunk: heard.append((name, chunk)), ended.set)
    await asyncio.wait_for(ended.wait(), 20)
    assert heard == [("stdout", b"first\n"), ("stderr", b"error\n"), ("stdout", b"x" * 300_000)]


def test_frames_are_parted_wherever_the_bytes_are_cut() -> None:
    data = b"".join(frame(*part) for part in OUTPUT[:2])
    for cut in range(len(data)):
        first, held = split_frames(data[:cut])
        assert [*first, *split_frames(held + data[cut:])[0]] == [("stdout", b"first\n"), ("stderr", b"error\n")]


@pytest.mark.parametrize("handler", [_EngineOfLateGreeting])
async def test_a_shells_greeting_may_come_behind_its_error_stream(container: Container, tmp_path: Path) -> None:
    """The streams are pumped apart: of a command that has ended already, the one may be here before the other."""
    sandbox = ShellSandbox(LiveContainer(container), SandboxSpec(tmp_path, "python"), {}, Engine(), None, None)
    await sandbox.prepare()
    assert [shell.pid for shell in sandbox._shells] == [7]
