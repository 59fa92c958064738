"""Completions of a text as OpenAI's older API words them, for scaffolds that render their prompts themselves."""

from collections.abc import Iterator
from typing import Any

from swe_rl.gateway.messages import ChatMessage, ChatRequest, RequestError, read_max_tokens
from swe_rl.gateway.openai_chat import SAMPLING, event, head, read_usage_wish, usage
from swe_rl.gateway.session import Answer

_REFUSED = ("suffix", "echo", "logprobs")


def read_request(body: Any) -> ChatRequest:
    """The prompt is the only message. Raises RequestError for what can't be served as asked."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is a {type(body).__name__}, expected an object")
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise RequestError(f"prompt is {prompt!r:.60}, expected one text of at least one character")
    for key in ("n", "best_of"):
        if body.get(key) not in (None, 1):
            raise RequestError(f"{key} is {body[key]!r:.60}, expected 1: each completion is a step of its own")
    if wrong := [key for key in _REFUSED if body.get(key)]:
        raise RequestError(f"{wrong[0]} isn't served here")
    return ChatRequest(
        messages=[ChatMessage("user", prompt)],
        tools=[],
        max_tokens=read_max_tokens(body, "max_tokens"),
        is_streamed=bool(body.get("stream")),
        has_usage=read_usage_wish(body),
        ignored=tuple(key for key in SAMPLING if body.get(key) is not None),
    )


def completion_body(answer: Answer, model: str) -> dict[str, Any]:
    return head(model, "text_completion") | {"choices": [_choice(answer)], "usage": usage(answer)}


def completion_chunks(answer: Answer, model: str, has_usage: bool) -> Iterator[str]:
    """Server-sent events: the text with its end, the usage if it was asked for."""
    first = head(model, "text_completion")
    yield event(first | {"choices": [_choice(answer)]})
    if has_usage:
        yield event(first | {"choices": [], "usage": usage(answer)})
    yield "data: [DONE]\n\n"


def _choice(answer: Answer) -> dict[str, Any]:
    return {"index": 0, "text": answer.message.text, "finish_reason": answer.finish_reason, "logprobs": None}
