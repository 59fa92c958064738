"""Responses as OpenAI's newer API words them: items become a conversation, an answer becomes items or events.

Nothing is kept for a later `previous_response_id`: clients send the whole conversation, as they do with `store` off.
"""

import json
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from uuid import uuid4

from swe_rl.gateway.messages import (
    ChatCall,
    ChatMessage,
    ChatRequest,
    RequestError,
    Role,
    read_arguments,
    read_function,
    read_list,
    read_max_tokens,
    read_text,
)
from swe_rl.gateway.session import Answer

_SAMPLING = ("temperature", "top_p", "reasoning", "top_logprobs", "truncation")
_REFUSED = ("previous_response_id", "conversation", "background", "prompt")
_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read_request(body: Any) -> ChatRequest:
    """Raises RequestError for what can't be served as asked."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is a {type(body).__name__}, expected an object")
    if wrong := [key for key in _REFUSED if body.get(key)]:
        raise RequestError(f"{wrong[0]} isn't served here: send the whole conversation as input")
    text = body.get("text") or {}
    if not isinstance(text, dict) or text.get("format") not in (None, {"type": "text"}):
        raise RequestError(f"text is {text!r:.60}, expected the format text: a forced one isn't sampled")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise RequestError(f"tool_choice is {body['tool_choice']!r:.60}, expected auto: a forced call isn't sampled")
    instructions = read_text(body.get("instructions"), "instructions")
    first = [ChatMessage("system", instructions)] if instructions else []
    return ChatRequest(
        messages=[*first, *_read_items(body.get("input"))],
        tools=[] if body.get("tool_choice") == "none" else _read_tools(body.get("tools")),
        max_tokens=read_max_tokens(body, "max_output_tokens"),
        is_streamed=bool(body.get("stream")),
        has_usage=True,
        ignored=tuple(key for key in _SAMPLING if body.get(key) is not None),
    )


def response_body(answer: Answer, model: str) -> dict[str, Any]:
    is_cut = answer.finish_reason == "length"
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": model,
        "output": _items(answer),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": answer.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.num_cached_tokens},
            "output_tokens": answer.num_sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.num_reasoning_tokens},
            "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
        },
    }


def response_events(answer: Answer, model: str) -> Iterator[str]:
    """Server-sent events, each item in one piece."""
    whole = response_body(answer, model)
    numbers = count()

    def event(kind: str, **body: Any) -> str:
        data = {"type": f"response.{kind}", "sequence_number": next(numbers), **body}
        return f"event: response.{kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    begun = whole | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"}
        if item["type"] == "function_call":
            yield event("output_item.added", output_index=index, item={**empty, "arguments": ""})
            yield event("function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        else:
            yield event("output_item.added", output_index=index, item={**empty, "content": []})
            (part,) = item["content"]
            kind, place["content_index"] = part["type"], 0
            yield event("content_part.added", **place, part={**part, "text": ""})
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield event(f"{kind}.delta", **place, **more, delta=part["text"])
            yield event(f"{kind}.done", **place, **more, text=part["text"])
            yield event("content_part.done", **place, part=part)
        yield event("output_item.done", output_index=index, item=item)
    yield event(whole["status"], response=whole)


def _read_items(given: Any) -> list[ChatMessage]:
    """An assistant's text and calls are items of their own: those in a row are one message. Raises RequestError."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError("input: expected a text or a list of at least one item")
    read: list[ChatMessage] = []
    names: dict[str, str] = {}
    for index, item in enumerate(given):
        if (message := _read_item(item, f"input[{index}]", names)) is None:
            continue
        if message.role == "assistant" and read and read[-1].role == "assistant":
            before = read.pop()
            message = ChatMessage("assistant", before.text + message.text, before.calls + message.calls)
        read.append(message)
    return read


def _read_item(item: Any, where: str, names: dict[str, str]) -> ChatMessage | None:
    """None for reasoning, which isn't told again."""
    if not isinstance(item, dict):
        raise RequestError(f"{where} is a {type(item).__name__}, expected an item")
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return None
    if kind == "function_call":
        name, call_id = item.get("name"), str(item.get("call_id", ""))
        if not isinstance(name, str):
            raise RequestError(f"{where}: a function call without a name")
        names[call_id] = name
        return ChatMessage("assistant", "", (ChatCall(name, read_arguments(item, name, where), call_id),))
    if kind == "function_call_output":
        return ChatMessage(
            "tool", read_text(item.get("output"), where), answers=names.get(str(item.get("call_id")), "")
        )
    if kind != "message":
        raise RequestError(f"{where}: an item of type {kind!r:.60} isn't served here")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{where}: role is {role!r:.60}, expected one of {', '.join(_ROLES)}")
    text = read_text(item.get("content"), where)
    return ChatMessage(_ROLES[role], text.strip() if role == "assistant" else text)


def _read_tools(tools: Any) -> list[dict[str, Any]]:
    read = []
    for index, tool in enumerate(read_list(tools, "tools")):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise RequestError(
                f"tools[{index}]: type is {kind!r:.60}, expected function: the scaffold runs its own tools"
            )
        function = {key: value for key, value in tool.items() if key not in ("type", "strict")}
        read.append({"type": "function", "function": read_function(function, f"tools[{index}]")})
    return read


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        thought = {"type": "reasoning_text", "text": answer.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": [], "content": [thought]})
    if answer.message.text or not answer.message.calls:  # without an item the scaffold could not say it again
        part = {"type": "output_text", "text": answer.message.text, "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": [part]})
    for call in answer.message.calls:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        called = {"call_id": call.call_id, "name": call.name, "arguments": arguments}
        items.append({"type": "function_call", "id": f"fc_{uuid4().hex}", **called})
    ended = "incomplete" if answer.finish_reason == "length" else "completed"
    return [item | {"status": ended} for item in items]
