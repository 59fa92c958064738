"""Llama 3: header tokens, and a call that is the whole completion.

    prompt       <|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n\\n..<|eot_id|>  and so on
    completion   {"name": "edit", "parameters": {..}}<|eot_id|>
    observation  <|start_header_id|>ipython<|end_header_id|>\\n\\n"a JSON string"<|eot_id|>  and the next header

A call begins with `{"name":` or `{"type":` at the beginning of a line, or behind `<|python_tag|>`; several may follow
each other, with `;` or white space between. No marker closes one, so what can't be read is TOOL_ARGS to the end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

_HEAD, _HEAD_END, _END = "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"
_PYTHON = "<|python_tag|>"
_CALL = re.compile(r'^[ \t]*(\{)\s*"(?:name|type)"\s*:', re.MULTILINE)
_NEXT = re.compile(r"[\s;]*(?=\{)")
_TOOLS = """\
Given the following functions, please respond with a JSON for a function call with its proper arguments that best \
answers the given prompt.

Respond in the format {{"name": function name, "parameters": dictionary of argument name and its value}}.Do not use \
variables.

{tools}"""


@dataclass(frozen=True, slots=True)
class Llama:
    name: str = "llama3"
    opens_reasoning: bool = False
    needs: tuple[str, ...] = ("<|begin_of_text|>", _HEAD, "<|end_header_id|>", _END)
    stops: tuple[str, ...] = (_END, "<|eom_id|>", "<|end_of_text|>")
    answers_errors: bool = False
    differences: Mapping[str, str] = field(
        default_factory=lambda: {
            "text": "the template leaves out text in front of a call",
            "reasoning": "the template knows no reasoning",
            "parallel": "the template refuses two calls in one completion",
        }
    )

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        system, others = split_system(messages)
        date = f"{DAY:%d %b %Y}"
        head = (
            "Environment: ipython\n" if tools else ""
        ) + f"Cutting Knowledge Date: December 2023\nToday Date: {date}"
        pieces = [ours(f"<|begin_of_text|>{_HEAD}system{_HEAD_END}{head}\n\n")]
        pieces += [told(system, system.text.strip()), ours(_END)]
        listing = _TOOLS.format(tools="".join(json.dumps(tool, indent=4) + "\n\n" for tool in tools)) if tools else ""
        for index, message in enumerate(others):
            pieces += [ours(f"{_HEAD}{message.role}{_HEAD_END}"), ours(listing if index == 0 else "")]
            pieces += [told(message, message.text.strip()), ours(_END)]
        return [*pieces, _OPENING]

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        pieces = [Piece(reasoning, Segment.TEXT), ours("\n" if reasoning else ""), Piece(prose, Segment.TEXT)]
        gap = "\n" if reasoning or prose else ""
        for name, arguments in calls:
            pieces += [ours(gap), Piece(write({"name": name, "parameters": dict(arguments)}), Segment.TOOL_ARGS)]
            gap = "; "
        return [*pieces, ours(_END)]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        pieces = [ours("" if stop else _END)]
        for result in results:
            role, text = ("ipython", write(result.text)) if result.call else ("user", result.text.strip())
            pieces += [ours(f"{_HEAD}{role}{_HEAD_END}"), Piece(text, Segment.OBSERVATION), ours(_END)]
        return [*pieces, _OPENING]

    def read(self, sampled: Sampled) -> Reading:
        text = sampled.text
        segments = np.full(len(text) + 1, Segment.TEXT, dtype=np.uint8)
        calls: list[ReadCall] = []
        start = position = _first_call(sampled)
        problem = "" if start >= 0 else "no tool call"
        while position >= 0:
            try:
                calls.append(_read_call(text, start, position, segments))
            except Malformed as error:
                segments[start:] = Segment.TOOL_ARGS
                problem = str(error)
                break
            start = calls[-1].end
            between = _NEXT.match(text, start)
            position = between.end() if between else -1
        segments[-1] = segments[-2] if text else Segment.TEXT
        return Reading(tuple(calls), problem, segments)


_OPENING = ours(f"{_HEAD}assistant{_HEAD_END}")


def _first_call(sampled: Sampled) -> int:
    tag = sampled.find(_PYTHON, 0)
    first = _CALL.search(sampled.text, 0, tag if tag >= 0 else len(sampled.text))
    return first.start(1) if first else tag


def _read_call(text: str, start: int, position: int, segments: NDArray[np.uint8]) -> ReadCall:
    """The call whose object, or python tag, is at `position`; what stands from `start` on belongs to it."""
    if text.startswith(_PYTHON, position):
        position += len(_PYTHON)
    body = text[position:]
    fields, end = read_object(body, skip(body, 0))
    keys = sorted(fields.keys() - {"type"})
    if keys not in (["name", "parameters"], ["arguments", "name"]):
        raise Malformed(f"a tool call has the keys name and parameters, got {', '.join(sorted(fields))[:60]}")
    name, arguments = fields["name"], fields.get("parameters") or fields["arguments"]
    if not isinstance(name.value, str) or not isinstance(arguments.value, dict):
        raise Malformed("name must be a string and parameters an object")
    check_encodable(name.value, arguments.value)
    segments[start : position + end] = Segment.TOOL_ARGS
    inside = segments[position:]
    name.tag(inside, Segment.TOOL_NAME)
    tag_arguments(body, arguments.start, name.value, inside)
    return ReadCall(name.value, arguments.value, start, position + end)
