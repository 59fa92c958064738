"""The embedded backend: each session in namespaces that `bwrap` makes, over a private host directory.

Inside: the host's /usr and toolchains read-only, a made-up /etc, private /proc, /dev and /tmp, no network, one
unprivileged user (see confinement), the working directory at /workspace. Memory, processes and CPU time are held by a
control group where one can be made (else by limits of single processes, and `cpus` isn't applied); the disk by a tmpfs
of its own where the service is root and its scratch directory is in memory, else by a size that is watched.
"""

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from swe_rl.errors import CapacityError, SandboxError, SandboxUnavailableError
from swe_rl.sandbox.base import Command, SandboxSpec
from swe_rl.sandbox.bubblewrap_sandbox import BubblewrapSandbox
from swe_rl.sandbox.bwrap_command import BwrapCommand, explain_refusal, find_bwrap
from swe_rl.sandbox.cgroup import CgroupTree, open_cgroups, remove_stale_cgroups
from swe_rl.sandbox.confinement import choose_confinement
from swe_rl.sandbox.copying import copy_tree
from swe_rl.sandbox.disk import open_disk, unmount
from swe_rl.sandbox.environment import default_environment
from swe_rl.sandbox.instance import new_instance_id
from swe_rl.sandbox.joining import Joiner
from swe_rl.sandbox.scratch import ScratchDir, remove_abandoned
from swe_rl.sandbox.toolchain import Toolchain, find_toolchain, system_binds, write_etc
from swe_rl.sandbox.tree import remove_tree
from swe_rl.sandbox.workspace import WorkspaceCache, take_over
from swe_rl.task.language import LanguageSpec

MIN_FREE_BYTES = 256 * 1024 * 1024
SPARE_PIDS = 8  # bwrap's and the shells' own, which share the group with the command's
_NUM_THREADS = 16  # they copy files and wait for kills


class BubblewrapBackend:
    """Sandboxes below `scratch_dir`; several backends may share one. `check` or the first `create` prepares it."""

    name = "bubblewrap"

    def __init__(self, languages: Mapping[str, LanguageSpec], scratch_dir: Path) -> None:
        self.instance_id = new_instance_id()
        self._languages = languages
        self._scratch_dir = scratch_dir
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="sandbox")
        self._joiner = Joiner()
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
            sandbox = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(self._disown)  # the thread goes on: what it makes has no owner any more
            raise
        if not spec.is_disposable:  # a grader's: its one command runs alone
            try:
                await sandbox.prepare()
            except BaseException:
                await asyncio.shield(sandbox.close())
                raise
        return sandbox

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes.values())))
        finally:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._release)
            self._joiner.close()
            self._executor.shutdown(wait=False)

    async def reconcile(self) -> int:
        """Directories with what is mounted there, and control groups with the processes inside."""

        def remove() -> int:
            return remove_stale_cgroups() + remove_abandoned(self._scratch_dir)

        return await asyncio.get_running_loop().run_in_executor(self._executor, remove)

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
        root.mkdir(mode=0o700)
        try:
            disk = open_disk(root, spec.limits.disk_mb)
            self._lay_out(root, spec)
            cgroup = self._cgroups.create(spec.limits, SPARE_PIDS) if self._cgroups else None
        except OSError as error:
            _discard(root)
            raise SandboxError(f"bubblewrap: {root.name} can't be laid out from {spec.source}: {error}") from error
        except BaseException:
            _discard(root)
            raise
        sandbox = BubblewrapSandbox(root, spec, builder, cgroup, disk, self._joiner, self._executor, self._forget)
        self._sandboxes[sandbox.sandbox_id] = sandbox
        return sandbox

    def _lay_out(self, root: Path, spec: SandboxSpec) -> None:
        owner = self._confinement.owner
        for directory in (root / "tmp", root / "tmp" / "home", root / "shm"):
            directory.mkdir(mode=0o700)
            if owner is not None:
                os.chown(directory, owner, owner)
        if spec.is_disposable:
            take_over(spec.source, root / "workspace", owner)
        elif spec.is_snapshot or (spec.source / ".git").exists():  # it goes on with its own history
            copy_tree(spec.source, root / "workspace", spec.limits.disk_mb << 20, owner)
        else:
            self._workspaces.template(spec.source).copy_to(root / "workspace", owner)
        if spec.labels:
            (root / "labels.json").write_text(json.dumps(dict(spec.labels)))

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
            if self._is_closed:
                raise SandboxError("bubblewrap: the backend is closed")
            if self._home is not None:
                return
            bwrap = find_bwrap()
            self._scratch = ScratchDir(self._scratch_dir, "bubblewrap").open()
            home = self._scratch.path
            (home / "sessions").mkdir()
            write_etc(home / "etc")
            self._workspaces = WorkspaceCache(home / "templates")
            self._confinement = choose_confinement(bwrap, home)
            (home / "instance").write_text(self.instance_id)
            remove_stale_cgroups()
            self._cgroups = open_cgroups(self.instance_id)
            self._base_arguments = [bwrap, *self._confinement.arguments, *system_binds()]
            self._base_arguments += ["--proc", "/proc", *self._confinement.proc_binds]
            self._base_arguments += ["--dev", "/dev", "--ro-bind", f"{home}/etc", "/etc"]
            self._home = home

    def _release(self) -> None:
        with self._guard:
            if self._scratch is not None:
                self._scratch.close()
                self._scratch = self._home = None
            if self._cgroups is not None:
                self._cgroups.close()
                self._cgroups = None


def _discard(root: Path) -> None:
    unmount(root)
    remove_tree(root)
