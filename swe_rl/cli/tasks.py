"""`swe-rl tasks`: list, show, check and make tasks. For whoever owns the tasks: `show` names hidden tests."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_rl.grade.check import PatchGrader
    from swe_rl.task.language import LanguageSpec
    from swe_rl.task.spec import TaskSpec
    from swe_rl.task.taskset import TaskSet

HELP = "list, show, check and make tasks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs."""
    verbs = parser.add_subparsers(dest="tasks_verb", required=True, metavar="VERB")
    verb = verbs.add_parser("list", help="one line a task: split, id, language, labels")
    _add_selection(verb)
    verb.add_argument("--json", action="store_true", help="one JSON object a line")

    verb = verbs.add_parser("show", help="one task whole, as JSON, its secrets included")
    _add_tasks(verb)
    verb.add_argument("task_id", metavar="ID")

    verb = verbs.add_parser("check", help="solutions resolve, bases don't, runs agree; exit code 1 if any task fails")
    _add_selection(verb)
    verb.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    verb.add_argument("--backend", choices=("auto", "bubblewrap", "docker", "docker-runsc"), default="auto")
    verb.add_argument("--url", metavar="URL", help="check in the sandbox service there, by its own copy of the tasks")
    verb.add_argument("--concurrency", type=int, default=2, metavar="N", help="gradings at once (default: 2)")
    verb.add_argument("--strict", action="store_true", help="a task that can't be checked on this machine fails, too")
    verb.add_argument("--json", action="store_true", help="one JSON object a line")

    verb = verbs.add_parser("synth", help="write the parametric family of small tasks")
    verb.add_argument("out_dir", type=Path, metavar="DIR", help="gets <split>/<task_id>/ folders")
    verb.add_argument("--num-train", type=int, default=1000, metavar="N")
    verb.add_argument("--num-verified", type=int, default=100, metavar="N")
    verb.add_argument("--seed", type=int, default=0, metavar="N")


def run(args: argparse.Namespace) -> int:
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "check": _check,
        "synth": _synth,
    }
    return verbs[args.tasks_verb](args)


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks",
        type=Path,
        action="append",
        metavar="DIR",
        help="folder that holds <split>/<task_id>; may be repeated (default: tasks)",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    _add_tasks(parser)
    parser.add_argument("--split", metavar="S", help="only this split")
    parser.add_argument("--id", action="append", metavar="ID", help="only this task; may be repeated")


def _load(args: argparse.Namespace) -> "TaskSet":
    from swe_rl.task.taskset import TaskSet

    return TaskSet.load(args.tasks or [Path("tasks")])


def _select(args: argparse.Namespace) -> "list[TaskSpec]":
    tasks = _load(args)
    chosen = {tasks.get(task_id).task_id for task_id in args.id} if args.id else None
    return [task for task in tasks.tasks(args.split) if chosen is None or task.task_id in chosen]


def _list(args: argparse.Namespace) -> int:
    for task in _select(args):
        if args.json:
            print(
                json.dumps(
                    {"task_id": task.task_id, "split": task.split, "language": task.language, "labels": task.labels}
                )
            )
        else:
            labels = " ".join(f"{key}={value}" for key, value in sorted(task.labels.items()))
            print(f"{task.split}\t{task.task_id}\t{task.language}\t{labels}".rstrip())
    return 0


def _show(args: argparse.Namespace) -> int:
    task = _load(args).get(args.task_id)
    shown = {
        "task_id": task.task_id,
        "split": task.split,
        "language": task.language,
        "labels": task.labels,
        "content_sha256": task.content_sha256,
        "fail_to_pass": task.fail_to_pass,
        "pass_to_pass": task.pass_to_pass,
        "test_command": task.test_command,
        "visible_command": task.visible_command,
        "timeout_s": task.timeout_s,
        "memory_mb": task.memory_mb,
        "instruction": task.instruction,
        "solution_patch": task.solution_patch,
    }
    print(json.dumps(shown, indent=2, ensure_ascii=False))
    return 0


def _check(args: argparse.Namespace) -> int:
    tasks = _select(args)
    counts = asyncio.run(_check_all(args, tasks))
    print(f"{counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped of {len(tasks)}", file=sys.stderr)
    return 1 if counts["failed"] or (args.strict and counts["skipped"]) else 0


async def _check_all(args: argparse.Namespace, tasks: "list[TaskSpec]") -> dict[str, int]:
    from swe_rl.task.language import read_languages

    languages = read_languages(args.languages)
    if args.url is None:
        return await _check_here(args, tasks, languages)
    from swe_rl.cli.remote_grader import RemoteGrader
    from swe_rl.client import SandboxClient

    async with SandboxClient(args.url) as client:
        grader = RemoteGrader(client, args.concurrency)
        await grader.compare(tasks)
        return await _check_with(args, tasks, languages, grader, needs_host_tools=False)


async def _check_here(
    args: argparse.Namespace, tasks: "list[TaskSpec]", languages: "dict[str, LanguageSpec]"
) -> dict[str, int]:
    from swe_rl.grade.grader import Grader
    from swe_rl.sandbox.backend import default_scratch_dir, open_backend

    scratch = default_scratch_dir()
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="check-", dir=scratch, ignore_cleanup_errors=True) as name:
        backend = await open_backend(args.backend, languages, Path(name))
        try:
            grader = Grader(backend, languages, args.concurrency, Path(name))
            is_bubblewrap = backend.name == "bubblewrap"
            return await _check_with(args, tasks, languages, grader, needs_host_tools=is_bubblewrap)
        finally:
            await backend.close()


async def _check_with(
    args: argparse.Namespace,
    tasks: "list[TaskSpec]",
    languages: "dict[str, LanguageSpec]",
    grader: "PatchGrader",
    *,
    needs_host_tools: bool,
) -> dict[str, int]:
    from swe_rl.grade.check import check_tasks

    counts = {"ok": 0, "failed": 0, "skipped": 0}
    async for result in check_tasks(tasks, grader, languages, needs_host_tools=needs_host_tools):
        counts[result.status] += 1
        if args.json:
            line = {"task_id": result.task_id, "split": result.split}
            print(json.dumps(line | {"status": result.status.value, "problem": result.problem}), flush=True)
        else:
            problem = f": {result.problem}" if result.problem else ""
            print(f"{result.status.value:8}{result.split}/{result.task_id}{problem}", flush=True)
    return counts


def _synth(args: argparse.Namespace) -> int:
    from swe_rl.synth.write import write_family

    write_family(args.out_dir, num_train=args.num_train, num_verified=args.num_verified, seed=args.seed)
    print(args.out_dir)
    return 0
