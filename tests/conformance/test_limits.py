"""Limits: what a command does to excess ends with it, is told apart from a fault, and leaves the sandbox usable."""

from collections.abc import Awaitable, Callable

import pytest

from swe_rl.errors import PathError
from swe_rl.sandbox.base import Backend, Command, CommandResult, Limits, Sandbox

Run = Callable[..., Awaitable[CommandResult]]
Make = Callable[..., Awaitable[Sandbox]]


@pytest.fixture
def has_groups(backend: Backend) -> bool:
    """False for bubblewrap where no control group can be made: limits hold for each process then, and go unreported."""
    return getattr(backend, "_cgroups", True) is not None


async def test_memory_beyond_the_limit_is_reported_as_such(run: Run, has_groups: bool) -> None:
    result = await run("exec python3 -c 'x = bytearray(600 << 20)'")
    assert result.oom or (not has_groups and b"MemoryError" in result.stderr)
    assert result.exit_code != 0
    after = await run("cat README.md")
    assert (after.stdout, after.oom) == (b"hello\n", False)


async def test_more_processes_than_allowed_are_refused_and_reported(run: Run, has_groups: bool) -> None:
    script = """import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        n += 1
except OSError: pass
print(n)"""
    result = await run(f"python3 -c '{script}'")
    assert 8 < int(result.stdout) <= 60
    assert result.pids_exceeded or not has_groups
    for _ in range(30):  # the processes have to end first
        if (await run("sleep 1; echo usable")).stdout == b"usable\n":
            break
    assert (await run("echo usable")).stdout == b"usable\n"


async def test_a_fork_bomb_ends_at_the_deadline(run: Run) -> None:
    result = await run("bomb() { bomb | bomb & }; bomb; while :; do :; done", timeout_s=5.0)
    assert result.timed_out or result.pids_exceeded
    after = await run("echo usable")
    assert (after.stdout, after.exit_code) == (b"usable\n", 0)


async def test_a_full_disk_is_reported_as_such(run: Run) -> None:
    result = await run("for i in 1 2 3 4 5; do head -c 30000000 /dev/zero >big$i || break; done; sleep 2; exit 7")
    assert result.disk_full
    assert (await run("rm -f big*; echo usable")).stdout == b"usable\n"
    after = await run("echo x >small && cat small")
    assert (after.stdout, after.disk_full) == (b"x\n", False)


async def test_a_file_that_finds_no_room_is_refused_as_such(make: Make) -> None:
    sandbox = await make(limits=Limits(memory_mb=256, num_pids=48, disk_mb=2))
    await sandbox.run(Command(("bash", "-c", "i=0; while : >f$i; do i=$((i+1)); [ $i = 40000 ] && break; done")))
    await sandbox.run(Command(("bash", "-c", "head -c 8000000 /dev/zero >/tmp/full")))
    for data in (b"", b"x" * 100_000):
        try:
            await sandbox.write_file("README.md", data)
            await sandbox.write_file("new", data)
        except PathError as error:  # where the disk is only watched, there may be room
            assert "can't be written" in str(error)


async def test_a_file_beyond_the_limit_is_cut(run: Run) -> None:
    result = await run("head -c 50000000 /dev/zero >big; wc -c <big")
    assert int(result.stdout) <= 32 << 20


async def test_limits_are_the_sandboxs_own(make: Make, has_groups: bool) -> None:
    small, large = await make(), await make(limits=Limits(memory_mb=900))
    eat = Command(("python3", "-c", "x = bytearray(400 << 20)"), timeout_s=60.0)
    result = await small.run(eat)
    assert result.oom or (not has_groups and b"MemoryError" in result.stderr)
    assert (await large.run(eat)).exit_code == 0


async def test_within_the_limits_nothing_is_reported(run: Run) -> None:
    result = await run("head -c 1000000 /dev/zero >ok; python3 -c 'x = bytearray(20 << 20)'")
    assert (result.oom, result.pids_exceeded, result.disk_full, result.exit_code) == (False, False, False, 0)
