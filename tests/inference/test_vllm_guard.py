import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GUARD = Path(__file__).parents[2] / "swe_rl" / "inference" / "vllm_guard.py"
# A leader that starts a child, tells both ids, and ignores SIGTERM if asked to.
FAMILY = (
    "import os, signal, subprocess, sys, time\n"
    "if sys.argv[1] == 'deaf': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(os.getpid(), child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


def _command(*family: str) -> list[str]:
    return [sys.executable, "-I", str(GUARD), "0.5", sys.executable, "-c", *family]


def _wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(_is_running(process) for process in processes):
        assert time.monotonic() < deadline, f"{processes} still run"
        time.sleep(0.05)


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_whole_family_ends_when_the_input_closes_even_if_it_ignores_sigterm() -> None:
    for temper in ("meek", "deaf"):
        guard = subprocess.Popen(_command(FAMILY, temper), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert guard.stdout is not None and guard.stdin is not None
        family = [int(word) for word in guard.stdout.readline().split()]
        assert all(_is_running(process) for process in family)
        guard.stdin.close()
        assert guard.wait(60) == 128 + (signal.SIGTERM if temper == "meek" else signal.SIGKILL)
        _wait_until_gone(family)
        guard.stdout.close()


def test_whole_family_ends_when_the_starter_is_killed() -> None:
    starter = (
        "import subprocess, sys, time\n"
        "guard = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
        "print(guard.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", starter, *_command(FAMILY, "meek")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    words = [*process.stdout.readline().split(), *process.stdout.readline().split()]
    assert len(words) == 3
    process.kill()
    process.wait()
    _wait_until_gone([int(word) for word in words])
    process.stdout.close()


def test_exit_code_of_the_command_is_passed_on_and_its_stragglers_end() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "sys.exit(7)\n"
    )
    guard = subprocess.Popen(_command(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = guard.communicate()  # closes the input too; the command may have ended before or not
    assert guard.returncode in (7, 128 + signal.SIGTERM)
    if output:
        _wait_until_gone([int(output)])


def test_guard_reads_nothing_but_the_end_of_its_input() -> None:
    guard = subprocess.Popen(_command(FAMILY, "meek"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert guard.stdin is not None and guard.stdout is not None
    family = [int(word) for word in guard.stdout.readline().split()]
    guard.stdin.write(b"anything\n")
    guard.stdin.flush()
    time.sleep(0.5)
    assert guard.poll() is None
    assert all(_is_running(process) for process in family)
    os.kill(guard.pid, signal.SIGTERM)
    assert guard.wait(60) == 128 + signal.SIGTERM
    _wait_until_gone(family)
    guard.stdin.close()
    guard.stdout.close()
