"""OpenAI's and Anthropic's own clients, streaming or not, and what they're told when something is wrong."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from swe_rl.errors import EngineError, EngineUnavailableError
from swe_rl.gateway.session import SessionIds

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
ASK: list[Any] = [{"role": "user", "content": "Mend it."}]
REPLY = f"<think>hm</think>I look.\n{CALL}"
ANTHROPIC_BASH: Any = {"name": "bash", "description": "Run a command.", "input_schema": BASH["function"]["parameters"]}


@pytest.fixture
def client(stage, key) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=f"{stage.url}/v1", max_retries=0)


@pytest.fixture
def other(stage, key) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=key, base_url=stage.url, max_retries=0)


async def test_openai_s_client_gets_text_calls_and_usage(stage, client, script) -> None:
    script(REPLY)
    answer = await client.chat.completions.create(model="policy", messages=ASK, tools=[BASH], temperature=0.2)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("bash", {"command": "ls"})
    (trajectory,) = await stage.close()
    assert answer.usage.completion_tokens == trajectory.sampled.sum()
    assert answer.usage.prompt_tokens == (~trajectory.sampled).sum()


async def test_openai_s_client_can_stream_the_same(client, script) -> None:
    script(REPLY)
    text, names, arguments, reasons, usage = "", "", "", [], None
    stream = await client.chat.completions.create(
        model="policy", messages=ASK, tools=[BASH], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                names += call.function.name or ""
                arguments += call.function.arguments or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (text, names, json.loads(arguments), reasons) == ("I look.", "bash", {"command": "ls"}, ["tool_calls"])
    assert usage.completion_tokens > 0


async def test_anthropic_s_client_holds_a_conversation_with_calls(stage, other, script) -> None:
    script(REPLY, "All done.")
    first = await other.messages.create(
        model="policy", max_tokens=300, system="You help.", messages=ASK, tools=[ANTHROPIC_BASH]
    )
    assert (first.stop_reason, [block.type for block in first.content]) == (
        "tool_use",
        ["thinking", "text", "tool_use"],
    )
    call = first.content[-1]
    assert (call.name, call.input) == ("bash", {"command": "ls"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "a.py"}]}
    said = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await other.messages.create(
        model="policy", max_tokens=300, system="You help.", messages=said, tools=[ANTHROPIC_BASH]
    )
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "All done.")
    (trajectory,) = await stage.close()
    assert len(trajectory.turns) == 2


async def test_anthropic_s_client_can_stream_the_same(other, script) -> None:
    script(REPLY)
    async with other.messages.stream(
        model="policy", max_tokens=300, messages=ASK, tools=[ANTHROPIC_BASH]
    ) as stream:  # fmt: skip
        message = await stream.get_final_message()
    assert (message.stop_reason, message.content[1].text) == ("tool_use", "I look.")
    assert (message.content[2].name, message.content[2].input) == ("bash", {"command": "ls"})


async def test_both_apis_can_be_mixed_in_one_conversation(stage, client, other, script) -> None:
    script("one", "two")
    first = await client.chat.completions.create(model="policy", messages=ASK)
    said = [
        *ASK,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "So?"},
    ]
    await other.messages.create(model="policy", max_tokens=300, messages=said)
    (trajectory,) = await stage.close()
    assert len(trajectory.turns) == 2


async def test_what_a_scaffold_says_of_sampling_is_left_alone_and_named(stage, key) -> None:
    response = await stage.post(key, {"messages": ASK, "temperature": 0.0, "top_p": 0.5})
    assert response.headers["x-swe-rl-ignored"] == "temperature, top_p"
    (trajectory,) = await stage.close()
    assert trajectory.temperature == 1.0


async def test_a_wrong_key_is_an_authentication_error_of_each_client(stage) -> None:
    for key in ("wrong", stage.token):
        assert (await stage.post(key, {"messages": ASK})).status_code == 401
    assert (await stage.http.post("/v1/chat/completions", json={"messages": ASK})).status_code == 401
    with pytest.raises(openai.AuthenticationError):
        client = openai.AsyncOpenAI(api_key="wrong", base_url=f"{stage.url}/v1", max_retries=0)
        await client.chat.completions.create(model="policy", messages=ASK)
    with pytest.raises(anthropic.AuthenticationError):
        other = anthropic.AsyncAnthropic(api_key="wrong", base_url=stage.url, max_retries=0)
        await other.messages.create(model="policy", max_tokens=5, messages=ASK)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(EngineError("broke"), openai.InternalServerError), (EngineUnavailableError("gone"), openai.InternalServerError)],
)
async def test_a_fault_of_the_engine_is_an_error_that_clients_retry(client, script, error, kind) -> None:
    script(error)
    with pytest.raises(kind) as raised:
        await client.chat.completions.create(model="policy", messages=ASK)
    assert raised.value.status_code in (500, 503)


USER = {"role": "user", "content": "a"}
NAMELESS = {"role": "assistant", "tool_calls": [{"function": {}}]}
CALLING = {"role": "assistant", "tool_calls": [{"function": {"name": "bash", "arguments": "{"}}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body is a list"),
        ({}, "messages: expected a list"),
        ({"messages": []}, "messages: expected a list"),
        ({"messages": ["a"]}, r"messages[0]: role is 'a'"),
        ({"messages": [{"role": "robot", "content": "a"}]}, r"messages[0]: role is 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "something that isn't text"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is a int"),
        ({"messages": [USER, CALLING, USER]}, "aren't JSON"),
        ({"messages": [USER, NAMELESS, USER]}, "without a function's name"),
        ({"messages": [USER, {"role": "assistant", "content": "a"}]}, "an assistant's message comes first, last"),
        ({"messages": [{"role": "assistant", "content": "a"}, USER]}, "an assistant's message comes first, last"),
        ({"messages": [{"role": "tool", "content": "a", "tool_call_id": "x"}]}, "before any of the assistant's"),
        ({"messages": [USER], "n": 2}, "n is 2"),
        ({"messages": [USER], "stream_options": 3}, "stream_options is a int"),
        ({"messages": [USER], "tools": 3}, "tools is a int"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": [USER], "tool_choice": "required"}, "tool_choice is 'required'"),
        ({"messages": [USER], "max_tokens": "many"}, "max_tokens is 'many'"),
        ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format isn't served here"),
        ({"messages": [USER], "logprobs": True}, "logprobs isn't served here"),
    ],
)  # fmt: skip
async def test_a_bad_request_says_what_is_wrong_and_leaves_no_trace(stage, key, body, message) -> None:
    response = await stage.post(key, body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert await stage.close() == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [USER]}, "max_tokens is None"),
        ({"max_tokens": 5}, "messages: expected"),
        ({"max_tokens": 5, "messages": [{"role": "system", "content": "a"}]}, r"messages[0]: role is 'system'"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "of type 'image'"),
        ({"max_tokens": 5, "messages": [USER], "tools": [{}]}, "tools[0]: expected a function with a name"),
        ({"max_tokens": 5, "messages": [USER], "tool_choice": {"type": "any"}}, "tool_choice is"),
    ],
)
async def test_a_bad_message_to_anthropic_s_api_says_what_is_wrong(stage, key, body, message) -> None:
    response = await stage.post(key, body, "/v1/messages")
    assert (response.status_code, response.json()["type"]) == (400, "error")
    assert message in response.json()["error"]["message"]


CALL_OF_BASH = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
OPENAI_BODY = {
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": [{"type": "text", "text": "Mend it."}]},
        {"role": "assistant", "content": "So.", "tool_calls": [CALL_OF_BASH]},
        {"role": "tool", "tool_call_id": "c", "content": "a.py"},
    ],
    "tools": [BASH],
    "stream_options": {"include_usage": True},
    "tool_choice": "auto",
    "max_tokens": 50,
    "n": 1,
}
ANTHROPIC_BODY = {
    "system": "You help.",
    "messages": [
        {"role": "user", "content": "Mend it."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a.py"}]},
    ],
    "tools": [ANTHROPIC_BASH],
    "tool_choice": {"type": "auto"},
    "max_tokens": 50,
}
RESPONSES_BODY = {
    "instructions": "You help.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Mend it."}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "function_call_output", "call_id": "c", "output": "a.py"},
    ],
    "tools": [{"type": "function", **BASH["function"]}],
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "max_output_tokens": 50,
}
TEXT_BODY = {"prompt": "Mend it.", "max_tokens": 50, "n": 1, "stream_options": {"include_usage": True}}
BODIES = {
    "/v1/chat/completions": OPENAI_BODY,
    "/v1/messages": ANTHROPIC_BODY,
    "/v1/responses": RESPONSES_BODY,
    "/v1/completions": TEXT_BODY,
}
ODD = (None, 3, -1, True, "x", "\ud800", [], [3], [[]], {}, {"type": ["string", "null"]}, {"a": 3})


def with_oddities(value: Any) -> Iterator[Any]:
    """The value with each of its parts, and itself, replaced by each odd one."""
    yield from ODD
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: odd} for odd in with_oddities(part))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from ([*value[:index], odd, *value[index + 1 :]] for odd in with_oddities(part))


@pytest.mark.parametrize(("path", "body"), BODIES.items(), ids=BODIES)
async def test_no_body_whatever_is_odd_in_it_is_an_internal_error(stage, path, body) -> None:
    seen = set()
    for number, odd in enumerate([body, *with_oddities(body)]):
        key = stage.gateway.open(SessionIds(f"odd{number}", "g", "task", "train"))
        headers = {"Authorization": f"Bearer {key}"}
        response = await stage.http.post(path, content=json.dumps(odd).encode(), headers=headers)
        assert response.status_code in (200, 400), (odd, response.text)
        seen.add(response.status_code)
        await stage.close(f"odd{number}")
    assert seen == {200, 400}


async def test_a_body_that_is_no_json_is_a_bad_request(stage, key) -> None:
    response = await stage.http.post(
        "/v1/chat/completions", content=b'{"messages": [', headers={"Authorization": f"Bearer {key}"}
    )
    assert (response.status_code, "isn't JSON" in response.text) == (400, True)


async def test_the_operator_opens_and_closes_sessions_over_http(stage, script) -> None:
    operator = {"Authorization": f"Bearer {stage.token}"}
    assert (await stage.http.post("/sessions", json={"trajectory_id": "x"})).status_code == 401
    opened = await stage.http.post("/sessions", json={"trajectory_id": "x", "task_id": "task"}, headers=operator)
    again = await stage.http.post("/sessions", json={"trajectory_id": "x"}, headers=operator)
    assert (opened.status_code, again.status_code) == (200, 400)
    await stage.chat(opened.json()["key"], ASK)
    assert (await stage.http.delete("/sessions/x")).status_code == 401
    closed = await stage.http.delete("/sessions/x", headers=operator)
    (columns,) = closed.json()["trajectories"]
    assert len({len(values) for name, values in columns.items() if name != "trajectory_id"}) == 1
    assert [value is None for value in columns["logprobs"]] == [not sampled for sampled in columns["sampled"]]
    assert (await stage.http.delete("/sessions/x", headers=operator)).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/sessions", {}, "trajectory_id isn't in the body"),
        ("/sessions", {"trajectory_id": ""}, "expected a name without #"),
        ("/sessions", {"trajectory_id": "t0#1"}, "expected a name without #"),
        ("/sessions", {"trajectory_id": "a", "temperature": -1}, "temperature is -1"),
        ("/sessions", {"trajectory_id": "a", "more": 1}, "more is 1"),
        ("/sessions", [], "the body is []"),
        ("/policies", {"path": "/p", "version": -1}, "version is -1"),
    ],
)
async def test_an_operator_s_bad_body_says_what_is_wrong_and_only_to_the_operator(stage, path, body, message) -> None:
    response = await stage.http.post(path, json=body, headers={"Authorization": f"Bearer {stage.token}"})
    assert (response.status_code, message in response.json()["error"]["message"]) == (400, True)
    assert (await stage.http.post(path, json=body)).status_code == 401


async def test_models_are_listed_for_clients_that_ask(stage, client) -> None:
    assert [model.id async for model in client.models.list()] == ["policy"]


async def test_the_operator_brings_new_weights(stage, key, policy_dir) -> None:
    operator = {"Authorization": f"Bearer {stage.token}"}
    body = {"path": str(policy_dir), "version": 8}
    assert (await stage.http.post("/policies", json=body)).status_code == 401
    first = await stage.chat(key, ASK)
    assert (await stage.http.post("/policies", json=body, headers=operator)).json() == {"version": 8}
    await stage.chat(key, [*ASK, first, *ASK])
    (trajectory,) = await stage.close()
    versions = [set(trajectory.policy_version[turn.start : turn.end].tolist()) for turn in trajectory.turns]
    assert versions == [{7}, {8}]
