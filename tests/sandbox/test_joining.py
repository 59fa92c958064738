"""Commands that join a live session: races with its end, faults of what stands beside it, and nothing left over."""

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.errors import SandboxError, SandboxUnavailableError
from swe_rl.sandbox import cgroup
from swe_rl.sandbox.base import Command, CommandResult, Limits, Sandbox, SandboxSpec
from swe_rl.sandbox.bubblewrap import BubblewrapBackend
from swe_rl.sandbox.bubblewrap_sandbox import BubblewrapSandbox
from swe_rl.sandbox.cgroup import Entrance
from swe_rl.sandbox.joining import Descriptors
from swe_rl.sandbox.running import RunningCommand
from swe_rl.task.language import LanguageSpec

Run = Callable[..., Awaitable[CommandResult]]
IsAlive = Callable[[str], bool]


@pytest.fixture
async def opened(languages: dict[str, LanguageSpec], tmp_path: Path) -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend(languages, tmp_path / "scratch")
    try:
        await backend.check()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    yield backend
    await backend.close()


@pytest.fixture
async def session(opened: BubblewrapBackend, repository: Path) -> BubblewrapSandbox:
    return await opened.create(SandboxSpec(repository, "python", Limits(memory_mb=256, num_pids=48)))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    return {int(pid) for task in os.listdir("/proc/self/task") for pid in _children(task)}


def _children(task: str) -> list[str]:
    return Path(f"/proc/self/task/{task}/children").read_text().split()


async def test_commands_use_up_no_descriptor_and_leave_no_process(session: BubblewrapSandbox) -> None:
    await session.run(Command(("true",)))
    before, beside = descriptors(), children()
    for _ in range(20):
        await session.run(Command(("bash", "-c", "echo x; echo y >&2"), stdin=b"in"))
    await asyncio.gather(*(session.run(Command(("echo", str(n)))) for n in range(10)))
    await session.run(Command(("sleep", "60"), timeout_s=0.2))
    for _ in range(100):
        if descriptors() <= before:
            break
        await asyncio.sleep(0.02)
    assert descriptors() <= before
    assert children() == beside


@pytest.fixture
def ignored_signals() -> Iterator[None]:
    """All that a process may ignore, also the two that the C library hides."""
    sigaction = {"x86_64": 13, "aarch64": 134}[os.uname().machine]
    libc = ctypes.CDLL(None)
    before = {}
    for number in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGALRM}:
        before[number] = ctypes.create_string_buffer(64)
        ignore = (ctypes.c_uint64 * 8)(int(signal.SIG_IGN))
        assert libc.syscall(sigaction, number, ignore, before[number], 8) == 0
    yield
    for number, action in before.items():
        libc.syscall(sigaction, number, action, None, 8)


async def test_a_command_ignores_no_signal_whatever_whoever_started_the_service_ignores(
    ignored_signals: None, session: BubblewrapSandbox
) -> None:
    status = (await session.run(Command(("cat", "/proc/self/status")))).stdout.decode()
    seen = dict(line.split(":\t", 1) for line in status.splitlines())
    assert int(seen["SigIgn"], 16) == int(seen["SigBlk"], 16) == 0


async def test_sessions_use_up_no_descriptor(opened: BubblewrapBackend, repository: Path) -> None:
    async def one() -> None:
        sandbox = await opened.create(SandboxSpec(repository, "python"))
        await sandbox.run(Command(("bash", "-c", "sleep 900 & echo x")))
        await sandbox.close()

    await one()
    before = descriptors()
    await asyncio.gather(*(one() for _ in range(8)))
    assert descriptors() <= before


async def test_a_session_without_its_first_process_is_lost_and_says_so(session: BubblewrapSandbox) -> None:
    running = asyncio.create_task(session.run(Command(("sleep", "900"))))
    await session.run(Command(("true",)))
    assert session._holder is not None
    signal.pidfd_send_signal(session._holder.pidfd, signal.SIGKILL)
    if os.geteuid() != 0:  # any command could have done it: its end is its own, and the session goes on
        assert (await running).signal == 9
        assert (await session.run(Command(("cat", "README.md")))).stdout == b"hello\n"
        return
    with pytest.raises(SandboxError, match="lost"):
        await running
    with pytest.raises(SandboxError, match="killed from outside"):
        await session.run(Command(("true",)))
    await session.close()


async def test_commands_outlive_the_joiner_and_the_next_is_started_anew(
    opened: BubblewrapBackend, session: BubblewrapSandbox
) -> None:
    script = "touch up; until [ -e go ]; do sleep 0.05; done; echo on"
    running = asyncio.create_task(session.run(Command(("bash", "-c", script))))
    for _ in range(500):
        if "up" in await session.read_tree():
            break
        await asyncio.sleep(0.02)
    child = opened._joiner._child
    assert child is not None
    child.kill()
    child.wait()
    await session.run(Command(("touch", "go")))
    assert (await running).stdout == b"on\n"
    assert opened._joiner._child is not child


