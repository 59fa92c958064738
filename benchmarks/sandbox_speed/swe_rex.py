"""The peer SWE-ReX (PyPI `swe-rex` with `aiohttp`, in an environment of its own), local and in Docker.

Its Docker deployment needs an image that holds it: one is made of this project's, with the packages that pip of that
environment fetches for the image's Python; inside there is no network, and nothing is fetched.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox_speed.docker_cli import IMAGE, LABEL, docker, require_image
from sandbox_speed.subject import MEGABYTE, LeftOutError, Operation, Samples, Sizes

REQUIREMENTS = ("swe-rex", "aiohttp")
DOCKER_ARGS = (
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--memory", "512m", "--pids-limit", "64", "--label", LABEL),
)
_DRIVER = Path(__file__).with_name("swe_rex_driver.py")
_DOCKERFILE = """ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER root
COPY packages /opt/swe-rex
RUN python3 -m compileall -q /opt/swe-rex; \\
    printf '#!/bin/sh\\nPYTHONPATH=/opt/swe-rex exec python3 -m swerex "$@"\\n' > /usr/local/bin/swerex-remote; \\
    chmod 755 /usr/local/bin/swerex-remote
USER agent
"""


class SweRex:
    """Subject `swe_rex_local` or `swe_rex_docker`."""

    def __init__(self, kind: str, interpreter: Path | None, image: str, scratch: Path, sizes: Sizes) -> None:
        self.name = f"swe_rex_{kind}"
        self._kind, self._interpreter, self._image, self._sizes = kind, interpreter, image, sizes
        self._scratch = scratch / self.name
        self._child: asyncio.subprocess.Process | None = None

    @property
    def operations(self) -> Mapping[str, Operation]:
        counts = {
            "start_cold": 1,
            "exec": self._sizes.num_execs,
            "file_up": self._sizes.num_files,
            "file_down": self._sizes.num_files,
            "concurrent": self._sizes.num_concurrent,
        }
        return {name: self._operation(name, count) for name, count in counts.items()}

    async def open(self) -> None:
        if self._interpreter is None:
            raise LeftOutError("name the interpreter of an environment with swe-rex and aiohttp: --swe-rex-python")
        self._scratch.mkdir(parents=True)
        file = self._scratch / "megabyte.txt"
        file.write_bytes(MEGABYTE)
        if self._kind == "docker":
            await require_image(IMAGE)
            self._image = self._image or await build_image(self._interpreter, self._scratch)
        with (self._scratch / "driver.log").open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                str(self._interpreter), str(_DRIVER), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=log, env={**os.environ, "SWE_REX_LOG_STREAM_LEVEL": "ERROR"}, cwd=self._scratch,
            )  # fmt: skip
        target = self._scratch / "target" if self._kind == "local" else Path("/tmp")
        target.mkdir(exist_ok=True)
        setup = {"kind": self._kind, "image": self._image, "docker_args": DOCKER_ARGS}
        try:
            await self._ask({"do": "open", "file": str(file), "target": str(target), **setup})
        except RuntimeError as error:
            raise LeftOutError(str(error)) from error

    async def close(self) -> None:
        if self._child is not None and self._child.returncode is None:
            await self._ask({"do": "close"})
            assert self._child.stdin is not None
            self._child.stdin.close()
            await self._child.wait()

    def _operation(self, name: str, count: int) -> Operation:
        async def measure() -> Samples:
            return await self._ask({"do": name, "count": count})

        return measure

    async def _ask(self, request: Mapping[str, Any]) -> Samples:
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(request).encode() + b"\n")
        await self._child.stdin.drain()
        line = await self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: its driver ended: {(self._scratch / 'driver.log').read_text()[-400:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {request['do']}: {answer['error']}")
        samples: Samples = answer["samples"]
        return samples


async def build_image(interpreter: Path, scratch: Path) -> str:
    """The image's name. Raises LeftOutError where pip or the engine can't make it."""
    context = scratch / "image"
    version = await docker("run", "--rm", "--label", LABEL, IMAGE, "python3", "-c", _VERSION)
    pip = (str(interpreter), "-m", "pip", "-q", "--disable-pip-version-check")
    wheels, packages = context / "wheels", context / "packages"
    for arguments in (
        ("wheel", "--wheel-dir", str(wheels), *REQUIREMENTS),
        ("install", "--target", str(packages), "--no-index", "--find-links", str(wheels), "--python-version", version,
         "--only-binary=:all:", *REQUIREMENTS),
    ):  # fmt: skip
        done = await asyncio.to_thread(subprocess.run, [*pip, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LeftOutError(f"pip {arguments[0]} of {', '.join(REQUIREMENTS)}: {done.stderr.strip()[-300:]}")
    (context / "Dockerfile").write_text(_DOCKERFILE)
    (context / ".dockerignore").write_text("wheels\n")
    name = "swe-rl-benchmark/swe-rex"
    try:
        await docker("build", "-q", "--label", LABEL, "--build-arg", f"BASE_IMAGE={IMAGE}", "-t", name, str(context))
    except RuntimeError as error:
        raise LeftOutError(str(error)) from error
    return name


_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
