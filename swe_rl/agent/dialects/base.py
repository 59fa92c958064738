"""What a dialect is: how one family of models writes prompts, completions and observations, and how it is read.

Messages, calls and results flow in and pieces of text flow out; sampled text flows in and calls with a `Segment` for
every character flow out. No dialect knows tokens: `swe_rl.agent.render` encodes pieces and places segments.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.tools import TOOLS
from swe_rl.trajectory import Segment

DAY = date(2024, 7, 26)
"""The day that a prompt names where its family's name one: the same in every run, and what Llama 3 defaults to."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}

Call = tuple[str, Mapping[str, Any]]
"""Name and arguments."""
Schema = Mapping[str, Any]
"""A tool as `ToolSpec.schema` gives it; an outside scaffold's may lack everything but the name."""
Types = Mapping[tuple[str, str], str]
"""(tool, argument) -> the type that the tool's schema declares."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one segment; only `is_ours` text may hold special tokens."""

    text: str
    segment: Segment
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the prompt, by `system` or `user`; `is_ours`: written by us, not by a task."""

    role: str
    text: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What came back; `call` names the tool that it answers, '' where there was no call to answer. `by_user`: a user's
    next message."""

    text: str
    call: str = ""
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion without its stop token, which is `stop` ('' if there was none). Bytes that aren't UTF-8 stand in
    `text` as lone surrogates. `find(marker, start)` is where a marker next begins, -1 if nowhere: one that is a token
    of its own counts only as that token. `types`: of the tools' arguments, for dialects that write values unquoted."""

    text: str
    stop: str
    find: Callable[[str, int], int]
    types: Types

    def after(self, marker: str, start: int) -> int:
        """The index behind the next such marker; the end if there is none."""
        at = self.find(marker, start)
        return len(self.text) if at < 0 else at + len(marker)


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One well-formed call; `start:end` are characters, markers included."""

    name: str
    arguments: Mapping[str, Any]
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """`segments` uint8 [num_characters + 1]; the last entry stands for a token without bytes at the end. `problem` is
    '' exactly if there is at least one call and every call is well-formed."""

    calls: tuple[ReadCall, ...]
    problem: str
    segments: NDArray[np.uint8]


class Malformed(ValueError):
    """A call that can't be read; its message becomes the policy's observation."""


class Dialect(Protocol):
    """One way of writing. `needs` are special tokens without which it can't be written, `stops` those that may end a
    completion (at least one must be in the vocabulary); `opens_reasoning`: a completion begins inside of reasoning;
    `answers_errors`: what comes back without a call is written as a result, not as a user's message;
    `differences`: where chat templates of the family are known to render something else, and why (see agreement.py).
    """

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def stops(self) -> tuple[str, ...]: ...
    @property
    def opens_reasoning(self) -> bool: ...
    @property
    def answers_errors(self) -> bool: ...
    @property
    def differences(self) -> Mapping[str, str]: ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        """All messages, the tools in the family's own form, and the opening of the first completion."""
        ...

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        """As a policy should write it; the last piece is the stop token."""
        ...

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        """What came back, and the opening of the next completion; `stop` ended the last one ('': it was cut)."""
        ...

    def read(self, sampled: Sampled) -> Reading:
        """Never raises for what was sampled."""
        ...


def ours(text: str) -> Piece:
    return Piece(text, Segment.TEMPLATE, is_ours=True)


def told(message: Message, text: str | None = None) -> Piece:
    """A message's text, or what a dialect makes of it."""
    return Piece(message.text if text is None else text, Segment.PROMPT, message.is_ours)


def listing(text: str) -> Piece:
    """The tools, as the prompt lists them: ours, whoever wrote the system message."""
    return Piece(text, Segment.PROMPT, is_ours=True)


def split_system(messages: Sequence[Message]) -> tuple[Message, Sequence[Message]]:
    """The system message (an empty one if there is none) and the others."""
    if messages and messages[0].role == "system":
        return messages[0], messages[1:]
    return Message("system", "", is_ours=True), messages


def blocks(results: Sequence[Result]) -> Iterator[list[Result]]:
    """Results that follow each other are one block; a user's message is a block of its own."""
    block: list[Result] = []
    for result in results:
        if block and (result.by_user or block[-1].by_user):
            yield block
            block = []
        block.append(result)
    if block:
        yield block


def is_diff(tool: str, key: str) -> bool:
    """Whether an argument's text is a change to the repository."""
    spec = TOOLS.get(tool)
    return spec is not None and key in spec.arguments and spec.arguments[key].is_diff


def declared_types(tools: Sequence[Schema]) -> Types:
    """Of arguments that are declared to be of one type."""
    types: dict[tuple[str, str], str] = {}
    for function in (tool["function"] for tool in tools):
        for key, spec in function.get("parameters", {}).get("properties", {}).items():
            if isinstance(spec.get("type"), str):
                types[function["name"], key] = spec["type"]
    return types


def typed(text: str, declared: str | None) -> Any:
    """An argument that stands there unquoted: of the declared type if it can be read so, else the text."""
    if declared == "integer":
        return int(text) if _INTEGER.fullmatch(text.strip()) else text
    if declared is None or declared not in _JSON_TYPES:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if type(value) in _JSON_TYPES[declared] else text
