"""gpt-oss: messages with channels, of which a completion may hold several.

    prompt       <|start|>system<|message|>..<|end|><|start|>developer<|message|>..<|end|>
                 <|start|>user<|message|>..<|end|><|start|>assistant
    completion   <|channel|>analysis<|message|>..<|end|><|start|>assistant to=functions.edit<|channel|>commentary json
                 <|message|>{..}<|call|>
    observation  <|start|>functions.edit to=assistant<|channel|>commentary<|message|>"a JSON string"<|end|>
                 <|start|>assistant

The recipient may stand behind the channel as well. `<|call|>` ends a completion, so there is one call in it, as a rule.
Analysis is REASONING, a message to a tool TOOL_ARGS, every other one TEXT, headers included.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.dialects.base import (
    DAY,
    Call,
    Malformed,
    Message,
    Piece,
    ReadCall,
    Reading,
    Result,
    Sampled,
    Schema,
    ours,
    split_system,
    told,
)
from swe_rl.agent.dialects.json_call import check_encodable, read_object, skip, tag_arguments, write
from swe_rl.trajectory import Segment

_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_CALL, _RETURN = "<|call|>", "<|return|>"
_RECIPIENT = re.compile(r"\bto=([^\s<>]+)")
_TOOL = "functions."
_SYSTEM = f"""\
You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: {DAY.isoformat()}

Reasoning: medium

# Valid channels: analysis, commentary, final. Channel must be included for every message."""
_SYSTEM_TOOLS = "\nCalls to these tools must go to the commentary channel: 'functions'."
_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}


@dataclass(frozen=True, slots=True)
class Harmony:
    name: str = "gpt-oss"
    opens_reasoning: bool = False
    needs: tuple[str, ...] = (_START, _CHANNEL, _MESSAGE, _END, _CALL)
    stops: tuple[str, ...] = (_CALL, _RETURN, "<|endoftext|>")
    answers_errors: bool = False
    differences: Mapping[str, str] = field(
        default_factory=lambda: {
            "text": "the template writes text in front of a call as analysis",
            "parallel": "the template writes the first call only",
            "error": "the template drops analysis from before a final message, and writes <|end|> for <|return|>",
        }
    )

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        system, others = split_system(messages)
        pieces = [ours(f"{_START}system{_MESSAGE}{_SYSTEM}{_SYSTEM_TOOLS if tools else ''}{_END}")]
        if system.text or tools:
            pieces += [ours(f"{_START}developer{_MESSAGE}"), ours("# Instructions\n\n" if system.text else "")]
            pieces += [told(system), ours(_namespace(tools) if tools else ""), ours(_END)]
        for message in others:
            pieces += [ours(f"{_START}{message.role}{_MESSAGE}"), told(message), ours(_END)]
        return [*pieces, _OPENING]

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        parts: list[list[Piece]] = []
        if reasoning:
            parts += [[ours(f"{_CHANNEL}analysis{_MESSAGE}"), Piece(reasoning, Segment.REASONING)]]
        if prose or not calls:
            channel = "commentary" if calls else "final"
            parts += [[ours(f"{_CHANNEL}{channel}{_MESSAGE}"), Piece(prose, Segment.TEXT)]]
        for name, arguments in calls:
            head = ours(f" to={_TOOL}{name}{_CHANNEL}commentary json{_MESSAGE}")
            parts += [[head, Piece(write(dict(arguments)), Segment.TOOL_ARGS)]]
        pieces = parts[0]
        for part in parts[1:]:
            pieces = [*pieces, ours(f"{_END}{_START}assistant"), *part]
        return [*pieces, ours(_CALL if calls else _RETURN)]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        pieces = [ours("" if stop else _END)]
        for result in results:
            if result.call:
                # A name is what was sampled: it isn't our text.
                pieces += [ours(f"{_START}{_TOOL}"), Piece(result.call, Segment.OBSERVATION)]
                pieces += [ours(f" to=assistant{_CHANNEL}commentary{_MESSAGE}")]
                pieces += [Piece(write(result.text), Segment.OBSERVATION), ours(_END)]
            else:
                pieces += [ours(f"{_START}user{_MESSAGE}"), Piece(result.text, Segment.OBSERVATION), ours(_END)]
        return [*pieces, _OPENING]

    def read(self, sampled: Sampled) -> Reading:
        text = sampled.text
        segments = np.full(len(text) + 1, Segment.TEXT, dtype=np.uint8)
        calls: list[ReadCall] = []
        problem = ""
        for part in _messages(sampled):
            try:
                call = _read_message(text, part, segments)
                calls += [call] if call else []
            except Malformed as error:
                segments[part.start : part.end] = Segment.TOOL_ARGS
                problem = problem or str(error)
        segments[-1] = segments[-2] if text else Segment.TEXT
        return Reading(tuple(calls), problem if calls or problem else "no tool call", segments)


