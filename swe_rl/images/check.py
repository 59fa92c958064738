"""Proves a language: its hello-repository goes through a real sandbox service, as an agent's work would.

    as it is                       the visible tests fail, and the grading finds one test failing and one passing
    with `old` replaced by `new`   the visible tests pass, and the grading resolves the task
    with `old` replaced by `leave` a process that ends early as if all were well resolves nothing

The repository of a language becomes a task whose hidden tests are its own protected files.
"""

import secrets
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from swe_rl.client import SandboxClient
from swe_rl.errors import ConfigError, SandboxError, SandboxUnavailableError, SweRlError
from swe_rl.sandbox.base import Backend
from swe_rl.service.app import create_app
from swe_rl.service.server import running
from swe_rl.task.language import HelloSpec, LanguageSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.verdict import Outcome, TestCounts, Verdict

SPLIT = "hello"
SESSION_TTL_S = 1800.0
_TASK = """schema_version = "1"
task_id = {task_id}
language = {language}
[tests]
fail_to_pass = [{fixed}]
pass_to_pass = [{kept}]
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """What one language's hello-repository did; `problem` is one line, '' if all was as it should be.

    `is_built` is False where there is no image, or no toolchain, to run it with.
    """

    language: str
    passes: bool = False
    fails: bool = False
    problem: str = ""
    seconds: float = 0.0
    is_built: bool = True

    @property
    def is_whole(self) -> bool:
        return self.passes and self.fails and not self.problem


@asynccontextmanager
async def hello_service(
    backend: Backend, languages: Mapping[str, LanguageSpec], folder: Path
) -> AsyncIterator[SandboxClient]:
    """A service on a loopback address that serves the hello-repositories of `languages`; it owns the backend.

    `folder` gets the tasks and what gradings lay out.
    """
    for language in languages.values():
        write_task(language, folder / "tasks")
    async with task_service(backend, languages, folder) as client:
        yield client


@asynccontextmanager
async def task_service(
    backend: Backend, languages: Mapping[str, LanguageSpec], folder: Path
) -> AsyncIterator[SandboxClient]:
    """A service on a loopback address that serves `folder`/tasks; it owns the backend."""
    token = secrets.token_hex(16)
    app = create_app(
        backend=backend,
        languages=languages,
        tasks=TaskSet.load([folder / "tasks"]),
        token=token,
        scratch_dir=folder / "scratch",
    )
    async with running(app) as url, SandboxClient(url, token) as client:
        yield client


async def prove(language: LanguageSpec, client: SandboxClient) -> Proof:
    """Never raises for what the language's toolchain does: it's the proof's `problem`."""
    hello, started = require_hello(language), time.monotonic()
    passes = fails = False
    is_built, problem = True, ""
    try:
        problem = await _failing_problem(client, language)
        fails = not problem
        mended = await _passing_problem(client, language, hello)
        passes, problem = not mended, problem or mended
        problem = problem or await _leaving_problem(client, language, hello)
    except SweRlError as error:
        is_built = not isinstance(error, SandboxUnavailableError)
        problem = f"{type(error).__name__}: {error}"
    return Proof(language.language, passes, fails, problem, time.monotonic() - started, is_built)


def write_task(language: LanguageSpec, root: Path) -> None:
    """Lays the language's hello-repository as a task below `root`. Raises ConfigError if it has none."""
    hello = require_hello(language)
    folder = root / SPLIT / task_id(language)
    shutil.copytree(language.root / "hello", folder / "environment")
    paths = [path.relative_to(folder / "environment") for path in sorted((folder / "environment").rglob("*"))]
    tests = [path for path in paths if language.is_protected(path.as_posix())]
    for path in tests:
        source, target = folder / "environment" / path, folder / "tests" / path
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    words = {"task_id": task_id(language), "language": language.language, "fixed": hello.fixed, "kept": hello.kept}
    (folder / "task.toml").write_text(_TASK.format(**{key: _quoted(word) for key, word in words.items()}))
    (folder / "instruction.md").write_text(f"{hello.path} subtracts where it should add.\n")
    if not tests:
        raise ConfigError(f"{language.root}: no file of hello/ is a test by protected_globs")


def task_id(language: LanguageSpec) -> str:
    return f"{SPLIT}-{language.language}"


def require_hello(language: LanguageSpec) -> HelloSpec:
    if language.hello is None:
        raise ConfigError(f"{language.root}/sandbox.toml: has no [hello]; describe the repository in hello/")
    return language.hello


def hello_source(language: LanguageSpec, text: str) -> str:
    """The file that holds the fault, with `text` in the place of the fault."""
    hello = require_hello(language)
    source = (language.root / "hello" / hello.path).read_text(encoding="utf-8")
    if source.count(hello.old) != 1:
        raise ConfigError(
            f"{language.root}: hello.old stands {source.count(hello.old)} times in {hello.path}, not once"
        )
    return source.replace(hello.old, text)


@asynccontextmanager
async def _session(client: SandboxClient, language: LanguageSpec) -> AsyncIterator[str]:
    """A session is graded once, so each repository has its own."""
    session_id = (await client.create_session(task_id(language), SESSION_TTL_S)).session_id
    try:
        yield session_id
    finally:
        await client.close_session(session_id)


async def _failing_problem(client: SandboxClient, language: LanguageSpec) -> str:
    async with _session(client, language) as session_id:
        result = await client.run_tests(session_id)
        if result.exit_code != 1:
            return f"the failing repository's visible tests ended with {result.exit_code}, expected 1"
        await client.write_file(session_id, "NOTE", b"An empty patch isn't graded.\n")
        verdict = await client.grade(session_id)
    expected = (Outcome.UNRESOLVED, TestCounts(0, 1), TestCounts(1, 1))
    is_expected = (verdict.outcome, verdict.fail_to_pass, verdict.pass_to_pass) == expected
    return "" if is_expected else f"the failing repository: {_words(verdict)}"


async def _passing_problem(client: SandboxClient, language: LanguageSpec, hello: HelloSpec) -> str:
    async with _session(client, language) as session_id:
        await client.write_file(session_id, hello.path, hello_source(language, hello.new).encode())
        result = await client.run_tests(session_id)
        if result.exit_code != 0:
            return f"the mended repository's visible tests ended with {result.exit_code}, expected 0"
        verdict = await client.grade(session_id)
    return "" if verdict.is_resolved else f"the mended repository: {_words(verdict)}"


async def _leaving_problem(client: SandboxClient, language: LanguageSpec, hello: HelloSpec) -> str:
    async with _session(client, language) as session_id:
        await client.write_file(session_id, hello.path, hello_source(language, hello.leave).encode())
        verdict = await client.grade(session_id)
    if verdict.outcome is Outcome.ENVIRONMENT_ERROR:
        raise SandboxError(_words(verdict))
    return f"a process that left early: {_words(verdict)}" if verdict.reward else ""


def _words(verdict: Verdict) -> str:
    counts: Sequence[TestCounts] = (verdict.fail_to_pass, verdict.pass_to_pass)
    passed = ", ".join(f"{count.passed}/{count.total}" for count in counts)
    problem = verdict.signals.get("fault") or verdict.signals.get("problem") or ""
    return f"{verdict.outcome.value} (fail_to_pass, pass_to_pass: {passed}) {problem}".rstrip()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
