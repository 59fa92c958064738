"""A real `swe-rl serve sandbox` as a child process, over tasks of the parametric family, for the sandbox benchmarks.

It can be killed, stopped and started again at the same address. Nothing here measures.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from swe_rl.synth.family import make_task
from swe_rl.synth.write import write_task

ROOT = Path(__file__).parents[1]
TOKEN = "a-token-for-benchmarks"
START_S = 300.0
STOP_S = 120.0
T = TypeVar("T")


def write_python_tasks(directory: Path, count: int) -> tuple[str, ...]:
    """Lays `count` small tasks below `directory`; their ids."""
    made = (make_task("train", index, 0) for index in range(20 * count))
    tasks = [task for task in made if task.bug.language == "python"][:count]
    for task in tasks:
        write_task(task, directory)
    return tuple(task.task_id for task in tasks)


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run; SIGTERM, too, ends the work by cancelling it, so that what it started is stopped."""

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    return asyncio.run(cancellable())


class ServedProcess:
    """One service and those that follow it at the same address; `pids` are all that ever ran."""

    def __init__(
        self,
        backend: str,
        tasks_dir: Path,
        scratch_dir: Path,
        log_file: Path,
        more: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.backend, self.scratch_dir, self.log_file = backend, scratch_dir, log_file
        self.url = ""
        self.pids: list[int] = []
        self.instances: list[str] = []
        self._tasks_dir, self._more, self._env = tasks_dir, tuple(more), dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    async def start(self) -> None:
        """Raises RuntimeError with the end of its log where it doesn't come up."""
        child = self._launch()
        assert child.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), START_S)
        except TimeoutError:
            line = b""
        if not line:
            await self.kill()
            raise RuntimeError(f"{self.backend}: the service didn't start: {self.log_tail()}")
        self.url = str(json.loads(line)["url"])

    def _launch(self) -> "subprocess.Popen[bytes]":
        port = self.url.rpartition(":")[2] or "0"
        argv = [sys.executable, "-m", "swe_rl.cli.main", "--log-level", "WARNING", "serve", "sandbox"]
        argv += ["--tasks", str(self._tasks_dir), "--languages", str(ROOT / "sandboxes"), "--backend", self.backend]
        argv += ["--scratch-dir", str(self.scratch_dir), "--port", port, *self._more]
        environment = {**os.environ, "SWE_RL_SANDBOX_TOKEN": TOKEN, **self._env}
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, env=environment)
        self.pids.append(self._child.pid)
        self.instances.append(f":{self._child.pid}:{start_time(self._child.pid)}:")
        return self._child

    async def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        if self._child is not None:
            self._child.kill()
            await asyncio.to_thread(self._reap)

    async def stop(self) -> int:
        """SIGTERM; its exit code. Raises TimeoutError."""
        assert self._child is not None
        self._child.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.to_thread(self._reap), STOP_S)
        return int(self._child.returncode)

    def log_tail(self, num_bytes: int = 600) -> str:
        with contextlib.suppress(OSError):
            return self.log_file.read_bytes()[-num_bytes:].decode(errors="replace").strip()
        return ""

    def _reap(self) -> None:
        assert self._child is not None and self._child.stdout is not None
        self._child.wait()
        self._child.stdout.close()


def start_time(pid: int) -> str:
    """When the process began, in ticks since the boot; '' where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels in Prometheus's text format."""
    total = 0.0
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and all(f'{key}="{word}"' in head for key, word in labels.items()):
            total += float(value)
    return total
