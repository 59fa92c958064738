"""Messages as Anthropic's API words them: a body becomes a request, an answer becomes a body or a stream of events."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from swe_rl.gateway.messages import (
    ChatCall,
    ChatMessage,
    ChatRequest,
    RequestError,
    read_function,
    read_list,
    read_max_tokens,
    read_text,
)
from swe_rl.gateway.session import Answer

_SAMPLING = ("temperature", "top_p", "top_k", "stop_sequences", "thinking")
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}


def read_request(body: Any) -> ChatRequest:
    """Raises RequestError for what can't be served as asked."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is a {type(body).__name__}, expected an object")
    choice = body.get("tool_choice") or {"type": "auto"}
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "none"):
        raise RequestError(f"tool_choice is {choice!r:.60}, expected auto: a forced call isn't sampled")
    max_tokens = read_max_tokens(body, "max_tokens")
    if max_tokens is None:
        raise RequestError("max_tokens is None, expected an integer of at least 1")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list of at least one")
    system = read_text(body.get("system"), "system")
    read = [ChatMessage("system", system)] if system else []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        read += _read_message(message, f"messages[{index}]", names)
    return ChatRequest(
        messages=read,
        tools=[] if choice["type"] == "none" else _read_tools(body.get("tools")),
        max_tokens=max_tokens,
        is_streamed=bool(body.get("stream")),
        has_usage=True,
        ignored=tuple(key for key in _SAMPLING if body.get(key) is not None),
    )


def message_body(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _blocks(answer),
        "stop_reason": _STOP_REASONS[answer.finish_reason],
        "stop_sequence": None,
        "usage": {
            "input_tokens": answer.num_prompt_tokens - answer.num_cached_tokens,
            "cache_read_input_tokens": answer.num_cached_tokens,
            "output_tokens": answer.num_sampled_tokens,
        },
    }


def message_events(answer: Answer, model: str) -> Iterator[str]:
    """Server-sent events, each block in one piece."""
    whole = message_body(answer, model)
    yield _event("message_start", {"message": whole | {"content": [], "stop_reason": None}})
    for index, block in enumerate(whole["content"]):
        empty, delta = _begin(block)
        yield _event("content_block_start", {"index": index, "content_block": empty})
        yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", {"delta": delta, "usage": {"output_tokens": answer.num_sampled_tokens}})
    yield _event("message_stop", {})


def error_body(message: str, kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _read_message(message: Any, where: str, names: dict[str, str]) -> list[ChatMessage]:
    """A user's message holds results of several calls and text: each is a message of its own."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise RequestError(f"{where}: role is {role!r:.60}, expected user or assistant")
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RequestError(f"{where}: content is a {type(content).__name__}, expected text or blocks")
    text, calls, read = "", [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            text += read_text([block], where)
        elif kind == "tool_use" and role == "assistant" and isinstance(block.get("input"), dict):
            names[str(block.get("id"))] = str(block.get("name"))
            calls.append(ChatCall(str(block.get("name")), block["input"], str(block.get("id"))))
        elif kind == "tool_result" and role == "user":
            answers = names.get(str(block.get("tool_use_id")), "")
            read.append(ChatMessage("tool", read_text(block.get("content"), where), answers=answers))
        elif not (kind in ("thinking", "redacted_thinking") and role == "assistant"):
            raise RequestError(f"{where}: a block of type {kind!r:.60} isn't served here")
    if role == "assistant":
        return [ChatMessage("assistant", text.strip(), tuple(calls))]
    return [*read, ChatMessage("user", text)] if text or not read else read


def _read_tools(tools: Any) -> list[dict[str, Any]]:
    functions = [
        {("parameters" if key == "input_schema" else key): value for key, value in tool.items()}
        if isinstance(tool, dict)
        else None
        for tool in read_list(tools, "tools")
    ]
    return [
        {"type": "function", "function": read_function(function, f"tools[{index}]")}
        for index, function in enumerate(functions)
    ]


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.message.text:
        blocks.append({"type": "text", "text": answer.message.text})
    blocks += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": dict(call.arguments)}
        for call in answer.message.calls
    ]
    return blocks


def _begin(block: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A block without what it holds, and the delta that brings it."""
    if block["type"] == "tool_use":
        return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    kind = str(block["type"])
    return {**block, kind: ""}, {"type": f"{kind}_delta", kind: block[kind]}


def _event(name: str, body: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **body}, ensure_ascii=False)}\n\n"
