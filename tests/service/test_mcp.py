"""The MCP endpoint of a session, as an outside agent uses it."""

import asyncio
import json
import tracemalloc

import httpx
import pytest

TOKEN = "the-service's-own-token"


class Agent:
    """A minimal MCP client: one message a call."""

    def __init__(self, http: httpx.AsyncClient, path: str, token: str) -> None:
        self._http, self._path, self._token = http, path, token

    async def send(self, message: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json, text/event-stream"}
        body = json.dumps(message)  # in ASCII: half a character can be said
        return await self._http.post(
            self._path, content=body, headers=headers | {"Content-Type": "application/json"}, timeout=60
        )

    async def ask(self, method: str, **params: object) -> dict:
        answer = await self.send({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        body = answer.json()
        assert (answer.status_code, body["jsonrpc"], body["id"]) == (200, "2.0", 7)
        return body

    async def call(self, name: str, **arguments: object) -> tuple[str, bool]:
        result = (await self.ask("tools/call", name=name, arguments=arguments))["result"]
        [part] = result["content"]
        return part["text"], result["isError"]


@pytest.fixture
async def session(live) -> str:
    return (await live.client.create_session("clamp")).session_id


@pytest.fixture
async def agent(live, session: str):
    access = await live.client.mcp_access(session)
    async with httpx.AsyncClient(base_url=live.url, timeout=120) as http:
        yield Agent(http, access.path, access.token)


async def test_the_handshake_names_a_version_that_both_know(agent: Agent) -> None:
    for wanted, given in (("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")):
        result = (await agent.ask("initialize", protocolVersion=wanted, capabilities={}, clientInfo={}))["result"]
        assert result["protocolVersion"] == given
        assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert (await agent.send({"jsonrpc": "2.0", "method": "notifications/initialized"})).status_code == 202
    assert (await agent.ask("ping"))["result"] == {}
    tools = (await agent.ask("tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["bash", "view", "edit", "create", "run_tests", "diff"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools)


async def test_an_agent_repairs_the_repository_by_its_tools(agent: Agent, live, session: str) -> None:
    assert await agent.call("view", path="src/clamp.py", start=2, end=9) == ("     2\t    return max(x, low)", False)
    text, is_error = await agent.call("run_tests")
    assert is_error and "test_above" in text and "[exit code 1]" in text
    assert (await agent.call("edit", path="src/clamp.py", old="max(x, low)", new="min(max(x, low), high)"))[1] is False
    assert "min(max(x, low), high)" in (await agent.call("diff"))[0]
    assert (await agent.call("run_tests"))[1] is False
    assert await agent.call("create", path="notes/a.md", content="é\n") == ("notes/a.md: written", False)
    assert await agent.call("bash", command="cat notes/a.md; pwd") == ("é\n/workspace", False)
    assert (await live.client.grade(session)).reward == 1.0


async def test_mistakes_are_results_and_not_faults(agent: Agent) -> None:
    for name, arguments in (
        ("hack", {}),
        ("bash", {}),
        ("bash", {"command": 3}),
        ("bash", {"command": "a\0b"}),
        ("bash", {"command": "ls", "timeout_s": 0}),
        ("bash", {"command": "ls", "timeout_s": True}),
        ("bash", {"command": "ls", "more": 1}),
        ("bash", {"command": "exit 3"}),
        ("view", {"path": "../etc/passwd"}),
        ("view", {"path": "missing"}),
        ("edit", {"path": "src/clamp.py", "old": "", "new": "x"}),
        ("edit", {"path": "src/clamp.py", "old": "not there", "new": "x"}),
        ("create", {"path": "/etc/passwd", "content": ""}),
    ):
        assert (await agent.call(name, **arguments))[1] is True, name


async def test_what_is_no_message_is_refused_and_what_is_no_method_is_answered(agent: Agent) -> None:
    for body in ([], [{"jsonrpc": "2.0", "id": 1, "method": "ping"}], {"id": 1, "method": "ping"}, "x", 3, None,
                 {"jsonrpc": "2.0", "id": {}, "method": "ping"}, {"jsonrpc": "2.0", "id": 1}):  # fmt: skip
        assert (await agent.send(body)).status_code == 422
    assert (await agent.ask("resources/list"))["error"]["code"] == -32601
    assert (await agent.ask("tools/call", name=3))["error"]["code"] == -32602
    assert (await agent.ask("tools/call", name="bash", arguments=[1]))["error"]["code"] == -32602


async def test_the_pass_of_a_session_opens_its_tools_and_nothing_else(agent: Agent, live, session: str) -> None:
    other = (await live.client.create_session("clamp")).session_id
    headers = {"Authorization": f"Bearer {agent._token}"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=120) as http:
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(f"/v1/sessions/{other}/mcp", json=message)).status_code == 401
        for path in ("/v1/sessions", f"/v1/sessions/{session}", f"/v1/sessions/{session}/patch", "/v1/tasks"):
            assert (await http.get(path)).status_code == 401
        assert (await http.post(f"/v1/sessions/{session}/grade")).status_code == 401
        assert (await http.get(f"/v1/sessions/{session}/mcp")).status_code in (401, 405)
    await live.client.close_session(session)
    assert (await agent.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404


async def test_the_protocol_s_own_client_is_served(live, session: str) -> None:
    pytest.importorskip("mcp", reason="the MCP SDK isn't installed")
    httpx2 = pytest.importorskip("httpx2")
    from mcp.client.session import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    access = await live.client.mcp_access(session)
    headers = {"Authorization": f"Bearer {access.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(live.url + access.path, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as client,
    ):
        await client.initialize()
        assert len((await client.list_tools()).tools) == 6
        result = await client.call_tool("bash", {"command": "echo hello"})
    assert result.content[0].text == "hello"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("create", {"path": "a", "content": "\ud800"}),
        ("create", {"path": "\ud800", "content": ""}),
        ("view", {"path": "src/\udbff"}),
        ("edit", {"path": "src/clamp.py", "old": "max", "new": "\ud800"}),
        ("bash", {"command": "echo \ud800"}),
    ],
)
async def test_half_a_character_is_the_agents_mistake(agent, name: str, arguments: dict) -> None:
    text, is_error = await agent.call(name, **arguments)
    assert is_error
    assert "half a character" in text


async def test_a_file_of_line_ends_is_shown_without_being_taken_apart(agent, live, session: str) -> None:
    await live.client.write_file(session, "ends", b"\n" * (8 << 20))
    tracemalloc.start()
    try:
        text, is_error = await agent.call("view", path="ends")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (is_error, text[:18], len(text) <= 64 * 1024) == (False, "     1\t\n     2\t\n  ", True)
    assert peak < 60 << 20  # the file itself three times, not an object a line


async def test_lines_are_numbered_as_python_parts_them(agent, live, session: str) -> None:
    words = "one\r\ntwo\rthree\x0bfour\u2028five\n\nseven"
    await live.client.write_file(session, "lines", words.encode())
    shown = (await agent.call("view", path="lines"))[0]
    assert shown.encode() == "\n".join(f"{n:6}\t{line}" for n, line in enumerate(words.splitlines(), 1)).encode()
    assert (await agent.call("view", path="lines", start=4, end=5))[0] == "     4\tfour\n     5\tfive"
    assert (await agent.call("view", path="lines", start=90))[0] == "lines: no lines there; it has 7"


async def test_a_message_has_a_bound(agent) -> None:
    answer = await agent.send({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y" * (9 << 20)}})
    assert answer.status_code == 422


async def test_one_sessions_agent_does_not_take_every_slot_for_commands(agent, live) -> None:
    calls = [asyncio.create_task(agent.send(_bash(f"sleep 5; echo {n}"))) for n in range(24)]
    statuses = [(await call).status_code for call in calls]
    assert (statuses.count(200), statuses.count(429)) == (16, 8)


def _bash(command: str) -> dict:
    params = {"name": "bash", "arguments": {"command": command}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
