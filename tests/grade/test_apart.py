"""A reader apart may hang, crash or swell: the call that brought it about fails, and nothing else does."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_rl.errors import PatchError, SandboxError
from swe_rl.grade import apart
from swe_rl.grade.apart import UnreadableError, run_apart
from swe_rl.verdict import Outcome


def double(value: int) -> int:
    return 2 * value


def hang(*_: object) -> bool:
    """Inside one call of C that holds Python's lock."""
    return re.fullmatch(r"(a|aa)+b", "a" * 200) is not None


def crash(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def swell(*_: object) -> int:
    return len(bytearray(2 * apart.MEMORY_LIMIT_BYTES))


def stop() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep_on(pid_file: str) -> None:
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(3600)


def leave(*_: object) -> None:
    os._exit(3)


def refuse(path: str) -> None:
    raise PatchError(f"{path}: refused")


def wait_until(is_so: Callable[[], bool], patience_s: float = 120) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {patience_s} s"
        time.sleep(0.02)


BAD = [hang, crash, swell, leave]


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "CPU_LIMIT_S", 1.0)


async def test_a_result_and_an_error_come_back() -> None:
    assert await run_apart(double, 21) == 42
    with pytest.raises(PatchError, match=r"a\.py: refused"):
        await run_apart(refuse, "a.py")


@pytest.mark.parametrize("bad", BAD)
async def test_a_reader_that_fails_takes_nothing_with_it(bad) -> None:
    results = await asyncio.gather(
        *(run_apart(double, number) for number in range(5)),
        run_apart(bad),
        *(run_apart(double, number) for number in range(5)),
        return_exceptions=True,
    )
    failed = results.pop(5)
    assert isinstance(failed, UnreadableError)
    assert results == 2 * [0, 2, 4, 6, 8]


async def test_readers_that_cannot_be_started_are_a_fault_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    apart._readers.cache_clear()
    with monkeypatch.context() as machine:
        machine.setattr(apart, "_prepare", leave)
        with pytest.raises(SandboxError, match="started"):
            await run_apart(double, 1)
    assert await run_apart(double, 21) == 42


async def test_the_event_loop_goes_on_while_a_reader_hangs() -> None:
    hanging = asyncio.create_task(run_apart(hang))
    ticks = 0
    while not hanging.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 10
    with pytest.raises(UnreadableError, match="took over 1 s of processor time"):
        await hanging


async def test_a_cancelled_call_ends_its_reader(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    sleeping = asyncio.create_task(run_apart(sleep_on, str(pid_file)))
    await asyncio.to_thread(wait_until, lambda: pid_file.exists() and pid_file.read_text() != "")
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await asyncio.to_thread(wait_until, lambda: not Path("/proc", pid_file.read_text()).exists())
    assert await run_apart(double, 21) == 42


async def test_a_reader_that_somebody_else_killed_is_a_fault_of_the_environment() -> None:
    calls = [asyncio.create_task(run_apart(stop)) for _ in range(2)]
    with pytest.raises(SandboxError, match="was killed"):
        await asyncio.gather(*calls)
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("bad", BAD)
async def test_a_patch_that_ends_its_reader_has_failed(bad, monkeypatch, task, grader) -> None:
    monkeypatch.setattr("swe_rl.grade.run.check", bad)
    verdict = await grader.grade(task, task.solution_patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.PATCH_FAILED, 0.0)
    assert "the patch can't be checked: " in verdict.signals["patch"]


@pytest.mark.parametrize("bad", BAD)
async def test_a_report_that_ends_its_reader_proves_nothing(bad, monkeypatch, task, grader) -> None:
    monkeypatch.setattr("swe_rl.grade.run._read_and_parse", bad)
    verdict = await grader.grade(task, task.solution_patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.UNRESOLVED, 0.0)


PROGRAM = """
import asyncio, os
from swe_rl.grade import apart

def spin():
    while True:
        pass

async def main():
    apart.CPU_LIMIT_S = 1.0
    spinning = asyncio.create_task(apart.run_apart(spin))
    print(await apart.run_apart(os.getpid), flush=True)
    await spinning

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_readers_end_with_the_process_that_has_them(tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(end)
    process.wait(timeout=120)
    wait_until(lambda: _in_session(process.pid) == [])


def _in_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found
