"""Each language's planted tests against code that makes failures look passed, beside a solution that must resolve.

A cheat that is effective without planted tests proves that it's they which stop it. A language that has none here must
at least not be fooled by a process that leaves early as if all were well.
"""

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.grade.grader import Grader
from swe_rl.grade.judge import Judgement
from swe_rl.images.check import SPLIT, hello_source, require_hello, task_id, write_task
from swe_rl.sandbox.backend import BackendKind, open_backend
from swe_rl.task.language import LanguageSpec, read_languages
from swe_rl.task.spec import TaskSpec, read_task
from swe_rl.verdict import Outcome

LANGUAGES = read_languages(Path(__file__).parents[2] / "sandboxes")
FLIPS = tomllib.loads(Path(__file__).with_name("flips.toml").read_text())


@dataclass(frozen=True)
class Bench:
    """A language's hello-repository as a task, and graders with and without planted tests."""

    task: TaskSpec
    language: LanguageSpec
    grader: Grader
    bare: Grader

    async def run(self, grader: Grader, path: str, text: str) -> Judgement:
        """The hidden tests over a repository with this file; what is there already isn't judged by rules on patches."""
        (self.task.environment_dir / path).write_text(text)
        return await grader.run_once(self.task)


@asynccontextmanager
async def open_bench(name: str, kind: BackendKind, folder: Path) -> AsyncIterator[Bench]:
    language = LANGUAGES[name]
    bare = replace(language, canary=None)
    write_task(language, folder / "tasks")
    try:
        backend = await open_backend(kind, {name: language}, folder / "backend")
    except SandboxUnavailableError as error:
        pytest.skip(f"no {kind} sandbox here: {error}")
    try:
        task = read_task(folder / "tasks" / SPLIT / task_id(language))
        yield Bench(task, language, Grader(backend, {name: language}), Grader(backend, {name: bare}))
    finally:
        await backend.close()


async def _prove(name: str, kind: BackendKind, folder: Path) -> None:
    async with open_bench(name, kind, folder) as bench:
        hello = require_hello(bench.language)
        leaving = {"path": hello.path, "text": hello_source(bench.language, hello.leave), "is_effective": False}
        flip = FLIPS.get(name, leaving)
        try:
            solved = await bench.run(bench.grader, hello.path, hello_source(bench.language, hello.new))
        except SandboxUnavailableError as error:
            pytest.skip(str(error))
        assert (solved.outcome, solved.signals["num_canaries"]) == (Outcome.RESOLVED, 4), solved
        cheat = await bench.run(bench.grader, flip["path"], flip["text"].lstrip("\n"))
        assert cheat.outcome in (Outcome.VIOLATION, Outcome.UNRESOLVED), cheat
        bare = await bench.run(bench.bare, flip["path"], flip["text"].lstrip("\n"))
        assert (bare.outcome is Outcome.RESOLVED) is flip["is_effective"], bare


@pytest.mark.parametrize("name", sorted(LANGUAGES))
async def test_what_turns_failures_into_passes_is_caught_and_a_solution_is_not(name: str, tmp_path: Path) -> None:
    if LANGUAGES[name].missing_tools:
        pytest.skip(f"this machine lacks {', '.join(LANGUAGES[name].missing_tools)}")
    await _prove(name, "bubblewrap", tmp_path)


@pytest.mark.docker
@pytest.mark.parametrize("name", sorted(LANGUAGES))
async def test_the_same_holds_in_the_languages_image(name: str, tmp_path: Path) -> None:
    await _prove(name, "docker", tmp_path)
