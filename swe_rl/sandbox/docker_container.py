"""One container of a session, seen from the engine: archives in and out, single commands as root, killing, starting.

Everything here blocks and runs in a thread of the engine's. What comes out of the container is data that an untrusted
command may have made.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox import docker_exec
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, Command, FileEntry
from swe_rl.sandbox.docker_engine import API_TIMEOUT_S, log_has_oom, remove_container
from swe_rl.sandbox.docker_stream import open_exec, run_exec
from swe_rl.sandbox.environment import USER_ID

logger = logging.getLogger(__name__)

AGENT = f"{USER_ID}:{USER_ID}"
COMMAND_TIMEOUT_S = 30.0


class LiveContainer:
    """The calls that both ways of running commands need; archives pass through the engine."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.name = str(container.name)

    def is_running(self) -> bool:
        try:
            self.container.reload()
        except NotFound:
            return False
        return bool(self.container.attrs["State"]["Running"])

    def was_killed_for_memory(self, since_s: float) -> bool:
        """Whether the kernel has killed in it for want of memory since a moment of the monotonic clock.

        The engine misses that where the container ends at once, as gVisor does; then the kernel's log knows.
        """
        self.container.reload()
        return bool(self.container.attrs["State"]["OOMKilled"]) or log_has_oom(str(self.container.id), since_s)

    def restart(self) -> None:
        """Ends all that runs in it, and starts it again with the files that it has."""
        try:
            self.container.kill()
        except APIError as error:
            if error.status_code != 409:  # 409: it isn't running, which is what we want
                raise
        self.container.wait(timeout=30)
        self.container.start()

    def remove(self) -> None:
        remove_container(self.container)

    def place_apart(self, command: Command) -> None:
        """/runner and /report for one command."""
        if command.runner_dir is not None:
            self.put(docker_exec.directory_archive(command.runner_dir, RUNNER_DIR.lstrip("/"), 0))
        if command.report_dir is not None:
            self.put(docker_exec.directory_archive(command.report_dir, REPORT_DIR.lstrip("/")))

    def fetch_report(self, report_dir: Path) -> None:
        """Plain files directly below /report."""
        try:
            docker_exec.save_report(self._packed(REPORT_DIR), report_dir)
        except (NotFound, PathError, IsADirectoryError) as error:
            logger.info("container %s: no report: %s", self.name, error)

    def remove_apart(self) -> None:
        """What `place_apart` has made."""
        # Root without capabilities may empty its own directories only: whose they are empties the others.
        self.execute(("/bin/sh", "-c", f"rm -rf {REPORT_DIR}/* {REPORT_DIR}/.[!.]*"), AGENT)
        self.execute(("/bin/rm", "-rf", REPORT_DIR, RUNNER_DIR), "0:0")

    def read_tree(self, path: str) -> dict[str, FileEntry]:
        """Raises PathError as `tree.read_tree`."""
        return docker_exec.tree_of_archive(self._packed(path))

    def copy_out(self, path: str, into: Path, max_bytes: int) -> None:
        """Files, links and directories below `path`; `into` is made. Raises PathError, SandboxError."""
        docker_exec.unpack(self._packed(path), into, max_bytes)

    def kill_by(self, script: tuple[str, ...]) -> int:
        """Runs a script that kills; its exit code."""
        return self.execute(script, AGENT)[0]

    def execute(self, argv: tuple[str, ...], user: str, is_privileged: bool = False) -> tuple[int, bytes]:
        """Exit code and output of a short command of ours. Raises SandboxError where the engine gives none in time."""
        return run_exec(self.container, argv, user, b"", COMMAND_TIMEOUT_S, is_privileged)

    def put(self, archive: bytes) -> None:
        """Unpacks an archive below the container's root."""
        if not self.container.put_archive("/", archive):
            raise SandboxError(f"docker: container {self.name}: the engine refused an archive")

    def _packed(self, path: str) -> Iterator[bytes]:
        chunks, _ = self.container.get_archive(path, chunk_size=1 << 20)
        yield from chunks


class GvisorContainer(LiveContainer):
    """Archives are packed and unpacked inside: the kernel there doesn't look at what changes outside.

    Root's programs of the image do that, with all capabilities of that kernel, so that no command can hinder them.
    """

    def remove_apart(self) -> None:
        self.execute(("/bin/rm", "-rf", REPORT_DIR, RUNNER_DIR), "0:0", is_privileged=True)

    def kill_by(self, script: tuple[str, ...]) -> int:
        return self.execute(script, "0:0", is_privileged=True)[0]

    def put(self, archive: bytes) -> None:
        argv = ("/bin/tar", "-xf", "-", "-C", "/")
        code, output = run_exec(self.container, argv, "0:0", archive, API_TIMEOUT_S, is_privileged=True)
        if code != 0:
            raise SandboxError(f"docker: container {self.name}: an archive can't be unpacked: {output!r:.300}")

    def _packed(self, path: str) -> Iterator[bytes]:
        argv = ("/bin/tar", "-cf", "-", "-C", "/", path.lstrip("/"))
        opened = open_exec(self.container, argv, "0:0", {}, is_privileged=True)
        for name, payload in opened.frames(b"", API_TIMEOUT_S):
            if name == "stdout":
                yield payload
        code = opened.exit_code()
        if code != 0:
            raise PathError(f"tree: {path}: changed while it was read, or can't be read (tar: {code})")
