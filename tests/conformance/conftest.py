"""The same cases on every backend, and a table of them at the end. A backend that isn't there skips with its reason.

pytest tests/conformance                         all backends
SWE_RL_CONFORMANCE_TABLE=table.md pytest ...     writes the table to a file too
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, Command, CommandResult, Limits, Sandbox, SandboxSpec
from swe_rl.task.language import LanguageSpec, read_languages

ROOT = Path(__file__).parents[2]
BACKENDS = ("bubblewrap", "docker", "docker-runsc")
LIMITS = Limits(memory_mb=256, num_pids=48, file_size_mb=32, disk_mb=64, cpus=1.0)
SECRET = "a-secret-of-the-service-7f1d"
Run = Callable[..., Awaitable[CommandResult]]
Make = Callable[..., Awaitable[Sandbox]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def languages() -> dict[str, LanguageSpec]:
    return read_languages(ROOT / "sandboxes")


@pytest_asyncio.fixture(
    loop_scope="session",
    scope="session",
    params=[BACKENDS[0], *(pytest.param(name, marks=pytest.mark.docker) for name in BACKENDS[1:])],
)
async def backend(
    request: pytest.FixtureRequest, languages: dict[str, LanguageSpec], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backend]:
    os.environ["SWE_RL_SANDBOX_TOKEN"] = SECRET  # as the service's own environment would hold it
    try:
        opened = await open_backend(request.param, languages)
        source = tmp_path_factory.mktemp("probe")
        await (await opened.create(SandboxSpec(source, "python", LIMITS))).close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "README.md").write_text("hello\n")
    (root / "src" / "main.py").write_text("print('main')\n")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("README.md")
    return root


@pytest_asyncio.fixture(loop_scope="session")
async def make(backend: Backend, repository: Path) -> AsyncIterator[Make]:
    """Makes sandboxes that are closed at the end of the test."""
    made: list[Sandbox] = []

    async def create(source: Path | None = None, limits: Limits = LIMITS) -> Sandbox:
        made.append(await backend.create(SandboxSpec(source or repository, "python", limits)))
        return made[-1]

    yield create
    for sandbox in made:
        await sandbox.close()


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(make: Make) -> Sandbox:
    return await make()


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Runs a bash script; the keywords are those of Command."""

    async def run_script(script: str, **options: object) -> CommandResult:
        return await sandbox.run(Command(("bash", "-c", script), **{"timeout_s": 60.0, **options}))  # type: ignore[arg-type]

    return run_script


# How many processes have the two words `sleep <mark>` as a command line; what asks has its word by its input.
_COUNT = """import glob, sys
wanted, number = b"sleep\\0" + sys.stdin.buffer.read() + b"\\0", 0
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        number += open(path, "rb").read() == wanted
    except OSError:
        pass
print(number)"""


@pytest.fixture
def count(sandbox: Sandbox) -> Callable[[str], Awaitable[int]]:
    """How many `sleep <mark>` run in the sandbox, as seen from inside."""

    async def ask(mark: str) -> int:
        result = await sandbox.run(Command(("python3", "-c", _COUNT), stdin=mark.encode(), timeout_s=60.0))
        return int(result.stdout)

    return ask


@pytest.fixture
def a_mark() -> str:
    """Seconds to sleep that no other process sleeps."""
    return str(uuid4().int % 10**9 + 10**9)


_outcomes: dict[str, dict[str, str]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = (yield).get_result()
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "backend" not in parameters or Path(__file__).parent not in item.path.parents:
        return
    area = item.path.stem.removeprefix("test_")
    case = item.name.removeprefix("test_").partition("[")[0].replace("_", " ")
    row = _outcomes.setdefault(f"{area}: {case}", {})
    if report.when == "call" or report.outcome != "passed":
        row[parameters["backend"]] = report.outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _outcomes:
        return
    marks = {"passed": "ok", "failed": "FAILED", "skipped": "skipped", "": "-"}
    width = max(len(case) for case in _outcomes)
    lines = [f"| {'case':{width}} | " + " | ".join(BACKENDS) + " |"]
    lines.append(f"|{'-' * (width + 2)}|" + "|".join("-" * (len(name) + 2) for name in BACKENDS) + "|")
    for case, row in sorted(_outcomes.items()):
        cells = (f"{marks[row.get(name, '')]:{len(name)}}" for name in BACKENDS)
        lines.append(f"| {case:{width}} | " + " | ".join(cells) + " |")
    totals = []
    for name in BACKENDS:
        seen = [row[name] for row in _outcomes.values() if name in row]
        totals.append(f"{name}: {seen.count('passed')} of {len(seen)} cases pass, {seen.count('skipped')} skipped")
    text = "\n".join([*lines, "", *totals])
    terminalreporter.write_line("\n" + text)
    if file := os.environ.get("SWE_RL_CONFORMANCE_TABLE"):
        Path(file).write_text(text + "\n")
