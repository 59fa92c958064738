"""A command that runs on its own, over any sandbox's `run`: its output can be read once it has ended."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from swe_rl.sandbox.base import Command, CommandResult, OutputChunk, StreamName


class StartedCommand:
    """Made with what runs the command; cancelling that ends the command's tree."""

    def __init__(self, run: Callable[[Command], Coroutine[Any, Any, CommandResult]], command: Command) -> None:
        self.process_id = f"p-{uuid4().hex}"
        self._task = asyncio.create_task(run(command))

    async def read(self, stream: StreamName, offset: int, limit: int) -> OutputChunk:
        if not self._task.done():
            return OutputChunk(b"", offset, 0, False)
        result = self._result()
        data = (result.stdout if stream == "stdout" else result.stderr)[offset : offset + limit]
        return OutputChunk(data, offset, 0, True)

    async def wait(self, timeout_s: float) -> CommandResult | None:
        await asyncio.wait({self._task}, timeout=timeout_s)
        return self._result() if self._task.done() else None

    async def kill(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task

    def _result(self) -> CommandResult:
        if self._task.cancelled():
            return CommandResult(None, 9, b"", b"", 0, False, False, 0.0)
        return self._task.result()
