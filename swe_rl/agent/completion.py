"""Reads one completion's bytes: which tool calls it makes, and to which segment each byte belongs.

The bytes flow in with a way to find markers (the renderer knows which markers are tokens of their own); calls, a
problem in words and one `Segment` for each byte flow out. It runs no tool and knows no tokens. Any bytes are accepted:
what can't be read is a problem, not an exception.

    <think> .. </think>            REASONING, markers included; to the end if it isn't closed
    <tool_call> .. </tool_call>    TOOL_ARGS but for: the value of "name" TOOL_NAME, values that change files DIFF
                                   (both without their quotes)
    the rest                       TEXT
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.tools import TOOLS
from swe_rl.trajectory import Segment

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

FindMarker = Callable[[str, int], int]
"""(marker, from byte) -> byte where the marker next begins, -1 if nowhere."""


@dataclass(frozen=True, slots=True)
class ByteCall:
    """One well-formed call; `start:end` are bytes, markers included."""

    name: str
    arguments: Mapping[str, Any]
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class ByteReading:
    """`segments` uint8 [num_bytes + 1]; the last entry stands for a token without bytes at the end."""

    calls: tuple[ByteCall, ...]
    problem: str
    segments: NDArray[np.uint8]


class _Malformed(ValueError):
    """A call that can't be read; its message becomes the policy's observation."""


def read_completion(data: bytes, find: FindMarker) -> ByteReading:
    """`problem` is '' exactly if there is at least one call and every call is well-formed."""
    segments = np.full(len(data) + 1, Segment.TEXT, dtype=np.uint8)
    calls: list[ByteCall] = []
    problem = ""
    position = 0
    while position < len(data):
        think, call = find(THINK_OPEN, position), find(CALL_OPEN, position)
        if think >= 0 and not 0 <= call < think:
            position = _after(find, THINK_CLOSE, think, len(data))
            segments[think:position] = Segment.REASONING
        elif call >= 0:
            try:
                read = _read_call(data, call, find, segments)
                calls.append(read)
                position = read.end
            except _Malformed as error:
                problem = problem or str(error)
                position = _after(find, CALL_CLOSE, call, len(data))
                segments[call:position] = Segment.TOOL_ARGS
        else:
            break
    segments[-1] = segments[-2] if data else Segment.TEXT
    return ByteReading(tuple(calls), problem if calls or problem else "no tool call", segments)


def _after(find: FindMarker, marker: str, start: int, otherwise: int) -> int:
    at = find(marker, start)
    return otherwise if at < 0 else at + len(marker)


def _read_call(data: bytes, start: int, find: FindMarker, segments: NDArray[np.uint8]) -> ByteCall:
    """Reads the call whose opening marker begins at `start`, and tags its bytes. Raises _Malformed, tags untouched."""
    body = start + len(CALL_OPEN)
    # surrogateescape maps every byte string to text and back without loss, so positions stay exact.
    text = data[body:].decode("utf-8", "surrogateescape")

    def to_byte(index: int) -> int:
        return body + len(text[:index].encode("utf-8", "surrogateescape"))

    fields, after = _read_object(text, _skip(text, 0))
    if sorted(fields) != ["arguments", "name"]:
        raise _Malformed(f"a tool call has the keys name and arguments, got {', '.join(sorted(fields))[:60]}")
    name, arguments = fields["name"], fields["arguments"]
    if not isinstance(name.value, str) or not isinstance(arguments.value, dict):
        raise _Malformed("name must be a string and arguments an object")
    close = to_byte(_skip(text, after))
    if find(CALL_CLOSE, close) != close:
        raise _Malformed(f"{CALL_CLOSE} must follow the JSON object")
    _check_encodable(name.value, arguments.value)
    inner, _ = _read_object(text, arguments.start)

    end = close + len(CALL_CLOSE)
    segments[start:end] = Segment.TOOL_ARGS
    segments[to_byte(name.start + 1) : to_byte(name.end - 1)] = Segment.TOOL_NAME
    spec = TOOLS.get(name.value)
    for key, member in inner.items():
        is_diff = spec is not None and key in spec.arguments and spec.arguments[key].is_diff
        if is_diff and isinstance(member.value, str):
            segments[to_byte(member.start + 1) : to_byte(member.end - 1)] = Segment.DIFF
    return ByteCall(name.value, arguments.value, start, end)


@dataclass(frozen=True, slots=True)
class _Member:
    """One value of a JSON object and where it stands, quotes included."""

    value: Any
    start: int
    end: int


def _no_constant(literal: str) -> NoReturn:
    raise _Malformed(f"{literal} isn't JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise _Malformed("a key occurs twice")
    return dict(pairs)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)


def _read_object(text: str, start: int) -> tuple[dict[str, _Member], int]:
    """Members of the JSON object at `start`, each with its place, and the index after it. Raises _Malformed.

    The standard decoder tells where a value ends but not where members begin: this walks one level and leaves every
    value to it.
    """
    members: dict[str, _Member] = {}
    position = _skip(text, _expect(text, start, "{"))
    if text[position : position + 1] == "}":
        return members, position + 1
    while True:
        key, position = _decode(text, position)
        if not isinstance(key, str):
            raise _Malformed("a key isn't a string")
        if key in members:
            raise _Malformed("a key occurs twice")
        at = _skip(text, _expect(text, _skip(text, position), ":"))
        value, end = _decode(text, at)
        members[key] = _Member(value, at, end)
        position = _skip(text, end)
        if text[position : position + 1] == "}":
            return members, position + 1
        position = _skip(text, _expect(text, position, ","))


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except _Malformed:
        raise
    except json.JSONDecodeError as error:
        raise _Malformed(f"not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; thousands of brackets
        raise _Malformed("not JSON: too long a number or too deep") from error


def _expect(text: str, position: int, sign: str) -> int:
    if text[position : position + 1] != sign:
        raise _Malformed(f"not JSON: expected {sign} at character {position}")
    return position + 1


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


def _check_encodable(name: str, arguments: Mapping[str, Any]) -> None:
    """Half a surrogate pair and stray bytes can't be written to a file."""
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError) as error:
        raise _Malformed("the call holds text that isn't valid Unicode, or nests too deep") from error
