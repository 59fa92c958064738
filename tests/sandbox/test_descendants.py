"""Who belongs to a tree, told by parentage."""

import os
import subprocess
import sys
import time
from pathlib import Path

from swe_rl.sandbox.descendants import all_processes, descendants, kill_descendants

TREE = """import subprocess, time
for _ in range(3):
    subprocess.Popen(["sleep", "60"])
print(flush=True)
time.sleep(60)"""


def test_children_and_their_children_are_descendants_and_nobody_else() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        found = descendants(os.getpid(), all_processes())
        assert parent.pid in found
        assert len(descendants(parent.pid, all_processes())) == 3
        assert os.getpid() not in found
        assert 1 not in found
        assert descendants(parent.pid, [parent.pid]) == set()
        parent.kill()
    assert descendants(parent.pid, all_processes()) == set()


def test_the_descendants_die_and_the_watcher_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert kill_descendants(parent.pid, all_processes, is_frozen=False) == 3
        for _ in range(200):
            states = [_state(pid) for pid in descendants(parent.pid, all_processes())]
            if set(states) <= {"Z"}:
                break
            time.sleep(0.02)
        assert set(states) == {"Z"}
        assert parent.poll() is None
        parent.kill()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
