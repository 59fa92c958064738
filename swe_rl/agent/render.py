"""Text to tokens and back, append-only: what the engine saw and sampled is never tokenised again.

Messages and results flow in and token ids with a `Segment` each flow out; sampled ids flow in and tool calls with a
`Segment` for every token flow out. How text looks is the dialect's (`swe_rl.agent.dialects`); here are only tokens.
Special tokens come from the dialect's own text only: text of the task, of files and of tools is encoded by a tokenizer
that doesn't have them, so a literal `<|im_end|>` in a file stays ordinary text.

Rule for a token that straddles two segments: it gets the segment of its first byte.

It isn't thread-safe: one event loop uses it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.dialects.base import Dialect, Message, Piece, Result, Sampled, Schema, declared_types
from swe_rl.agent.recognition import find_dialect
from swe_rl.agent.tools import TOOLS
from swe_rl.agent.vocabulary import Vocabulary
from swe_rl.errors import PolicyError
from swe_rl.trajectory import Segment, ToolCall

__all__ = ["Message", "ParsedCompletion", "Rendered", "Renderer", "Result"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tokens that aren't sampled, each with its segment (TEMPLATE, PROMPT or OBSERVATION)."""

    token_ids: list[int]
    segments: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class ParsedCompletion:
    """`segments` uint8 [n] partitions the n sampled tokens; `problem` is '' iff `calls` can run; `stop` is the stop
    token at the end, '' if there is none."""

    calls: tuple[ToolCall, ...]
    problem: str
    segments: NDArray[np.uint8]
    stop: str


