"""Soak of the sandbox service: many sessions, faults between them, and afterwards nothing may be left.

Runs `swe-rl serve sandbox` as its users do. A share of the sessions meets a fault: the service killed and started
again, a sandbox killed from outside, a client that goes away, a full disk (the session's own, or the service's), a
clock that jumps. The last quarter goes without kills of the service, so that what one process gathers is seen too: its
descriptors, processes, groups and mounts, idle, before and after. At the end the service is told to stop, and what is
left on the machine is counted (see sandbox_soak.census). Exit code 0: nothing leaked, nothing went wrong, and every
session ended in a known way.

    python benchmarks/soak.py --sessions 10000 --concurrency 32 --faults 0.05 --backend bubblewrap --json
"""

import argparse
import asyncio
import ctypes
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_soak.census import Idle, adopt_orphans, engine_baseline, grown, leftovers, look_at_idle, reap_orphans
from sandbox_soak.faults import KINDS, Clock, Injector, plan
from sandbox_soak.journal import ends
from sandbox_soak.work import Ledger, Worker
from served import TOKEN, ServedProcess, metric, run, write_python_tasks

from swe_rl.client import SandboxClient
from swe_rl.errors import SweRlError

logger = logging.getLogger("soak")

NUM_TASKS = 3
PER_TASK = 2  # sandboxes of a task that wait in the pool when nothing happens
QUIET_S = 180.0
DISK_MB = 1024
EVERY_S = 10.0


