"""A private directory that lives as long as its process: a lock tells the living from what a crash left behind.

Processes that are started with `label(path)` in their environment end with it, too: at the next start at the latest.
"""

import contextlib
import fcntl
import logging
import os
import signal
from pathlib import Path
from uuid import uuid4

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.disk import unmount_below
from swe_rl.sandbox.tree import remove_tree

logger = logging.getLogger(__name__)

_VARIABLE = "SWE_RL_SCRATCH"
_MAX_SCANS = 50


class ScratchDir:
    """`<parent>/<kind>-<random>`, mode 0700; there from `open` to `close`."""

    def __init__(self, parent: Path, kind: str) -> None:
        self.path = (parent / f"{kind}-{uuid4().hex[:12]}").resolve()
        self._lock = -1

    def open(self) -> "ScratchDir":
        """Makes it, and removes abandoned ones of all kinds beside it. Raises SandboxUnavailableError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.parent.stat().st_uid not in (0, os.geteuid()):  # /dev/shm and /tmp are everyone's
                raise PermissionError(f"{self.path.parent} belongs to another user")
            remove_abandoned(self.path.parent)
            self._make()
        except OSError as error:
            raise SandboxUnavailableError(
                f"scratch directory {self.path}: {error}; give another by --scratch-dir"
            ) from error
        return self

    def _make(self) -> None:
        unnamed = self.path.with_name(f".{self.path.name}")  # nobody may find it before it's locked
        unnamed.mkdir(mode=0o700)
        self._lock = os.open(unnamed / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path)

    def close(self) -> None:
        """Safe to call twice."""
        if self._lock >= 0:
            unmount_below(self.path)
            remove_tree(self.path)
            os.close(self._lock)
            self._lock = -1


def label(path: Path) -> dict[str, str]:
    """The environment of a process that belongs to the directory; its name is random and tells nothing."""
    return {_VARIABLE: path.name}


def remove_abandoned(parent: Path) -> int:
    """Removes the directories below `parent` whose process has ended; how many."""
    count = 0
    for lock in parent.glob("[!.]*/lock"):  # a name with a dot is one that isn't locked yet
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                logger.info("removing %s, left by a process that has ended", lock.parent)
                _kill_labelled(lock.parent)
                unmount_below(lock.parent)
                remove_tree(lock.parent)
                count += 1
            finally:
                os.close(descriptor)
    return count


def _kill_labelled(path: Path) -> None:
    """Until none is found: what is killed may just have forked."""
    word = b"\0%s=%s\0" % (_VARIABLE.encode(), path.name.encode())
    for _ in range(_MAX_SCANS):
        found = False
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if word in b"\0" + environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
                    found = True
        if not found:
            return
