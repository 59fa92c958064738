"""What a killed service leaves behind is found by its mark and removed; the living keep what is theirs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.base import Command, SandboxSpec
from swe_rl.sandbox.bubblewrap import BubblewrapBackend
from swe_rl.sandbox.disk import OwnFileSystem, WatchedSize, open_disk, unmount, used_bytes
from swe_rl.sandbox.instance import is_dead, new_instance_id
from swe_rl.sandbox.scratch import ScratchDir, label, remove_abandoned
from swe_rl.task.language import LanguageSpec

ROOT = Path(__file__).parents[2]
SERVICE = """import asyncio, sys, time
from pathlib import Path
from swe_rl.sandbox.base import Command, SandboxSpec
from swe_rl.sandbox.bubblewrap import BubblewrapBackend
from swe_rl.task.language import read_languages
async def main():
    backend = BubblewrapBackend(read_languages(Path(sys.argv[1])), Path(sys.argv[2]))
    sandbox = await backend.create(SandboxSpec(Path(sys.argv[3]), "python", labels={"run": "x"}))
    await sandbox.run(Command(("bash", "-c", "setsid sleep 987654325 & true")))
    print(backend.instance_id, flush=True)
    await sandbox.run(Command(("sleep", "987654325")))
asyncio.run(main())
"""


async def test_processes_mounts_groups_and_directories_of_a_killed_service_go(
    languages: dict[str, LanguageSpec], tmp_path: Path, repository: Path, is_alive: Callable[[str], bool]
) -> None:
    scratch = Path("/dev/shm") / f"swe-rl-test-{os.getpid()}"
    alive = BubblewrapBackend(languages, scratch)
    try:
        await alive.check()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    kept = await alive.create(SandboxSpec(repository, "python"))
    command = [sys.executable, "-c", SERVICE, str(ROOT / "sandboxes"), str(scratch), str(repository)]
    mark = await asyncio.to_thread(_run_until_killed, command)
    assert is_dead(mark)
    await _until(lambda: not is_alive("987654325"))  # by themselves: nobody has to come for the processes
    assert await alive.reconcile() >= 1
    assert await alive.reconcile() == 0
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if _is_of(line, scratch, kept)]
    assert not list(Path("/sys/fs/cgroup").glob(f"*/**/*{mark}*"))
    assert (await kept.run(Command(("cat", "README.md")))).stdout == b"hello\n"
    await alive.close()
    assert str(scratch) not in Path("/proc/self/mountinfo").read_text()
    assert list(scratch.glob("bubblewrap-*")) == []
    scratch.rmdir()


def _run_until_killed(command: list[str]) -> str:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        mark = service.stdout.readline().strip()
        os.kill(service.pid, signal.SIGKILL)
    return mark


def _is_of(line: str, scratch: Path, kept: object) -> bool:
    return str(scratch) in line and getattr(kept, "sandbox_id", "") not in line


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_an_instance_is_dead_when_its_process_is() -> None:
    own = new_instance_id()
    host, pid, started, random = own.split(":")
    assert not is_dead(own)
    assert is_dead(f"{host}:{pid}:{int(started) + 1}:{random}")  # the number is another process's by now
    assert not is_dead(f"other-host:1:1:{random}")
    assert not is_dead("unreadable")


def test_a_watched_size_is_measured_when_the_free_space_says_it_may_have_grown(tmp_path: Path) -> None:
    disk = WatchedSize((tmp_path,), 1)
    assert disk.may_be_full()
    assert not disk.is_full()
    (tmp_path / "a").write_bytes(os.urandom(3 << 20))
    os.link(tmp_path / "a", tmp_path / "same")
    assert disk.is_full()
    assert 3 << 20 <= used_bytes(tmp_path) < 4 << 20
    (tmp_path / "a").unlink()
    (tmp_path / "same").unlink()
    assert not disk.is_full()


def test_a_file_system_of_its_own_is_full_when_it_is() -> None:
    directory = Path("/dev/shm") / f"swe-rl-test-disk-{os.getpid()}"
    if os.geteuid() != 0 or not directory.parent.is_dir():
        pytest.skip("needs root and /dev/shm")
    directory.mkdir()
    try:
        disk = open_disk(directory, 1)
        assert isinstance(disk, OwnFileSystem)
        assert not disk.may_be_full()
        with pytest.raises(OSError, match="No space"):
            (directory / "big").write_bytes(b"x" * (2 << 20))
        assert disk.is_full()
    finally:
        unmount(directory)
        directory.rmdir()


def test_a_process_that_missed_its_services_death_ends_with_the_directory(tmp_path: Path) -> None:
    living, dead = ScratchDir(tmp_path, "kind").open(), ScratchDir(tmp_path, "kind")
    dead.path.mkdir()
    (dead.path / "lock").touch()  # held by nobody
    command = ("sh", "-c", "echo begun; sleep 987654324 & wait")
    processes = [
        subprocess.Popen(command, env=label(directory.path) | {"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE)
        for directory in (living, dead)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        assert remove_abandoned(tmp_path) == 1
        assert processes[1].wait(10) == -signal.SIGKILL
        assert processes[1].stdout.read() == b""  # its child, which held the pipe as well, has gone too
        assert processes[0].poll() is None
    finally:
        for process in processes:
            subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=False)
            process.kill()
            process.wait()
    living.close()
