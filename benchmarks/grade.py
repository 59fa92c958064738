"""What grading costs: one whole grade against its bare test command, for each language, and grades a minute.

The bare command is the language's own (a task's, where it has one), in a sandbox that already holds the mended tree
with its hidden tests; the whole grade begins with the patch and ends with the verdict. Both take turns; figures are
medians. A language's task is that of the tasks folder, else its hello-repository. Throughput goes through the service,
over small Python tasks. Prints a table, or with --json one object: `overhead` (language -> bare_s, grade_s, aim_s,
is_met, task_id), `throughput` (concurrency -> grades_a_minute, num), `left_out` (language -> why).

    python benchmarks/grade.py --backend docker --rounds 5 --json

The aim is 1.25 times the bare command and 0.3 s.
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from served import ROOT, TOKEN, ServedProcess, run, write_python_tasks

from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxError, SweRlError
from swe_rl.grade.grader import Grader
from swe_rl.grade.patch import apply_patch, make_patch
from swe_rl.grade.restore import write_overlay
from swe_rl.grade.run import task_limits
from swe_rl.grade.tree import copy_tree
from swe_rl.images.check import hello_source, write_task
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, Backend, Command, FileEntry, SandboxSpec
from swe_rl.sandbox.tree import read_tree
from swe_rl.task.language import LanguageSpec, fill_command, read_languages
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.verdict import Outcome

logger = logging.getLogger("grade")

AIM_RATIO, AIM_MORE_S = 1.25, 0.3
PATCH = "solution/solution.patch"


def main() -> int:
    args = _arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logger.setLevel(logging.INFO)
    args.scratch_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swe-rl-benchmark-", dir=args.scratch_dir) as scratch:
        report = run(_measure(args, Path(scratch)))
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else _table(report))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--backend", default="bubblewrap", help="bubblewrap (default), docker or docker-runsc")
    parser.add_argument("--only", default="", metavar="NAMES", help="languages, with commas (default: all)")
    parser.add_argument("--tasks", type=Path, default=ROOT / "tasks", metavar="DIR", help="default: the project's")
    parser.add_argument("--rounds", type=int, default=5, help="grades of a language (default: 5)")
    parser.add_argument("--concurrency", default="1,2,8,32", help="with commas; '': none (default: %(default)s)")
    parser.add_argument("--grades", type=int, default=64, help="grades a concurrency, at least (default: %(default)s)")
    parser.add_argument("--scratch-dir", type=Path, default=_memory_dir(), help="default: %(default)s")
    return parser.parse_args()


def _memory_dir() -> Path:
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


async def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    languages = read_languages(ROOT / "sandboxes")
    load_before = os.getloadavg()
    overhead: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    backend = await open_backend(args.backend, languages, scratch / "sandboxes")
    (scratch / "grading").mkdir()
    grader = Grader(backend, languages, 1, scratch / "grading")
    try:
        for name in sorted(args.only.split(",") if args.only else languages):
            try:
                task = _task_of(languages[name], args.tasks, scratch / "hello")
                overhead[name] = await _overhead(task, languages[name], backend, grader, scratch, args.rounds)
                logger.info("%s: %s", name, overhead[name])
            except SweRlError as error:
                left_out[name] = str(error)
                logger.info("left out: %s: %s", name, error)
    finally:
        await backend.close()
    return {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load_before": load_before,
                    "load_after": os.getloadavg()},
        "backend": args.backend,
        "rounds": args.rounds,
        "overhead": overhead,
        "throughput": await _throughputs(args, scratch),
        "left_out": left_out,
    }  # fmt: skip


def _task_of(language: LanguageSpec, tasks: Path, hello: Path) -> TaskSpec:
    """Raises TaskError or ConfigError where there is none."""
    found = [task for task in TaskSet.load([tasks]) if task.language == language.language]
    if found:
        return found[0]
    write_task(language, hello / language.language)
    (task,) = TaskSet.load([hello / language.language])
    base = read_tree(task.environment_dir)
    assert language.hello is not None
    fixed = FileEntry("100644", hello_source(language, language.hello.new).encode())
    (task.root / PATCH).parent.mkdir()
    (task.root / PATCH).write_text(make_patch(base, base | {language.hello.path: fixed}))
    return task


async def _overhead(
    task: TaskSpec, language: LanguageSpec, backend: Backend, grader: Grader, scratch: Path, rounds: int
) -> dict[str, Any]:
    """Raises SandboxError where the tests can't be run here."""
    if backend.name == "bubblewrap" and language.missing_tools:
        raise SandboxError(f"this machine lacks {', '.join(language.missing_tools)}")
    bare, whole = [], []
    for _ in range(rounds):
        bare.append(await _bare(task, language, backend, scratch))
        started = time.monotonic()
        verdict = await grader.grade(task, task.solution_patch)
        whole.append(time.monotonic() - started)
        if verdict.outcome is not Outcome.RESOLVED:
            raise SandboxError(f"{task.task_id}: its solution is {verdict.outcome.value}: {verdict.signals}")
    bare_s, grade_s = statistics.median(bare), statistics.median(whole)
    aim_s = AIM_RATIO * bare_s + AIM_MORE_S
    figures = {"bare_s": bare_s, "grade_s": grade_s, "aim_s": aim_s}
    return {
        "task_id": task.task_id,
        **{key: round(value, 3) for key, value in figures.items()},
        "is_met": grade_s <= aim_s,
    }