class Renderer:
    """Encodes and parses for one vocabulary in one dialect. `differences`: where the policy's own chat template is
    known to render something else, and why. Raises PolicyError if the vocabulary lacks what the dialect needs."""

    def __init__(self, vocabulary: Vocabulary, dialect: Dialect, differences: Mapping[str, str] | None = None) -> None:
        missing = [token for token in dialect.needs if token not in vocabulary.added]
        stops = [token for token in dialect.stops if token in vocabulary.added]
        if missing or not stops:
            lacking = " ".join(missing) or f"one of {' '.join(dialect.stops)} (ends a completion)"
            raise PolicyError(f"{vocabulary.where}: has no token {lacking}; dialect {dialect.name} needs it")
        self.dialect = dialect
        self.differences = dict(differences or {})
        self.stop_token_ids = tuple(vocabulary.added[token] for token in stops)
        self.token_bytes = vocabulary.token_bytes
        self._vocabulary = vocabulary
        self._types = declared_types([spec.schema() for spec in TOOLS.values()])
        self._added = vocabulary.added
        self._added_text = {token_id: text for text, token_id in vocabulary.added.items()}

    @classmethod
    def from_policy(cls, policy_dir: Path, dialect: str = "auto") -> "Renderer":
        """Reads a Hugging Face directory, finds the dialect (or takes the named one) and compares it with the
        directory's chat template."""
        vocabulary = Vocabulary.from_policy(policy_dir)
        found = find_dialect(policy_dir, vocabulary.added, dialect)
        return cls(vocabulary, found.dialect, found.differences)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> Rendered:
        """All messages, the tools, and the opening of the first completion."""
        return self._render(self.dialect.prompt(messages, tools))

    def observation(self, results: Sequence[Result], stop: str) -> Rendered:
        """One result a call, and the opening of the next completion; `stop` is what the last one ended with."""
        return self._render(self.dialect.observation(results, stop))

    def raw(self, text: str) -> Rendered:
        """A prompt that somebody else has rendered: special tokens that it spells count as such."""
        return self._render([Piece(text, Segment.PROMPT, is_ours=True)])

    def completion(
        self,
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        prose: str = "",
        reasoning: str = "",
        tools: Sequence[Schema] | None = None,
    ) -> list[int]:
        """Token ids of a completion as a policy should write it, the stop token included: for demonstrations. `tools`
        as in `parse`. Raises ValueError for calls that the dialect can't write so that they can be read again."""
        token_ids = self._render(self.dialect.completion(reasoning, prose, calls)).token_ids
        read = [(call.name, dict(call.arguments)) for call in self.parse(token_ids, tools=tools).calls]
        if read != [(name, dict(arguments)) for name, arguments in calls]:
            raise ValueError(f"dialect {self.dialect.name} can't write these calls: they would be read as {read}"[:400])
        return token_ids

    def parse(
        self, token_ids: Sequence[int], offset: int = 0, tools: Sequence[Schema] | None = None
    ) -> ParsedCompletion:
        """Reads sampled tokens; calls carry positions from `offset`. `tools`: those that the prompt listed, None for
        the agent's own. Never raises for what was sampled."""
        stop = self._added_text.get(int(token_ids[-1]), "") if len(token_ids) else ""
        stop = stop if stop in self.dialect.stops else ""
        body = [int(t) for t in token_ids[: len(token_ids) - bool(stop)]]
        spelled = [self.token_bytes(t) for t in body]
        starts = list(accumulate(map(len, spelled), initial=0))
        # surrogateescape maps every byte string to text and back without loss.
        text = b"".join(spelled).decode("utf-8", "surrogateescape")
        places = _Places(text, starts[-1])
        types = self._types if tools is None else declared_types(tools)
        reading = self.dialect.read(Sampled(text, stop, self._finder(body, starts, text, places), types))
        segments = np.empty(len(token_ids), dtype=np.uint8)
        segments[: len(body)] = places.spread(reading.segments)[starts[:-1]]
        segments[len(body) :] = Segment.STOP
        calls = tuple(
            ToolCall(
                name=call.name,
                arguments=call.arguments,
                start=offset + bisect_right(starts, places.byte(call.start), hi=len(body)) - 1,
                end=offset + bisect_left(starts, places.byte(call.end), hi=len(body)),
            )
            for call in reading.calls
        )
        return ParsedCompletion(calls, reading.problem, segments, stop)

    def decode(self, token_ids: Sequence[int]) -> str:
        """For people: special tokens spelled out, bytes that aren't UTF-8 replaced."""
        return b"".join(self.token_bytes(t) for t in token_ids).decode("utf-8", "replace")

    def trim(self, text: str, max_tokens: int) -> str:
        """Keeps head and tail of a text so that it has at most `max_tokens` tokens."""
        # A token rarely spells more than 16 characters: encoding megabytes to keep 256 tokens would stall the loop.
        cut = _cut(text, keep=max_tokens * 16)
        keep = len(cut)
        while (count := len(self._vocabulary.encode(cut).ids)) > max_tokens:
            keep = min(keep - 8, keep * max_tokens // count)
            if keep <= 0:
                return ""
            cut = _cut(text, keep)
        return cut

    def _render(self, pieces: Sequence[Piece]) -> Rendered:
        """Plain text between two special tokens is encoded in one go, as a whole-string tokenizer would."""
        token_ids: list[int] = []
        segments: list[int] = []
        run: list[tuple[str, Segment]] = []

        def flush() -> None:
            encoding = self._vocabulary.encode("".join(text for text, _ in run))
            token_ids.extend(encoding.ids)
            ends = list(accumulate(len(text) for text, _ in run))
            segments.extend(int(run[min(bisect_right(ends, at), len(run) - 1)][1]) for at, _ in encoding.offsets)
            run.clear()

        for piece in pieces:
            for part in self._vocabulary.split(piece.text) if piece.is_ours else [piece.text]:
                if piece.is_ours and part in self._added:
                    flush()
                    token_ids.append(self._added[part])
                    segments.append(int(piece.segment))
                elif part:
                    run.append((part, piece.segment))
        flush()
        return Rendered(token_ids, segments)

    def _finder(
        self, body: Sequence[int], starts: Sequence[int], text: str, places: "_Places"
    ) -> Callable[[str, int], int]:
        """A marker that is a token of its own counts only as that token; any other is found by its spelling."""
        found: dict[int, list[int]] = {}
        for token_id, start in zip(body, starts, strict=False):
            if token_id in self._added_text:
                found.setdefault(token_id, []).append(places.character(start))

        def find(marker: str, position: int) -> int:
            token_id = self._added.get(marker)
            if token_id is None:
                return text.find(marker, position)
            at = found.get(token_id, [])
            index = bisect_left(at, position)
            return at[index] if index < len(at) else -1

        return find


class _Places:
    """Characters of a text and the bytes that they stand for."""

    def __init__(self, text: str, num_bytes: int) -> None:
        self._ends: NDArray[np.int64] | None = None
        if len(text) != num_bytes:
            signs = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
            widths = 1 + (signs >= 0x80) + (signs >= 0x800) + (signs >= 0x10000).astype(np.int64)
            widths[(signs >= 0xDC80) & (signs <= 0xDCFF)] = 1  # a byte that isn't UTF-8
            self._ends = np.concatenate(([0], np.cumsum(widths)))

    def byte(self, character: int) -> int:
        return character if self._ends is None else int(self._ends[character])

    def character(self, byte: int) -> int:
        """The one whose bytes hold this byte."""
        return byte if self._ends is None else int(np.searchsorted(self._ends, byte, side="right")) - 1

    def spread(self, segments: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """From one entry a character to one a byte; the last entry stands for the end."""
        if self._ends is None:
            return segments
        return np.repeat(segments, np.append(np.diff(self._ends), 1))


def _cut(text: str, keep: int) -> str:
    if len(text) <= keep:
        return text
    head, tail = (keep + 1) // 2, keep // 2
    return f"{text[:head]}\n[{len(text) - keep} characters left out]\n{text[len(text) - tail :]}"
