"""Runs under SWE-ReX's own interpreter and times it there: lines of JSON in, lines of JSON out. Nothing of swe-rl here.

{"do": "open", "kind": "local" | "docker", "image": ..., "docker_args": [...], "file": ...}, then {"do": OPERATION,
"count": N}; each answer is {"samples": {OPERATION: [seconds]}} or {"error": text}. `exec` is a command in its bash
session, which is what its agents use; `exec_alone` is its `execute`, which starts a process of its own.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swerex.deployment.docker import DockerDeployment
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
)

STARTUP_S = 300.0


class Driver:
    def __init__(self, answers) -> None:
        self._answers = answers
        self._deployment = None

    def deployment(self):
        if self._setup["kind"] == "local":
            return LocalDeployment()
        return DockerDeployment(
            image=self._setup["image"], pull="never", docker_args=self._setup["docker_args"], startup_timeout=STARTUP_S
        )

    async def answer(self, request: dict) -> dict:
        do, count = request["do"], request.get("count", 1)
        if do == "open":
            self._setup = request
            self._deployment, _ = await self.start()
            self._target = f"{request['target']}/megabyte.txt"
            return {}
        if do == "close":
            if self._deployment is not None:
                await self._deployment.stop()
            return {}
        return await getattr(self, f"time_{do}")(count)

    async def start(self):
        """A deployment whose bash session has answered `true`, and the seconds it took."""
        started = time.perf_counter()
        deployment = self.deployment()
        try:
            await deployment.start()
            await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=STARTUP_S))
            await self.true(deployment)
        except BaseException:
            await deployment.stop()
            raise
        return deployment, time.perf_counter() - started

    async def true(self, deployment) -> None:
        observation = await deployment.runtime.run_in_session(BashAction(command="true", timeout=STARTUP_S))
        if observation.exit_code != 0:
            raise RuntimeError(f"`true` gave {observation}")

    async def time_start_cold(self, count: int) -> dict:
        samples = []
        for _ in range(count):
            deployment, seconds = await self.start()
            samples.append(seconds)
            await deployment.stop()
        return {"start_cold": samples}

    async def time_exec(self, count: int) -> dict:
        """A command that fails (it gives its shell one second) isn't a sample; the next one gets a new shell."""
        in_shell, alone = [], []
        for _ in range(count):
            started = time.perf_counter()
            try:
                await self.true(self._deployment)
                in_shell.append(time.perf_counter() - started)
            except Exception:
                await self.renew_shell()
            started = time.perf_counter()
            result = await self._deployment.runtime.execute(Command(command=["true"]))
            alone.append(time.perf_counter() - started)
            if result.exit_code != 0:
                raise RuntimeError(f"`true` gave {result}")
        if not in_shell:
            raise RuntimeError(f"none of {count} commands in its shell answered")
        return {"exec": in_shell, "exec_alone": alone}

    async def renew_shell(self) -> None:
        with contextlib.suppress(Exception):
            await self._deployment.runtime.close_session(CloseBashSessionRequest())
        await self._deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=STARTUP_S))

    async def time_file_up(self, count: int) -> dict:
        samples = []
        for _ in range(count):
            started = time.perf_counter()
            await self._deployment.runtime.upload(
                UploadRequest(source_path=self._setup["file"], target_path=self._target)
            )
            samples.append(time.perf_counter() - started)
        return {"file_up": samples}

    async def time_file_down(self, count: int) -> dict:
        samples, expected = [], Path(self._setup["file"]).read_text()
        for _ in range(count):
            started = time.perf_counter()
            answer = await self._deployment.runtime.read_file(ReadFileRequest(path=self._target))
            samples.append(time.perf_counter() - started)
            if answer.content != expected:
                raise RuntimeError("a file came back changed")
        return {"file_down": samples}

    async def time_concurrent(self, count: int) -> dict:
        """In threads, because a start blocks its event loop."""

        async def one() -> None:
            deployment, _ = await self.start()
            await deployment.stop()

        started = time.perf_counter()
        with ThreadPoolExecutor(count) as executor:
            loop = asyncio.get_running_loop()
            calls = (loop.run_in_executor(executor, asyncio.run, one()) for _ in range(count))
            errors = [e for e in await asyncio.gather(*calls, return_exceptions=True) if e is not None]
        seconds = time.perf_counter() - started
        if errors:
            raise RuntimeError(f"{len(errors)} of {count} failed within {seconds:.1f} s, e.g. {errors[0]!r}")
        return {"concurrent": [seconds]}


async def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it prints now and then
    driver = Driver(answers)
    for line in sys.stdin:
        try:
            answer = {"samples": await driver.answer(json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        with contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    asyncio.run(main())
