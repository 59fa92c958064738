"""Host processes: none is left behind where it can't be watched."""

import errno
import os
import signal

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
