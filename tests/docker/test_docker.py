"""What is Docker's own: how a container is closed off, what is left behind (nothing), and clear refusals."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

docker = pytest.importorskip("docker", reason="the package docker isn't installed")

from swe_rl.errors import SandboxError, SandboxUnavailableError  # noqa: E402
from swe_rl.grade.grader import Grader  # noqa: E402
from swe_rl.sandbox.base import Backend, Command, Limits, Sandbox, SandboxSpec  # noqa: E402
from swe_rl.sandbox.docker import DockerBackend  # noqa: E402
from swe_rl.sandbox.docker_engine import OWNER_LABEL  # noqa: E402
from swe_rl.synth.family import make_task  # noqa: E402
from swe_rl.synth.write import write_task  # noqa: E402
from swe_rl.task.language import LanguageSpec, read_languages  # noqa: E402
from swe_rl.task.spec import read_task  # noqa: E402
from swe_rl.verdict import Outcome  # noqa: E402

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[2]
PROVEN = ("python", "javascript")


@pytest.fixture(scope="session")
def languages() -> dict[str, LanguageSpec]:
    return read_languages(ROOT / "sandboxes")


@pytest.fixture(scope="session")
def engine() -> "docker.DockerClient":
    """An engine that has the images; otherwise the test is skipped with what is missing."""
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    for language in PROVEN:
        try:
            client.images.get(f"swe-rl/{language}")
        except docker.errors.ImageNotFound:
            pytest.skip(f"no image swe-rl/{language}; build it with: swe-rl images build {language}")
    return client


@pytest.fixture
async def backend(
    engine: "docker.DockerClient", languages: dict[str, LanguageSpec], tmp_path: Path
) -> AsyncIterator[Backend]:
    opened = DockerBackend(languages, tmp_path / "scratch")
    await opened.check()
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    (root / "a.txt").write_text("a\n")
    return root


@pytest.fixture
async def sandbox(backend: Backend, source: Path) -> Sandbox:
    return await backend.create(SandboxSpec(source, "python", Limits(memory_mb=128, num_pids=32, cpus=0.5)))


def own_containers(engine: "docker.DockerClient", backend: DockerBackend) -> list[str]:
    label = f"{OWNER_LABEL}={backend._engine.owner}"
    return [found.name for found in engine.containers.list(all=True, filters={"label": label})]


async def test_the_engine_is_asked_for_a_closed_container(sandbox: Sandbox, engine: "docker.DockerClient") -> None:
    attributes = engine.containers.get(sandbox.sandbox_id).attrs
    host = attributes["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["Privileged"]) == ("none", ["ALL"], False)
    assert "no-new-privileges" in host["SecurityOpt"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (128 << 20, 128 << 20, 500_000_000)
    assert 32 <= host["PidsLimit"] <= 48
    assert host["Init"] is True
    assert not host["Binds"]
    assert attributes["Mounts"] == []


async def test_closing_a_session_or_the_backend_removes_containers_and_volumes(
    backend: DockerBackend, source: Path, engine: "docker.DockerClient"
) -> None:
    volumes = {volume.id for volume in engine.volumes.list()}
    first, second = await asyncio.gather(*(backend.create(SandboxSpec(source, "python")) for _ in range(2)))
    await first.close()
    assert own_containers(engine, backend) == [second.sandbox_id]
    await backend.close()
    assert own_containers(engine, backend) == []
    assert {volume.id for volume in engine.volumes.list()} <= volumes


async def test_containers_of_a_dead_process_are_removed_by_the_next_backend(
    engine: "docker.DockerClient", languages: dict[str, LanguageSpec], source: Path, tmp_path: Path
) -> None:
    script = (
        "import asyncio, os, sys\nfrom pathlib import Path\n"
        "from swe_rl.sandbox.docker import DockerBackend\nfrom swe_rl.sandbox.base import SandboxSpec\n"
        "from swe_rl.task.language import read_languages\n"
        "async def main():\n"
        f"    backend = DockerBackend(read_languages(Path({str(ROOT / 'sandboxes')!r})), Path({str(tmp_path)!r}))\n"
        f"    made = await backend.create(SandboxSpec(Path({str(source)!r}), 'python'))\n"
        "    print(made.sandbox_id, flush=True)\n    os._exit(1)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    left = ended.stdout.strip()
    assert engine.containers.get(left).status == "running"
    backend = DockerBackend(languages, tmp_path / "scratch")
    await backend.check()
    with pytest.raises(docker.errors.NotFound):
        engine.containers.get(left)
    await backend.close()


async def test_a_container_that_was_killed_from_outside_is_a_fault_of_the_environment(
    sandbox: Sandbox, engine: "docker.DockerClient"
) -> None:
    engine.containers.get(sandbox.sandbox_id).remove(force=True)
    with pytest.raises(SandboxError):
        await sandbox.run(Command(("true",)))
    await sandbox.close()


async def test_a_missing_image_says_how_to_build_it(
    engine: "docker.DockerClient", languages: dict[str, LanguageSpec], source: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    lacking = replace(languages["python"], image={"name": "swe-rl/not-built"})
    backend = DockerBackend({"python": lacking}, tmp_path / "scratch")
    try:
        with pytest.raises(SandboxUnavailableError, match=r"swe-rl/not-built.*swe-rl images build python"):
            await backend.create(SandboxSpec(source, "python"))
    finally:
        await backend.close()


async def test_no_engine_is_said_with_its_address(
    languages: dict[str, LanguageSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    backend = DockerBackend(languages, tmp_path / "scratch")
    with pytest.raises(SandboxUnavailableError, match=r"no engine answers at unix://.*nothing\.sock"):
        await backend.check()
    await backend.close()


@pytest.mark.parametrize("language", PROVEN)
async def test_a_solution_resolves_and_the_base_does_not(
    backend: Backend, languages: dict[str, LanguageSpec], tmp_path: Path, language: str
) -> None:
    made = next(task for index in range(100) if (task := make_task("train", index, 0)).bug.language == language)
    task = read_task(write_task(made, tmp_path / "tasks"))
    grader = Grader(backend, languages, 2, tmp_path)
    assert (await grader.grade(task, task.solution_patch)).outcome is Outcome.RESOLVED
    unrelated = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+x\n"
    verdict = await grader.grade(task, unrelated)
    assert verdict.outcome is Outcome.UNRESOLVED, json.dumps(verdict.to_dict())


async def test_sixteen_sessions_at_once_keep_apart(backend: Backend, source: Path) -> None:
    async def episode(number: int) -> bytes:
        made = await backend.create(SandboxSpec(source, "python", Limits(memory_mb=64, cpus=0.5)))
        await made.write_file("own.txt", str(number).encode())
        await made.run(Command(("bash", "-c", "cat own.txt >>a.txt")))
        try:
            return await made.read_file("a.txt")
        finally:
            await made.close()

    seen = await asyncio.gather(*(episode(number) for number in range(16)))
    assert seen == [f"a\n{number}".encode() for number in range(16)]
