"""The peer that everyone has: the `docker` command, with the confinement that this project's containers have too.

It does the least that gives the same: `docker run IMAGE true` is a whole start, `docker cp` moves files, and a fork is
`docker commit` and a container of the result.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from sandbox_speed.subject import MEGABYTE, PREPARE_SCRIPT, LeftOutError, Operation, Samples, Sizes

IMAGE = "swe-rl/python"
LABEL = "swe-rl.benchmark"
CONFINEMENT = (
    *("--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--memory", "512m", "--pids-limit", "64", "--label", LABEL),
)


async def docker(*arguments: str) -> str:
    """Its standard output. Raises RuntimeError with what it says where it fails."""
    child = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"docker {' '.join(arguments[:2])}: {err.decode(errors='replace').strip()[-300:]}")
    return out.decode(errors="replace").strip()


async def require_image(image: str) -> None:
    """Raises LeftOutError without a docker command, an engine, or the image."""
    if shutil.which("docker") is None:
        raise LeftOutError("there is no docker command")
    try:
        await docker("version", "--format", "{{.Server.Version}}")
    except RuntimeError as error:
        raise LeftOutError(f"no Docker engine answers: {error}") from error
    try:
        await docker("image", "inspect", "--format", "{{.Id}}", image)
    except RuntimeError as error:
        raise LeftOutError(f"no image {image}: build it with: swe-rl images build python") from error


class DockerCli:
    """Subject `docker_cli`."""

    name = "docker_cli"

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._scratch = tempfile.TemporaryDirectory(prefix="swe-rl-benchmark-")
        self._container = ""

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "start_cold": self._start,
            "exec": self._exec,
            "file_up": self._file_up,
            "file_down": self._file_down,
            "concurrent": self._concurrent,
            "fork": self._fork,
        }

    async def open(self) -> None:
        await require_image(IMAGE)
        self._file = Path(self._scratch.name) / "megabyte.txt"
        self._file.write_bytes(MEGABYTE)
        self._file.chmod(0o644)
        self._container = await docker("run", "-d", *CONFINEMENT, IMAGE, "sleep", "infinity")
        await docker("exec", self._container, "bash", "-c", f"cd /tmp && {PREPARE_SCRIPT}")

    async def close(self) -> None:
        if self._container:
            await docker("rm", "-f", "-v", self._container)
        self._scratch.cleanup()

    async def _start(self) -> Samples:
        name = f"swe-rl-benchmark-{uuid4().hex}"
        started = time.perf_counter()
        await docker("run", "--name", name, *CONFINEMENT, IMAGE, "true")
        seconds = time.perf_counter() - started
        await docker("rm", "-v", name)
        return {"start_cold": [seconds]}

    async def _exec(self) -> Samples:
        return {"exec": [await self._timed("exec", self._container, "true") for _ in range(self._sizes.num_execs)]}

    async def _file_up(self) -> Samples:
        target = f"{self._container}:/tmp/megabyte.txt"
        return {"file_up": [await self._timed("cp", str(self._file), target) for _ in range(self._sizes.num_files)]}

    async def _file_down(self) -> Samples:
        source, back = f"{self._container}:/tmp/megabyte.txt", self._file.with_name("back.txt")
        samples = [await self._timed("cp", source, str(back)) for _ in range(self._sizes.num_files)]
        if back.read_bytes() != MEGABYTE:
            raise RuntimeError("docker cp: a file came back changed")
        return {"file_down": samples}

    async def _concurrent(self) -> Samples:
        started = time.perf_counter()
        runs = (docker("run", "--rm", *CONFINEMENT, IMAGE, "true") for _ in range(self._sizes.num_concurrent))
        await asyncio.gather(*runs)
        return {"concurrent": [time.perf_counter() - started]}

    async def _fork(self) -> Samples:
        tag = f"swe-rl-benchmark:{uuid4().hex}"
        started = time.perf_counter()
        await docker("commit", self._container, tag)
        names = [f"swe-rl-benchmark-{uuid4().hex}" for _ in range(self._sizes.num_forks)]
        try:
            await asyncio.gather(*(docker("run", "--name", name, *CONFINEMENT, tag, "true") for name in names))
            seconds = time.perf_counter() - started
        finally:
            await docker("rm", "-f", "-v", *names)
            await docker("rmi", tag)
        return {"fork": [seconds]}

    async def _timed(self, *arguments: str) -> float:
        started = time.perf_counter()
        await docker(*arguments)
        return time.perf_counter() - started
