"""Lays tasks of the parametric family on disk in the task folder format, and holds `verified` to its manifest."""

import json
from importlib import resources
from pathlib import Path

from swe_rl.errors import TaskError
from swe_rl.synth.family import SynthTask, make_task
from swe_rl.task.folder import lay_task, make_solution, make_task_toml
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
    """Writes one task folder."""
    folder = out_dir / task.split / task.task_id
    texts = {f"environment/{path}": text for path, text in task.files.items()}
    texts |= {f"tests/{path}": text for path, text in task.hidden.items()}
    texts["instruction.md"] = task.instruction + "\n"
    texts["solution/solution.patch"] = solution_patch(task)
    texts["task.toml"] = make_task_toml(
        task.task_id, task.bug.language, task.labels, task.fail_to_pass, task.pass_to_pass
    )
    lay_task(folder, texts)
    return folder


def solution_patch(task: SynthTask) -> str:
    """The fix as a git-style unified diff."""
    before = task.files[task.source_path]
    return make_solution(task.source_path, before, before.replace(task.broken_line, task.fixed_line))


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
