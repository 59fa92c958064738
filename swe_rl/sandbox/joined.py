"""What every sandbox that commands join has in common: running, starting and cancelling them."""

import asyncio
import contextlib
from abc import ABC, abstractmethod

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox.base import Command, CommandResult, Process
from swe_rl.sandbox.running import RunningCommand
from swe_rl.sandbox.started import StartedCommand

GUARD_EVERY_S = 2.0


class JoinedSandbox(ABC):
    """A subclass says how a command joins, and which commands have to run apart."""

    is_disk_hard: bool

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.generation = 0
        self._is_closed = False
        self._joined: set[RunningCommand] = set()
        self._guards: set[asyncio.Task[None]] = set()

    async def run(self, command: Command) -> CommandResult:
        self._require_open()
        if is_apart(command):
            return await self._run_apart(command)
        try:
            running = await self._join(command)
        except PathError:  # a ValueError, too, but the caller's own: the directory is refused, nothing was run
            raise
        except ValueError as error:
            return refused(f"not a command line: {error}")
        return await run_to_end(running)

    async def start(self, command: Command) -> Process:
        self._require_open()
        if is_apart(command):
            return StartedCommand(self.run, command)
        try:
            return await self._join(command)
        except PathError:
            raise
        except ValueError:  # not a command line: that is its result, as for `run`
            return StartedCommand(self.run, command)

    @abstractmethod
    async def _join(self, command: Command) -> RunningCommand:
        """Raises ValueError for what can't be a command line."""

    @abstractmethod
    async def _run_apart(self, command: Command) -> CommandResult:
        """A command with /report or /runner, of which nothing is left afterwards."""

    @abstractmethod
    async def is_disk_full(self) -> bool: ...

    def _take_in(self, running: RunningCommand) -> None:
        """Keeps a command that has joined until all of it has gone."""
        self._joined.add(running)
        if not self.is_disk_hard:
            guard = asyncio.create_task(self._guard(running))
            self._guards.add(guard)
            guard.add_done_callback(self._guards.discard)

    async def _guard(self, running: RunningCommand) -> None:
        """What a command has left behind may fill the disk, too."""
        with contextlib.suppress(SandboxError):
            await running.wait(None)
        while not await running.has_gone(GUARD_EVERY_S):
            with contextlib.suppress(SandboxError):
                if await self.is_disk_full():
                    await running.sweep()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"sandbox {self.sandbox_id}: is closed; create a new one")


def is_apart(command: Command) -> bool:
    """Whether the command sees directories that the others don't."""
    return command.report_dir is not None or command.runner_dir is not None


def refused(reason: str) -> CommandResult:
    """The result of a command that no kernel would start, as a shell gives it."""
    return CommandResult(126, None, b"", f"sandbox: {reason}\n".encode(errors="replace"), 0, False, False, 0.0)


async def run_to_end(running: RunningCommand) -> CommandResult:
    """Its result; a cancelled caller ends its tree."""
    try:
        result = await running.wait(None)
    except asyncio.CancelledError:
        await asyncio.shield(running.kill())
        raise
    assert result is not None
    return result
