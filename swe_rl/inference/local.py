"""The engine inside the process: asyncio in front, one thread that runs the model behind.

    generate() --command--> thread: Scheduler.step() over all running sessions --future--> Completion

`load` lets what was asked before it finish under the old policy and holds back what is asked after it. A fault of the
model fails every request in flight with EngineError and leaves the engine usable. It serves small Llama-like models;
larger ones belong to the vllm engine.
"""

import asyncio
import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch

from swe_rl.config import EngineConfig
from swe_rl.errors import EngineError, SweRlError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.local_decoder import SlotDecoder
from swe_rl.inference.local_scheduler import Request, Scheduler
from swe_rl.model import load_model

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Load:
    policy_dir: Path
    version: int
    future: "Future[None]" = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Release:
    session_id: str
    future: "Future[None]" = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Close:
    future: "Future[None]" = field(default_factory=Future)


_Command = Request | _Load | _Release | _Close


class LocalEngine:
    """Samples from a policy on this machine's CPU. The same seed, policy and contexts give the same tokens."""

    def __init__(self, config: EngineConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._worker = _Worker(config, seed, self._commands)
        self._thread = threading.Thread(target=self._worker.run, name="local-engine", daemon=True)
        self._thread.start()

    async def load(self, policy_dir: Path, version: int) -> None:
        """Raises PolicyError if the directory can't be served; the policy before it then stays in place."""
        command = _Load(Path(policy_dir), version)
        self._send(command)
        await asyncio.wrap_future(command.future)

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """A context of `max_context` tokens or more gives an empty completion that ended by `length`.

        Cancelling the call aborts the generation and forgets the session.
        """
        request = Request(session_id, [int(token) for token in token_ids], sampling)
        self._send(request)
        try:
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            if not self._is_closed:
                self._send(_Release(session_id))
            raise

    async def release(self, session_id: str) -> None:
        if self._is_closed:
            return
        command = _Release(session_id)
        self._send(command)
        await asyncio.wrap_future(command.future)

    async def close(self) -> None:
        """Ends the thread; whatever still runs fails with EngineError. Idempotent."""
        if self._is_closed:
            return
        command = _Close()
        self._send(command)
        await asyncio.wrap_future(command.future)
        await asyncio.to_thread(self._thread.join)

    def _send(self, command: _Command) -> None:
        with self._lock:
            if self._is_closed:
                raise EngineError("local engine: is closed; open a new one")
            # a future that runs can't be cancelled from outside, so the thread may always resolve it
            command.future.set_running_or_notify_cancel()
            self._commands.put(command)
            self._is_closed = isinstance(command, _Close)


class _Worker:
    """The thread's side: takes commands between steps and keeps the scheduler of the current policy."""

    def __init__(self, config: EngineConfig, seed: int, commands: "queue.SimpleQueue[_Command]") -> None:
        self._config = config
        self._seed = seed
        self._commands = commands
        self._scheduler: Scheduler | None = None
        self._load: _Load | None = None
        self._held: deque[_Command] = deque()

    def run(self) -> None:
        torch.set_num_threads(self._config.num_threads)
        with torch.inference_mode():
            while True:
                close = self._take_commands()
                if close is not None:
                    self._shut_down(close)
                    return
                self._step()

    def _take_commands(self) -> _Close | None:
        """Waits for a command only when there is nothing to run."""
        is_idle = self._load is None and (self._scheduler is None or self._scheduler.is_idle)
        try:
            while True:
                command = self._commands.get(block=is_idle)
                if isinstance(command, _Close):
                    return command
                self._handle(command)
                is_idle = False
        except queue.Empty:
            return None

    def _handle(self, command: _Command) -> None:
        if isinstance(command, _Release):
            self._release(command)
        elif self._load is not None:
            self._held.append(command)
        elif isinstance(command, _Load):
            self._load = command
        elif isinstance(command, Request):
            if self._scheduler is None:
                command.future.set_exception(EngineError("local engine: no policy is loaded; await load() first"))
            else:
                self._scheduler.submit(command)

    def _step(self) -> None:
        if self._scheduler is not None and not self._scheduler.is_idle:
            try:
                self._scheduler.step()
            except Exception as error:
                logger.exception("local engine: a step under v%d failed", self._scheduler.version)
                self._scheduler.fail_all(EngineError(f"local engine: a step failed ({type(error).__name__}: {error})"))
        elif self._load is not None:
            load, self._load = self._load, None
            self._open(load)
            held, self._held = self._held, deque()
            for command in held:
                self._handle(command)

    def _open(self, load: _Load) -> None:
        config = self._config
        try:
            model = load_model(load.policy_dir, config.dtype)
            decoder = SlotDecoder(model, config.max_batch, config.max_context, config.return_routed_experts)
        except Exception as error:
            known = isinstance(error, SweRlError)
            load.future.set_exception(
                error if known else EngineError(f"local engine: can't open {load.policy_dir}: {error}")
            )
            return
        before = self._scheduler
        # under one version a session's repeated request must not repeat its draw, also when the version is loaded anew
        requests = before.requests if before is not None and before.version == load.version else Counter()
        self._scheduler = Scheduler(decoder, config.max_batch, config.max_context, load.version, self._seed, requests)
        logger.info("local engine: serves v%d from %s", load.version, load.policy_dir)
        load.future.set_result(None)

    def _release(self, command: _Release) -> None:
        for held in [c for c in self._held if isinstance(c, Request) and c.session_id == command.session_id]:
            self._held.remove(held)
            held.future.set_exception(EngineError(f"local engine: session {held.session_id} was released"))
        if self._scheduler is not None:
            self._scheduler.release(command.session_id)
        command.future.set_result(None)

    def _shut_down(self, close: _Close) -> None:
        error = EngineError("local engine: was closed while requests were in flight")
        if self._scheduler is not None:
            self._scheduler.fail_all(error)
        pending: list[_Command] = [*self._held, *([self._load] if self._load else [])]
        for command in pending:
            command.future.set_exception(error)
        close.future.set_result(None)
