"""This project's own side: two services of one backend (with a warm pool and without), and the backend itself.

Everything goes through the client over HTTP, except `exec_backend`, which calls the backend in this process; `exec`
alternates between both, so that their difference is the service's own share.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from served import ROOT, TOKEN, ServedProcess, metric, write_python_tasks

from sandbox_speed.subject import MEGABYTE, PREPARE_SCRIPT, LeftOutError, Operation, Samples, Sizes
from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxUnavailableError, SweRlError
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, Command, Sandbox, SandboxSpec
from swe_rl.task.language import read_languages
from swe_rl.wire import ExecRequest

TRUE = ExecRequest(argv=["true"])
POOL_SETTLES_S = 60.0
PER_ENVIRONMENT = 2  # what the pool keeps ready of an environment once one was handed out


class Ours:
    """Subject `ours_<backend>`."""

    def __init__(self, backend: str, scratch: Path, sizes: Sizes) -> None:
        self.name = f"ours_{backend}"
        self._kind, self._scratch, self._sizes = backend, scratch / backend, sizes
        self._served: list[ServedProcess] = []
        self._backend: Backend | None = None

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "start_cold": self._start_cold,
            "start_warm": self._start_warm,
            "exec": self._exec,
            "file_up": self._file_up,
            "file_down": self._file_down,
            "concurrent": self._concurrent,
            "fork": self._fork,
        }

    async def open(self) -> None:
        self._scratch.mkdir(parents=True)
        (self._task_id,) = write_python_tasks(self._scratch / "tasks", 1)
        try:
            self._cold = await self._serve("cold", "--pool-size", "0")
            self._warm = await self._serve("warm")
            self._backend, self._sandbox = await self._open_backend()
        except (RuntimeError, SandboxUnavailableError) as error:
            raise LeftOutError(str(error)) from error
        for client in (self._cold, self._warm):
            await self._start(client)  # the first one of a content lays its repository, which all others copy
        self._session = (await self._warm.create_session(self._task_id, ttl_s=3600)).session_id
        self._prepared = (await self._warm.create_session(self._task_id, ttl_s=3600)).session_id
        prepared = await self._warm.exec(self._prepared, ExecRequest(script=PREPARE_SCRIPT))
        if prepared.stdout != "ready\n":
            raise LeftOutError(f"{self.name}: the sandbox to fork can't be prepared: {prepared}")

    async def close(self) -> None:
        for client in (getattr(self, "_cold", None), getattr(self, "_warm", None)):
            if client is not None:
                await client.aclose()
        if self._backend is not None:
            await self._backend.close()
        for served in self._served:
            if served.is_running:
                await served.stop()

    async def _serve(self, name: str, *more: str) -> SandboxClient:
        scratch, log = self._scratch / f"scratch-{name}", self._scratch / f"{name}.log"
        served = ServedProcess(self._kind, self._scratch / "tasks", scratch, log, more)
        self._served.append(served)
        await served.start()
        client = SandboxClient(served.url, TOKEN)
        await client.list_tasks()
        return client

    async def _open_backend(self) -> tuple[Backend, Sandbox]:
        backend = await open_backend(self._kind, read_languages(ROOT / "sandboxes"), self._scratch / "direct")  # type: ignore[arg-type]
        source = next((self._scratch / "tasks").glob("*/*/environment"))
        return backend, await backend.create(SandboxSpec(source, "python"))

    async def _start_cold(self) -> Samples:
        return {"start_cold": [await self._start(self._cold)]}

    async def _start_warm(self) -> Samples:
        """Raises RuntimeError where the sandbox didn't come from the pool: then the figure isn't what it says."""
        await self._settle()
        before = metric(await self._warm.metrics(), "swe_rl_sessions_created_total", source="warm")
        seconds = await self._start(self._warm)
        if metric(await self._warm.metrics(), "swe_rl_sessions_created_total", source="warm") != before + 1:
            raise RuntimeError(f"{self.name}: a start that should be warm was not")
        return {"start_warm": [seconds]}

    async def _settle(self) -> None:
        deadline = time.monotonic() + POOL_SETTLES_S
        while metric(await self._warm.metrics(), "swe_rl_pool_warm") < PER_ENVIRONMENT:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: the pool didn't fill within {POOL_SETTLES_S:g} s")
            await asyncio.sleep(0.05)

    async def _start(self, client: SandboxClient) -> float:
        started = time.perf_counter()
        session = await client.create_session(self._task_id)
        await self._true(client, session.session_id)
        seconds = time.perf_counter() - started
        await client.close_session(session.session_id)
        return seconds

    async def _exec(self) -> Samples:
        await self._settle()
        served, direct, inside = [], [], []
        for _ in range(self._sizes.num_execs):
            started = time.perf_counter()
            inside.append(await self._true(self._warm, self._session))
            served.append(time.perf_counter() - started)
            started = time.perf_counter()
            await self._sandbox.run(Command(("true",)))
            direct.append(time.perf_counter() - started)
        return {"exec": served, "exec_backend": direct, "exec_backend_in_service": inside}

    async def _file_up(self) -> Samples:
        samples = []
        for _ in range(self._sizes.num_files):
            started = time.perf_counter()
            await self._warm.write_file(self._session, "megabyte.txt", MEGABYTE)
            samples.append(time.perf_counter() - started)
        return {"file_up": samples}

    async def _file_down(self) -> Samples:
        samples = []
        for _ in range(self._sizes.num_files):
            started = time.perf_counter()
            data = await self._warm.read_file(self._session, "megabyte.txt")
            samples.append(time.perf_counter() - started)
            if data != MEGABYTE:
                raise RuntimeError(f"{self.name}: a file came back changed")
        return {"file_down": samples}

    async def _concurrent(self) -> Samples:
        async def one() -> None:
            session = await self._warm.create_session(self._task_id)
            await self._true(self._warm, session.session_id)
            await self._warm.close_session(session.session_id)

        await self._settle()
        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(self._sizes.num_concurrent)))
        return {"concurrent": [time.perf_counter() - started]}

    async def _fork(self) -> Samples:
        await self._settle()
        started = time.perf_counter()
        forks = await self._warm.fork(self._prepared, self._sizes.num_forks)
        await asyncio.gather(*(self._true(self._warm, fork.session_id) for fork in forks))
        seconds = time.perf_counter() - started
        await asyncio.gather(*(self._warm.close_session(fork.session_id) for fork in forks))
        return {"fork": [seconds]}

    async def _true(self, client: SandboxClient, session_id: str) -> float:
        """Seconds that the backend says it took."""
        try:
            result = await client.exec(session_id, TRUE)
        except SweRlError as error:
            raise RuntimeError(f"{self.name}: {error}") from error
        if result.exit_code != 0:
            raise RuntimeError(f"{self.name}: `true` gave {result}")
        return result.duration_s
