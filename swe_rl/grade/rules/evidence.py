"""What a rule may look at, and what it says: the names and types of the rules."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from swe_rl.grade.patch_format import ParsedPatch, PatchedFile
from swe_rl.grade.rules.added import AddedCode, Change
from swe_rl.grade.rules.source import is_code, name_as
from swe_rl.grade.rules.spelling import as_compiled
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Violation


@dataclass(frozen=True)
class Evidence:
    """One patch, applied to `tree` and nothing put back yet."""

    task: TaskSpec
    language: LanguageSpec
    patch: ParsedPatch
    tree: Path

    def is_in_base(self, path: str) -> bool:
        return (self.task.environment_dir / path).is_file()

    @property
    def brought(self) -> tuple[PatchedFile, ...]:
        """The files that the patch leaves something in: a deletion can't bring in code."""
        return tuple(file for file in self.patch.files if file.new_path is not None)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The product's files that the patch touches. Protected ones are put back, so what they say has no effect.

        Nor has a test that an agent wrote for itself and left where the runner doesn't look.
        """
        paths = [path for path in self.patch.paths if not self.language.is_protected(path)]
        changes = [self._change(path, path) for path in paths if is_code(path)]
        said = "\n".join(change.new_source.said() for change in changes if change.new_source)
        for path in paths:
            is_taken_in = PurePosixPath(path).suffix.lower() not in _NO_CODE or PurePosixPath(path).name in said
            if not is_code(path):
                changes.append(self._change(path, name_as(path, self.language.language) if is_taken_in else path))
        return tuple(change for change in changes if not _is_own_test(change, changes, self.language))

    def _change(self, path: str, reads_as: str) -> Change:
        old, new = read_text(self.task.environment_dir / path), read_text(self.tree / path)
        return Change(path, _as_compiled(reads_as, old), _as_compiled(reads_as, new), reads_as)

    @cached_property
    def code(self) -> AddedCode:
        return AddedCode(self.changes)

    @cached_property
    def harness(self) -> tuple[Path, ...]:
        """Files that judge the product: the runner's own, and those of the tests."""
        runner_dir = self.language.runner_dir
        own = [runner_dir / name for name in self.language.runner] if runner_dir else []
        return (*own, *(path for path in sorted(self.task.tests_dir.rglob("*")) if path.is_file()))

    @cached_property
    def base_tests(self) -> tuple[Path, ...]:
        """The base's protected files, by their place on the host."""
        root = self.task.environment_dir
        files = (path for path in sorted(root.rglob("*")) if path.is_file())
        return tuple(path for path in files if self.language.is_protected(path.relative_to(root).as_posix()))


# Endings of files that are no code, as long as no code names them; all others may be imported or included.
_NO_CODE = {"", ".cfg", ".css", ".csv", ".html", ".ini", ".json", ".lock", ".md", ".rst", ".svg", ".toml", ".txt"}
_NO_CODE |= {".xml", ".yaml", ".yml"}
# Elsewhere a build takes every file of a folder.
_LOADED_BY_NAME = {"javascript", "lua", "perl", "php", "python", "ruby"}
_TEST_NAME = re.compile(r"(?:test_|spec_).*|.*(?:_test|_spec|\.test|\.spec|Tests?)")


def _is_own_test(change: Change, changes: list[Change], language: LanguageSpec) -> bool:
    """A new file with the name of a test, or an ending that only tests have, that nothing else there speaks of."""
    stem, _, ending = PurePosixPath(change.path).name.rpartition(".")
    source = change.new_source
    if change.old is not None or source is None:
        return False
    if not is_code(change.path) and f".{ending}" in _test_endings(language):
        spoken_of = rf"\.{re.escape(ending)}\b"  # the stem is often that of the product's file
    elif source.language in _LOADED_BY_NAME and _TEST_NAME.fullmatch(stem):
        spoken_of = re.escape(stem.partition(".")[0])
    else:
        return False
    return not any(re.search(spoken_of, other.new or "") for other in changes if other is not change)


def _test_endings(language: LanguageSpec) -> set[str]:
    return {PurePosixPath(glob).suffix for glob in language.canary.files} if language.canary else set()


Rule = Callable[[Evidence], Iterator[Violation]]


def read_text(path: Path) -> str | None:
    """None where there is no regular file."""
    if path.is_symlink() or not path.is_file():
        return None
    return path.read_bytes().decode("utf-8", "replace")


def _as_compiled(path: str, text: str | None) -> str | None:
    return None if text is None else as_compiled(path, text)


def is_entry(path: str) -> bool:
    """A program's own main file, which no test loads: it may end its process as it likes."""
    return PurePosixPath(path).stem in ("main", "__main__", "cli")
