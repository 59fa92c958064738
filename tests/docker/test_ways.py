"""The two ways into a container: directly, and through the engine where that can't be; faults of each."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

docker = pytest.importorskip("docker", reason="the package docker isn't installed")

from requests.exceptions import Timeout  # noqa: E402

from swe_rl.errors import SandboxError, SandboxTimeoutError, SandboxUnavailableError  # noqa: E402
from swe_rl.sandbox.base import Command, Limits, SandboxSpec  # noqa: E402
from swe_rl.sandbox.docker import DockerBackend  # noqa: E402
from swe_rl.sandbox.docker_access import comparable, groups_of  # noqa: E402
from swe_rl.sandbox.docker_container import LiveContainer  # noqa: E402
from swe_rl.sandbox.docker_direct import DirectSandbox  # noqa: E402
from swe_rl.sandbox.docker_engine import MAX_THREADS  # noqa: E402
from swe_rl.sandbox.docker_shell import ShellSandbox  # noqa: E402
from swe_rl.sandbox.instance import is_dead  # noqa: E402
from swe_rl.task.language import LanguageSpec, read_languages  # noqa: E402

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[2]
LIMITS = Limits(memory_mb=256, num_pids=48)


@pytest.fixture(scope="session")
def languages() -> dict[str, LanguageSpec]:
    return read_languages(ROOT / "sandboxes")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("a\n")
    return tmp_path / "source"


async def open_or_skip(languages: dict[str, LanguageSpec], scratch: Path, is_direct: bool) -> DockerBackend:
    backend = DockerBackend(languages, scratch, is_direct=is_direct)
    try:
        await backend.check()
        docker.from_env(timeout=60).images.get("swe-rl/python")
    except (SandboxUnavailableError, docker.errors.ImageNotFound) as error:
        await backend.close()
        pytest.skip(str(error))
    return backend


@pytest.fixture
async def shell(languages: dict[str, LanguageSpec], tmp_path: Path, source: Path) -> AsyncIterator[ShellSandbox]:
    """A session as from another machine than the engine's."""
    backend = await open_or_skip(languages, tmp_path / "scratch", is_direct=False)
    made = await backend.create(SandboxSpec(source, "python", LIMITS))
    assert isinstance(made, ShellSandbox)
    yield made
    await backend.close()


@pytest.fixture
async def direct(languages: dict[str, LanguageSpec], tmp_path: Path, source: Path) -> AsyncIterator[DirectSandbox]:
    backend = await open_or_skip(languages, tmp_path / "scratch", is_direct=True)
    made = await backend.create(SandboxSpec(source, "python", LIMITS))
    if not isinstance(made, DirectSandbox):
        await backend.close()
        pytest.skip("containers can't be entered directly from here; the log says why")
    yield made
    await backend.close()


async def test_through_the_engine_a_command_is_the_same(shell: ShellSandbox) -> None:
    result = await shell.run(Command(("bash", "-c", "cat; echo err >&2; pwd; exit 3"), stdin=b"in\n"))
    assert (result.stdout, result.stderr, result.exit_code) == (b"in\n/workspace\n", b"err\n", 3)
    await shell.write_file("d/new", bytes(range(256)))
    assert await shell.read_file("d/new") == bytes(range(256))
    assert sorted(await shell.read_tree()) == ["a.txt", "d/new"]


async def test_through_the_engine_the_deadline_spares_earlier_servers(shell: ShellSandbox) -> None:
    await shell.run(Command(("bash", "-c", "(env -i setsid sleep 987654326 &); setsid sleep 987654326 & true")))
    await asyncio.sleep(1.0)  # an orphan without a mark is told by its age
    script = "(env -i setsid sleep 987654327 &); setsid sleep 987654327 & echo part; trap '' TERM; sleep 987654327"
    result = await shell.run(Command(("bash", "-c", script), timeout_s=3.0))
    assert (result.timed_out, result.stdout) == (True, b"part\n")
    count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '98765432[67]' | sort | uniq -c | tr -s ' '"
    seen = await shell.run(Command(("bash", "-c", count.replace("98765432", "9876543[2]"))))
    assert seen.stdout.strip() == b"2 987654326"
    assert shell.generation == 0


