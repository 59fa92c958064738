"""Chat completions as OpenAI's API words them: a body becomes a request, an answer becomes a body or a stream.

The whole completion is there before the first chunk: a stream is for clients that know nothing else.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from swe_rl.gateway.messages import ChatMessage, ChatRequest, RequestError, read_chat, read_tools
from swe_rl.gateway.session import Answer

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("stop", "reasoning_effort"),
)
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
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise RequestError(f"max_tokens is {max_tokens!r:.60}, expected an integer of at least 1")
    options = body.get("stream_options") or {}
    return ChatRequest(
        messages=read_chat(body.get("messages")),
        tools=[] if body.get("tool_choice") == "none" else read_tools(body.get("tools")),
        max_tokens=max_tokens,
        is_streamed=bool(body.get("stream")),
        has_usage=bool(options.get("include_usage")),
        ignored=tuple(key for key in _SAMPLING if body.get(key) is not None),
    )


def completion_body(answer: Answer, model: str) -> dict[str, Any]:
    choice = {"index": 0, "message": _message(answer), "finish_reason": answer.finish_reason, "logprobs": None}
    return _head(model, "chat.completion") | {"choices": [choice], "usage": _usage(answer)}


def completion_chunks(answer: Answer, model: str, has_usage: bool) -> Iterator[str]:
    """Server-sent events: the message, its end, the usage if it was asked for."""
    head = _head(model, "chat.completion.chunk")
    message = _message(answer)
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", []))]
    delta = message | ({"tool_calls": calls} if calls else {})
    for part, reason in ((delta, None), ({}, answer.finish_reason)):
        choice = {"index": 0, "delta": part, "finish_reason": reason, "logprobs": None}
        yield _event(head | {"choices": [choice]})
    if has_usage:
        yield _event(head | {"choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def error_body(message: str, kind: str, code: str = "") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def _head(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


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


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_sampled_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
