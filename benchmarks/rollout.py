"""What the agent itself costs: episodes at once over an engine and sandboxes that answer after a fixed time.

Every turn samples one call and runs it, so an episode takes turns * (engine + sandbox) seconds at least; the ideal
throughput is that of episodes which wait for nothing else. Own time is this process's processor time, all of it, by
turns. Memory is what lives (tracemalloc) while all episodes are at their last turn, in a second, shorter run. Prints a
table, or with --json one object.

    python benchmarks/rollout.py --concurrency 256

The aims are 95 % of the ideal and 3 ms a turn.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from served import ROOT

from swe_rl.agent.loop import run_episode
from swe_rl.agent.render import Renderer
from swe_rl.config import Config
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.trajectory import StopReason, Trajectory
from swe_rl.verdict import Outcome, Verdict
from swe_rl.wire import ExecRequest, ExecResult, SessionInfo, TaskInfo

OUTPUT = "\n".join(f"src/module{i}.py:{7 * i}: in function_{i}" for i in range(24))
AIM_SHARE, AIM_MS = 0.95, 3.0


class FixedEngine:
    """Every completion is the same call, or `submit` in the last turn; each comes after `latency_s`."""

    def __init__(self, renderer: Renderer, num_turns: int, latency_s: float) -> None:
        work = renderer.completion([("bash", {"command": "grep -rn 'def ' src | head -24"})], prose="Look at the code.")
        self._completions = [_completed(work)] * (num_turns - 1) + [_completed(renderer.completion([("submit", {})]))]
        self._latency_s = latency_s
        self._turns: dict[str, int] = {}

    async def load(self, policy_dir: Path, version: int) -> None: ...

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        turn = self._turns.get(session_id, 0)
        self._turns[session_id] = turn + 1
        await asyncio.sleep(self._latency_s)
        return self._completions[turn]

    async def release(self, session_id: str) -> None:
        self._turns.pop(session_id, None)

    async def close(self) -> None: ...


class FixedSandboxes:
    """What an episode calls of a `SandboxClient`. A command takes `latency_s`; the rest is there at once."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s

    async def create_session(self, task_id: str, **_: Any) -> SessionInfo:
        files = [f"src/module{i}.py" for i in range(24)]
        return SessionInfo(
            session_id=task_id, task=None, language="python", workdir="/repo", files=files, expires_in_s=900
        )

    async def exec(self, session_id: str, request: ExecRequest) -> ExecResult:
        await asyncio.sleep(self._latency_s)
        return ExecResult(exit_code=0, stdout=OUTPUT, stderr="", duration_s=self._latency_s)

    async def grade(self, session_id: str) -> Verdict:
        return Verdict(Outcome.RESOLVED, 1.0)

    async def close_session(self, session_id: str) -> None: ...


def main() -> int:
    args = _arguments()
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    renderer = Renderer.from_policy(args.policy)
    started, cpu = time.perf_counter(), time.process_time()
    trajectories = asyncio.run(_run(args, renderer, args.waves * args.concurrency, args.turns))
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    if wrong := [t for t in trajectories if t.stop_reason is not StopReason.SUBMITTED or len(t.turns) != args.turns]:
        raise SystemExit(f"{len(wrong)} of {len(trajectories)} episodes ended as {wrong[0].stop_reason.value}")
    num_turns = len(trajectories) * args.turns
    # The last turn samples and submits; no command runs.
    ideal_s = args.waves * (args.turns * args.engine_s + (args.turns - 1) * args.sandbox_s)
    report = {
        "concurrency": args.concurrency,
        "episodes": len(trajectories),
        "turns": num_turns,
        "tokens_an_episode": len(trajectories[0].token_ids),
        "wall_s": wall_s,
        "ideal_s": ideal_s,
        "share_of_ideal": ideal_s / wall_s,
        "own_ms_a_turn": 1000 * cpu_s / num_turns,
        "kb_an_episode": _memory(args, renderer),
    }
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else _table(report))
    return 0


async def _run(args: argparse.Namespace, renderer: Renderer, num_episodes: int, num_turns: int) -> list[Trajectory]:
    engine, sandboxes = FixedEngine(renderer, num_turns, args.engine_s), FixedSandboxes(args.sandbox_s)
    overrides = {
        "engine": {"max_context": 131072},
        "agent": {"max_turns": num_turns, "episode_timeout_s": 86400, "prompt": "full"},
    }
    config = Config.model_validate(overrides)
    slots = asyncio.Semaphore(args.concurrency)
    task = TaskInfo(task_id="task", split="train", language="python", instruction="Mend it.", content_sha256="")

    async def episode(index: int) -> Trajectory:
        async with slots:
            return await run_episode(
                task,
                client=sandboxes,  # type: ignore[arg-type]
                engine=engine,
                renderer=renderer,
                config=config,
                trajectory_id=f"t{index}",
                group_id="g",
                temperature=1.0,
            )

    return await asyncio.gather(*(episode(index) for index in range(num_episodes)))


def _memory(args: argparse.Namespace, renderer: Renderer) -> float:
    """Peak of what lives, a live episode's share of it, in kB."""
    quick = argparse.Namespace(concurrency=args.concurrency, engine_s=0.0, sandbox_s=0.0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    asyncio.run(_run(quick, renderer, args.concurrency, args.turns))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak - before) / args.concurrency / 1000


def _completed(token_ids: Sequence[int]) -> Completion:
    n = len(token_ids)
    logprobs = np.full(n, -0.5, dtype=np.float32)
    return Completion(np.array(token_ids, dtype=np.int32), logprobs, np.zeros(n, dtype=np.int32), "stop")


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['episodes']} episodes of {report['turns'] // report['episodes']} turns, "
        f"{report['tokens_an_episode']} tokens each, {report['concurrency']} at once",
        f"share of the ideal throughput   {report['share_of_ideal']:.1%}   (aim {AIM_SHARE:.0%})",
        f"own time a turn                 {report['own_ms_a_turn']:.2f} ms   (aim {AIM_MS:g} ms)",
        f"memory of a live episode        {report['kb_an_episode']:.0f} kB",
    ]
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--waves", type=int, default=2, help="episodes, in multiples of the concurrency")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--engine-s", type=float, default=1.0, help="seconds that a completion takes")
    parser.add_argument("--sandbox-s", type=float, default=0.5, help="seconds that a command takes")
    parser.add_argument("--policy", type=Path, default=ROOT / "checkpoints/tiny-repair", help="whose tokenizer")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