async def test_through_the_engine_memory_and_processes_beyond_the_limit_are_reported(shell: ShellSandbox) -> None:
    assert (await shell.run(Command(("python3", "-c", "x = bytearray(600 << 20)")))).oom
    fork = """import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
except OSError:
    pass"""
    assert (await shell.run(Command(("python3", "-c", fork)))).pids_exceeded
    await asyncio.sleep(2.5)
    after = await shell.run(Command(("cat", "a.txt")))
    assert (after.stdout, after.oom, after.pids_exceeded) == (b"a\n", False, False)


async def test_a_killed_container_is_a_fault_of_the_environment_in_both_ways(
    shell: ShellSandbox, direct: DirectSandbox
) -> None:
    for sandbox in (shell, direct):
        running = asyncio.create_task(sandbox.run(Command(("sleep", "900"))))
        await sandbox.run(Command(("true",)))
        container = docker.from_env(timeout=60).containers.get(sandbox.sandbox_id)
        await asyncio.to_thread(container.kill)
        with pytest.raises(SandboxError, match="lost"):
            await running
        with pytest.raises(SandboxError):
            await sandbox.run(Command(("true",)))
        await sandbox.close()


async def test_a_reset_ends_all_processes_and_keeps_the_files(direct: DirectSandbox) -> None:
    await direct.write_file("kept", b"x")
    process = await direct.start(Command(("sleep", "900")))
    await direct.reset()
    result = await process.wait(30.0)
    assert result is not None
    assert result.signal == 9
    assert (await direct.run(Command(("cat", "kept")))).stdout == b"x"


async def test_closing_gives_back_every_descriptor(direct: DirectSandbox) -> None:
    await direct.run(Command(("bash", "-c", "sleep 900 &")))
    numbers = (direct._access.pidfd, direct._access.root_fd, *direct._access.place.cgroups)
    held = {number: os.readlink(f"/proc/self/fd/{number}") for number in numbers}
    await direct.close()
    assert (direct._access.pidfd, direct._access.root_fd, direct._joined) == (-1, -1, set())
    for descriptor, target in held.items():
        link = Path(f"/proc/self/fd/{descriptor}")
        assert not link.is_symlink() or os.readlink(link) != target


