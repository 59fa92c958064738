"""DeepSeek: role tokens with full-width bars, and calls in tokens of their own.

    prompt       <｜begin▁of▁sentence｜>..<｜User｜>..<｜Assistant｜>
    completion   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>edit<｜tool▁sep｜>{..}<｜tool▁call▁end｜>
                 <｜tool▁calls▁end｜><｜end▁of▁sentence｜>; V3, R1: function<｜tool▁sep｜>edit\\n```json\\n{..}\\n```
    observation  <｜tool▁output▁begin｜>..<｜tool▁output▁end｜>; the next completion begins right behind it

V3.1 has `</think>` at the end of its prompt: it thinks not where it has tools.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    listing,
    ours,
    split_system,
    told,
)
from swe_rl.agent.dialects.json_call import check_encodable, read_object, skip, tag_arguments, write
from swe_rl.agent.dialects.marked import THINK_CLOSE, Markers, read_marked, think
from swe_rl.trajectory import Segment

_BEGIN, _END, _USER, _ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_OUTPUT, _OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
_OUTPUTS, _OUTPUTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
_MARKERS = Markers(_CALL, _CALL_END, wrappers=(_CALLS, _CALLS_END))
_FENCED = re.compile(r"([^\s`]+)\n```json\n")
_FENCE_END = "\n```"

_TOOLS = f"""\
IMPORTANT: ALWAYS adhere to this exact format for tool use:
{_CALLS}{_CALL}tool_call_name{_SEP}tool_call_arguments{_CALL_END}{{{{additional_tool_calls}}}}{_CALLS_END}

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces
"""
_R1_TOOLS = f"""\
You are a helpful assistant with tool calling capabilities. When a tool call is needed, you MUST use the following \
format to issue the call:
{_CALLS}{_CALL}function{_SEP}FUNCTION_NAME
```json
{{"param1": "value1", "param2": "value2"}}
```{_CALL_END}{_CALLS_END}

Make sure the JSON is valid.## Tools

### Function

You have the following functions available:

"""


@dataclass(frozen=True, slots=True)
class DeepSeek:
    """`is_fenced`: the way of V3 and R1."""

    name: str = "deepseek-v3.1"
    is_fenced: bool = False
    opens_reasoning: bool = False
    needs: tuple[str, ...] = (_BEGIN, _END, _USER, _ASSISTANT)
    stops: tuple[str, ...] = (_END,)
    answers_errors: bool = False
    differences: Mapping[str, str] = field(
        default_factory=lambda: {
            "reasoning": "the template drops reasoning from the history, where what was sampled stays"
        }
    )

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        system, others = split_system(messages)
        gap = "\n\n" if tools and system.text else ""
        pieces = [ours(_BEGIN), told(system), listing(gap + self._list_tools(tools))]
        for message in others:
            pieces += [ours(_USER), told(message)]
        return [*pieces, self._opening()]

    def _list_tools(self, tools: Sequence[Schema]) -> str:
        if not tools:
            return ""
        if self.is_fenced:
            return _R1_TOOLS + "".join(f"\n```json\n{write(tool)}\n```\n" for tool in tools)
        functions = [tool["function"] for tool in tools]
        described = (
            f"\n### {function['name']}\nDescription: {function.get('description', '')}\n\n"
            f"Parameters: {write(function.get('parameters', {}))}\n"
            for function in functions
        )
        return "## Tools\nYou have access to the following tools:\n" + "".join(described) + "\n" + _TOOLS

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        pieces = [*think(reasoning, False), Piece(prose, Segment.TEXT)]
        for index, (name, arguments) in enumerate(calls):
            gap = "\n" if index and self.is_fenced else ""
            head = f"function{_SEP}{name}\n```json\n" if self.is_fenced else f"{name}{_SEP}"
            pieces += [
                ours(f"{gap if index else _CALLS}{_CALL}{head}"),
                Piece(write(dict(arguments)), Segment.TOOL_ARGS),
            ]
            pieces += [ours((_FENCE_END if self.is_fenced else "") + _CALL_END)]
        return [*pieces, ours(_CALLS_END if calls else ""), ours(_END)]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        pieces = [ours("" if stop else _END)]
        is_answer = False
        for block in blocks(results):
            is_answer = any(result.call for result in block)
            pieces += self._outputs(block) if is_answer else [ours(_USER)]
            pieces += [] if is_answer else [Piece(result.text, Segment.OBSERVATION) for result in block]
        return pieces if is_answer else [*pieces, self._opening()]

    def _outputs(self, results: Sequence[Result]) -> list[Piece]:
        pieces = [ours(_OUTPUTS if self.is_fenced else "")]
        for index, result in enumerate(results):
            gap = "\n" if index and self.is_fenced else ""
            pieces += [ours(gap + _OUTPUT), Piece(result.text, Segment.OBSERVATION), ours(_OUTPUT_END)]
        return [*pieces, ours(_OUTPUTS_END if self.is_fenced else "")]

    def read(self, sampled: Sampled) -> Reading:
        return read_marked(sampled, _MARKERS, _read_call, self.opens_reasoning)

    def _opening(self) -> Piece:
        return ours(_ASSISTANT if self.is_fenced else _ASSISTANT + THINK_CLOSE)


def _read_call(sampled: Sampled, start: int, segments: NDArray[np.uint8]) -> ReadCall:
    """Both ways of writing."""
    text, head = sampled.text, start + len(_CALL)
    sep = sampled.find(_SEP, head)
    if sep < 0:
        raise Malformed(f"{_SEP} must follow the tool's name")
    body = sep + len(_SEP)
    fenced = _FENCED.match(text, body)
    name_at = fenced.span(1) if fenced else (head, sep)
    name, first = text[slice(*name_at)], fenced.end() if fenced else body
    rest = text[first:]
    members, after = read_object(rest, skip(rest, 0))
    close = first + skip(rest, after)
    if fenced and text.startswith("```", close):
        close = skip(text, close + 3)
    if sampled.find(_CALL_END, close) != close:
        raise Malformed(f"{_CALL_END} must follow the JSON object")
    arguments = {key: member.value for key, member in members.items()}
    check_encodable(name, arguments)
    segments[start : close + len(_CALL_END)] = Segment.TOOL_ARGS
    segments[slice(*name_at)] = Segment.TOOL_NAME
    tag_arguments(rest, skip(rest, 0), name, segments[first:])
    return ReadCall(name, arguments, start, close + len(_CALL_END))
