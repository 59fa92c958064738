"""Counts what services left on this machine: containers, processes, mounts, networks, volumes, directories, groups.

What a service makes carries its instance's mark (`:<process>:<its start>:`) or lies below its scratch directory; its
processes come to the caller of `adopt_orphans` when it dies. Networks and volumes carry no mark: those count that are
new since `engine_baseline`, so nobody else may use the engine meanwhile. Nothing is removed here.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
CGROUPS = Path("/sys/fs/cgroup")
ENGINE_S = 60
MAX_LOOKS, LOOK_EVERY_S = 30, 2.0
MAX_ENGINE_SOCKETS = 96


@dataclass(frozen=True, slots=True)
class Idle:
    """A service without sessions: what it holds, by kind, and its resident memory.

    A descriptor's kind is what it is open on, without the ids of a sandbox, a socket or a pipe.
    """

    held: Counter[str]
    resident_mb: float


def adopt_orphans() -> None:
    """From now on, processes below this one that lose their parent become this one's children. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(known: Collection[int]) -> None:
    """Takes the exit status of children that nobody waits for, as init would."""
    for pid, parent, state in _processes():
        if parent == os.getpid() and state == "Z" and pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def living_below(root: int) -> list[str]:
    """Every process below `root` that isn't a zombie: `<pid> <command line>`."""
    parents = {pid: parent for pid, parent, state in _processes() if state != "Z"}
    found = []
    for pid in parents:
        at = parents.get(pid)
        while at is not None and at not in (root, 0):
            at = parents.get(at)
        if at == root:
            found.append(f"{pid} {_command_line(pid)}")
    return found


def children_named(parent: int, name: str) -> list[int]:
    """The living children of a process whose program has this name."""
    return [pid for pid, above, state in _processes() if above == parent and state != "Z" and _name(pid) == name]


def mounts_below(directory: Path) -> list[str]:
    """Mount points below a directory, itself excluded."""
    prefix = f"{directory.resolve()}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [at for at in (line.split()[4] for line in lines) if at.startswith(prefix)]


def cgroups_of(marks: Sequence[str]) -> list[str]:
    """Control groups of these instances: of each the top one, and those below."""
    found = []
    for directory, names, _ in os.walk(CGROUPS):
        found += [f"{directory}/{name}" for name in names if _has(f"{directory}/{name}", marks)]
    return found


def containers_of(marks: Sequence[str]) -> list[str]:
    """Containers of these instances, running or not."""
    lines = _docker("ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.Labels}}")
    return [line for line in lines if _has(line, marks)]


def running_containers_of(marks: Sequence[str]) -> list[str]:
    lines = _docker("ps", "--no-trunc", "--format", "{{.ID}} {{.Labels}}")
    return [line.split()[0] for line in lines if _has(line, marks)]


def engine_baseline() -> frozenset[str]:
    """Networks and volumes that are there now; nothing without an engine."""
    networks = {f"network {line}" for line in _docker("network", "ls", "--no-trunc", "--format", "{{.ID}} {{.Name}}")}
    return frozenset(networks | {f"volume {line}" for line in _docker("volume", "ls", "-q")})


async def leftovers(marks: Sequence[str], scratch_dir: Path, baseline: frozenset[str]) -> dict[str, list[str]]:
    """What is left after the last service has ended, by kind; each list should be empty."""

    def look() -> dict[str, list[str]]:
        new = sorted(engine_baseline() - baseline)
        return {
            "containers": containers_of(marks),
            "processes": living_below(os.getpid()),
            "mounts": mounts_below(scratch_dir),
            "networks": [name for name in new if name.startswith("network ")],
            "volumes": [name for name in new if name.startswith("volume ")],
            "scratch_directories": sorted(str(path) for path in scratch_dir.glob("*")),
            "cgroups": cgroups_of(marks),
        }

    return await asyncio.to_thread(look)


async def look_at_idle(pid: int, mark: str, scratch_dir: Path) -> Idle:
    """Looks until two looks agree: what a session has held is given back a moment after its end."""
    last = await asyncio.to_thread(_look, pid, mark, scratch_dir)
    for _ in range(MAX_LOOKS):
        await asyncio.sleep(LOOK_EVERY_S)
        now = await asyncio.to_thread(_look, pid, mark, scratch_dir)
        if now.held == last.held:
            break
        last = now
    return last


def grown(before: Idle, after: Idle, is_docker: bool) -> Counter[str]:
    """What `after` holds more. Connections to a Docker engine are pooled: up to its bound they aren't a leak."""
    found = after.held - before.held
    if is_docker and after.held["descriptor socket"] <= MAX_ENGINE_SOCKETS:
        del found["descriptor socket"]
    return found


def _look(pid: int, mark: str, scratch_dir: Path) -> Idle:
    status = Path(f"/proc/{pid}/status").read_text()
    held = Counter(f"descriptor {kind}" for kind in descriptors(pid))
    held["process"] = len(living_below(pid))
    held["cgroup"] = len(cgroups_of([mark]))
    held["mount"] = len(mounts_below(scratch_dir))
    held["container"] = len(containers_of([mark]))
    return Idle(held, int(status.partition("VmRSS:")[2].split()[0]) / 1024)


def descriptors(pid: int) -> list[str]:
    """The kind of each open one; that of a sandbox that died while it waits in the pool is no other."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = re.sub(r":\[\d+\]$| \(deleted\)$", "", os.readlink(f"/proc/{pid}/fd/{name}"))
            found.append(re.sub(r"[0-9a-f]{12,}", "*", target))
    return found


def _docker(*arguments: str) -> list[str]:
    if shutil.which("docker") is None:
        return []
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=ENGINE_S, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def _has(text: str, marks: Sequence[str]) -> bool:
    return any(mark in text for mark in marks)


def _processes() -> list[tuple[int, int, str]]:
    """(process, parent, state) of all."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            found.append((int(name), int(fields[1]), fields[0]))
    return found


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200].strip()
    return ""


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
