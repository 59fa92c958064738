"""What a session shows of the past and of the solution: nothing, on every backend; and what is planted is found."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.grade.exposure import Exposure
from swe_rl.grade.history import find_history
from swe_rl.grade.leaks import EVERYWHERE, SESSION_PLACES, find_lines, find_stores, telling_lines
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, Command, Sandbox, SandboxSpec
from swe_rl.sandbox.tree import read_tree
from swe_rl.sandbox.workspace import lay_repository
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec, read_task

Agent = Callable[[dict[str, str | None]], str]
Run = Callable[[str], Awaitable[str]]
AS_AGENT = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; set -e\n"
# Every way in which another history, or a way to one, can lie in a workspace.
PLANTED = {
    "a second commit": "git commit -q --allow-empty -m more",
    "an amended commit": "git commit -q --amend -m other",
    "an object that nothing reaches": "echo fix | git hash-object -w --stdin",
    "a branch": "git branch side",
    "a tag": "git tag v1.2",
    "an annotated tag": "git tag -a v1.2 -m one",
    "a note": "git notes add -m fix",
    "a stash": "echo more >> README.md; git stash -q",
    "a reflog": "git update-ref --create-reflog -m x refs/heads/main HEAD",
    "packed references": "git pack-refs --all",
    "a pack": "git repack -q -a -d",
    "a remote": "git remote add origin https://example.invalid/r.git",
    "an alternate": "cp -r .git/objects ../borrowed; (cd .. && git -C borrowed init -q .)"
    "; echo ../../../borrowed > .git/objects/info/alternates 2>/dev/null"
    " || (mkdir .git/objects/info && echo ../../../borrowed > .git/objects/info/alternates)",
    "a replaced object": "git replace $(git rev-parse HEAD) $(git commit-tree -m x HEAD^{tree})",
    "a worktree": "git worktree add -q ../side -b side",
    "a submodule's directory": "git init -q --bare .git/modules/lib",
    "a hook": "mkdir -p .git/hooks; echo exit > .git/hooks/post-checkout",
    "a fetched head": "git rev-parse HEAD > .git/FETCH_HEAD",
    "an original head": "git rev-parse HEAD > .git/ORIG_HEAD",
    "a graft": "mkdir -p .git/info; git rev-parse HEAD > .git/shallow",
    "a bundle": "git bundle create -q old.bundle HEAD",
    "a bundle by another name": "git bundle create -q b HEAD; mkdir -p docs; mv b docs/notes.txt",
    "a pack by another name": "git rev-parse HEAD | git pack-objects -q p >/dev/null; mv p-*.pack data.bin; rm p-*",
    "a second object store": "mkdir old; cp -r .git/objects old/objects",
    "a second repository": "mkdir lib; git -C lib init -q",
    "a bare repository": "git init -q --bare old.git; cp -r .git/objects/* old.git/objects/",
    "a link to a repository": "mkdir lib; echo gitdir: /elsewhere/.git > lib/.git",
    "a changed file": "echo more >> src/clamp.py",
    "a file that the commit lacks": "echo more > new.txt",
    "a file that git ignores": "mkdir -p .git/info; echo new.txt > .git/info/exclude; echo more > new.txt",
    "a setting": "git config core.hooksPath /tmp/hooks",
    "a link inside .git": "ln -s /etc/passwd .git/refs/heads/other",
}


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
async def any_backend(request: pytest.FixtureRequest, python: LanguageSpec, tmp_path: Path) -> AsyncIterator[Backend]:
    try:
        opened = await open_backend(request.param, {"python": python}, tmp_path / "any")
        (tmp_path / "probe").mkdir()
        await (await opened.create(SandboxSpec(tmp_path / "probe", "python"))).close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    yield opened
    await opened.close()


@pytest.fixture
async def session(any_backend: Backend, task: TaskSpec) -> AsyncIterator[Sandbox]:
    made = await any_backend.create(SandboxSpec(task.environment_dir, "python"))
    yield made
    await made.close()


@pytest.fixture
def run(session: Sandbox) -> Run:
    async def run_script(script: str) -> str:
        result = await session.run(Command(("bash", "-c", AS_AGENT + script)))
        assert result.exit_code == 0, result.stderr.decode()
        return result.stdout.decode()

    return run_script


@pytest.fixture
def workspace(task: TaskSpec, tmp_path: Path) -> Path:
    root = tmp_path / "laid/workspace"
    shutil.copytree(task.environment_dir, root)
    lay_repository(root, read_tree(root))
    return root


async def test_a_session_has_one_commit_and_the_objects_of_its_tree_alone(
    session: Sandbox, run: Run, task: TaskSpec, tmp_path: Path
) -> None:
    lines = (await run("git cat-file --batch-all-objects --batch-check")).splitlines()
    stored = {line.split()[0]: line.split()[1] for line in lines}
    reached = {line.split()[0] for line in (await run("git rev-list --objects HEAD")).splitlines()}
    assert set(stored) == reached and sorted(stored.values()).count("commit") == 1
    files = (await run("git ls-tree -r --name-only HEAD")).split()
    assert sorted(files) == sorted(read_tree(task.environment_dir))
    assert len([kind for kind in stored.values() if kind == "blob"]) == len(files)
    assert await run("git remote; git tag; git stash list; git reflog; git notes list; git status --short") == ""
    assert (await run("git for-each-ref --format='%(refname)'")).split() == ["refs/heads/main"]
    assert len((await run("git worktree list")).splitlines()) == 1
    assert (
        await run("find .git -name '*.pack' -o -name alternates -o -name packed-refs -o -name hooks -o -name logs")
        == ""
    )
    await session.snapshot(tmp_path / "copy")
    assert find_history(tmp_path / "copy") == []


async def test_nothing_of_the_solution_and_no_store_is_in_a_session_or_its_image(
    any_backend: Backend, python: LanguageSpec, task: TaskSpec, agent: Agent, tmp_path: Path
) -> None:
    told = "def clamp(value, lowest, highest):\n    return max(lowest, min(value, highest)) + 0 * lowest\n"
    (task.root / "solution/solution.patch").write_text(agent({"src/clamp.py": told}))
    task = read_task(task.root)
    assert len(telling_lines(task)) == 1
    exposure = Exposure(any_backend, {"python": python}, tmp_path)
    await exposure.scan_images([task])
    assert await exposure.problem(task) == ""


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_in_a_workspace_is_found(workspace: Path, what: str) -> None:
    assert find_history(workspace) == []
    done = subprocess.run(["bash", "-c", AS_AGENT + PLANTED[what]], cwd=workspace, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert find_history(workspace) != []


def test_files_that_only_look_like_history_are_none(tmp_path: Path) -> None:
    files = {
        "objects/README": "PACK it\n", "objects/box/a.txt": "a\n", "level.pack": "textures\n", "app.bundle": "x\n",
        ".gitignore": "*.log\n", "kept.log": "ignored, and in the commit\n", ".gitattributes": "* text=auto\n",
        "crlf.txt": "one\r\ntwo\r\n", "a name\twith \"all\" sorts ü": "x\n", "HEAD": "refs\n", "hooks/pre": "x\n",
    }  # fmt: skip
    root = tmp_path / "workspace"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    (root / "hooks/pre").chmod(0o755)
    (root / "link").symlink_to("HEAD")
    (root / "dangling").symlink_to("nowhere")
    (root / "empty").mkdir()
    lay_repository(root, read_tree(root))
    assert find_history(root) == []


async def test_a_planted_line_is_found_wherever_an_agent_could_read_it(session: Sandbox, run: Run) -> None:
    line = "return max(lowest, min(value, highest)) if lowest < highest else lowest"
    assert await find_lines(session, [line], SESSION_PLACES) == {}
    for place in ("/tmp/.hidden/deep/a", "/workspace/notes", "/workspace/.git/description"):
        await run(f"mkdir -p $(dirname {place}); printf '\\0\\1 {line}\\377' > {place}")
        assert await find_lines(session, ["absent, " + line, line], SESSION_PLACES) == {line: place}
        await run(f"rm {place}")


async def test_a_line_of_the_image_is_found_by_the_scan_of_the_image(session: Sandbox, run: Run) -> None:
    file = (await run("echo $(git --exec-path)/git-sh-setup")).strip()
    line = (await run(f"grep -m1 -E '.{{45}}' {file}")).strip()
    assert line in await find_lines(session, [line, "a line that no file of any image holds: 7261"], EVERYWHERE)


@pytest.mark.parametrize("plant", ["git -C /workspace bundle create -q /tmp/a.bundle HEAD", "git init -q /tmp/old"])
async def test_a_store_outside_of_the_workspace_is_found(session: Sandbox, run: Run, plant: str) -> None:
    assert await find_stores(session, SESSION_PLACES) == []
    await run(plant)
    assert await find_stores(session, SESSION_PLACES) != []


def test_lines_that_the_base_has_or_that_mean_little_are_not_looked_for(task: TaskSpec, agent: Agent) -> None:
    text = (
        "def clamp(x, low, high):\n    return max(x, low)\n\n\n"
        "def other(first, second, third, fourth):\n    return x\n    #  ---------------------------------------------\n"
    )
    (task.root / "solution/solution.patch").write_text(agent({"src/new.py": text}))
    assert telling_lines(read_task(task.root)) == ("def other(first, second, third, fourth):",)


async def test_a_task_with_a_store_in_its_environment_is_a_problem(
    backend: Backend, python: LanguageSpec, task: TaskSpec, tmp_path: Path
) -> None:
    store = task.environment_dir / "backup/objects/ab"
    store.mkdir(parents=True)
    (store / ("c" * 38)).write_bytes(b"x\x01")
    assert "backup/objects" in await Exposure(backend, {"python": python}, tmp_path).problem(task)
