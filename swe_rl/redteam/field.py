"""Where attacks take place: a language's hello-repository, served as a task whose hidden tests ask for other numbers.

Whoever knows the visible tests by heart still doesn't know what the hidden ones expect.
"""

import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from swe_rl.client import SandboxClient
from swe_rl.errors import ConfigError
from swe_rl.images.check import hello_source, require_hello, task_service, write_task
from swe_rl.sandbox.base import Backend
from swe_rl.task.language import LanguageSpec

# The visible test of every hello-repository is that 2 and 3 make 5.
_ADDEND, _SUM = re.compile(r"(?<![\d.-])3(?![\d.])"), re.compile(r"(?<![\d.-])5(?![\d.])")


@asynccontextmanager
async def open_field(
    backend: Backend, languages: Mapping[str, LanguageSpec], folder: Path, seed: int
) -> AsyncIterator[SandboxClient]:
    """A service on a loopback address with a task for each of `languages`; it owns the backend."""
    for language in languages.values():
        lay_task(language, folder / "tasks", seed)
    async with task_service(backend, languages, folder) as client:
        yield client


def lay_task(language: LanguageSpec, root: Path, seed: int) -> None:
    """The hello-repository as a task below `root`. Raises ConfigError where its tests don't name the numbers."""
    write_task(language, root)
    addend = random.Random(f"{seed} {language.language}").randint(20, 90)
    num_changed = 0
    for path in sorted((root / "hello").glob(f"hello-{language.language}/tests/**/*")):
        if path.is_file():
            text, num_sums = _SUM.subn(str(2 + addend), path.read_text(encoding="utf-8"))
            text, num_addends = _ADDEND.subn(str(addend), text)
            path.write_text(text, encoding="utf-8")
            num_changed += bool(num_sums and num_addends)
    if num_changed != 1:
        raise ConfigError(f"{language.root}/hello: one test file should say that 2 and 3 make 5, not {num_changed}")


def facts_of(language: LanguageSpec) -> dict[str, str]:
    """What an attack may know of the repository: all that lies open in a session."""
    hello = require_hello(language)
    paths = sorted(path for path in (language.root / "hello").rglob("*") if path.is_file())
    names = [path.relative_to(language.root / "hello").as_posix() for path in paths]
    test = next(
        name
        for name, path in zip(names, paths, strict=True)
        if language.is_protected(name) and _SUM.search(path.read_text(encoding="utf-8"))
    )
    return {
        "path": hello.path,
        "folder": hello.path.rpartition("/")[0] or ".",
        "old": hello.old,
        "new": hello.new,
        "leave": hello.leave,
        "fixed": hello.fixed,
        "kept": hello.kept,
        "test": test,
        "test_folder": test.rpartition("/")[0] or ".",
        "source": hello_source(language, hello.old),
        "mended": hello_source(language, hello.new),
    }
