"""Real backends. A backend that this machine can't run is skipped with the reason it gives itself."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, Command, CommandResult, Limits, Sandbox, SandboxSpec
from swe_rl.task.language import LanguageSpec, read_languages

ROOT = Path(__file__).parents[2]
Run = Callable[..., Awaitable[CommandResult]]


@pytest.fixture(scope="session")
def languages() -> dict[str, LanguageSpec]:
    return read_languages(ROOT / "sandboxes")


@pytest.fixture
async def backend(languages: dict[str, LanguageSpec]) -> AsyncIterator[Backend]:
    """The embedded backend; what all backends have in common is tested in tests/conformance."""
    try:
        opened = await open_backend("bubblewrap", languages)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small source directory: text, a program, a link, bytes that aren't text, a directory below."""
    root = tmp_path / "repository"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "README.md").write_text("hello\n")
    (root / "src" / "main.py").write_text("print('main')\n")
    (root / "src" / "deep" / "data.bin").write_bytes(bytes(range(256)))
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("README.md")
    return root


@pytest.fixture
async def sandbox(backend: Backend, repository: Path) -> AsyncIterator[Sandbox]:
    limits = Limits(memory_mb=256, num_pids=48, file_size_mb=8)
    try:
        made = await backend.create(SandboxSpec(repository, "python", limits))
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Runs a bash script; the keywords are those of Command."""

    async def run_script(script: str, **options: object) -> CommandResult:
        return await sandbox.run(Command(("bash", "-c", script), **{"timeout_s": 30.0, **options}))  # type: ignore[arg-type]

    return run_script


@pytest.fixture
def is_alive() -> Callable[[str], bool]:
    """Whether any process of this machine has the mark in its command line."""

    def look(mark: str) -> bool:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                return True
        return False

    return look
