"""How a language runs its tests: `sandboxes/<language>/sandbox.toml`, read strictly.

Everything about a language that isn't code is in its folder; nothing here runs anything. Placeholders in a command's
arguments: {report} is the path of the report file to write, {runner} the directory of the host-held runner files,
{nonce} a file with a random word, by which the runner seals the report (grade.seal). It is gone before any code of the
repository runs.
"""

import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_rl.errors import ConfigError
from swe_rl.task.canary import CanarySpec, CanaryTable


@dataclass(frozen=True)
class HelloSpec:
    """The smallest repository of a language, hello/ in its folder: replacing `old` by `new` in `path` mends it.

    `fixed` is the id of the test that this makes pass, `kept` of one that passes before and after. `leave` instead of
    `new` ends the process as if all were well, which mustn't count as a pass.
    """

    path: str
    old: str
    new: str
    leave: str
    fixed: str
    kept: str


@dataclass(frozen=True)
class LanguageSpec:
    """One language. Globs match a whole path relative to the repository's root: `*` stays within one name, `**/`
    stands for any number of directories (none included), a trailing `/**` for everything below. `takes_files`: test
    files that are added to the test command are run, in that order, instead of those that it finds itself.
    """

    language: str
    root: Path
    test_command: tuple[str, ...]
    visible_command: tuple[str, ...]
    report_format: str
    runner: tuple[str, ...] = ()
    runner_folder: str = "."
    timeout_s: float = 60.0
    memory_mb: int = 1024
    num_pids: int = 128
    env: dict[str, str] = field(default_factory=dict)
    protected_globs: tuple[str, ...] = ()
    ignored_globs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    image: dict[str, Any] = field(default_factory=dict)
    hello: HelloSpec | None = None
    canary: CanarySpec | None = None
    takes_files: bool = False

    @property
    def runner_dir(self) -> Path | None:
        """The host directory to bind read-only in the sandbox; None if the language needs none.

        It's the language's own folder, or the `runner_folder` beside it that several languages share.
        """
        return (self.root / self.runner_folder).resolve() if self.runner else None

    @property
    def missing_tools(self) -> tuple[str, ...]:
        """Which of `requires` this machine lacks: matters where the host's own toolchain runs the tests."""
        return tuple(tool for tool in self.requires if shutil.which(tool) is None)

    @cached_property
    def _test_files(self) -> re.Pattern[str]:
        return compile_globs(self.canary.files if self.canary else ())

    def is_test_file(self, path: str) -> bool:
        """True for a file that the test command runs tests of, as `[canary]` has it."""
        return self._test_files.fullmatch(path) is not None

    @cached_property
    def _protected(self) -> re.Pattern[str]:
        return compile_globs(self.protected_globs)

    def is_protected(self, path: str) -> bool:
        """True for a file whose content at grading is the task's own, whatever the patch says."""
        return self._protected.fullmatch(path) is not None


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Test(_Section):
    command: list[str] = Field(min_length=1)
    visible_command: list[str] = Field(min_length=1)
    report_format: str = Field(min_length=1)
    takes_files: bool = False


class _Limits(_Section):
    timeout_s: float = Field(default=60.0, gt=0)
    memory_mb: int = Field(default=1024, gt=0)
    num_pids: int = Field(default=128, gt=0)


class _Image(_Section):
    name: str | None = None
    wheels: list[str] = Field(default_factory=list)


class _Hello(_Section):
    path: str = Field(min_length=1)
    old: str = Field(min_length=1)
    new: str
    leave: str = Field(min_length=1)
    fixed: str = Field(min_length=1)
    kept: str = Field(min_length=1)


class _SandboxFile(_Section):
    schema_version: Literal["1"] = "1"
    language: str = Field(pattern=r"^[a-z][a-z0-9_+-]*$")
    test: _Test
    limits: _Limits = Field(default_factory=_Limits)
    env: dict[str, str] = Field(default_factory=dict)
    protected_globs: list[str] = Field(default_factory=list)
    ignored_globs: list[str] = Field(default_factory=list)
    runner: list[str] = Field(default_factory=list)
    runner_folder: str = Field(default=".", pattern=r"^(\.|\.\./[a-z][a-z0-9_+-]*)$")
    requires: list[str] = Field(default_factory=list)
    image: _Image = Field(default_factory=_Image)
    hello: _Hello | None = None
    canary: CanaryTable | None = None


def read_language(folder: Path) -> LanguageSpec:
    """Raises ConfigError, one line with the file and the key."""
    path = folder / "sandbox.toml"
    try:
        parsed = _SandboxFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: isn't TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error)}") from error
    if parsed.language != folder.name:
        _refuse(path, "language", f"is {parsed.language!r}, but the folder is {folder.name!r}; make them equal")
    for name in parsed.runner:
        home = folder / parsed.runner_folder
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or not (home / name).is_file():
            _refuse(path, "runner", f"{name!r} isn't a file inside {home}")
    return LanguageSpec(
        language=parsed.language,
        root=folder.resolve(),
        test_command=tuple(parsed.test.command),
        visible_command=tuple(parsed.test.visible_command),
        report_format=parsed.test.report_format,
        runner=tuple(parsed.runner),
        runner_folder=parsed.runner_folder,
        timeout_s=parsed.limits.timeout_s,
        memory_mb=parsed.limits.memory_mb,
        num_pids=parsed.limits.num_pids,
        env=parsed.env,
        protected_globs=tuple(parsed.protected_globs),
        ignored_globs=tuple(parsed.ignored_globs),
        requires=tuple(parsed.requires),
        image=parsed.image.model_dump(exclude_none=True),
        hello=HelloSpec(**parsed.hello.model_dump()) if parsed.hello else None,
        canary=parsed.canary.spec() if parsed.canary else None,
        takes_files=parsed.test.takes_files,
    )


def read_languages(root: Path) -> dict[str, LanguageSpec]:
    """Every folder of `root` that has a sandbox.toml, by language. Raises ConfigError if there is none."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder of languages; give the folder that holds <language>/sandbox.toml")
    folders = sorted(path.parent for path in root.glob("*/sandbox.toml"))
    if not folders:
        raise ConfigError(f"{root}: holds no <language>/sandbox.toml")
    return {folder.name: read_language(folder) for folder in folders}


def fill_command(command: Sequence[str], *, report: str, runner: str, nonce: str) -> tuple[str, ...]:
    """The argv with its placeholders filled; other braces are left as they are."""
    known = {"{report}": report, "{runner}": runner, "{nonce}": nonce}
    return tuple(re.sub(r"\{(?:report|runner|nonce)\}", lambda match: known[match[0]], part) for part in command)


def compile_globs(globs: Sequence[str]) -> re.Pattern[str]:
    """One pattern for `fullmatch` that matches what any of the globs matches; nothing if there is none."""
    return re.compile("|".join(_glob_regex(glob) for glob in globs) or r"(?!)", re.DOTALL)


def first_problem(error: ValidationError) -> str:
    """One line: the key and what is wrong with it, and how many more problems there are.

    An unknown key goes first: it may be a misspelled one, which is then missing, too.
    """
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in problems[0]["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    what = "unknown key" if problems[0]["type"] == "extra_forbidden" else problems[0]["msg"]
    return f"{key}: {what}{more}"


def _glob_regex(glob: str) -> str:
    tokens = {"**/": r"(?:[^/]+/)*", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    return "".join(tokens.get(token) or re.escape(token) for token in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", glob))


def _refuse(path: Path, key: str, problem: str) -> NoReturn:
    raise ConfigError(f"{path}: {key}: {problem}")
