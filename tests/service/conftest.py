"""The real app over a real socket, with a real backend and one small task that has hidden tests."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.backend import default_scratch_dir, open_backend
from swe_rl.service.app import create_app
from swe_rl.service.server import running
from swe_rl.service.service import Service
from swe_rl.task.language import read_languages
from swe_rl.task.taskset import TaskSet

ROOT = Path(__file__).parents[2]
TOKEN = "the-service's-own-token"
FIXED = "def clamp(x, low, high):\n    return min(max(x, low), high)\n"
FILES = {
    "task.toml": (
        'schema_version = "1"\ntask_id = "clamp"\nlanguage = "python"\n[labels]\nkind = "bound"\n[tests]\n'
        'fail_to_pass = ["tests/test_hidden.py::test_upper_secret"]\n'
        'pass_to_pass = ["tests/test_hidden.py::test_lower_secret", "tests/test_visible.py::test_inside"]\n'
    ),
    "instruction.md": "clamp(x, low, high) ignores `high`.\n",
    "environment/src/clamp.py": "def clamp(x, low, high):\n    return max(x, low)\n",
    "environment/tests/test_visible.py": (
        "from clamp import clamp\n\n\ndef test_inside():\n    assert clamp(2, 1, 3) == 2\n\n\n"
        "def test_above():\n    assert clamp(4, 1, 3) == 3\n"
    ),
    "tests/tests/test_hidden.py": (
        "from clamp import clamp\n\n\ndef test_upper_secret():\n    assert clamp(5, 1, 3) == 3\n\n\n"
        "def test_lower_secret():\n    assert clamp(0, 1, 3) == 1\n"
    ),
    "solution/solution.patch": "the solution's secret\n",
}


@dataclass(frozen=True, slots=True)
class Live:
    """A running service and a client of it."""

    url: str
    client: SandboxClient
    scratch: Path
    service: Service


Start = Callable[..., Awaitable[Live]]


@pytest.fixture(scope="session")
def tasks_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    for path, text in FILES.items():
        file = root / "train" / "clamp" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture
async def start(tasks_dir: Path, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a service with `create_app`'s options; all are ended after the test."""
    scratch = default_scratch_dir() / f"service-{tmp_path.name}-{os.getpid()}"
    async with AsyncExitStack() as stack:

        async def start_one(**options: object) -> Live:
            languages = read_languages(ROOT / "sandboxes")
            try:
                backend = await open_backend("auto", languages, scratch)
            except SandboxUnavailableError as error:
                pytest.skip(str(error))
            app = create_app(
                backend=backend,
                languages=languages,
                tasks=TaskSet.load([tasks_dir]),
                **{"token": TOKEN, "scratch_dir": scratch} | options,  # type: ignore[arg-type]
            )
            url = await stack.enter_async_context(running(app))
            client = await stack.enter_async_context(SandboxClient(url, TOKEN))
            return Live(url, client, scratch, app.state.service)

        yield start_one
    scratch.rmdir()  # fails where anything was left


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits until it holds; a test that waits for long has failed."""
    deadline = time.monotonic() + 120
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.fixture(name="until")
def _until() -> Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]:
    return until


@pytest.fixture
async def live(start: Start) -> Live:
    return await start()
