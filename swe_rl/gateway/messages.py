"""What a scaffold says: one conversation in plain form, whichever API's JSON it came in.

Each API's own file reads its bodies into it. An assistant's message is equal to another if it says the same: scaffolds
strip white space, drop reasoning, write arguments anew and name calls as they like.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from swe_rl.errors import SweRlError

Role = Literal["system", "user", "assistant", "tool"]


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


def read_list(value: Any, where: str) -> list[Any]:
    """[] for null. Raises RequestError for what isn't a list."""
    if value is None or isinstance(value, list):
        return value or []
    raise RequestError(f"{where} is a {type(value).__name__}, expected a list")


def read_max_tokens(body: Mapping[str, Any], *keys: str) -> int | None:
    """Of the first of the keys that says something. Raises RequestError."""
    for key in keys:
        value = body.get(key)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RequestError(f"{key} is {value!r:.60}, expected an integer of at least 1")
            return value
    return None


def read_arguments(call: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Of a call whose arguments are JSON as text. Raises RequestError."""
    try:
        arguments = json.loads(call.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(f"{where}: arguments of {name} aren't JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{where}: arguments of {name} are {arguments!r:.60}, expected an object")
    return arguments


def read_function(function: Any, where: str) -> dict[str, Any]:
    """A tool as templates list it, without what is null. Raises RequestError for what no dialect could list."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: expected a function with a name")
    told = {str(key): value for key, value in function.items() if value is not None}
    parameters = told.get("parameters", {})
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else None
    is_schema = isinstance(properties, dict) and all(isinstance(one, dict) for one in properties.values())
    if not is_schema or not isinstance(parameters.get("required", []), list):
        raise RequestError(f"{where}: the parameters aren't the JSON schema of an object")
    if not isinstance(told.get("description", ""), str):
        raise RequestError(f"{where}: the description isn't text")
    return told


def same_start(before: Sequence[ChatMessage], now: Sequence[ChatMessage]) -> int:
    """How many messages two conversations share from their start."""
    count = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        count += 1
    return count
