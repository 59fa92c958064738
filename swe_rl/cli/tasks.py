"""`swe-rl tasks`: list, show, check, make and import tasks. For whoever owns the tasks: `show` names hidden tests."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.cli import tasks_check

if TYPE_CHECKING:
    from swe_rl.task.spec import TaskSpec
    from swe_rl.task.taskset import TaskSet

HELP = "list, show, check, make and import tasks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs."""
    verbs = parser.add_subparsers(dest="tasks_verb", required=True, metavar="VERB")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text)

    verb = add("list", "one line a task: split, id, language, labels")
    _add_selection(verb)
    verb.add_argument("--json", action="store_true", help="one JSON object a line")

    verb = add("show", "one task whole, as JSON, its secrets included")
    _add_tasks(verb)
    verb.add_argument("task_id", metavar="ID")

    verb = add("check", "solutions resolve, bases don't, runs agree; exit code 1 if not")
    _add_selection(verb)
    tasks_check.add_arguments(verb)

    verb = add("import", "write tasks of a public data set's rows")
    verb.add_argument("format", choices=("humanevalpack",), help="humanevalpack: Python, JavaScript, Go and Rust rows")
    verb.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".jsonl or .jsonl.gz")
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets <split>/<task_id>/ folders")

    verb = add("synth", "write the parametric family of small tasks")
    verb.add_argument("out_dir", type=Path, metavar="DIR", help="gets <split>/<task_id>/ folders")
    verb.add_argument("--num-train", type=int, default=1000, metavar="N", help="tasks of train (default: 1000)")
    verb.add_argument("--num-verified", type=int, default=100, metavar="N", help="of verified (default: 100)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="moves train; verified is frozen (default: 0)")


def run(args: argparse.Namespace) -> int:
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "check": _check,
        "import": _import,
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
    return tasks_check.check(args, _select(args))


def _import(args: argparse.Namespace) -> int:
    from swe_rl.task.formats.humanevalpack import import_humanevalpack

    for path in args.files:
        print(f"{path}: {len(import_humanevalpack(path, args.out))} tasks", file=sys.stderr)
    print(args.out)
    return 0


def _synth(args: argparse.Namespace) -> int:
    from swe_rl.synth.write import write_family

    write_family(args.out_dir, num_train=args.num_train, num_verified=args.num_verified, seed=args.seed)
    print(args.out_dir)
    return 0