_OPENING = ours(f"{_START}assistant")


@dataclass(frozen=True, slots=True)
class _Part:
    """One message: `start` is its header's, `body` that of its text, `end` lies behind its closing token."""

    start: int
    body: int
    body_end: int
    end: int
    is_closed: bool


def _messages(sampled: Sampled) -> Iterator[_Part]:
    """The last one is closed by the stop token."""
    text, find = sampled.text, sampled.find
    start = 0
    while start < len(text):
        message, end = find(_MESSAGE, start), find(_END, start)
        if message < 0 or 0 <= end < message:  # a header and nothing else
            stop = end + len(_END) if end >= 0 else len(text)
            yield _Part(start, stop, stop, stop, is_closed=True)
        else:
            stop = end + len(_END) if end >= 0 else len(text)
            body_end = end if end >= 0 else len(text)
            yield _Part(start, message + len(_MESSAGE), body_end, stop, end >= 0 or bool(sampled.stop))
        start = stop


def _read_message(text: str, part: _Part, segments: NDArray[np.uint8]) -> ReadCall | None:
    """Tags one message, and reads its call if it goes to a tool. Raises Malformed, segments untouched."""
    header = text[part.start : part.body]
    recipient = _RECIPIENT.search(header)
    channel = header.partition(_CHANNEL)[2].split("<", 1)[0].split()[:1]
    if recipient is None or recipient[1] == "assistant":
        if channel == ["analysis"]:
            segments[part.start : part.end] = Segment.REASONING
        return None
    if not recipient[1].startswith(_TOOL):
        raise Malformed(f"calls go to={_TOOL}its name, got {recipient[1][:60]}")
    if not part.is_closed:
        raise Malformed(f"a call ends with {_CALL}")
    name = recipient[1].removeprefix(_TOOL)
    body = text[part.body : part.body_end]
    members, after = read_object(body, skip(body, 0))
    if skip(body, after) != len(body):
        raise Malformed("nothing may follow the JSON object")
    arguments = {key: member.value for key, member in members.items()}
    check_encodable(name, arguments)
    segments[part.start : part.end] = Segment.TOOL_ARGS
    first = part.start + recipient.start(1) + len(_TOOL)
    segments[first : first + len(name)] = Segment.TOOL_NAME
    tag_arguments(body, skip(body, 0), name, segments[part.body :])
    return ReadCall(name, arguments, part.start, part.end)


def _namespace(tools: Sequence[Schema]) -> str:
    """Tools as types of TypeScript."""
    lines = ["\n\n# Tools\n\n## functions\n\nnamespace functions {\n"]
    for function in (tool["function"] for tool in tools):
        parameters: Mapping[str, Any] = function.get("parameters", {})
        lines += _comment(function)
        required = parameters.get("required", ())
        fields = [
            "\n".join([*_comment(spec), f"{name}{'' if name in required else '?'}: {_type_of(spec)}"])
            for name, spec in parameters.get("properties", {}).items()
        ]
        if fields:
            lines += [f"type {function['name']} = (_: {{", ",\n".join(fields), "}) => any;\n"]
        else:
            lines += [f"type {function['name']} = () => any;\n"]
    return "\n".join([*lines, "} // namespace functions"])


def _comment(described: Mapping[str, Any]) -> list[str]:
    return [f"// {described['description']}"] if "description" in described else []


def _type_of(spec: Mapping[str, Any]) -> str:
    declared = spec.get("type")
    return _TYPES.get(declared, "any") if isinstance(declared, str) else "any"
