"""Real bugs that nobody here wrote, as tasks of a real service on each backend, and a table of what became of them."""

import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, SandboxSpec
from swe_rl.service.app import create_app
from swe_rl.service.server import running
from swe_rl.task.formats.humanevalpack import import_humanevalpack
from swe_rl.task.language import LanguageSpec, read_languages
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SWE_RL_REAL_DATA", ROOT.parent / "shared/data"))
FILES = {"python": "python", "javascript": "js", "go": "go", "rust": "rust"}
BACKENDS = ("bubblewrap", "docker")
TOKEN = "a-token-for-tests"
CONCURRENCY = min(16, os.cpu_count() or 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    """All rows of all languages."""
    folder = tmp_path_factory.mktemp("humanevalpack")
    for name in FILES.values():
        path = DATA / f"humanevalpack-{name}.jsonl.gz"
        if not path.is_file():
            pytest.skip(f"no {path.name} in {DATA}: set SWE_RL_REAL_DATA to a folder with HumanEvalPack's rows")
        import_humanevalpack(path, folder)
    return TaskSet.load([folder])


@pytest.fixture(scope="session")
def languages() -> dict[str, LanguageSpec]:
    return read_languages(ROOT / "sandboxes")


@pytest_asyncio.fixture(
    loop_scope="session",
    scope="session",
    params=[BACKENDS[0], pytest.param(BACKENDS[1], marks=pytest.mark.docker)],
)
async def backend(
    request: pytest.FixtureRequest, languages: dict[str, LanguageSpec], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backend]:
    try:
        opened = await open_backend(request.param, languages)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield opened
    finally:
        await opened.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def client(backend: Backend, languages: dict[str, LanguageSpec], tasks: TaskSet) -> AsyncIterator[SandboxClient]:
    app = create_app(backend=backend, languages=languages, tasks=tasks, token=TOKEN, grade_concurrency=CONCURRENCY)
    async with running(app) as url, SandboxClient(url, TOKEN) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def language(
    request: pytest.FixtureRequest, backend: Backend, languages: dict[str, LanguageSpec], tmp_path: Path
) -> str:
    """One whose tests can run on this machine and backend."""
    spec = languages[request.param]
    if backend.name == "bubblewrap" and spec.missing_tools:
        pytest.skip(f"this machine lacks {', '.join(spec.missing_tools)}")
    (tmp_path / "probe").mkdir()
    try:
        await (await backend.create(SandboxSpec(tmp_path / "probe", request.param))).close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    return str(request.param)


# (language, bug type) -> backend -> [rows, right solutions that resolve, buggy ones that don't]
_counts: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
Record = Callable[[TaskSpec, bool, bool], None]


@pytest.fixture
def record(backend: Backend) -> Record:
    """Notes for the table whether a task's right solution resolved it, and whether its buggy one was refused."""

    def note(task: TaskSpec, is_right: bool, is_refused: bool) -> None:
        row = _counts[task.language, task.labels["bug_type"]][backend.name]
        for index, number in enumerate((1, is_right, is_refused)):
            row[index] += number

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _counts:
        return
    head = " | ".join(f"{name}: rows, right resolved, buggy not" for name in BACKENDS)
    lines = [f"| language | bug type | {head} |", "|---|---|" + "---|" * len(BACKENDS)]
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (language, bug_type), by_backend in sorted(_counts.items()):
        for name, numbers in by_backend.items():
            total[name] = [a + b for a, b in zip(total[name], numbers, strict=True)]
        lines.append(f"| {language} | {bug_type} | {_cells(by_backend)} |")
    lines.append(f"| all | all | {_cells(total)} |")
    terminalreporter.write_line("\n" + "\n".join(lines))
    if file := os.environ.get("SWE_RL_REAL_TABLE"):
        Path(file).write_text("\n".join(lines) + "\n")


def _cells(by_backend: dict[str, list[int]]) -> str:
    return " | ".join(", ".join(map(str, by_backend[name])) if name in by_backend else "-" for name in BACKENDS)
