"""Chat completions as OpenAI's API words them: a body becomes a request, an answer becomes a body or a stream.

The whole completion is there before the first chunk: a stream is for clients that know nothing else.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
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

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("stop", "reasoning_effort"),
)
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REFUSED = ("response_format", "functions", "function_call", "audio", "logprobs", "top_logprobs")


def read_request(body: Any) -> ChatRequest:
    """Raises RequestError for what can't be served as asked."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is a {type(body).__name__}, expected an object")
    if body.get("n") not in (None, 1):
        raise RequestError(f"n is {body['n']!r}, expected 1: each completion is a step of its own")
    if wrong := [key for key in _REFUSED if body.get(key) and body[key] != {"type": "text"}]:
        raise RequestError(f"{wrong[0]} isn't served here")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise RequestError(f"tool_choice is {body['tool_choice']!r:.60}, expected auto: a forced call isn't sampled")
    return ChatRequest(
        messages=_read_messages(body.get("messages")),
        tools=[] if body.get("tool_choice") == "none" else _read_tools(body.get("tools")),
        max_tokens=read_max_tokens(body, "max_completion_tokens", "max_tokens"),
        is_streamed=bool(body.get("stream")),
        has_usage=read_usage_wish(body),
        ignored=tuple(key for key in SAMPLING if body.get(key) is not None),
    )


def read_usage_wish(body: Mapping[str, Any]) -> bool:
    """Is a stream to end with the usage? Raises RequestError."""
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError(f"stream_options is a {type(options).__name__}, expected an object")
    return bool(options.get("include_usage"))


def completion_body(answer: Answer, model: str) -> dict[str, Any]:
    choice = {"index": 0, "message": _message(answer), "finish_reason": answer.finish_reason, "logprobs": None}
    return head(model, "chat.completion") | {"choices": [choice], "usage": usage(answer)}


def completion_chunks(answer: Answer, model: str, has_usage: bool) -> Iterator[str]:
    """Server-sent events: the message, its end, the usage if it was asked for."""
    first = head(model, "chat.completion.chunk")
    message = _message(answer)
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", []))]
    delta = message | ({"tool_calls": calls} if calls else {})
    for part, reason in ((delta, None), ({}, answer.finish_reason)):
        choice = {"index": 0, "delta": part, "finish_reason": reason, "logprobs": None}
        yield event(first | {"choices": [choice]})
    if has_usage:
        yield event(first | {"choices": [], "usage": usage(answer)})
    yield "data: [DONE]\n\n"


def error_body(message: str, kind: str, code: str = "") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def _read_messages(messages: Any) -> list[ChatMessage]:
    """Raises RequestError that names the message."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list of at least one")
    read: list[ChatMessage] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        said_by = message.get("role") if isinstance(message, dict) else message
        if not isinstance(message, dict) or not isinstance(said_by, str) or said_by not in _ROLES:
            raise RequestError(f"{where}: role is {said_by!r:.60}, expected one of {', '.join(_ROLES)}")
        role = _ROLES[said_by]
        calls = tuple(_read_call(call, where) for call in read_list(message.get("tool_calls"), f"{where}: tool_calls"))
        names |= {call.call_id: call.name for call in calls}
        answers = names.get(str(message.get("tool_call_id", "")), str(message.get("name") or ""))
        text = read_text(message.get("content"), where)
        # White space around it is what scaffolds and templates change without meaning it.
        text = text.strip() if role == "assistant" else text
        read.append(ChatMessage(role, text, calls, answers if role == "tool" else ""))
    return read


def _read_call(call: Any, where: str) -> ChatCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: a tool call without a function's name")
    arguments = read_arguments(function, function["name"], where)
    return ChatCall(function["name"], arguments, str(call.get("id", "")))


def _read_tools(tools: Any) -> list[dict[str, Any]]:
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in read_list(tools, "tools")]
    return [
        {"type": "function", "function": read_function(function, f"tools[{index}]")}
        for index, function in enumerate(functions)
    ]


def head(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"cmpl-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.text or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.message.calls:
        message["tool_calls"] = _calls(answer.message)
    return message


def _calls(message: ChatMessage) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in message.calls
    ]


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_sampled_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }


def event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
