"""ChatML with calls in tags: Qwen3-Coder, and Qwen 3.5, which thinks, lists tools as JSON and lists them first.

    completion   prose\\n\\n<tool_call>\\n<function=edit>\\n<parameter=path>\\na.py\\n</parameter>\\n</function>\\n
                 </tool_call>

A value stands between two line ends as it is, unescaped: one that holds `</parameter>` and then `<parameter=` or
`</function>` can't be written. Values are text; what the tool declares to be something else is JSON.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.dialects.base import (
    Call,
    Malformed,
    Message,
    Piece,
    ReadCall,
    Reading,
    Result,
    Sampled,
    Schema,
    blocks,
    is_diff,
    listing,
    ours,
    split_system,
    told,
    typed,
)
from swe_rl.agent.dialects.hermes import CALL_CLOSE, CALL_OPEN, IM_END, IM_START
from swe_rl.agent.dialects.json_call import check_encodable, skip, write
from swe_rl.agent.dialects.marked import THINK_OPEN, Markers, read_marked, think
from swe_rl.trajectory import Segment

_FORMAT = """\


If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell \
the user about function calls
</IMPORTANT>"""

_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?")
_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_CLOSE = "</function>"


HEADING = "# Tools\n\n"
EFFORT = (
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.\n\n"
)


@dataclass(frozen=True, slots=True)
class QwenXml:
    """`is_coder`: Qwen3-Coder's way, else Qwen 3.5's; `heading` of the tools, which its first release didn't have,
    and to which 3.8 adds the effort."""

    name: str = "qwen3-coder"
    is_coder: bool = True
    heading: str = HEADING
    needs: tuple[str, ...] = (IM_START, IM_END)
    stops: tuple[str, ...] = (IM_END, "<|endoftext|>")
    answers_errors: bool = True
    differences: Mapping[str, str] = field(
        default_factory=lambda: {"reasoning": "a template that knows no reasoning leaves it out of the history"}
    )

    @property
    def opens_reasoning(self) -> bool:
        return not self.is_coder

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        pieces: list[Piece] = []
        if tools:
            system, messages = split_system(messages)
            pieces = [ours(f"{IM_START}system\n"), *self._system(system, tools), ours(f"{IM_END}\n")]
        for message in messages:
            pieces += [ours(f"{IM_START}{message.role}\n"), told(message), ours(f"{IM_END}\n")]
        return [*pieces, self._opening()]

    def _system(self, system: Message, tools: Sequence[Schema]) -> list[Piece]:
        if self.is_coder:
            tools_text, text = "\n".join(_describe(tool["function"]) for tool in tools), system.text
        else:
            tools_text, text = "\n".join(write(tool) for tool in tools), system.text.strip()
        head = f"{self.heading}You have access to the following functions:\n\n<tools>\n{tools_text}\n</tools>{_FORMAT}"
        gap = "\n\n" if text else ""
        if self.is_coder:
            return [told(system, text), listing(gap + head)]
        return [listing(head + gap), told(system, text)]

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        pieces = [*think(reasoning, self.opens_reasoning), Piece(prose, Segment.TEXT)]
        for index, (name, arguments) in enumerate(calls):
            gap = "\n" if index else "\n\n" if prose else ""
            pieces += [ours(f"{gap}{CALL_OPEN}\n<function={name}>\n")]
            for key, value in arguments.items():
                text = value if isinstance(value, str) else write(value)
                pieces += [ours(f"<parameter={key}>\n"), Piece(text, Segment.TOOL_ARGS), ours("\n</parameter>\n")]
            pieces += [ours(f"{_FUNCTION_CLOSE}\n{CALL_CLOSE}")]
        return [*pieces, ours(IM_END)]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        before, after = ("", "\n") if self.is_coder else ("\n", "")
        pieces = [ours("" if stop else IM_END)]
        for block in blocks(results):
            pieces += [ours(f"\n{IM_START}user" + ("\n" if self.is_coder or block[0].by_user else ""))]
            for result in block:
                if result.by_user:
                    pieces += [Piece(result.text, Segment.OBSERVATION)]
                    continue
                pieces += [ours(f"{before}<tool_response>\n"), Piece(result.text, Segment.OBSERVATION)]
                pieces += [ours(f"\n</tool_response>{after}")]
            pieces += [ours(IM_END)]
        return [*pieces, ours("\n"), self._opening()]

    def read(self, sampled: Sampled) -> Reading:
        return read_marked(sampled, Markers(CALL_OPEN, CALL_CLOSE), _read_call, self.opens_reasoning)

    def _opening(self) -> Piece:
        return ours(f"{IM_START}assistant\n" + (f"{THINK_OPEN}\n" if self.opens_reasoning else ""))


def _describe(function: Mapping[str, Any]) -> str:
    """A tool as Qwen3-Coder lists it; what a scaffold's tool doesn't say is left out."""
    parameters = function.get("parameters", {})
    lines = ["<function>", f"<name>{function['name']}</name>", *_tags(function, "description"), "<parameters>"]
    for name, spec in parameters.get("properties", {}).items():
        lines += ["<parameter>", f"<name>{name}</name>", *_tags(spec, "type", "description"), "</parameter>"]
    return "\n".join([*lines, *_tags(parameters, "required"), "</parameters>", "</function>"])


def _tags(described: Mapping[str, Any], *keys: str) -> list[str]:
    return [f"<{key}>{described[key]}</{key}>" for key in keys if key in described]


def _read_call(sampled: Sampled, start: int, segments: NDArray[np.uint8]) -> ReadCall:
    text = sampled.text
    function = _FUNCTION.match(text, skip(text, start + len(CALL_OPEN)))
    if function is None:
        raise Malformed("a tool call begins with <function=its name>")
    name, position = function[1], skip(text, function.end())
    arguments: dict[str, Any] = {}
    changes: list[tuple[int, int]] = []
    while parameter := _PARAMETER.match(text, position):
        end = _END.search(text, parameter.end())
        if end is None:
            raise Malformed(f"the parameter {parameter[1][:60]} isn't closed by </parameter>")
        if parameter[1] in arguments:
            raise Malformed("a parameter occurs twice")
        value = text[parameter.end() : end.start()]
        arguments[parameter[1]] = typed(value, sampled.types.get((name, parameter[1])))
        if is_diff(name, parameter[1]):
            changes.append((parameter.end(), parameter.end() + len(value)))
        position = skip(text, end.end())
    if not text.startswith(_FUNCTION_CLOSE, position):
        raise Malformed(f"<parameter=its name> or {_FUNCTION_CLOSE} must follow")
    close = skip(text, position + len(_FUNCTION_CLOSE))
    if sampled.find(CALL_CLOSE, close) != close:
        raise Malformed(f"{CALL_CLOSE} must follow {_FUNCTION_CLOSE}")
    check_encodable(name, arguments)
    segments[start : close + len(CALL_CLOSE)] = Segment.TOOL_ARGS
    segments[function.start(1) : function.end(1)] = Segment.TOOL_NAME
    for first, last in changes:
        segments[first:last] = Segment.DIFF
    return ReadCall(name, arguments, start, close + len(CALL_CLOSE))
