"""What must not cross the wire, even where the environment fails while hidden files are in its hands."""

from pathlib import Path

import httpx
import pytest

from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxError, SandboxUnavailableError
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, Sandbox, SandboxSpec
from swe_rl.service.app import create_app
from swe_rl.task.language import read_languages
from swe_rl.task.taskset import TaskSet

LANGUAGES = read_languages(Path(__file__).parents[2] / "sandboxes")
TOKEN = "a-token"


class NoGrading:
    """A real backend that can't make the sandboxes of gradings, and names a hidden file when it says so."""

    name = "no-grading"
    instance_id = "no-grading"

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def check(self) -> None: ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if spec.is_disposable:
            raise SandboxError("no space left: /tasks/clamp/tests/test_hidden_secret.py")
        return await self._backend.create(spec)

    async def reconcile(self) -> int:
        return await self._backend.reconcile()

    async def close(self) -> None:
        await self._backend.close()


async def test_a_fault_of_grading_crosses_the_wire_as_its_class_alone(tasks_dir: Path, tmp_path: Path) -> None:
    try:
        backend = await open_backend("bubblewrap", LANGUAGES, tmp_path)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    app = create_app(
        backend=NoGrading(backend),
        languages=LANGUAGES,
        tasks=TaskSet.load([tasks_dir]),
        token=TOKEN,
        scratch_dir=tmp_path,
    )
    async with (
        app.router.lifespan_context(app),
        SandboxClient("http://service", TOKEN, transport=httpx.ASGITransport(app)) as client,
    ):
        session = await client.create_session("clamp")
        await client.write_file(session.session_id, "src/clamp.py", b"x = 1\n")
        verdict = await client.grade(session.session_id)
        await client.close_session(session.session_id)
    assert verdict.reward is None and verdict.signals["fault"] == "SandboxError"
    assert "secret" not in str(verdict)