def main() -> int:
    args = _arguments()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    logger.setLevel(logging.INFO)
    adopt_orphans()
    args.scratch_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swe-rl-soak-", dir=args.scratch_dir) as directory:
        soak = Soak(args, Path(directory))
        try:
            report = run(soak.run())
        finally:
            soak.clean()
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else _table(report))
    return 0 if report["is_clean"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--concurrency", type=int, default=32, help="sessions at once (default: 32)")
    parser.add_argument("--faults", type=float, default=0.05, help="share of the sessions (default: 0.05)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults, with commas (default: %(default)s)")
    parser.add_argument("--backend", default="bubblewrap", help="as of serve sandbox (default: bubblewrap)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    parser.add_argument("--scratch-dir", type=Path, default=Path(memory), help="default: %(default)s")
    return parser.parse_args()


@dataclass(slots=True)
class Phase:
    """A run of sessions with its faults."""

    name: str
    num_sessions: int
    faults: Mapping[int, str]


@dataclass(slots=True)
class Seen:
    """The last service, idle: at the beginning of its sessions and at their end."""

    before: Idle | None = None
    after: Idle | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    left: dict[str, list[str]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)


class Soak:
    """One soak in a directory of its own. `clean` removes what `run` has set up."""

    def __init__(self, args: argparse.Namespace, directory: Path) -> None:
        self._args, self._random = args, random.Random(args.seed)
        self._ledger, self._seen = Ledger(), Seen()
        self.left_out: dict[str, str] = {}
        self._journal = directory / "journal.sqlite"
        self._disk = self._mount_disk(directory / "disk")
        self._clock = self._make_clock(directory)
        self._tasks = write_python_tasks(directory / "tasks", NUM_TASKS)
        kinds = [kind for kind in args.kinds.split(",") if kind and kind not in self.left_out]
        num_last = args.sessions // 4
        last_kinds = [kind for kind in kinds if kind != "service_killed"]
        first, share = args.sessions - num_last, args.faults
        self._phases = (
            Phase("with kills of the service", first, plan(first, share, kinds, self._random)),
            Phase("one service", num_last, plan(num_last, share, last_kinds, self._random)),
        )
        self._served = ServedProcess(
            args.backend, directory / "tasks", (self._disk or directory) / "scratch", directory / "service.log",
            ("--journal", f"sqlite:///{self._journal}", "--pool-size", str(NUM_TASKS * PER_TASK), "--drain-s", "30"),
            self._clock.env if self._clock else None,
        )  # fmt: skip
        self._injector = Injector(self._served, self._disk, self._clock, self._random)

    async def run(self) -> dict[str, Any]:
        baseline = await asyncio.to_thread(engine_baseline)
        reaper = asyncio.create_task(self._reap())
        started = time.monotonic()
        try:
            await self._served.start()
            self._injector.up.set()
            await self._work(self._phases[0])
            await self._quiet()
            await self._served.stop()
            await self._served.start()
            await self._work(Phase("warm-up", 2 * self._args.concurrency, {}), is_counted=False)
            self._seen.before = await self._idle()
            await self._work(self._phases[1])
            self._seen.after = await self._idle()
            self._seen.exit_code = await self._served.stop()
        finally:
            if self._served.is_running:
                await self._served.kill()
            reaper.cancel()
        self._seen.seconds = time.monotonic() - started
        reap_orphans(())
        self._seen.left = await leftovers(self._served.instances, self._served.scratch_dir, baseline)
        self._seen.ends = await asyncio.to_thread(ends, self._journal)
        return self._report()

    def clean(self) -> None:
        if self._disk is not None:
            ctypes.CDLL(None).umount2(os.fsencode(self._disk), 2)

    async def _work(self, phase: Phase, is_counted: bool = True) -> None:
        ledger, done, at = self._ledger if is_counted else Ledger(), 0, time.monotonic()
        logger.info("%s: %d sessions, faults: %s", phase.name, phase.num_sessions, Counter(phase.faults.values()))
        indexes = iter(range(phase.num_sessions))
        async with SandboxClient(self._served.url, TOKEN) as client:

            async def work(worker: Worker) -> None:
                nonlocal done, at
                for index in indexes:
                    await worker.session(index, phase.faults.get(index))
                    done += 1
                    if time.monotonic() - at > EVERY_S:
                        at = time.monotonic()
                        logger.info("%d of %d; %s", done, phase.num_sessions, dict(ledger.outcomes))

            seeds = [self._random.random() for _ in range(self._args.concurrency)]
            await asyncio.gather(
                *(work(Worker(client, self._tasks, self._injector, ledger, random.Random(seed))) for seed in seeds)
            )
        if not is_counted:
            self._ledger.problems += ledger.problems

    async def _quiet(self) -> None:
        """Waits until the service has ended every session, and its pool stands as it does at rest."""
        deadline, want = time.monotonic() + QUIET_S, NUM_TASKS * PER_TASK
        seen: dict[str, float] = {}
        async with SandboxClient(self._served.url, TOKEN) as client:
            while time.monotonic() < deadline:
                try:
                    for task_id in self._tasks:
                        await client.prefetch(task_id, PER_TASK)
                    text = await client.metrics()
                except SweRlError as error:
                    logger.info("waiting for quiet: %s", error)
                    await asyncio.sleep(1)
                    continue
                names = ("sessions", "snapshots", "commands_running", "pool_warm")
                seen = {name: metric(text, f"swe_rl_{name}") for name in names}
                if seen == {"sessions": 0, "snapshots": 0, "commands_running": 0, "pool_warm": want}:
                    return
                await asyncio.sleep(0.5)
        self._ledger.problems.append(f"the service isn't quiet after {QUIET_S:g} s: {seen}")

    async def _idle(self) -> Idle:
        await self._quiet()
        return await look_at_idle(self._served.pid, self._served.instances[-1], self._served.scratch_dir)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            reap_orphans(self._served.pids[-1:])

    def _mount_disk(self, path: Path) -> Path | None:
        path.mkdir()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"soak", os.fsencode(path), b"tmpfs", 0, f"size={DISK_MB}m,mode=0700".encode()) == 0:
            return path
        reason = os.strerror(ctypes.get_errno())
        self.left_out["host_disk_full"] = f"no small file system can be mounted for the service: {reason}"
        return None

    def _make_clock(self, directory: Path) -> Clock | None:
        try:
            return Clock(directory)
        except RuntimeError as error:
            self.left_out["clock_jump"] = str(error)
            return None

    def _report(self) -> dict[str, Any]:
        seen, args = self._seen, self._args
        assert seen.before is not None and seen.after is not None
        more = grown(seen.before, seen.after, args.backend.startswith("docker"))
        leaks = {kind: len(found) for kind, found in seen.left.items()} | {"held_by_the_idle_service": more.total()}
        problems = [*self._injector.problems, *self._ledger.problems]
        if seen.exit_code != 0:
            problems.append(f"the service ended with {seen.exit_code}: {self._served.log_tail()}")
        if seen.ends.get("none"):
            problems.append(f"{seen.ends['none']} sessions have no end in the journal")
        return {
            "backend": args.backend,
            "sessions": args.sessions,
            "concurrency": args.concurrency,
            "fault_share": args.faults,
            "seed": args.seed,
            "seconds": round(seen.seconds, 1),
            "sessions_per_s": round(args.sessions / seen.seconds, 2),
            "faults": dict(self._injector.done),
            "faults_planned": dict(Counter(kind for phase in self._phases for kind in phase.faults.values())),
            "creations_refused_for_now": self._ledger.num_refused,
            "outcomes": dict(self._ledger.outcomes),
            "ends_in_journal": seen.ends,
            "latency_ms": {name: _latency(values) for name, values in self._ledger.seconds.items()},
            "resident_mb": [round(seen.before.resident_mb, 1), round(seen.after.resident_mb, 1)],
            "leaks": leaks,
            "leaked": {kind: found[:20] for kind, found in seen.left.items() if found}
            | ({"held_by_the_idle_service": dict(more)} if more else {}),
            "problems": problems[:50],
            "left_out": self.left_out,
            "is_clean": not problems and not any(leaks.values()),
        }


def _latency(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (95, 99)}
    return {"p50": round(statistics.median(ordered) * 1e3, 1)} | {k: round(v * 1e3, 1) for k, v in at.items()}


def _table(report: Mapping[str, Any]) -> str:
    return "".join(f"{name:<18} {value}\n" for name, value in report.items())


if __name__ == "__main__":
    raise SystemExit(main())
