"""Tools that aren't the agent's own, as scaffolds declare them: listed by every dialect, and read with their types."""

from collections.abc import Mapping
from typing import Any

import pytest

from swe_rl.agent.recognition import DIALECTS
from swe_rl.agent.render import Message

NAMES = (*DIALECTS, "plain")
TYPES = {
    "command": "string",
    "timeout": "integer",
    "share": "number",
    "deep": "boolean",
    "paths": "array",
    "env": "object",
}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


TOOLS = (
    tool("bare"),
    tool("silent", parameters={"type": "object", "properties": {"a": {}, "b": {"type": ["string", "null"]}}}),
    tool(
        "run",
        description="Run it.",
        parameters={"type": "object", "properties": {name: {"type": type_} for name, type_ in TYPES.items()}},
    ),
)


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_listed_whatever_they_leave_out(policies: Mapping[str, Any], name: str) -> None:
    renderer = policies[name].renderer
    prompt = renderer.decode(renderer.prompt([Message("user", "Mend it.")], TOOLS).token_ids)
    assert all(word in prompt for word in ("bare", "silent", "run", "Run it.", *TYPES))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_keep_the_types_that_their_tool_declares(policies: Mapping[str, Any], name: str) -> None:
    renderer = policies[name].renderer
    values = {"command": "3", "timeout": 30, "share": 0.5, "deep": True, "paths": ["a", 1], "env": {"A": "b"}}
    ids = renderer.completion([("run", values)], tools=TOOLS)
    (call,) = renderer.parse(ids, tools=TOOLS).calls
    assert (call.name, call.arguments) == ("run", values)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("qwen3", "glm"))])
def test_a_value_that_is_not_of_the_declared_type_stays_text(policies: Mapping[str, Any], name: str) -> None:
    renderer = policies[name].renderer
    values = {"timeout": "soon", "share": "1/2", "deep": "1", "paths": "a b", "env": "[]"}
    ids = renderer.completion([("run", values)], tools=TOOLS)
    assert renderer.parse(ids, tools=TOOLS).calls[0].arguments == values


@pytest.mark.parametrize("name", NAMES)
def test_the_tools_are_the_same_tokens_whoever_wrote_the_system_message(policies: Mapping[str, Any], name: str) -> None:
    own, foreign = (
        policies[name].renderer.prompt([Message("system", "Be brief.", is_ours), Message("user", "Mend it.")], TOOLS)
        for is_ours in (True, False)
    )
    assert own.token_ids == foreign.token_ids
