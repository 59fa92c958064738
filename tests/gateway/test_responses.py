"""OpenAI's client of responses: items in and out, streaming or not."""

import json
from typing import Any

import openai
import pytest

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
REPLY = f"<think>hm</think>I look.\n{CALL}"
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH: Any = {"type": "function", "name": "bash", "description": "Run.", "parameters": PARAMETERS, "strict": False}
ASK: list[Any] = [{"role": "user", "content": "Mend it."}]


@pytest.fixture
def client(stage, key) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=f"{stage.url}/v1", max_retries=0)


async def test_a_conversation_with_calls_is_one_trajectory(stage, client, script) -> None:
    script(REPLY, "All done.")
    first = await client.responses.create(model="policy", instructions="You help.", input=ASK, tools=[BASH])
    assert (first.status, first.output_text) == ("completed", "I look.")
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("bash", {"command": "ls"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a.py"}
    said = [*ASK, *[item.model_dump() for item in first.output], result]
    second = await client.responses.create(model="policy", instructions="You help.", input=said, tools=[BASH])
    assert second.output_text == "All done."
    (trajectory,) = await stage.close()
    assert len(trajectory.turns) == 2
    assert first.usage.output_tokens + second.usage.output_tokens == trajectory.sampled.sum()
    assert 0 < first.usage.output_tokens_details.reasoning_tokens < first.usage.output_tokens


async def test_the_same_can_be_streamed(client, script) -> None:
    script(REPLY)
    text, arguments, numbers = "", "", []
    async with client.responses.stream(model="policy", input="Mend it.", tools=[BASH]) as stream:
        async for event in stream:
            numbers.append(event.sequence_number)
            text += event.delta if event.type == "response.output_text.delta" else ""
            arguments += event.delta if event.type == "response.function_call_arguments.delta" else ""
        whole = await stream.get_final_response()
    assert (text, json.loads(arguments), whole.output_text) == ("I look.", {"command": "ls"}, "I look.")
    assert numbers == sorted(set(numbers))
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]


async def test_an_answer_that_was_cut_is_incomplete(client, script) -> None:
    script("a long story " * 20)
    answer = await client.responses.create(model="policy", input=ASK, max_output_tokens=5)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 5


async def test_chat_can_go_on_with_a_conversation_that_responses_began(stage, client, script) -> None:
    script("one", "two")
    first = await client.responses.create(model="policy", input=ASK)
    said = [*ASK, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "So?"}]
    await client.chat.completions.create(model="policy", messages=said)
    (trajectory,) = await stage.close()
    assert len(trajectory.turns) == 2


@pytest.mark.parametrize(
    ("reply", "more"), [("", {}), ("<think>hm</think>", {}), ("<think>" + "hm " * 9, {"max_output_tokens": 5})]
)
async def test_an_answer_without_text_or_calls_is_an_item_that_the_conversation_goes_on_behind(
    stage, client, script, reply, more
) -> None:
    script(reply, "two")
    first = await client.responses.create(model="policy", input=ASK, **more)
    said = [*ASK, *[item.model_dump() for item in first.output], {"role": "user", "content": "So?"}]
    await client.responses.create(model="policy", input=said)
    (trajectory,) = await stage.close()
    assert len(trajectory.turns) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body is a list"),
        ({}, "input: expected a text or a list"),
        ({"input": []}, "input: expected a text or a list"),
        ({"input": ASK, "previous_response_id": "resp_1"}, "previous_response_id isn't served here"),
        ({"input": ASK, "background": True}, "background isn't served here"),
        ({"input": ASK, "text": {"format": {"type": "json_object"}}}, "expected the format text"),
        ({"input": ASK, "tool_choice": "required"}, "tool_choice is 'required'"),
        ({"input": ASK, "tools": [{"type": "web_search"}]}, "tools[0]: type is 'web_search'"),
        ({"input": ASK, "max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"input": [3]}, "input[0] is a int"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0]: role is 'robot'"),
        ({"input": [{"type": "computer_call"}]}, "input[0]: an item of type 'computer_call'"),
        ({"input": [*ASK, {"type": "function_call", "call_id": "c"}]}, "input[1]: a function call without a name"),
        ({"input": [*ASK, {"type": "function_call", "name": "a", "arguments": "{"}]}, "aren't JSON"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "a"}]}, "before any of the assistant's"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "something that isn't text"),
    ],
)
async def test_a_bad_request_says_what_is_wrong_and_leaves_no_trace(stage, key, body, message) -> None:
    response = await stage.post(key, body, "/v1/responses")
    assert (response.status_code, message in response.json()["error"]["message"]) == (400, True), response.text
    assert await stage.close() == []
