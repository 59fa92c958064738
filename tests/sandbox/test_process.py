"""Host processes: none is left behind where it can't be watched."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from swe_rl.sandbox.process import Process


async def test_a_process_that_can_not_be_watched_does_not_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def refuse(pid: int, flags: int = 0) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = Process(lambda pid, status: os.killpg(pid, signal.SIGKILL))
    with pytest.raises(OSError, match="too many open files"):
        await process.run(lambda status_fd: ["/bin/sleep", "60"], b"", 60.0, 1000)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


_STATUS_OF_A_SHELL = """
import asyncio, os, sys
from swe_rl.sandbox.process import Process
os.closerange(3, 256)
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(int(sys.argv[1]))]
script = " ".join(f"exec {n}</dev/null;" for n in range(3, 10)) + ' exec "$0" -c "echo ok >&$1"'
argv = lambda fd: ["/bin/bash", "-c", script, "/bin/bash", str(fd)]
result = asyncio.run(Process(lambda pid, status: None).run(argv, b"", 60.0, 1000))
print(result.status.decode(), result.stderr.data().decode())
"""


@pytest.mark.parametrize("num_held", range(9))
def test_a_shell_that_redirects_its_own_descriptors_leaves_the_status_pipe(num_held: int) -> None:
    argv = [sys.executable, "-c", _STATUS_OF_A_SHELL, str(num_held)]
    seen = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert seen.stdout.strip() == "ok", seen.stderr
