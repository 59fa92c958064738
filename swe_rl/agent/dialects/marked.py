"""Reads completions whose reasoning and calls stand between markers; most families write so.

    <think> .. </think>     REASONING, markers included; to the end if it isn't closed
    <open> .. <close>       TOOL_ARGS but for what the family's own reader of one call tags: the tool's name TOOL_NAME,
                            values that change files DIFF
    wrappers                TOOL_ARGS
    the rest                TEXT

What can't be read is a problem, not an exception: up to the closing marker it is TOOL_ARGS.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.dialects.base import Malformed, Piece, ReadCall, Reading, Sampled, ours
from swe_rl.trajectory import Segment

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

ReadOne = Callable[[Sampled, int, NDArray[np.uint8]], ReadCall]
"""(completion, index of the opening marker, segments to tag) -> the call. Raises Malformed, segments untouched."""


@dataclass(frozen=True, slots=True)
class Markers:
    """What stands around a call; `wrappers` may stand around several."""

    open: str
    close: str
    wrappers: tuple[str, ...] = ()


def read_marked(sampled: Sampled, markers: Markers, read_one: ReadOne, opens_reasoning: bool) -> Reading:
    """`opens_reasoning`: the completion begins inside of it."""
    text, find = sampled.text, sampled.find
    segments = np.full(len(text) + 1, Segment.TEXT, dtype=np.uint8)
    calls: list[ReadCall] = []
    problem = ""
    position = sampled.after(THINK_CLOSE, 0) if opens_reasoning else 0
    segments[:position] = Segment.REASONING
    while position < len(text):
        think, call = find(THINK_OPEN, position), find(markers.open, position)
        if think >= 0 and not 0 <= call < think:
            position = sampled.after(THINK_CLOSE, think)
            segments[think:position] = Segment.REASONING
        elif call >= 0:
            try:
                read = read_one(sampled, call, segments)
                calls.append(read)
                position = read.end
            except Malformed as error:
                problem = problem or str(error)
                position = sampled.after(markers.close, call)
                segments[call:position] = Segment.TOOL_ARGS
        else:
            break
    for wrapper in markers.wrappers:
        _tag_wrapper(sampled, wrapper, segments)
    segments[-1] = segments[-2] if text else Segment.TEXT
    return Reading(tuple(calls), problem if calls or problem else "no tool call", segments)


def think(reasoning: str, opens_reasoning: bool) -> list[Piece]:
    """Reasoning in front of a completion; nothing where there is none to close."""
    if not reasoning and not opens_reasoning:
        return []
    opening = [] if opens_reasoning else [ours(f"{THINK_OPEN}\n")]
    return [*opening, Piece(reasoning, Segment.REASONING), ours(f"\n{THINK_CLOSE}\n\n")]


def _tag_wrapper(sampled: Sampled, wrapper: str, segments: NDArray[np.uint8]) -> None:
    at = sampled.find(wrapper, 0)
    while at >= 0:
        if segments[at] == Segment.TEXT:
            segments[at : at + len(wrapper)] = Segment.TOOL_ARGS
        at = sampled.find(wrapper, at + len(wrapper))
