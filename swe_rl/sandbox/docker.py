"""The Docker backend: one container a session, without network, capabilities or root, removed with all its volumes.

The language's image (`[image] name` of its sandbox.toml, else swe-rl/<language>) brings the toolchain. Commands of one
session run one after another. At the deadline the container's whole process tree is killed and the container started
again; its files stay. For a command with `runner_dir` a root-owned copy lies at /runner from then on; /report is made
for the command, and its plain files are copied to `report_dir` afterwards.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from docker import DockerClient
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import Ulimit

from swe_rl.errors import PathError, SandboxError, SandboxUnavailableError
from swe_rl.sandbox import docker_exec
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, WORKDIR, Command, CommandResult, FileEntry, SandboxSpec
from swe_rl.sandbox.capture import Capture
from swe_rl.sandbox.docker_engine import API_TIMEOUT_S, OWNER_LABEL, Engine, remove_abandoned, remove_container
from swe_rl.sandbox.docker_exec import ErrorStream
from swe_rl.sandbox.environment import USER_ID, default_environment, exit_and_signal
from swe_rl.sandbox.scratch import ScratchDir
from swe_rl.sandbox.started import StartedCommand
from swe_rl.sandbox.tree import MAX_FILE_BYTES, relative_parts, remove_tree
from swe_rl.sandbox.workspace import WorkspaceCache, write_tree
from swe_rl.task.language import LanguageSpec

logger = logging.getLogger(__name__)

KILL_GRACE_S = 30.0
SPARE_PIDS = 8


class DockerSandbox:
    """One running container."""

    def __init__(self, container: Container, spec: SandboxSpec, environment: Mapping[str, str], engine: Engine):
        self.sandbox_id = str(container.name)
        self._container = container
        self._spec = spec
        self._environment = dict(environment)
        self._engine = engine
        self._turn = asyncio.Lock()
        self._oom_kills = 0
        self._is_closed = False

    async def run(self, command: Command) -> CommandResult:
        cwd = "/".join((WORKDIR, *relative_parts(command.cwd)))
        if docker_exec.is_too_long(command.argv):
            return CommandResult(126, None, b"", b"sandbox: argument list too long\n", 0, False, False, 0.0)
        async with self._turn:
            self._require_open()
            await self._engine.start(self._place, command)
            result = await self._execute(command, cwd)
            if command.report_dir is not None:
                await self._engine.start(self._fetch_report, command.report_dir)
        return result

    async def start(self, command: Command) -> StartedCommand:
        self._require_open()
        return StartedCommand(self.run, command)

    async def snapshot(self, into: Path) -> None:
        tree = await self.read_tree()
        await self._engine.start(write_tree, tree, into)

    async def read_file(self, path: str) -> bytes:
        result = await self._run_file_script(docker_exec.READ_SCRIPT, path, b"", MAX_FILE_BYTES + 4096)
        return result.stdout

    async def write_file(self, path: str, data: bytes) -> None:
        await self._run_file_script(docker_exec.WRITE_SCRIPT, path, data, 4096)

    async def read_tree(self) -> dict[str, FileEntry]:
        async with self._turn:
            self._require_open()
            return await self._engine.start(
                lambda: docker_exec.tree_of_archive(self._container.get_archive(WORKDIR, chunk_size=1 << 20)[0])
            )

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._engine.start(remove_container, self._container)

    async def _run_file_script(self, script: str, path: str, data: bytes, limit_bytes: int) -> CommandResult:
        parts = relative_parts(path)
        if not parts:
            raise PathError(f"path {path!r}: is the working directory, expected a file")
        argv = ("/bin/sh", "-c", script, "sandbox", *parts)
        result = await self.run(Command(argv, stdin=data, timeout_s=API_TIMEOUT_S, output_limit_bytes=limit_bytes))
        if result.exit_code != 0:
            problem = docker_exec.FILE_PROBLEMS.get(result.exit_code or 0, "can't be accessed")
            raise PathError(f"path {path!r}: {problem}")
        return result

    async def _execute(self, command: Command, cwd: str) -> CommandResult:
        started = time.monotonic()
        stdout, stderr = Capture(command.output_limit_bytes), Capture(command.output_limit_bytes)
        errors = ErrorStream(stderr)
        argv = docker_exec.wrapped(command.argv, errors.trailer, cwd, bool(command.stdin))
        reading = self._engine.start(self._stream, argv, dict(command.env), stdout, errors)
        is_late = False
        try:
            code = await asyncio.wait_for(asyncio.shield(reading), command.timeout_s)
        except TimeoutError:
            is_late, code = True, None
            await self._kill_all()
            await asyncio.wait({reading}, timeout=KILL_GRACE_S)
        except asyncio.CancelledError:
            await asyncio.shield(self._kill_all())
            raise
        oom_kills = errors.finish()
        if code is not None and (oom_kills is None or code > 128):
            await self._kill_all()  # the wrapper itself may have been killed before it could clean up
        has_oom = oom_kills is not None and oom_kills > self._oom_kills
        self._oom_kills = self._oom_kills if oom_kills is None else oom_kills
        exit_code, number = (None, None) if code is None else exit_and_signal(code)
        truncated_bytes = stdout.truncated_bytes + stderr.truncated_bytes
        duration_s = time.monotonic() - started
        return CommandResult(
            exit_code, number, stdout.data(), stderr.data(), truncated_bytes, is_late, has_oom, duration_s
        )

    def _stream(self, argv: list[str], env: dict[str, str], stdout: Capture, errors: ErrorStream) -> int:
        """Blocks until the command has ended; the exit status."""
        api = self._container.client.api
        environment = self._environment | dict(self._spec.env) | env
        created = api.exec_create(
            self._container.id, argv, user=f"{USER_ID}:{USER_ID}", environment=environment, workdir="/"
        )
        for out, err in api.exec_start(created["Id"], stream=True, demux=True):
            if out:
                stdout.feed(out)
            if err:
                errors.feed(err)
        code = api.exec_inspect(created["Id"])["ExitCode"]
        if code is None:
            raise SandboxError(f"docker: container {self.sandbox_id}: the engine lost a command; is it still running?")
        return int(code)

    async def _kill_all(self) -> None:
        """Ends the container's PID namespace, and starts the container again with the files it has."""
        await self._engine.start(self._kill)
        await self._engine.start(self._container.start)

    def _kill(self) -> None:
        try:
            self._container.kill()
        except APIError as error:
            if error.status_code != 409:  # 409: it isn't running, which is what we want
                raise

    def _place(self, command: Command) -> None:
        if command.stdin:
            self._put(docker_exec.stdin_archive(command.stdin))
        if command.runner_dir is not None:
            self._put(docker_exec.directory_archive(command.runner_dir, RUNNER_DIR.lstrip("/"), 0))
        if command.report_dir is not None:
            self._put(docker_exec.directory_archive(command.report_dir, REPORT_DIR.lstrip("/")))

    def _put(self, archive: bytes) -> None:
        if not self._container.put_archive("/", archive):
            raise SandboxError(f"docker: container {self.sandbox_id}: the engine refused an archive")

    def _fetch_report(self, report_dir: Path) -> None:
        try:
            chunks, _ = self._container.get_archive(REPORT_DIR, chunk_size=1 << 20)
            docker_exec.save_report(chunks, report_dir)
        except (NotFound, PathError, FileExistsError) as error:
            logger.info("container %s: no report: %s", self.sandbox_id, error)

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"container {self.sandbox_id}: is closed; create a new one")


