"""The mark of one backend of one process on one machine, by which what a crash left behind is told from the living."""

import os
import socket
from pathlib import Path
from uuid import uuid4


def new_instance_id() -> str:
    """`<host>:<process>:<when the process began, in ticks since the boot>:<random>`."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid())}:{uuid4().hex[:8]}"


def is_dead(instance_id: str) -> bool:
    """Whether it was this machine's and its process has ended; what can't be told counts as alive."""
    host, _, rest = instance_id.partition(":")
    pid, _, rest = rest.partition(":")
    started = rest.partition(":")[0]
    return host == socket.gethostname() and pid.isdigit() and _start_time(int(pid)) != started


def _start_time(pid: int) -> str:
    """'' where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
