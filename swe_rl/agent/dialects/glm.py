"""GLM 4.5 and later: role tokens, calls as pairs of keys and values, and a stop token that opens what follows.

    prompt       [gMASK]<sop><|system|>\\n..<|user|>\\n..<|assistant|>
    completion   \\n<think>..</think>\\nprose\\n<tool_call>edit\\n<arg_key>path</arg_key>\\n
                 <arg_value>a.py</arg_value>\\n</tool_call><|observation|>
    observation  \\n<tool_response>\\n..\\n</tool_response><|assistant|>

4.7 and 5 write the same without line ends and begin inside of reasoning. Values are text as it is; what a tool
declares to be something else is JSON. A completion ends with the token of the role that speaks next:
`<|observation|>` behind calls, `<|user|>` else; a completion that was cut gets the one that fits.
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
    ours,
    told,
    typed,
)
from swe_rl.agent.dialects.hermes import CALL_CLOSE, CALL_OPEN
from swe_rl.agent.dialects.json_call import check_encodable, skip, write
from swe_rl.agent.dialects.marked import THINK_CLOSE, THINK_OPEN, Markers, read_marked
from swe_rl.trajectory import Segment

_SYSTEM, _USER, _ASSISTANT, _OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME = re.compile(r"[^<>\s]+")
_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, output the function name and arguments within the following XML format:
"""
_FORMAT = (
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
)


@dataclass(frozen=True, slots=True)
class Glm:
    """`line_end`: what stands between the parts, a line end in 4.5 and 4.6; `is_bare`: tools are listed without what
    wraps a function; `effort` is what the prompt asks for at its very beginning, '' for nothing."""

    name: str = "glm-4.5"
    line_end: str = "\n"
    is_bare: bool = False
    effort: str = ""
    needs: tuple[str, ...] = ("[gMASK]", "<sop>", _SYSTEM, _USER, _ASSISTANT, _OBSERVATION)
    stops: tuple[str, ...] = (_OBSERVATION, _USER, "<|endoftext|>")
    answers_errors: bool = False
    differences: Mapping[str, str] = field(
        default_factory=lambda: {
            "error": "reasoning from before a user's message is dropped, where what was sampled stays"
        }
    )

    @property
    def opens_reasoning(self) -> bool:
        return not self.line_end

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        pieces = [ours("[gMASK]<sop>" + (f"{_SYSTEM}Reasoning Effort: {self.effort}" if self.effort else ""))]
        if tools:
            listed = [tool["function"] if self.is_bare else tool for tool in tools]
            listing = _TOOLS.format(tools="\n".join(map(write, listed)))
            pieces += [ours(f"{_SYSTEM}\n{listing}" + _FORMAT.replace("\n", self.line_end))]
        for message in messages:
            pieces += [ours((_SYSTEM if message.role == "system" else _USER) + self.line_end), told(message)]
        return [*pieces, self._opening()]

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        end = self.line_end
        pieces = [] if self.opens_reasoning else [ours(f"{end}{THINK_OPEN}")]
        pieces += [Piece(reasoning, Segment.REASONING), ours(THINK_CLOSE + (end if prose else ""))]
        pieces += [Piece(prose, Segment.TEXT)]
        for name, arguments in calls:
            pieces += [ours(f"{end}{CALL_OPEN}"), Piece(name, Segment.TOOL_NAME), ours(end)]
            for key, value in arguments.items():
                text = value if isinstance(value, str) else write(value)
                pieces += [ours(f"{_KEY}{key}{_KEY_END}{end}{_VALUE}"), Piece(text, Segment.TOOL_ARGS)]
                pieces += [ours(f"{_VALUE_END}{end}")]
            pieces += [ours(CALL_CLOSE)]
        return [*pieces, ours(_OBSERVATION if calls else _USER)]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        end = self.line_end
        pieces: list[Piece] = []
        before = stop
        for block in blocks(results):
            is_answer = any(result.call for result in block)
            role = before if before in (_OBSERVATION, _USER) else _OBSERVATION if is_answer else _USER
            role = _USER if block[0].by_user else role
            pieces += [ours("" if before == role else role)]
            before = ""
            for result in block:
                if role == _USER:
                    pieces += [ours(end), Piece(result.text, Segment.OBSERVATION)]
                else:
                    pieces += [ours(f"{end}<tool_response>{end}"), Piece(result.text, Segment.OBSERVATION)]
                    pieces += [ours(f"{end}</tool_response>")]
        return [*pieces, self._opening()]

    def read(self, sampled: Sampled) -> Reading:
        return read_marked(sampled, Markers(CALL_OPEN, CALL_CLOSE), _read_call, self.opens_reasoning)

    def _opening(self) -> Piece:
        return ours(_ASSISTANT + (THINK_OPEN if self.opens_reasoning else ""))


def _read_call(sampled: Sampled, start: int, segments: NDArray[np.uint8]) -> ReadCall:
    """Both ways of writing."""
    text, find = sampled.text, sampled.find
    name = _NAME.match(text, skip(text, start + len(CALL_OPEN)))
    if name is None:
        raise Malformed("a tool call begins with the tool's name")
    position = skip(text, name.end())
    arguments: dict[str, Any] = {}
    changes: list[tuple[int, int]] = []
    while find(_KEY, position) == position:
        key_end = find(_KEY_END, position)
        key = text[position + len(_KEY) : max(key_end, 0)].strip()
        value = skip(text, key_end + len(_KEY_END))
        if key_end < 0 or find(_VALUE, value) != value:
            raise Malformed(f"{_KEY}its name{_KEY_END} and then {_VALUE} must follow")
        first, last = value + len(_VALUE), find(_VALUE_END, value)
        if last < 0:
            raise Malformed(f"the value of {key[:60]} isn't closed by {_VALUE_END}")
        if key in arguments:
            raise Malformed("a key occurs twice")
        arguments[key] = typed(text[first:last], sampled.types.get((name[0], key)))
        if is_diff(name[0], key):
            changes.append((first, last))
        position = skip(text, last + len(_VALUE_END))
    if find(CALL_CLOSE, position) != position:
        raise Malformed(f"{_KEY} or {CALL_CLOSE} must follow")
    check_encodable(name[0], arguments)
    end = position + len(CALL_CLOSE)
    segments[start:end] = Segment.TOOL_ARGS
    segments[name.start() : name.end()] = Segment.TOOL_NAME
    for span in changes:
        segments[slice(*span)] = Segment.DIFF
    return ReadCall(name[0], arguments, start, end)
