"""Reads a call that is written as JSON, and tells where in the text each of its values stands.

Text and an index flow in, values with their places flow out. Any text is accepted: what isn't JSON raises Malformed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.dialects.base import Malformed, is_diff
from swe_rl.trajectory import Segment


@dataclass(frozen=True, slots=True)
class Member:
    """One value of a JSON object and where it stands, quotes included."""

    value: Any
    start: int
    end: int

    def tag(self, segments: NDArray[np.uint8], segment: Segment) -> None:
        """A string's text, without its quotes."""
        segments[self.start + 1 : self.end - 1] = segment


def read_object(text: str, start: int) -> tuple[dict[str, Member], int]:
    """Members of the JSON object at `start`, each with its place, and the index after it. Raises Malformed.

    The standard decoder tells where a value ends but not where members begin: this walks one level and leaves every
    value to it.
    """
    members: dict[str, Member] = {}
    position = skip(text, _expect(text, start, "{"))
    if text[position : position + 1] == "}":
        return members, position + 1
    while True:
        key, position = _decode(text, position)
        if not isinstance(key, str):
            raise Malformed("a key isn't a string")
        if key in members:
            raise Malformed("a key occurs twice")
        at = skip(text, _expect(text, skip(text, position), ":"))
        value, end = _decode(text, at)
        members[key] = Member(value, at, end)
        position = skip(text, end)
        if text[position : position + 1] == "}":
            return members, position + 1
        position = skip(text, _expect(text, position, ","))


def skip(text: str, position: int) -> int:
    """The index of the next character that isn't white space."""
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


def tag_arguments(text: str, start: int, name: str, segments: NDArray[np.uint8]) -> None:
    """Tags the values of the arguments at `start` that change files."""
    members, _ = read_object(text, start)
    for key, member in members.items():
        if is_diff(name, key) and isinstance(member.value, str):
            member.tag(segments, Segment.DIFF)


def check_encodable(name: str, arguments: Mapping[str, Any]) -> None:
    """Half a surrogate pair and stray bytes can't be written to a file. Raises Malformed."""
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError) as error:
        raise Malformed("the call holds text that isn't valid Unicode, or nests too deep") from error


def write(value: Any) -> str:
    """JSON as chat templates write it."""
    return json.dumps(value, ensure_ascii=False)


def _no_constant(literal: str) -> NoReturn:
    raise Malformed(f"{literal} isn't JSON")


def _finite(literal: str) -> float:
    """What is too large for a float would be written as no JSON has it."""
    value = float(literal)
    return value if math.isfinite(value) else _no_constant(literal)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise Malformed("a key occurs twice")
    return dict(pairs)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_unique)


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except Malformed:
        raise
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; thousands of brackets
        raise Malformed("not JSON: too long a number or too deep") from error


def _expect(text: str, position: int, sign: str) -> int:
    if text[position : position + 1] != sign:
        raise Malformed(f"not JSON: expected {sign} at character {position}")
    return position + 1
