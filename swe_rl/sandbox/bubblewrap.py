"""The embedded backend: each command in fresh namespaces by `bwrap`, each session in a private host directory.

Inside: the host's /usr and toolchains read-only, a made-up /etc, private /proc, /dev and /tmp, no network, one
unprivileged user (see confinement), the working directory at /workspace. /tmp lasts as long as the session. Memory
and processes are held by a control group where one can be made; `cpus` isn't applied here.
"""

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from swe_rl.errors import CapacityError, SandboxError, SandboxUnavailableError
from swe_rl.sandbox.base import Command, CommandResult, FileEntry, SandboxSpec
from swe_rl.sandbox.bwrap_command import BwrapCommand, explain_refusal, find_bwrap
from swe_rl.sandbox.cgroup import Cgroup, CgroupTree, open_cgroups
from swe_rl.sandbox.confinement import choose_confinement
from swe_rl.sandbox.environment import default_environment
from swe_rl.sandbox.process import Process
from swe_rl.sandbox.scratch import ScratchDir, remove_abandoned
from swe_rl.sandbox.started import StartedCommand
from swe_rl.sandbox.toolchain import Toolchain, find_toolchain, system_binds, write_etc
from swe_rl.sandbox.tree import read_file, read_tree, relative_parts, remove_tree, write_file
from swe_rl.sandbox.workspace import WorkspaceCache, copy_tree, take_over
from swe_rl.task.language import LanguageSpec

logger = logging.getLogger(__name__)
T = TypeVar("T")

MIN_FREE_BYTES = 256 * 1024 * 1024
SPARE_PIDS = 8  # bwrap's and the shells' own, which share the group with the command's
CLOSE_S = 15.0
_NUM_THREADS = 4


class BubblewrapSandbox:
    """One session's directory; commands may run side by side in it."""

    def __init__(
        self,
        root: Path,
        spec: SandboxSpec,
        builder: BwrapCommand,
        cgroup: Cgroup | None,
        executor: ThreadPoolExecutor,
        on_closed: Callable[[str], object],
    ) -> None:
        self.sandbox_id = root.name
        self._root = root
        self._spec = spec
        self._builder = builder
        self._cgroup = cgroup
        self._executor = executor
        self._on_closed = on_closed
        self._running: set[Process] = set()
        self._is_closed = False

    async def run(self, command: Command) -> CommandResult:
        self._require_open()
        relative_parts(command.cwd)
        process = Process(self._builder.kill_tree)
        oom_kills = self._cgroup.num_oom_kills() if self._cgroup else 0
        self._running.add(process)
        try:
            ended = await process.run(
                lambda status_fd: self._builder.argv(command, self._root, self._spec, self._cgroup, status_fd),
                command.stdin,
                command.timeout_s,
                command.output_limit_bytes,
            )
        except (OSError, ValueError) as error:
            return self._builder.refused(error)
        finally:
            self._running.discard(process)
        if process.is_killed:
            raise SandboxError(f"sandbox {self.sandbox_id}: closed while a command ran")
        has_oom = self._cgroup is not None and self._cgroup.num_oom_kills() > oom_kills
        return self._builder.result(ended, has_oom)

    async def start(self, command: Command) -> StartedCommand:
        self._require_open()
        return StartedCommand(self.run, command)

    async def snapshot(self, into: Path) -> None:
        self._require_open()
        await self._in_thread(copy_tree, self._root / "workspace", into)

    async def read_file(self, path: str) -> bytes:
        self._require_open()
        return await self._in_thread(read_file, self._root / "workspace", path)

    async def write_file(self, path: str, data: bytes) -> None:
        self._require_open()
        await self._in_thread(write_file, self._root / "workspace", path, data)

    async def read_tree(self) -> dict[str, FileEntry]:
        self._require_open()
        return await self._in_thread(read_tree, self._root / "workspace")

    async def close(self) -> None:
        self._is_closed = True
        for process in list(self._running):
            process.kill()
        waited_s = 0.0
        while self._running and waited_s < CLOSE_S:
            await asyncio.sleep(0.01)
            waited_s += 0.01
        await self._in_thread(self.remove)
        self._on_closed(self.sandbox_id)

    def remove(self) -> None:
        """The blocking half of `close`, for when no command runs."""
        if self._cgroup is not None:
            for _ in range(100):
                if self._cgroup.remove():
                    break
                self._cgroup.kill()
                threading.Event().wait(0.01)
            else:
                logger.warning("sandbox %s: its control group still holds a process", self.sandbox_id)
        remove_tree(self._root)

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"sandbox {self.sandbox_id}: is closed; create a new one")

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


