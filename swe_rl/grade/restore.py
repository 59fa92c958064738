"""Puts back what a patch may not change, and writes the hidden tests over the tree. All of it as data, on the host."""

import shutil
from pathlib import Path

from swe_rl.grade.patch_format import ParsedPatch
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec


def restore_protected(patch: ParsedPatch, task: TaskSpec, language: LanguageSpec, directory: Path) -> tuple[str, ...]:
    """Makes every protected file that the patch touched what it is in the base: restored if it's there, else removed.

    Stops edited, deleted and renamed tests, and new files beside them (a nested conftest.py, a helper that the tests
    import). The patch names all that differs from the base, so nothing else needs a look. Returns the paths.
    """
    touched = tuple(path for path in patch.paths if language.is_protected(path))
    for path in touched:
        source, target = task.environment_dir / path, directory / path
        if source.is_file():
            _clear_way(directory, path)
            shutil.copyfile(source, target)
            target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
        elif target.is_file():
            target.unlink()
    return touched


def write_overlay(source_dir: Path, directory: Path) -> list[str]:
    """Writes hidden files over the tree and returns their paths; a file, link or directory in their way goes."""
    written = []
    for source in sorted(source_dir.rglob("*")):
        if source.is_dir():
            continue
        path = source.relative_to(source_dir).as_posix()
        _clear_way(directory, path)
        shutil.copyfile(source, directory / path)
        (directory / path).chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
        written.append(path)
    return written


def _clear_way(directory: Path, path: str) -> None:
    """Leaves a place at `path` for a regular file, with parents that are true directories of the tree."""
    parent = directory
    for part in path.split("/")[:-1]:
        parent = parent / part
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            parent.unlink()
        parent.mkdir(exist_ok=True)
    target = directory / path
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