async def test_a_removal_that_failed_is_tried_again(
    shell: ShellSandbox, direct: DirectSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Timeout("busy")

    engine = docker.from_env(timeout=60)
    for sandbox in (shell, direct):
        with monkeypatch.context() as patch:
            patch.setattr(docker.models.containers.Container, "remove", refuse)
            with pytest.raises(SandboxTimeoutError):
                await sandbox.close()
        await sandbox.close()
        with pytest.raises(docker.errors.NotFound):
            engine.containers.get(sandbox.sandbox_id)
        await sandbox.close()


async def test_a_caller_that_goes_away_before_its_thread_begins_keeps_no_descriptor(direct: DirectSandbox) -> None:
    gate = threading.Event()
    busy = [direct._engine.start(gate.wait, 60.0) for _ in range(MAX_THREADS)]
    before = len(os.listdir("/proc/self/fd"))
    reading = asyncio.create_task(direct.read_file("a.txt"))
    await asyncio.sleep(0.05)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    gate.set()
    await asyncio.gather(*busy)
    assert await direct.read_file("a.txt") == b"a\n"
    assert len(os.listdir("/proc/self/fd")) == before


class Forgetful(LiveContainer):
    """As seen through an engine that loses the output of the first exec."""

    num_execs = 0

    def execute(self, argv: tuple[str, ...], user: str, is_privileged: bool = False) -> tuple[int, bytes]:
        self.num_execs += 1
        code, output = super().execute(argv, user, is_privileged)
        return code, b"" if self.num_execs == 1 else output


async def test_an_output_that_the_engine_lost_is_asked_for_again(
    languages: dict[str, LanguageSpec], tmp_path: Path, source: Path
) -> None:
    backend = await open_or_skip(languages, tmp_path / "scratch", is_direct=True)
    spec = SandboxSpec(source, "python", LIMITS)
    try:
        container = await backend._engine.start(backend._make, spec, None)
        archive = await backend._engine.start(backend._archive, spec)
        made = await backend._open_direct(Forgetful(container), spec, {}, archive)
        assert made is not None or not backend._is_direct  # where nothing can be entered directly, that is told apart
        if made is not None:
            await made.close()
    finally:
        await backend.close()


async def test_a_container_that_ends_at_its_start_says_nothing_of_others(
    languages: dict[str, LanguageSpec], tmp_path: Path, source: Path
) -> None:
    backend = await open_or_skip(languages, tmp_path / "scratch", is_direct=True)
    spec = SandboxSpec(source, "python", LIMITS)
    try:
        if not isinstance(await backend.create(spec), DirectSandbox):
            pytest.skip("containers can't be entered directly from here; the log says why")
        container = await backend._engine.start(backend._make, spec, None)
        await asyncio.to_thread(container.kill)
        with pytest.raises(SandboxError, match="ended before it could be entered"):
            await backend._open_direct(LiveContainer(container), spec, {}, b"")
        assert backend._is_direct
    finally:
        await backend.close()


async def test_labels_and_the_instance_are_on_the_container(
    languages: dict[str, LanguageSpec], tmp_path: Path, source: Path
) -> None:
    backend = await open_or_skip(languages, tmp_path / "scratch", is_direct=True)
    made = await backend.create(SandboxSpec(source, "python", LIMITS, labels={"service": "one"}))
    labels = docker.from_env(timeout=60).containers.get(made.sandbox_id).labels
    assert labels["swe-rl.label.service"] == "one"
    assert labels["swe-rl.owner"] == backend.instance_id
    assert not is_dead(backend.instance_id)
    await backend.close()


async def test_reconciling_removes_what_a_killed_service_left_and_nothing_else(
    direct: DirectSandbox, languages: dict[str, LanguageSpec], tmp_path: Path, source: Path
) -> None:
    backend = await open_or_skip(languages, tmp_path / "other", is_direct=True)
    script = (
        "import asyncio, os\nfrom pathlib import Path\nfrom swe_rl.sandbox.docker import DockerBackend\n"
        "from swe_rl.sandbox.base import SandboxSpec\nfrom swe_rl.task.language import read_languages\n"
        "async def main():\n"
        f"    backend = DockerBackend(read_languages(Path({str(ROOT / 'sandboxes')!r})), Path({str(tmp_path)!r}))\n"
        f"    await backend.create(SandboxSpec(Path({str(source)!r}), 'python'))\n    os._exit(1)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script]
    await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120, check=False)
    assert await backend.reconcile() >= 1
    assert await backend.reconcile() == 0
    assert (await direct.run(Command(("cat", "a.txt")))).stdout == b"a\n"
    await backend.close()


async def test_an_engine_without_the_runtime_says_so(languages: dict[str, LanguageSpec], tmp_path: Path) -> None:
    backend = await open_or_skip(languages, tmp_path / "scratch", is_direct=True)
    await backend.close()
    lacking = DockerBackend(languages, tmp_path / "scratch", runtime="no-such")  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailableError, match=r"no runtime 'no-such'.*daemon\.json"):
        await lacking.check()
    await lacking.close()


def test_what_a_process_shows_is_compared_in_what_confines_it() -> None:
    text = (
        "Name:\tcat\nPid:\t7\nGroups:\t10001 20 \nCapEff:\t0\n9:pids:/docker/x\n0::/docker/x\nmnt:[12]\nVmRSS:\t3 kB\n"
    )
    assert comparable(text) == ["Groups:\t10001 20", "CapEff:\t0", "9:pids:/docker/x", "0::/docker/x", "mnt:[12]"]
    assert comparable(text.replace("Pid:\t7", "Pid:\t8")) == comparable(text)
    assert comparable(text.replace("mnt:[12]", "mnt:[13]")) != comparable(text)
    assert groups_of(text) == (10001, 20)
