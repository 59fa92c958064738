"""Writes a task folder of texts: whoever makes or imports tasks ends here. See swe_rl.task.spec for the format."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def lay_task(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes `texts` (path in the folder -> content); task.toml last, so that a folder with one is whole."""
    for path, text in sorted(texts.items(), key=lambda item: item[0] == "task.toml"):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")


def make_solution(path: str, before: str, after: str) -> str:
    """A git-style patch of one file, whose two texts end with a line feed."""
    old, new = f"a/{path}", f"b/{path}"
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), old, new)
    return f"diff --git {old} {new}\n" + "".join(lines)


def make_task_toml(
    task_id: str,
    language: str,
    labels: Mapping[str, str],
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    timeout_s: float | None = None,
) -> str:
    """JSON strings and arrays of strings are valid TOML."""
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in labels.items())
    limits = "" if timeout_s is None else f"\n[limits]\ntimeout_s = {timeout_s:g}\n"
    return (
        'schema_version = "1"\n'
        f"task_id = {json.dumps(task_id)}\n"
        f"language = {json.dumps(language)}\n\n"
        f"[labels]\n{lines}\n\n"
        "[tests]\n"
        f"fail_to_pass = {json.dumps(list(fail_to_pass))}\n"
        f"pass_to_pass = {json.dumps(list(pass_to_pass))}\n"
        f"{limits}"
    )
