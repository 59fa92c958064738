"""`swe-rl tasks check`: proves tasks by real runs, here or through a service, and quarantines those that are flaky."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.errors import ConfigError

if TYPE_CHECKING:
    from swe_rl.grade.check import CheckResult, PatchGrader
    from swe_rl.grade.exposure import Exposure
    from swe_rl.task.language import LanguageSpec
    from swe_rl.task.spec import TaskSpec


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The options of `check` alone."""
    verb.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    verb.add_argument(
        "--backend", choices=("auto", "bubblewrap", "docker", "docker-runsc"), default="auto", help="default: auto"
    )
    verb.add_argument("--url", metavar="URL", help="check in the sandbox service there, by its own copy of the tasks")
    verb.add_argument("--runs", type=int, default=2, metavar="N", help="runs that must agree (default: 2)")
    verb.add_argument(
        "--scan", action="store_true", help="read each image for solutions, too: seconds to a minute each"
    )
    verb.add_argument("--level", choices=("standard", "strict"), help="of grading (default: the grader's own)")
    verb.add_argument("--concurrency", type=int, default=2, metavar="N", help="gradings at once (default: 2)")
    verb.add_argument("--strict", action="store_true", help="a task that can't be checked on this machine fails, too")
    verb.add_argument("--json", action="store_true", help="one JSON object a line")


def check(args: argparse.Namespace, tasks: "list[TaskSpec]") -> int:
    """Exit code 1 if any task fails or is flaky."""
    if args.runs < 1:
        raise ConfigError(f"--runs: is {args.runs}, expected at least 1")
    if args.scan and args.url is not None:
        raise ConfigError("--scan: reads the images of a backend here; leave out --url")
    counts = asyncio.run(_check_all(args, tasks))
    words = ", ".join(f"{number} {status}" for status, number in counts.items())
    print(f"{words} of {len(tasks)}", file=sys.stderr)
    return 1 if counts["failed"] or counts["flaky"] or (args.strict and counts["skipped"]) else 0


async def _check_all(args: argparse.Namespace, tasks: "list[TaskSpec]") -> dict[str, int]:
    from swe_rl.task.language import read_languages

    languages = read_languages(args.languages)
    if args.url is None:
        return await _check_here(args, tasks, languages)
    from swe_rl.cli.remote_grader import RemoteGrader
    from swe_rl.client import SandboxClient

    async with SandboxClient(args.url) as client:
        grader = RemoteGrader(client, args.concurrency, args.level)
        await grader.compare(tasks)
        return await _check_with(args, tasks, languages, grader, needs_host_tools=False)


async def _check_here(
    args: argparse.Namespace, tasks: "list[TaskSpec]", languages: "dict[str, LanguageSpec]"
) -> dict[str, int]:
    from swe_rl.grade.exposure import Exposure
    from swe_rl.grade.grader import Grader
    from swe_rl.sandbox.backend import default_scratch_dir, open_backend

    scratch = default_scratch_dir()
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="check-", dir=scratch, ignore_cleanup_errors=True) as name:
        backend = await open_backend(args.backend, languages, Path(name))
        try:
            grader = Grader(backend, languages, args.concurrency, Path(name), args.level or "standard")
            is_bubblewrap = backend.name == "bubblewrap"
            exposure = Exposure(backend, languages, Path(name), args.concurrency)
            if args.scan:
                await exposure.scan_images(tasks)
            return await _check_with(args, tasks, languages, grader, needs_host_tools=is_bubblewrap, exposure=exposure)
        finally:
            await backend.close()


async def _check_with(
    args: argparse.Namespace,
    tasks: "list[TaskSpec]",
    languages: "dict[str, LanguageSpec]",
    grader: "PatchGrader",
    *,
    needs_host_tools: bool,
    exposure: "Exposure | None" = None,
) -> dict[str, int]:
    from swe_rl.grade.check import CheckStatus, check_tasks
    from swe_rl.task.quarantine import quarantine

    counts = {status.value: 0 for status in CheckStatus}
    by_id = {task.task_id: task for task in tasks}
    results = check_tasks(
        tasks, grader, languages, num_runs=args.runs, needs_host_tools=needs_host_tools, exposure=exposure
    )
    async for result in results:
        counts[result.status] += 1
        _print(result, args.json)
        if result.status is CheckStatus.FLAKY:
            path = quarantine(by_id[result.task_id], result.problem)
            print(f"{result.task_id} is quarantined in {path}", file=sys.stderr)
    return counts


def _print(result: "CheckResult", as_json: bool) -> None:
    if as_json:
        line = {"task_id": result.task_id, "split": result.split}
        print(json.dumps(line | {"status": result.status.value, "problem": result.problem}), flush=True)
        return
    problem = f": {result.problem}" if result.problem else ""
    print(f"{result.status.value:8}{result.split}/{result.task_id}{problem}", flush=True)