class DockerBackend:
    """Containers of one engine (DOCKER_HOST, else the local one). `runtime`: e.g. runsc, where the engine has it."""

    name = "docker"
    instance_id = ""

    def __init__(self, languages: Mapping[str, LanguageSpec], scratch_dir: Path, runtime: str | None = None) -> None:
        self._languages = languages
        self._runtime = runtime
        self._scratch_dir = scratch_dir
        self._scratch: ScratchDir | None = None
        self._engine = Engine()
        self._guard = threading.Lock()

    async def check(self) -> None:
        """Connects and removes what a dead process left. An image is looked for when a session needs it."""
        await self._engine.start(self._prepare)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Raises SandboxUnavailableError where no engine answers or the language's image isn't there."""
        if spec.language not in self._languages:
            raise SandboxError(f"docker: language {spec.language!r} is unknown; there are {sorted(self._languages)}")
        container = await self._engine.start(self._make, spec)
        environment = default_environment() | dict(self._languages[spec.language].env)
        del environment["PATH"]  # the image knows where its toolchain is
        return DockerSandbox(container, spec, environment, self._engine)

    async def close(self) -> None:
        await self._engine.close()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.close)

    async def reconcile(self) -> int:
        client, _ = await self._engine.start(self._prepare)
        return await self._engine.start(remove_abandoned, client)

    def _prepare(self) -> tuple[DockerClient, WorkspaceCache]:
        client = self._engine.connect()
        with self._guard:
            if self._scratch is None:
                self._scratch = ScratchDir(self._scratch_dir, "docker").open()
                self._workspaces = WorkspaceCache(self._scratch.path / "templates")
        return client, self._workspaces

    def _make(self, spec: SandboxSpec) -> Container:
        client, workspaces = self._prepare()
        language = self._languages[spec.language]
        image = str(language.image.get("name") or f"swe-rl/{spec.language}")
        limits = spec.limits
        memory = f"{limits.memory_mb}m"
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
                mem_limit=memory,
                memswap_limit=memory,
                nano_cpus=int(limits.cpus * 1e9),
                pids_limit=limits.num_pids + SPARE_PIDS,
                ulimits=[Ulimit(name="core", soft=0, hard=0), _file_size(limits.file_size_mb)],
                labels={OWNER_LABEL: self._engine.owner},
                runtime=self._runtime,
            )
        except ImageNotFound as error:
            raise SandboxUnavailableError(
                f"docker: no image {image!r} for language {spec.language!r}; "
                f"build it with: sandboxes/base/build.sh {spec.language}"
            ) from error
        try:
            container.put_archive("/", docker_exec.base_archive())
            container.put_archive("/", self._archive(spec, workspaces))
            container.start()
        except BaseException:
            remove_container(container)
            raise
        return container

    def _archive(self, spec: SandboxSpec, workspaces: WorkspaceCache) -> bytes:
        if not spec.is_disposable:
            return docker_exec.template_archive(workspaces.template(spec.source))
        archive = docker_exec.directory_archive(spec.source, WORKDIR.lstrip("/"))
        remove_tree(spec.source)
        return archive


def _file_size(megabytes: int) -> Ulimit:
    return Ulimit(name="fsize", soft=megabytes << 20, hard=megabytes << 20)