async def _bare(task: TaskSpec, language: LanguageSpec, backend: Backend, scratch: Path) -> float:
    """Seconds of the test command alone."""
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as name:
        tree, reports = Path(name) / "tree", Path(name) / "reports"
        copy_tree(task.environment_dir, tree)
        apply_patch(task.solution_patch, tree, scratch_dir=Path(name))
        write_overlay(task.tests_dir, tree)
        reports.mkdir()
        reports.chmod(0o777)
        (reports / "nonce").write_text(secrets.token_hex(16) + "\n")
        words = {"report": f"{REPORT_DIR}/report", "runner": RUNNER_DIR, "nonce": f"{REPORT_DIR}/nonce"}
        limits = task_limits(task, language)
        command = Command(
            fill_command(task.test_command or language.test_command, **words),
            env=language.env,
            timeout_s=limits.timeout_s,
            report_dir=reports,
            runner_dir=language.runner_dir,
        )
        spec = SandboxSpec(tree, language.language, limits, language.env, is_disposable=True)
        sandbox = await backend.create(spec)
        try:
            result = await sandbox.run(command)
        finally:
            await sandbox.close()
    if result.exit_code != 0:
        raise SandboxError(f"{task.task_id}: the bare command ended with {result.exit_code}: {result.stderr[-300:]!r}")
    return result.duration_s


async def _throughputs(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    counts = [int(word) for word in args.concurrency.split(",") if word]
    if not counts:
        return {}
    ids = write_python_tasks(scratch / "tasks", 8)
    patches = {task.task_id: task.solution_patch for task in TaskSet.load([scratch / "tasks"])}
    found: dict[str, Any] = {}
    for count in counts:
        more = ("--grade-concurrency", str(count))
        served = ServedProcess(args.backend, scratch / "tasks", scratch / f"s{count}", scratch / "log", more)
        await served.start()
        try:
            async with SandboxClient(served.url, TOKEN) as client:
                num = max(args.grades, 2 * count)
                await asyncio.gather(*(_grade(client, task_id, patches) for task_id in ids[:2]))
                started = time.monotonic()
                slots = asyncio.Semaphore(count)

                async def one(index: int, client: SandboxClient = client, slots: asyncio.Semaphore = slots) -> None:
                    async with slots:
                        await _grade(client, ids[index % len(ids)], patches)

                await asyncio.gather(*(one(index) for index in range(num)))
                rate = 60 * num / (time.monotonic() - started)
        finally:
            await served.stop()
        found[str(count)] = {"grades_a_minute": round(rate, 1), "num": num}
        logger.info("concurrency %d: %.1f grades a minute", count, rate)
    return found


async def _grade(client: SandboxClient, task_id: str, patches: dict[str, str]) -> None:
    verdict = await client.grade_patch(task_id, patches[task_id])
    if verdict.outcome is not Outcome.RESOLVED:
        raise RuntimeError(f"{task_id}: its solution is {verdict.outcome.value}: {verdict.signals}")


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['backend']}, {report['rounds']} rounds, {report['machine']}", ""]
    lines.append(f"{'language':<14} {'bare':>8} {'grade':>8} {'aim':>8}")
    for name, row in report["overhead"].items():
        mark = "" if row["is_met"] else "   missed"
        lines.append(f"{name:<14} {row['bare_s']:>7.3f}s {row['grade_s']:>7.3f}s {row['aim_s']:>7.3f}s{mark}")
    lines.append("")
    for count, row in report["throughput"].items():
        lines.append(f"concurrency {count:>3}: {row['grades_a_minute']:>8.1f} grades a minute, of {row['num']}")
    lines += [f"left out: {name}: {reason}" for name, reason in report["left_out"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
