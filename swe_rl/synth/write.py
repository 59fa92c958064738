"""Lays tasks of the parametric family on disk in the task folder format, and holds `verified` to its manifest."""

import difflib
import json
from importlib import resources
from pathlib import Path

from swe_rl.errors import TaskError
from swe_rl.synth.family import SynthTask, make_task
from swe_rl.task.spec import hash_folder

MANIFEST = "verified.json"


def write_family(out_dir: Path, *, num_train: int, num_verified: int, seed: int = 0) -> None:
    """Writes `<out_dir>/{train,verified}/<task_id>/`; existing folders of the same ids are left as they are.

    The seed moves `train` only: `verified` is one fixed sequence, of which the first `num_verified` are written and
    compared with the frozen manifest. Raises TaskError if one differs.
    """
    for split, count in (("train", num_train), ("verified", num_verified)):
        for index in range(count):
            task = make_task(split, index, seed if split == "train" else 0)
            if not (out_dir / split / task.task_id / "task.toml").exists():
                write_task(task, out_dir)
    check_frozen(out_dir, num_verified)


def write_task(task: SynthTask, out_dir: Path) -> Path:
    """Writes one task folder; `task.toml` last, so that a folder with one is whole."""
    folder = out_dir / task.split / task.task_id
    texts = {f"environment/{path}": text for path, text in task.files.items()}
    texts |= {f"tests/{path}": text for path, text in task.hidden.items()}
    texts["instruction.md"] = task.instruction + "\n"
    texts["solution/solution.patch"] = solution_patch(task)
    texts["task.toml"] = _task_toml(task)
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def solution_patch(task: SynthTask) -> str:
    """The fix as a git-style unified diff."""
    before = task.files[task.source_path]
    after = before.replace(task.broken_line, task.fixed_line)
    old, new = f"a/{task.source_path}", f"b/{task.source_path}"
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), old, new)
    return f"diff --git {old} {new}\n" + "".join(lines)


def check_frozen(out_dir: Path, num_verified: int) -> None:
    """Raises TaskError if a verified task isn't byte for byte the frozen one."""
    frozen = json.loads((resources.files("swe_rl.synth") / MANIFEST).read_text(encoding="utf-8"))
    for task_id in sorted(frozen)[:num_verified]:
        folder = out_dir / "verified" / task_id
        got = hash_folder(folder)
        if got != frozen[task_id]:
            raise TaskError(
                f"{folder}: the folder's hash is {got[:12]}, the frozen manifest's {frozen[task_id][:12]}; "
                "delete the folder to have it written again"
            )


def _task_toml(task: SynthTask) -> str:
    """JSON strings and arrays of strings are valid TOML."""
    labels = "\n".join(f"{key} = {json.dumps(value)}" for key, value in task.labels.items())
    return (
        'schema_version = "1"\n'
        f"task_id = {json.dumps(task.task_id)}\n"
        f"language = {json.dumps(task.bug.language)}\n\n"
        f"[labels]\n{labels}\n\n"
        "[tests]\n"
        f"fail_to_pass = {json.dumps(task.fail_to_pass)}\n"
        f"pass_to_pass = {json.dumps(task.pass_to_pass)}\n"
    )