class BubblewrapBackend:
    """Sandboxes below `scratch_dir`; several backends may share one. `check` or the first `create` prepares it."""

    name = "bubblewrap"
    instance_id = ""

    def __init__(self, languages: Mapping[str, LanguageSpec], scratch_dir: Path) -> None:
        self._languages = languages
        self._scratch_dir = scratch_dir
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="sandbox")
        self._guard = threading.Lock()
        self._home: Path | None = None
        self._scratch: ScratchDir | None = None
        self._is_closed = False
        self._cgroups: CgroupTree | None = None
        self._builders: dict[str, BwrapCommand] = {}
        self._sandboxes: dict[str, BubblewrapSandbox] = {}

    async def check(self) -> None:
        """Runs `true` in a sandbox. Raises SandboxUnavailableError with the reason and what to do about it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._prepare)
        assert self._home is not None
        empty = self._home / "empty"
        empty.mkdir(exist_ok=True)
        spec = SandboxSpec(source=empty, language="")
        builder = self._command(Toolchain((), ()), {})
        sandbox = await loop.run_in_executor(self._executor, self._make, spec, builder)
        try:
            result = await sandbox.run(Command(argv=("true",), timeout_s=20))
        except SandboxError as error:
            raise SandboxUnavailableError(explain_refusal(str(error))) from error
        finally:
            await sandbox.close()
        if result.exit_code != 0:
            seen = result.stderr.decode(errors="replace").strip()
            raise SandboxUnavailableError(f"bubblewrap: `true` ended with {result.exit_code}: {seen}")

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """Raises SandboxUnavailableError (no bwrap, a missing toolchain), CapacityError (disk) or SandboxError."""
        future = self._executor.submit(self._make, spec, None)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(self._disown)  # the thread goes on: what it makes has no owner any more
            raise

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes.values())))
        await asyncio.get_running_loop().run_in_executor(self._executor, self._release)
        self._executor.shutdown(wait=False)

    async def reconcile(self) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._executor, remove_abandoned, self._scratch_dir)

    def _forget(self, sandbox_id: str) -> None:
        self._sandboxes.pop(sandbox_id, None)

    def _disown(self, made: "Future[BubblewrapSandbox]") -> None:
        if not made.cancelled() and made.exception() is None:
            self._forget(made.result().sandbox_id)
            made.result().remove()

    def _make(self, spec: SandboxSpec, builder: BwrapCommand | None) -> BubblewrapSandbox:
        self._prepare()
        assert self._home is not None
        builder = builder or self._builder(spec.language)
        if shutil.disk_usage(self._home).free < MIN_FREE_BYTES:
            raise CapacityError(f"bubblewrap: less than {MIN_FREE_BYTES >> 20} MB free below {self._scratch_dir}")
        root = self._home / "sessions" / uuid4().hex
        try:
            owner = self._confinement.owner
            for directory in (root, root / "tmp", root / "tmp" / "home"):
                directory.mkdir(mode=0o700)
                if owner is not None and directory != root:
                    os.chown(directory, owner, owner)
            if spec.is_disposable:
                take_over(spec.source, root / "workspace", owner)
            else:
                self._workspaces.template(spec.source).copy_to(root / "workspace", owner)
            limits = spec.limits
            cgroup = self._cgroups.create(limits.memory_mb, limits.num_pids + SPARE_PIDS) if self._cgroups else None
        except OSError as error:
            remove_tree(root)
            raise SandboxError(f"bubblewrap: {root.name} can't be laid out from {spec.source}: {error}") from error
        except BaseException:
            remove_tree(root)
            raise
        sandbox = BubblewrapSandbox(root, spec, builder, cgroup, self._executor, self._forget)
        self._sandboxes[sandbox.sandbox_id] = sandbox
        return sandbox

    def _builder(self, language: str) -> BwrapCommand:
        if language not in self._languages:
            raise SandboxError(f"bubblewrap: language {language!r} is unknown; there are {sorted(self._languages)}")
        if language not in self._builders:
            spec = self._languages[language]
            toolchain = find_toolchain(language, spec.requires)
            self._builders[language] = self._command(toolchain, spec.env)
        return self._builders[language]

    def _command(self, toolchain: Toolchain, environment: Mapping[str, str]) -> BwrapCommand:
        arguments = list(self._base_arguments)
        for path in toolchain.binds:
            # Made by name, so that all may pass: bwrap would give them the host's modes, and /root's is 0700.
            for parent in reversed(Path(path).parents[:-1]):
                arguments += ["--dir", str(parent)]
            arguments += ["--ro-bind", path, path]
        return BwrapCommand(arguments, self._confinement, default_environment(toolchain.path) | dict(environment))

    def _prepare(self) -> None:
        with self._guard:
            if self._home is not None:
                return
            bwrap = find_bwrap()
            self._scratch = ScratchDir(self._scratch_dir, "bubblewrap").open()
            home = self._scratch.path
            (home / "sessions").mkdir()
            write_etc(home / "etc")
            self._workspaces = WorkspaceCache(home / "templates")
            self._confinement = choose_confinement(bwrap, home)
            self._cgroups = open_cgroups()
            self._base_arguments = [bwrap, *self._confinement.arguments, *system_binds()]
            self._base_arguments += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", f"{home}/etc", "/etc"]
            self._home = home

    def _release(self) -> None:
        with self._guard:
            if self._scratch is not None:
                self._scratch.close()
                self._scratch = self._home = None
            if self._cgroups is not None:
                self._cgroups.close()
                self._cgroups = None
