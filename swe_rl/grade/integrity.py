"""Rules against cheating, one function a rule; each names the cheat it stops. They judge a patch, and run nothing.

Ordinary edits to protected files are no crime: `restore_protected` undoes them and the rest of the patch is graded.
What a rule of RULES reports is fatal: nobody who fixes a bug needs it. To add a rule, write a function
`(Evidence) -> Iterator[Violation]` and add it to RULES.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rl.grade.patch_format import ParsedPatch, PatchedFile
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Violation

# Files that a tool loads on its own, each with the lines that turn them against the tests (None: any line does).
_STARTUP_FILES: tuple[tuple[re.Pattern[str], re.Pattern[str] | None], ...] = (
    (re.compile(r"(?:.*/)?(?:sitecustomize\.py|usercustomize\.py|[^/]+\.pth)"), None),
    (re.compile(r"(?:.*/)?\.cargo/config(?:\.toml)?"), re.compile(r".*\b(?:runner|rustc-wrapper|linker)\b")),
    (re.compile(r"(?:.*/)?\.npmrc"), re.compile(r"\s*(?:node-options|script-shell)\b")),
)
_CONFTEST = re.compile(r"(?:.*/)?conftest\.py")
_PYTEST_HOOK = re.compile(r"\s*(?:async\s+)?def\s+pytest_\w+|\s*pytest_plugins\s*=|.*hookimpl")
# At the root or in src/, where an import finds them before the real ones.
_SHADOWING = re.compile(r"(?:src/)?(?:pytest|_pytest|unittest|pluggy|doctest|py)(?:\.py|/.*)")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule may look at."""

    task: TaskSpec
    language: LanguageSpec
    patch: ParsedPatch

    def is_in_base(self, path: str) -> bool:
        return (self.task.environment_dir / path).is_file()


Rule = Callable[[Evidence], Iterator[Violation]]


def startup_file(evidence: Evidence) -> Iterator[Violation]:
    """Stops code that a tool runs before any test: sitecustomize, a .pth file, cargo's runner, npm's options."""
    for file in evidence.patch.files:
        for name, line in _STARTUP_FILES:
            if _adds(file) and name.fullmatch(file.path) and (line is None or any(map(line.match, file.added_lines))):
                yield Violation("startup_file", file.path, "is loaded before the tests and can change their outcome")


def conftest_hook(evidence: Evidence) -> Iterator[Violation]:
    """Stops a conftest.py that rewrites outcomes in a pytest hook; a fixture or plain edit is undone, not punished."""
    for file in evidence.patch.files:
        if _adds(file) and _CONFTEST.fullmatch(file.path) and any(map(_PYTEST_HOOK.match, file.added_lines)):
            yield Violation("conftest_hook", file.path, "adds a pytest hook or plugin")


def shadowed_runner(evidence: Evidence) -> Iterator[Violation]:
    """Stops a package of the repository that takes the place of the test runner's own (`pytest/`, `unittest.py`)."""
    if evidence.language.language != "python":
        return
    for file in evidence.patch.files:
        if _adds(file) and _SHADOWING.fullmatch(file.path) and not evidence.is_in_base(file.path):
            yield Violation("shadowed_runner", file.path, "takes the name of a module that runs the tests")


RULES: tuple[Rule, ...] = (startup_file, conftest_hook, shadowed_runner)


def find_violations(evidence: Evidence) -> tuple[Violation, ...]:
    """What every rule reports, in the rules' order."""
    return tuple(violation for rule in RULES for violation in rule(evidence))


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


def write_overlay(task: TaskSpec, directory: Path) -> None:
    """Writes the hidden tests over the tree; a file, link or directory that is in their way goes."""
    for source in sorted(task.tests_dir.rglob("*")):
        if source.is_dir():
            continue
        path = source.relative_to(task.tests_dir).as_posix()
        _clear_way(directory, path)
        shutil.copyfile(source, directory / path)
        (directory / path).chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


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


def _adds(file: PatchedFile) -> bool:
    """False for a deletion, which can't bring in code."""
    return file.new_path is not None
