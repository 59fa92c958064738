"""Kills all descendants of a watcher: found by parentage, which a subreaper's tree can't lose.

Nothing is killed by name, and the watcher itself stays: it reaps the dead and tells that nobody is left.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

MAX_PASSES = 50


def kill_descendants(watcher: int, members: Callable[[], Iterable[int]], is_frozen: bool) -> int:
    """Blocking. `members` lists the candidates; `is_frozen`: none of them runs now, so one look sees them all.

    How many were killed. Where they run, they are stopped first, until a look finds no new one.
    """
    found: set[int] = set()
    for _ in range(1 if is_frozen else MAX_PASSES):
        new = descendants(watcher, members()) - found
        if not new:
            break
        found |= new
        if not is_frozen:
            _signal(new, signal.SIGSTOP)
    _signal(found, signal.SIGKILL)
    return len(found)


def descendants(root: int, pids: Iterable[int]) -> set[int]:
    """Those of `pids` whose line of parents within `pids` leads to `root`."""
    parents = {pid: parent for pid in pids if (parent := _parent(pid)) is not None}
    below: set[int] = set()
    for pid in parents:
        line = []
        while pid in parents and pid not in below and pid != root and pid not in line:
            line.append(pid)
            pid = parents[pid]
        if pid == root or pid in below:
            below.update(line)
    return below


def all_processes() -> list[int]:
    """Every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
