"""What it brings to let rollouts run ahead of training where the environment's times have a long tail.

The quickstart's policy is trained twice from the same cold start, on the same tasks, with the same steps: in step
(max_staleness 0) and ahead of it. Every command and every grading takes longer than it does by a time drawn from a
log-normal distribution, so that of some hundred calls a step waits for the slowest. Prints steps an hour, their ratio,
and the pass rate on the held-out split after each, with its interval; with --json one object.

    python benchmarks/async.py --steps 16

The aim is 1.7 times the steps an hour at a staleness of 2, and pass rates within each other's intervals.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from served import ROOT, TOKEN, ServedProcess, run

from swe_rl.agent.render import Renderer
from swe_rl.cli.engines import open_engine
from swe_rl.client import SandboxClient
from swe_rl.config import Config, load_config
from swe_rl.rollout.worker import Worker
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.verdict import Verdict
from swe_rl.wire import ExecRequest, ExecResult

VERB = [sys.executable, "-m", "swe_rl.cli.main"]
AIM = 1.7


class SlowClient(SandboxClient):
    """Commands and gradings take longer; which one takes how long is drawn anew for each."""

    def __init__(self, url: str, token: str, median_s: float, sigma: float, most_s: float, seed: int) -> None:
        super().__init__(url, token)
        self._draw = random.Random(seed)
        self._mu, self._sigma, self._most_s = math.log(median_s), sigma, most_s

    async def _wait(self) -> None:
        await asyncio.sleep(min(self._draw.lognormvariate(self._mu, self._sigma), self._most_s))

    async def exec(self, session_id: str, request: ExecRequest) -> ExecResult:
        await self._wait()
        return await super().exec(session_id, request)

    async def run_tests(self, session_id: str) -> ExecResult:
        await self._wait()
        return await super().run_tests(session_id)

    async def read_file(self, session_id: str, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        await self._wait()
        return await super().read_file(session_id, path, offset, limit)

    async def grade(self, session_id: str) -> Verdict:
        await self._wait()
        return await super().grade(session_id)


def main() -> int:
    args = _arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if args.worker:
        run(_work(args, load_config(args.worker)))
        return 0
    with tempfile.TemporaryDirectory(prefix="swe-rl-benchmark-", dir=args.scratch_dir) as scratch:
        report = run(_compare(args, Path(scratch)))
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else _table(report))
    return 0


async def _compare(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    base = load_config("quickstart", [f"run.dir={json.dumps(str(scratch / 'tasks'))}"])
    num = ["--num-train", str(base.synth.num_train), "--num-verified", str(base.synth.num_verified)]
    await _call([*VERB, "tasks", "synth", str(scratch / "synth"), *num])
    service = ServedProcess(args.backend, scratch / "synth", scratch / "sandboxes", scratch / "service.log")
    (scratch / "sandboxes").mkdir()
    await service.start()
    try:
        runs = {staleness: await _train(args, scratch, service.url, staleness) for staleness in (0, args.max_staleness)}
    finally:
        await service.stop()
    in_step, ahead = runs[0], runs[args.max_staleness]
    return {
        "max_staleness": args.max_staleness,
        "in_step": in_step,
        "ahead": ahead,
        "ratios": {"steps_an_hour": ahead["steps_an_hour"] / in_step["steps_an_hour"]},
        "num_steps": args.steps,
    }


async def _train(args: argparse.Namespace, scratch: Path, url: str, staleness: int) -> dict[str, Any]:
    """One run by its two processes, as `swe-rl run` has them, and the evaluation of what came of it."""
    folder = scratch / f"staleness{staleness}"
    folder.mkdir()
    overrides = [f"run.dir={json.dumps(str(folder / 'run'))}", f"sandbox.url={json.dumps(url)}"]
    overrides += [f"train.steps={args.steps}", f"rollout.max_staleness={staleness}", f"run.seed={args.seed}"]
    overrides += [
        f"rollout.groups_per_step={args.groups}",
        f"eval.samples_per_task={args.samples}",
        "eval.greedy=false",
        "eval.ks=[1]",
    ]
    config = load_config("quickstart", overrides)
    file = folder / "config.json"
    file.write_text(config.model_dump_json())
    flags = ["--median-s", str(args.median_s), "--sigma", str(args.sigma), "--most-s", str(args.most_s)]
    worker_argv = [sys.executable, __file__, "--worker", str(file), *flags, "--seed", str(args.seed)]
    log = (folder / "log").open("ab")
    worker = await asyncio.create_subprocess_exec(*worker_argv, stdout=log, stderr=log, env=_environment())
    try:
        await _call([*VERB, "train", "--config", str(file)], log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.terminate()
        await worker.wait()
        log.close()
    metrics = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    seconds = [step["time/step_s"] for step in metrics]
    output = await _call([*VERB, "eval", "--config", str(file), "--json"])
    return {
        # The first step waits for both processes to start.
        "steps_an_hour": 3600 * (len(seconds) - 1) / sum(seconds[1:]),
        "step_s": sum(seconds[1:]) / (len(seconds) - 1),
        "evaluation": json.loads(output),
    }


async def _work(args: argparse.Namespace, config: Config) -> None:
    client = SlowClient(config.sandbox.url, TOKEN, args.median_s, args.sigma, args.most_s, args.seed)
    engine = open_engine(config)
    try:
        worker = Worker(
            await client.list_tasks(config.rollout.split),
            client=client,
            engine=engine,
            renderer=Renderer.from_policy(config.policy.path),
            rollouts=RolloutStore(config.run.dir, config.run.store_url),
            policies=PolicyStore(config.run.dir, config.run.store_url),
            config=config,
        )
        await worker.run(config.train.steps, until_published=True)
    finally:
        await engine.close()
        await client.aclose()


async def _call(argv: list[str], log: Any = None) -> str:
    """What it printed. Raises SystemExit if it failed."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.PIPE, stderr=log, env=_environment(), cwd=ROOT
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(argv[3:])} ended with {process.returncode}")
    return out.decode()


def _environment() -> dict[str, str]:
    return {**os.environ, "SWE_RL_SANDBOX_TOKEN": TOKEN}


def _table(report: dict[str, Any]) -> str:
    lines = []
    for name, staleness in (("in_step", 0), ("ahead", report["max_staleness"])):
        one = report[name]
        rate = one["evaluation"]["pass_rate"]
        low, high = rate["ci95"]
        lines.append(
            f"max_staleness {staleness}: {one['steps_an_hour']:.0f} steps an hour, {one['step_s']:.1f} s a step; "
            f"pass rate after {report['num_steps']} steps {rate['value']:.1%} [{low:.1%}, {high:.1%}]"
        )
    lines.append(f"steps an hour, ahead / in step: {report['ratios']['steps_an_hour']:.2f}   (aim {AIM})")
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--groups", type=int, default=8, help="groups a step")
    parser.add_argument("--max-staleness", type=int, default=2, help="of the run that is ahead")
    parser.add_argument("--samples", type=int, default=2, help="of a task in the evaluation")
    parser.add_argument("--median-s", type=float, default=0.3, help="of what is added to a call")
    parser.add_argument("--sigma", type=float, default=1.5, help="of its logarithm")
    parser.add_argument("--most-s", type=float, default=30.0, help="no call waits longer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="bubblewrap")
    parser.add_argument("--scratch-dir", type=Path, help="default: the temporary directory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
