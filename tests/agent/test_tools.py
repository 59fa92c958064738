"""The tools, in a real session of the real service."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from swe_rl.agent.tools import TOOLS, Toolbox, find_mistake
from swe_rl.client import SandboxClient
from swe_rl.errors import SessionNotFoundError


@pytest.fixture
async def session_id(client: SandboxClient, service: Any) -> AsyncIterator[str]:
    session = await client.create_session(service.tasks[0].task_id)
    yield session.session_id
    await client.close_session(session.session_id)


@pytest.fixture
def toolbox(client: SandboxClient, session_id: str) -> Toolbox:
    return Toolbox(client, session_id, "/workspace", exec_timeout_s=2.0)


async def _text(toolbox: Toolbox, name: str, **arguments: Any) -> str:
    return (await toolbox.run(name, arguments)).text


@pytest.mark.parametrize(
    ("name", "arguments", "mistake"),
    [
        ("open", {}, "no tool `open`"),
        ("view", {}, "view needs `path`"),
        ("view", {"path": 3}, "`path` must be of type string"),
        ("view", {"path": "a", "start": "1"}, "`start` must be of type integer"),
        ("view", {"path": "a", "start": True}, "`start` must be of type integer"),
        ("view", {"path": "a", "line": 1}, "view has no argument `line`"),
        ("view", {"path": " "}, "empty"),
        ("view", {"path": "a\0b"}, "NUL"),
        ("view", {"path": "a" * 100_000}, "more than 1000 characters"),
        ("bash", {"command": "echo \0"}, "NUL"),
        ("edit", {"path": "a", "old": "b"}, "edit needs `new`"),
        ("submit", {"message": "done"}, "submit has no argument `message`"),
    ],
)
async def test_a_wrong_call_is_a_short_observation(
    toolbox: Toolbox, name: str, arguments: dict[str, Any], mistake: str
) -> None:
    result = await toolbox.run(name, arguments)
    assert result.text.startswith("error: ") and mistake in result.text
    assert len(result.text) < 100 and not result.is_final


def test_every_tool_accepts_its_required_arguments() -> None:
    for name, spec in TOOLS.items():
        values: dict[str, Any] = {"string": "a", "integer": 1}
        assert find_mistake(name, {k: values[a.type] for k, a in spec.arguments.items() if a.required}) == ""


async def test_view_shows_a_file_some_lines_or_a_directory(toolbox: Toolbox, service: Any) -> None:
    task = service.tasks[0]
    source = task.files[task.source_path]
    assert await _text(toolbox, "view", path=task.source_path) == source
    assert await _text(toolbox, "view", path=f"/workspace/{task.source_path}") == source
    assert await _text(toolbox, "view", path=task.source_path, start=2, end=2) == source.splitlines(True)[1]
    assert await _text(toolbox, "view", path=task.source_path, start=2) == "".join(source.splitlines(True)[1:])
    assert (await _text(toolbox, "view", path=".")).splitlines() == ["src/", "tests/"]
    assert task.source_path.removeprefix("src/") in await _text(toolbox, "view", path="/workspace/src")


@pytest.mark.parametrize("path", ["no/such.py", "../etc/passwd", "/etc/passwd", "-la"])
async def test_view_of_what_is_not_in_the_repository_is_an_error(toolbox: Toolbox, path: str) -> None:
    assert await _text(toolbox, "view", path=path) == f"error: no file {path}"


@pytest.mark.parametrize(("start", "end"), [(0, 1), (2, 1), (500, 501), (-1, 2)])
async def test_view_of_lines_that_do_not_exist_says_how_many_there_are(
    toolbox: Toolbox, service: Any, start: int, end: int
) -> None:
    task = service.tasks[0]
    count = len(task.files[task.source_path].splitlines())
    text = await _text(toolbox, "view", path=task.source_path, start=start, end=end)
    assert text == f"error: lines {start}-{end} of {task.source_path}, which has {count}"


async def test_edit_replaces_the_one_place(toolbox: Toolbox, service: Any, client: SandboxClient) -> None:
    task = service.tasks[0]
    assert await _text(toolbox, "edit", path=task.source_path, old=task.broken_line, new=task.fixed_line) == "ok"
    expected = task.files[task.source_path].replace(task.broken_line, task.fixed_line)
    assert await _text(toolbox, "view", path=task.source_path) == expected


async def test_edit_refuses_text_that_is_not_there_exactly_once(toolbox: Toolbox) -> None:
    await _text(toolbox, "create", path="a.txt", content="aaa b\n")
    assert await _text(toolbox, "edit", path="a.txt", old="c", new="d") == "error: `old` is not in a.txt"
    assert "more than once in a.txt" in await _text(toolbox, "edit", path="a.txt", old="a", new="d")
    assert "more than once in a.txt" in await _text(toolbox, "edit", path="a.txt", old="aa", new="d")  # they overlap
    assert await _text(toolbox, "edit", path="a.txt", old="", new="d") == "error: `old` is empty"
    assert await _text(toolbox, "edit", path="a.txt", old="b", new="b") == "error: `old` and `new` are equal"
    assert await _text(toolbox, "edit", path="no.txt", old="b", new="c") == "error: no file no.txt"
    assert await _text(toolbox, "view", path="a.txt") == "aaa b\n"


async def test_edit_leaves_bytes_that_are_not_utf8_alone(
    toolbox: Toolbox, client: SandboxClient, session_id: str
) -> None:
    await client.write_file(session_id, "latin.py", b"# caf\xe9\r\nx = 1\r\n")
    assert await _text(toolbox, "edit", path="latin.py", old="x = 1", new="x = 'é'") == "ok"
    assert await client.read_file(session_id, "latin.py") == b"# caf\xe9\r\nx = '\xc3\xa9'\r\n"


async def test_create_writes_a_file_and_its_directories(toolbox: Toolbox) -> None:
    assert await _text(toolbox, "create", path="new/deep/a.py", content="x = 1\n") == "ok"
    assert await _text(toolbox, "view", path="new/deep/a.py") == "x = 1\n"
    assert await _text(toolbox, "create", path="empty.py", content="") == "ok"
    assert await _text(toolbox, "view", path="empty.py") == "(empty file)"
    for path in ("src", "../out.py"):
        assert await _text(toolbox, "create", path=path, content="x") == f"error: {path} can't be written"


async def test_bash_gives_output_and_only_a_bad_exit_code(toolbox: Toolbox) -> None:
    good = await toolbox.run("bash", {"command": "echo out; echo err >&2"})
    assert (good.text, good.exit_code) == ("out\nerr", 0)
    bad = await toolbox.run("bash", {"command": "echo out; exit 3"})
    assert (bad.text, bad.exit_code) == ("out\nexit 3", 3)
    assert await _text(toolbox, "bash", command="true") == "ok"
    slow = await toolbox.run("bash", {"command": "echo begun; sleep 60"})
    assert (slow.text, slow.exit_code) == ("begun\ntimed out", None)


async def test_run_tests_tells_a_broken_repository_from_a_mended_one(toolbox: Toolbox, service: Any) -> None:
    task = service.tasks[0]
    before = await toolbox.run("run_tests", {})
    await toolbox.run("edit", {"path": task.source_path, "old": task.broken_line, "new": task.fixed_line})
    after = await toolbox.run("run_tests", {})
    assert before.exit_code != 0 and after.exit_code == 0
    assert before.text != after.text and len(after.text) < 200


async def test_submit_is_final(toolbox: Toolbox) -> None:
    assert (await toolbox.run("submit", {})).is_final


async def test_a_fault_of_the_environment_is_no_observation(client: SandboxClient) -> None:
    with pytest.raises(SessionNotFoundError):
        await Toolbox(client, "no-such-session", "/workspace", 2.0).run("view", {"path": "a.py"})
