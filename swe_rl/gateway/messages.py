"""What a scaffold says: one conversation in plain form, whichever API's JSON it came in.

JSON bodies flow in, `ChatMessage`s flow out. An assistant's message is equal to another if it says the same: scaffolds
strip white space, drop reasoning, write arguments anew and name calls as they like.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from swe_rl.errors import SweRlError

Role = Literal["system", "user", "assistant", "tool"]
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class RequestError(SweRlError, ValueError):
    """A request that can't be served; `code` is the API's word for it, '' if it has none."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One call of an assistant's message."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """`answers`: the tool whose call a `tool` message answers."""

    role: Role
    text: str
    calls: tuple[ChatCall, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a body asks for. Sampling is the session's own: what the body says of it is `ignored`, by its keys."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]]
    max_tokens: int | None
    is_streamed: bool
    has_usage: bool
    ignored: tuple[str, ...]


def read_chat(messages: Any) -> list[ChatMessage]:
    """The `messages` of a chat completion. Raises RequestError that names the message."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list of at least one")
    read: list[ChatMessage] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            role = message.get("role") if isinstance(message, dict) else message
            raise RequestError(f"{where}: role is {role!r}, expected one of {', '.join(_ROLES)}")
        calls = tuple(_read_call(call, where) for call in message.get("tool_calls") or ())
        names |= {call.call_id: call.name for call in calls}
        answers = names.get(str(message.get("tool_call_id", "")), str(message.get("name") or ""))
        role = _ROLES[message["role"]]
        text = read_text(message.get("content"), where)
        # White space around it is what scaffolds and templates change without meaning it.
        text = text.strip() if role == "assistant" else text
        read.append(ChatMessage(role, text, calls, answers if role == "tool" else ""))
    return read


def read_text(content: Any, where: str) -> str:
    """Text, or text parts joined. Raises RequestError for images and the like."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where}: content is a {type(content).__name__}, expected text")
    parts = [part for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(parts) != len(content):
        raise RequestError(f"{where}: content holds something that isn't text")
    return "".join(part["text"] for part in parts)


def read_tools(tools: Any) -> list[dict[str, Any]]:
    """The `tools` of a chat completion, each as a template lists it. Raises RequestError."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise RequestError(f"tools is a {type(tools).__name__}, expected a list")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"tools[{index}]: expected a function with a name")
    return [{"type": "function", "function": tool["function"]} for tool in tools]


def same_start(before: Sequence[ChatMessage], now: Sequence[ChatMessage]) -> int:
    """How many messages two conversations share from their start."""
    count = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        count += 1
    return count


def _read_call(call: Any, where: str) -> ChatCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: a tool call without a function's name")
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError as error:
        raise RequestError(f"{where}: arguments of {function['name']} aren't JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{where}: arguments of {function['name']} are {arguments!r:.60}, expected an object")
    return ChatCall(function["name"], arguments, str(call.get("id", "")))
