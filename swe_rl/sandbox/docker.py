"""The Docker backend: one container a session, without network, capabilities or root, removed with all its volumes.

The language's image (`[image] name` of its sandbox.toml, else swe-rl/<language>) brings the toolchain. Commands enter
the container directly where that is provably the same as an exec by the engine (docker_direct), else through a shell
that the engine has executed (docker_shell). The disk is watched where this host has the engine's files, else not.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from uuid import uuid4

from docker import DockerClient
from docker.errors import ImageNotFound
from docker.models.containers import Container
from docker.types import Ulimit

from swe_rl.errors import SandboxError, SandboxUnavailableError
from swe_rl.sandbox import docker_exec
from swe_rl.sandbox.base import WORKDIR, Limits, SandboxSpec
from swe_rl.sandbox.docker_access import REFERENCE, Access, await_access, groups_of, open_access, open_disk_of
from swe_rl.sandbox.docker_container import AGENT, GvisorContainer, LiveContainer
from swe_rl.sandbox.docker_direct import DirectSandbox
from swe_rl.sandbox.docker_engine import OWNER_LABEL, Engine, remove_abandoned, remove_container
from swe_rl.sandbox.docker_shell import ShellSandbox
from swe_rl.sandbox.environment import SYSTEM_PATH, default_environment
from swe_rl.sandbox.joining import Joiner
from swe_rl.sandbox.scratch import ScratchDir
from swe_rl.sandbox.tree import remove_tree
from swe_rl.sandbox.workspace import WorkspaceCache
from swe_rl.task.language import LanguageSpec

logger = logging.getLogger(__name__)

Runtime = Literal["runc", "runsc"]
SPARE_PIDS = 8
GVISOR_SPARE_PIDS = 1024  # gVisor's own threads on the host, of which each process inside needs several
_PIDS_EACH = 8
REFERENCE_TRIES = 5


class DockerBackend:
    """Containers of one engine (DOCKER_HOST, else the local one). `runtime` runsc is gVisor, where the engine has it.

    `is_direct` false: every command goes through the engine, as from another machine.
    """

    def __init__(
        self,
        languages: Mapping[str, LanguageSpec],
        scratch_dir: Path,
        runtime: Runtime = "runc",
        is_direct: bool = True,
    ) -> None:
        self.name = "docker" if runtime == "runc" else f"docker-{runtime}"
        self._languages, self._runtime, self._scratch_dir = languages, runtime, scratch_dir
        self._is_direct = is_direct and runtime == "runc"
        self._scratch: ScratchDir | None = None
        self._engine = Engine()
        self._joiner = Joiner()
        self._references: dict[str, str] = {}
        self._guard = threading.Lock()
        self.instance_id = self._engine.owner

    async def check(self) -> None:
        """Connects and removes what a dead process left. An image is looked for when a session needs it."""
        client, _ = await self._engine.start(self._prepare)
        info = await self._engine.start(client.info)
        if self._runtime not in info.get("Runtimes", {}):
            raise SandboxUnavailableError(
                f"docker: the engine has no runtime {self._runtime!r}; name it in its daemon.json (gVisor: runsc)"
            )

    async def create(self, spec: SandboxSpec) -> DirectSandbox | ShellSandbox:
        """Raises SandboxUnavailableError where no engine answers or the language's image isn't there."""
        if spec.language not in self._languages:
            raise SandboxError(f"docker: language {spec.language!r} is unknown; there are {sorted(self._languages)}")
        archive = await self._engine.start(self._archive, spec)
        is_direct = self._is_direct  # then it's filled once it can be entered, which is faster
        creating = self._engine.start(self._make, spec, None if is_direct else archive)
        try:
            container = await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(_disown)  # the thread goes on: what it makes has no owner any more
            raise
        live = GvisorContainer(container) if self._runtime == "runsc" else LiveContainer(container)
        try:
            return await self._enter(live, spec, archive if is_direct else None)
        except BaseException:
            await asyncio.shield(self._engine.start(live.remove))
            raise

    async def reconcile(self) -> int:
        """Containers, with their volumes."""
        client, _ = await self._engine.start(self._prepare)
        return await self._engine.start(remove_abandoned, client)

    async def close(self) -> None:
        try:
            await self._engine.close()
        finally:
            await asyncio.to_thread(self._joiner.close)
            if self._scratch is not None:
                await asyncio.to_thread(self._scratch.close)

    async def _enter(
        self, live: LiveContainer, spec: SandboxSpec, archive: bytes | None
    ) -> DirectSandbox | ShellSandbox:
        """`archive`: what the container is still to be filled with."""
        environment = self._environment(live.container, spec)
        if archive is not None:
            direct = await self._open_direct(live, spec, environment, archive)
            if direct is not None:
                return direct
            await self._engine.start(live.put, archive)
        disk = await self._engine.start(open_disk_of, live.container, spec.limits.disk_mb)
        guest_pids = spec.limits.num_pids if self._runtime == "runsc" else None
        shell = ShellSandbox(live, spec, environment, self._engine, disk, guest_pids)
        await shell.prepare()
        return shell

    async def _open_direct(
        self, live: LiveContainer, spec: SandboxSpec, environment: Mapping[str, str], archive: bytes
    ) -> DirectSandbox | None:
        """None where joining isn't possible, or isn't the same as an exec by the engine: proved once an image."""
        image = str(live.container.attrs["Image"])
        reference = self._references.get(image)
        is_proved = reference is not None
        if reference is None:
            reference = await self._engine.start(_look_through_engine, live)
        groups = groups_of(reference)

        def reopen() -> Access:
            access = open_access(live.container, self._joiner, groups)
            if access is None:
                raise SandboxError(f"container {live.name}: can't be entered any more")
            return access

        disk = await self._engine.start(open_disk_of, live.container, spec.limits.disk_mb)
        access = await await_access(self._engine.start(open_access, live.container, self._joiner, groups))
        if access is None:
            if not await self._engine.start(live.is_running):  # which says nothing of other containers
                raise SandboxError(f"container {live.name}: ended before it could be entered; try it again")
            self._is_direct = False
            return None
        sandbox = DirectSandbox(live, spec, environment, self._engine, self._joiner, access, disk, reopen)
        try:
            await sandbox.fill(archive)
            is_same = is_proved or await sandbox.equals(reference)
        except BaseException:
            await sandbox.abandon()
            raise
        if is_same:
            self._references[image] = reference
            return sandbox
        await sandbox.abandon()
        self._is_direct = False
        return None

    def _environment(self, container: Container, spec: SandboxSpec) -> dict[str, str]:
        """The image's variables (it knows where its toolchain is), then ours, then the language's."""
        image = dict(word.split("=", 1) for word in container.attrs["Config"]["Env"] or [] if "=" in word)
        ours = default_environment()
        del ours["PATH"]
        return (
            {"PATH": ":".join(SYSTEM_PATH), "HOSTNAME": "sandbox"}
            | image
            | ours
            | dict(self._languages[spec.language].env)
        )

    def _prepare(self) -> tuple[DockerClient, WorkspaceCache]:
        client = self._engine.connect()
        with self._guard:
            if self._scratch is None:
                self._scratch = ScratchDir(self._scratch_dir, "docker").open()
                self._workspaces = WorkspaceCache(self._scratch.path / "templates")
        return client, self._workspaces

    def _make(self, spec: SandboxSpec, archive: bytes | None) -> Container:
        client, _ = self._prepare()
        image = str(self._languages[spec.language].image.get("name") or f"swe-rl/{spec.language}")
        labels = {f"swe-rl.label.{name}": value for name, value in spec.labels.items()}
        try:
            container = client.containers.create(
                image,
                command=[],
                entrypoint=["/bin/sleep", "infinity"],
                name=f"swe-rl-{uuid4().hex}",
                user="0:0",  # the idle process only: commands run as USER_ID and can't kill it
                hostname="sandbox",
                working_dir="/",
                init=True,
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                labels=labels | {OWNER_LABEL: self._engine.owner},
                runtime=self._runtime,
                **self._limits(spec.limits),
            )
        except ImageNotFound as error:
            raise SandboxUnavailableError(
                f"docker: no image {image!r} for language {spec.language!r}; "
                f"build it with: swe-rl images build {spec.language}"
            ) from error
        try:
            if archive is not None:
                LiveContainer(container).put(archive)
            container.start()
            container.reload()
            self._engine.require_open()  # else nobody looks for what was made since then
        except BaseException:
            remove_container(container)
            raise
        return container

    def _limits(self, limits: Limits) -> dict[str, object]:
        memory, size = f"{limits.memory_mb}m", limits.file_size_mb << 20
        pids = limits.num_pids + SPARE_PIDS
        if self._runtime == "runsc":  # the limit proper is one of the kernel inside; this one protects the host
            pids = limits.num_pids * _PIDS_EACH + GVISOR_SPARE_PIDS
        return {
            "mem_limit": memory,
            "memswap_limit": memory,
            "nano_cpus": int(limits.cpus * 1e9),
            "pids_limit": pids,
            "ulimits": [Ulimit(name="core", soft=0, hard=0), Ulimit(name="fsize", soft=size, hard=size)],
        }

    def _archive(self, spec: SandboxSpec) -> bytes:
        if spec.is_disposable or spec.is_snapshot or (spec.source / ".git").exists():  # goes on with its own history
            archive = docker_exec.directory_archive(spec.source, WORKDIR.lstrip("/"))
            if spec.is_disposable:
                remove_tree(spec.source)
        else:
            _, workspaces = self._prepare()
            archive = docker_exec.template_archive(workspaces.template(spec.source))
        return docker_exec.with_home(archive)


def _look_through_engine(live: LiveContainer) -> str:
    """REFERENCE's output. A busy engine loses what a short exec has written now and then: then once more."""
    for _ in range(REFERENCE_TRIES):
        _, output = live.execute(REFERENCE, AGENT)
        if output:
            return output.decode(errors="replace")
    raise SandboxError(f"container {live.name}: the engine gives no output of an exec; is it overloaded?")


def _disown(creating: "asyncio.Future[Container]") -> None:
    if not creating.cancelled() and creating.exception() is None:
        threading.Thread(target=remove_container, args=(creating.result(),), daemon=True).start()
