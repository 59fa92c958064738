"""The processes that a verb starts beside itself: each dies with its parent, and its end is noticed."""

import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from swe_rl.client import TOKEN_VARIABLE
from swe_rl.config import Config
from swe_rl.errors import ConfigError, SandboxUnavailableError

_PR_SET_PDEATHSIG = 1
_START_TIMEOUT_S = 120.0


class Child:
    """One `swe-rl` verb in a process of its own; its stderr goes to a log file."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, *, stdout: int | None = None, num_ranks: int = 1
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        launcher = launcher if num_ranks > 1 else []
        with log.open("ab") as file:
            self._shown_bytes = file.tell()
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, *launcher, "-m", "swe_rl.cli.main", "--log-level", "INFO", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=file,
                preexec_fn=die_with_parent,
            )

    def last_words(self) -> str:
        """The last line of its log, to be shown when it ended badly."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "no output"

    def new_lines(self) -> list[str]:
        """The whole lines that its log has got since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._shown_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._shown_bytes += len(whole + newline)
        return whole.decode(errors="replace").splitlines()

    def stop(self, grace_s: float = 20.0) -> None:
        """Asks it to end, then makes it; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def sandbox_service(config: Config, tasks: Sequence[Path], log_dir: Path) -> Iterator[tuple[str, str, Child | None]]:
    """Address and token of the service that `sandbox.url` names, else of one for this context, which comes third."""
    if config.sandbox.url:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigError(f"{TOKEN_VARIABLE} isn't set, expected the token of the service at {config.sandbox.url}")
        yield config.sandbox.url, token, None
        return
    token = os.environ.setdefault(TOKEN_VARIABLE, secrets.token_urlsafe(24))
    arguments = ["serve", "sandbox", "--backend", config.sandbox.backend]
    arguments += ["--languages", str(config.sandbox.languages)]
    arguments += ["--max-sessions", str(config.sandbox.max_sessions)]
    arguments += ["--grade-concurrency", str(config.sandbox.grade_concurrency)]
    arguments += ["--grade-level", config.sandbox.grade_level]
    for folder in tasks:
        arguments += ["--tasks", str(folder)]
    child = Child("sandbox service", arguments, log_dir / "sandbox.log", stdout=subprocess.PIPE)
    try:
        yield _read_url(child), token, child
    finally:
        child.stop()


def _read_url(child: Child) -> str:
    """Waits for the one line that a service prints once it listens."""
    stdout: IO[bytes] | None = child.process.stdout
    assert stdout is not None
    os.set_blocking(stdout.fileno(), False)
    deadline = time.monotonic() + _START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        line += stdout.readline() or b""
        if child.process.poll() is not None or time.monotonic() > deadline:
            child.stop()
            raise SandboxUnavailableError(f"{child.name} didn't start: {child.last_words()} (log: {child.log})")
        time.sleep(0.05)
    return str(json.loads(line)["url"])


def die_with_parent() -> None:
    """This process gets SIGKILL when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
