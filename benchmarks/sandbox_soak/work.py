"""What one soak session does: it starts, does a few ordinary things, may meet a fault, and ends, always in one word.

The word is "closed", "client_gone" (the service has to end it by itself), or the class of swe_rl.errors that the client
raised; anything else is a problem, as is an answer that is wrong.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence

from sandbox_soak.faults import Injector
from swe_rl.client import SandboxClient
from swe_rl.errors import CapacityError, PathError, SweRlError
from swe_rl.wire import ExecRequest, ExecResult, SessionInfo, SessionLimits

TTL_S = 60.0
GONE_TTL_S = 2.0
PATIENCE_S = 60.0
SMALL_DISK_MB = 8
BIG_BYTES = 300_000
TRUE = ExecRequest(argv=["true"])


class Ledger:
    """What came of all sessions. `num_refused`: how often the service said that it has no room now."""

    def __init__(self) -> None:
        self.num_refused = 0
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)

    async def timed(self, name: str, work: Awaitable[ExecResult]) -> ExecResult:
        started = time.perf_counter()
        result = await work
        self.seconds[name].append(time.perf_counter() - started)
        return result


class Worker:
    """Runs sessions one after another."""

    def __init__(
        self, client: SandboxClient, tasks: Sequence[str], injector: Injector, ledger: Ledger, generator: random.Random
    ) -> None:
        self._client, self._tasks, self._injector, self._ledger = client, tasks, injector, ledger
        self._random = generator
        self._steps: tuple[Callable[[str], Awaitable[None]], ...] = (
            self._write_and_read,
            self._leave_a_server,
            self._run_into_the_deadline,
            self._write_much,
            self._start_and_kill,
            self._fork,
            self._diff,
        )

    async def session(self, index: int, fault: str | None) -> None:
        await self._injector.up.wait()
        try:
            outcome = await self._live(fault)
        except SweRlError as error:
            outcome = type(error).__name__
        except AssertionError as error:
            outcome = "wrong"
            self._ledger.problems.append(f"session {index}: {error}")
        except Exception as error:
            outcome = "untyped"
            self._ledger.problems.append(f"session {index}: {type(error).__name__}: {error}")
        self._ledger.outcomes[outcome] += 1

    async def _live(self, fault: str | None) -> str:
        session = await self._create(
            ttl_s=GONE_TTL_S if fault == "client_gone" else TTL_S,
            limits=SessionLimits(disk_mb=SMALL_DISK_MB) if fault == "disk_full" else None,
        )
        session_id = session.session_id
        try:
            await self._true(session_id)
            steps = self._random.sample(self._steps, 2)
            await steps[0](session_id)
            if fault == "client_gone":
                await self._go_away(session_id)
                return "client_gone"
            if fault == "disk_full":
                await self._fill_own_disk(session_id)
            elif fault is not None:
                await self._injector.inject(fault)
            await steps[1](session_id)
            await self._true(session_id)
        except (SweRlError, AssertionError):
            with contextlib.suppress(SweRlError):
                await self._client.close_session(session_id)
            raise
        started = time.perf_counter()
        await self._client.close_session(session_id)
        self._ledger.seconds["close"].append(time.perf_counter() - started)
        return "closed"

    async def _create(self, ttl_s: float, limits: SessionLimits | None) -> SessionInfo:
        """Waits as the service asks where it has no room, e.g. on its disk; after `PATIENCE_S` it is an outcome."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            started = time.perf_counter()
            try:
                session = await self._client.create_session(
                    self._random.choice(self._tasks), ttl_s=ttl_s, limits=limits
                )
            except CapacityError as error:
                if time.monotonic() > deadline:
                    raise
                self._ledger.num_refused += 1
                await asyncio.sleep(error.retry_after_s)
                continue
            self._ledger.seconds["create"].append(time.perf_counter() - started)
            return session

    async def _true(self, session_id: str) -> None:
        result = await self._ledger.timed("exec", self._client.exec(session_id, TRUE))
        assert result.exit_code == 0, f"`true` gave {result}"

    async def _write_and_read(self, session_id: str) -> None:
        data = self._random.randbytes(self._random.randrange(1, 100_000))
        await self._client.write_file(session_id, "soak.bin", data)
        assert await self._client.read_file(session_id, "soak.bin") == data, "a file came back changed"

    async def _leave_a_server(self, session_id: str) -> None:
        script = "(setsid sleep 1000 &) ; nohup sleep 1000 >/dev/null 2>&1 & trap '' TERM; echo started"
        result = await self._client.exec(session_id, ExecRequest(script=script, timeout_s=30))
        assert result.stdout == "started\n", f"a command with a server gave {result}"

    async def _run_into_the_deadline(self, session_id: str) -> None:
        script = "echo before; trap '' TERM; setsid sleep 1000 & sleep 1000"
        result = await self._client.exec(session_id, ExecRequest(script=script, timeout_s=1.0))
        assert result.timed_out, f"a command without an end gave {result}"

    async def _write_much(self, session_id: str) -> None:
        request = ExecRequest(script=f"head -c {BIG_BYTES} /dev/zero | tr '\\0' x", output_limit_bytes=10_000)
        result = await self._client.exec(session_id, request)
        assert result.truncated_bytes > 0 and len(result.stdout) < 12_000, f"{len(result.stdout)} characters came"

    async def _start_and_kill(self, session_id: str) -> None:
        process = await self._client.start(session_id, ExecRequest(script="echo up; sleep 1000", timeout_s=60))
        ended = await self._client.kill(session_id, process.process_id)
        assert not ended.is_running, "a killed process runs"

    async def _fork(self, session_id: str) -> None:
        forks = await self._client.fork(session_id, 2, TTL_S)
        try:
            await self._true(forks[0].session_id)
        finally:
            for fork in forks:
                await self._client.close_session(fork.session_id)

    async def _diff(self, session_id: str) -> None:
        await self._client.write_file(session_id, "new.txt", b"new\n")
        assert "new.txt" in (await self._client.patch(session_id)).patch, "the patch lacks a new file"

    async def _fill_own_disk(self, session_id: str) -> None:
        request = ExecRequest(script=f"head -c {SMALL_DISK_MB * 3 << 20} /dev/zero > big", timeout_s=30)
        result = await self._client.exec(session_id, request)
        self._injector.done["disk_full"] += 1
        assert result.disk_full, f"a full disk gave {result}"
        with contextlib.suppress(PathError):  # the service can't write there either, or it just can
            await self._client.write_file(session_id, "more.bin", bytes(1000))
        await self._client.exec(session_id, ExecRequest(script="rm -f big more.bin", timeout_s=30))

    async def _go_away(self, session_id: str) -> None:
        call = asyncio.create_task(self._client.exec(session_id, ExecRequest(script="sleep 1000", timeout_s=300)))
        await asyncio.sleep(self._random.random() * 0.5)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError, SweRlError):
            await call
        self._injector.done["client_gone"] += 1