async def test_a_command_that_was_given_up_does_not_end_the_joiner(
    opened: BubblewrapBackend, session: BubblewrapSandbox
) -> None:
    await session.run(Command(("true",)))
    child, place = opened._joiner._child, session._place(await session._hold())
    assert child is not None
    devnull = os.open(os.devnull, os.O_RDWR)
    for request in (place.request(["true"], {}, "/workspace"), b"not a request"):
        nobody, status = os.pipe()
        os.close(nobody)
        opened._joiner.start(place, request, Descriptors(devnull, devnull, devnull, status))
        os.close(status)
    os.close(devnull)
    assert (await session.run(Command(("echo", "on")))).stdout == b"on\n"
    assert opened._joiner._child is child


async def test_a_command_enters_as_many_groups_as_a_kernel_may_have(
    opened: BubblewrapBackend, session: BubblewrapSandbox, tmp_path: Path
) -> None:
    place = session._place(await session._hold())
    groups = [os.open(tmp_path / f"group-{number}", os.O_CREAT | os.O_WRONLY) for number in range(14)]
    crowded = replace(place, entrance=Entrance(tuple(groups), None))
    running = RunningCommand(Command(("true",)), session, lambda _: None)
    running.launch(opened._joiner, crowded, ["true"], {"PATH": "/usr/bin"}, "/workspace")
    result = await running.wait(30.0)
    assert result is not None
    assert result.exit_code == 0
    assert [os.path.getsize(tmp_path / f"group-{number}") for number in range(14)] == [1] * 14
    for descriptor in groups:
        os.close(descriptor)


async def test_a_watcher_that_is_killed_ends_its_command_and_not_the_session(
    session: BubblewrapSandbox, is_alive: IsAlive
) -> None:
    process = await session.start(Command(("bash", "-c", "setsid sleep 987654321 & sleep 987654321")))
    for _ in range(500):
        if is_alive("987654321"):
            break
        await asyncio.sleep(0.02)
    os.kill(process._watcher, signal.SIGKILL)  # type: ignore[attr-defined]
    result = await process.wait(30.0)
    assert result is not None
    assert result.signal == 9
    assert not is_alive("987654321")
    assert (await session.run(Command(("cat", "README.md")))).stdout == b"hello\n"


async def test_closing_at_any_moment_of_a_start_leaves_nothing(
    opened: BubblewrapBackend, repository: Path, is_alive: IsAlive
) -> None:
    for delay_s in (0.0, 0.001, 0.003, 0.01, 0.03):
        sandbox = await opened.create(SandboxSpec(repository, "python"))
        tasks = [asyncio.create_task(sandbox.run(Command(("sleep", "987654322")))) for _ in range(3)]
        await asyncio.sleep(delay_s)
        await sandbox.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, SandboxError) for outcome in outcomes), outcomes
        assert not is_alive("987654322")
    [home] = (opened._scratch_dir).glob("bubblewrap-*")
    assert list((home / "sessions").iterdir()) == []


async def test_a_caller_that_goes_away_while_a_session_starts_leaves_nothing_behind(
    opened: BubblewrapBackend, repository: Path, tmp_path: Path
) -> None:
    await (await opened.create(SandboxSpec(repository, "python"))).close()
    before, beside = descriptors(), children()
    for delay_s in (0.0, 0.002, 0.005):
        source = tmp_path / f"disposable-{delay_s}"
        source.mkdir()
        sandbox = await opened.create(SandboxSpec(source, "python", is_disposable=True))  # begun by its first command
        running = asyncio.create_task(sandbox.run(Command(("true",))))
        await asyncio.sleep(delay_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await sandbox.close()
    assert (descriptors(), children()) == (before, beside)


async def test_a_flood_of_output_from_the_background_leaves_the_service_responsive(session: BubblewrapSandbox) -> None:
    await session.run(Command(("bash", "-c", "yes & yes >&2 &")))
    for number in range(20):
        assert (await session.run(Command(("echo", str(number))))).stdout == f"{number}\n".encode()


async def test_a_command_can_write_to_its_streams_by_their_names(sandbox: Sandbox, run: Run) -> None:
    result = await run("echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin", stdin=b"in\n")
    assert (result.stdout, result.stderr) == (b"out\nin\n", b"err\n")


async def test_the_whole_tree_dies_also_without_a_control_group(
    languages: dict[str, LanguageSpec],
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_alive: IsAlive,
) -> None:
    monkeypatch.setattr(cgroup, "MOUNT", Path("/nonexistent"))
    backend = BubblewrapBackend(languages, tmp_path / "scratch")
    try:
        await backend.check()
        sandbox = await backend.create(SandboxSpec(repository, "python"))
        await sandbox.run(Command(("bash", "-c", "setsid sleep 987654323 & true")))
        script = "(env -i setsid sleep 987654324 &); trap '' TERM; sleep 987654324"
        assert (await sandbox.run(Command(("bash", "-c", script), timeout_s=1.0))).timed_out
        assert not is_alive("987654324")
        assert is_alive("987654323")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    finally:
        await backend.close()
    assert not is_alive("987654323")


async def test_a_tree_that_flees_from_one_process_to_the_next_is_caught(session: BubblewrapSandbox, run: Run) -> None:
    flee = "import os\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid()\n"
    result = await session.run(Command(("bash", "-c", f"python3 -c '{flee}' & sleep 900"), timeout_s=1.5))
    assert result.timed_out
    look = (
        "import glob\nprint(sum(b'while True' in open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')) - 1)"
    )
    assert (await session.run(Command(("python3", "-c", look)))).stdout == b"0\n"
