"""Text to tokens and back, append-only: what the engine saw and sampled is never tokenised again.

Messages and observations flow in and token ids with a `Segment` each flow out; sampled ids flow in and tool calls with
a `Segment` for every token flow out. Special tokens come from our own template text only: text of the task, of files
and of tools is encoded by a tokenizer that doesn't have them, so a literal `<|im_end|>` in a file stays ordinary text.

Rule for a token that straddles two segments: it gets the segment of its first byte.

It isn't thread-safe (one event loop uses it), and doesn't know any chat template but ChatML with Hermes tool calls:

    prompt       <|im_start|>system\\n..<|im_end|>\\n<|im_start|>user\\n..<|im_end|>\\n<|im_start|>assistant\\n
    completion   prose <tool_call>\\n{"name": .., "arguments": {..}}\\n</tool_call><|im_end|>
    observation  \\n<|im_start|>user\\n<tool_response>\\n..\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from swe_rl.agent.completion import CALL_CLOSE, CALL_OPEN, FindMarker, read_completion
from swe_rl.errors import PolicyError
from swe_rl.trajectory import Segment, ToolCall

_START, _END = "<|im_start|>", "<|im_end|>"
_STOPS = (_END, "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one segment; only `is_ours` text may hold special tokens."""

    text: str
    segment: Segment
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the prompt; `is_ours`: written by us, not by a task."""

    role: str
    text: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tokens that aren't sampled, each with its segment (TEMPLATE, PROMPT or OBSERVATION)."""

    token_ids: list[int]
    segments: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class ParsedCompletion:
    """`segments` uint8 [n] partitions the n sampled tokens; `problem` is '' iff `calls` can run; `is_closed`: the
    last token is a stop token."""

    calls: tuple[ToolCall, ...]
    problem: str
    segments: NDArray[np.uint8]
    is_closed: bool


class Renderer:
    """Encodes and parses for one tokenizer. Raises PolicyError if that isn't a byte-level one with ChatML tokens."""

    def __init__(self, tokenizer_json: str, where: str = "tokenizer.json") -> None:
        spec = _read_spec(tokenizer_json, where)
        added = {token["content"]: int(token["id"]) for token in spec["added_tokens"]}
        missing = [token for token in (_START, _END) if token not in added]
        if missing:
            raise PolicyError(f"{where}: has no token {missing[0]}; expected a ChatML tokenizer")
        self._added = added
        self._marker = re.compile("(" + "|".join(re.escape(t) for t in sorted(added, key=len, reverse=True)) + ")")
        self._plain = _without_added(spec, where)
        self._bytes = _token_bytes(spec, added, where)
        self.stop_token_ids = tuple(added[token] for token in _STOPS if token in added)

    @classmethod
    def from_policy(cls, policy_dir: Path) -> "Renderer":
        """Reads `tokenizer.json` of a Hugging Face directory."""
        path = Path(policy_dir) / "tokenizer.json"
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise PolicyError(f"{path}: can't be read: {error.strerror}; expected a policy directory") from error

    def prompt(self, messages: Sequence[Message]) -> Rendered:
        """All messages, and the opening of the first completion."""
        pieces: list[Piece] = []
        for message in messages:
            pieces += [_ours(f"{_START}{message.role}\n")]
            pieces += [Piece(message.text, Segment.PROMPT, message.is_ours), _ours(f"{_END}\n")]
        return self._render([*pieces, _ours(f"{_START}assistant\n")])

    def observation(self, texts: Sequence[str], is_closed: bool = True) -> Rendered:
        """One response a call, and the opening of the next completion; first closes a completion that isn't."""
        pieces = [_ours(("" if is_closed else _END) + f"\n{_START}user")]
        for text in texts:
            pieces += [_ours("\n<tool_response>\n"), Piece(text, Segment.OBSERVATION), _ours("\n</tool_response>")]
        return self._render([*pieces, _ours(f"{_END}\n{_START}assistant\n")])

    def completion(self, calls: Sequence[tuple[str, Mapping[str, Any]]], prose: str = "") -> list[int]:
        """Token ids of a completion as a policy should write it, the stop token included: for demonstrations."""
        pieces = [Piece(prose, Segment.TEXT)]
        for index, (name, arguments) in enumerate(calls):
            body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
            pieces += [_ours(("\n" if index or prose else "") + f"{CALL_OPEN}\n"), Piece(body, Segment.TOOL_ARGS)]
            pieces += [_ours(f"\n{CALL_CLOSE}")]
        return self._render([*pieces, _ours(_END)]).token_ids

    def parse(self, token_ids: Sequence[int], offset: int = 0) -> ParsedCompletion:
        """Reads sampled tokens; calls carry positions from `offset`. Never raises for what was sampled."""
        is_closed = bool(len(token_ids)) and int(token_ids[-1]) in self.stop_token_ids
        body = [int(t) for t in token_ids[: len(token_ids) - is_closed]]
        pieces = [self.token_bytes(t) for t in body]
        starts = list(accumulate((len(p) for p in pieces), initial=0))
        reading = read_completion(b"".join(pieces), self._finder(body, starts, b"".join(pieces)))
        segments = np.empty(len(token_ids), dtype=np.uint8)
        segments[: len(body)] = reading.segments[starts[:-1]]
        segments[len(body) :] = Segment.STOP
        calls = tuple(
            ToolCall(
                name=call.name,
                arguments=call.arguments,
                start=offset + bisect_right(starts, call.start, hi=len(body)) - 1,
                end=offset + bisect_left(starts, call.end, hi=len(body)),
            )
            for call in reading.calls
        )
        return ParsedCompletion(calls, reading.problem, segments, is_closed)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token spells; b'' for an id that the vocabulary leaves unused."""
        return self._bytes.get(int(token_id), b"")

    def decode(self, token_ids: Sequence[int]) -> str:
        """For people: special tokens spelled out, bytes that aren't UTF-8 replaced."""
        return b"".join(self.token_bytes(t) for t in token_ids).decode("utf-8", "replace")

    def trim(self, text: str, max_tokens: int) -> str:
        """Keeps head and tail of a text so that it has at most `max_tokens` tokens."""
        # A token rarely spells more than 16 characters: encoding megabytes to keep 256 tokens would stall the loop.
        cut = _cut(text, keep=max_tokens * 16)
        keep = len(cut)
        while (count := len(self._plain.encode(cut, add_special_tokens=False).ids)) > max_tokens:
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
            ids = self._plain.encode("".join(text for text, _ in run), add_special_tokens=False).ids
            token_ids.extend(ids)
            segments.extend(self._tag(ids, run))
            run.clear()

        for piece in pieces:
            for part in self._marker.split(piece.text) if piece.is_ours else [piece.text]:
                if piece.is_ours and part in self._added:
                    flush()
                    token_ids.append(self._added[part])
                    segments.append(int(piece.segment))
                elif part:
                    run.append((part, piece.segment))
        flush()
        return Rendered(token_ids, segments)

    def _tag(self, ids: Sequence[int], run: Sequence[tuple[str, Segment]]) -> list[int]:
        ends = list(accumulate(len(text.encode("utf-8", "replace")) for text, _ in run))
        starts = list(accumulate((len(self.token_bytes(t)) for t in ids), initial=0))[:-1]
        # A normaliser may lengthen text: what lies past the last end belongs to the last part.
        return [int(run[min(bisect_right(ends, start), len(run) - 1)][1]) for start in starts]

    def _finder(self, body: Sequence[int], starts: Sequence[int], data: bytes) -> FindMarker:
        """A marker that is a token of its own counts only as that token; any other is found by its bytes."""

        def find(marker: str, position: int) -> int:
            token_id = self._added.get(marker)
            if token_id is None:
                return data.find(marker.encode(), position)
            first = bisect_left(starts, position)
            return next((starts[i] for i in range(first, len(body)) if body[i] == token_id), -1)

        return find


def _ours(text: str) -> Piece:
    return Piece(text, Segment.TEMPLATE, is_ours=True)


def _cut(text: str, keep: int) -> str:
    if len(text) <= keep:
        return text
    head, tail = (keep + 1) // 2, keep // 2
    return f"{text[:head]}\n[{len(text) - keep} characters left out]\n{text[len(text) - tail :]}"


def _read_spec(tokenizer_json: str, where: str) -> dict[str, Any]:
    try:
        spec = json.loads(tokenizer_json)
    except json.JSONDecodeError as error:
        raise PolicyError(f"{where}: not JSON: {error}") from error
    kind = spec.get("model", {}).get("type")
    if kind != "BPE" or not isinstance(spec.get("added_tokens"), list):
        raise PolicyError(f"{where}: model type is {kind!r}, expected a byte-level 'BPE' with added_tokens")
    return dict(spec)


def _without_added(spec: Mapping[str, Any], where: str) -> Tokenizer:
    """The same tokenizer without its added tokens, also where the model's vocabulary repeats them."""
    contents = {token["content"] for token in spec["added_tokens"]}
    vocab = {token: i for token, i in spec["model"]["vocab"].items() if token not in contents}
    plain = {**spec, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps({**plain, "model": {**spec["model"], "vocab": vocab}}))
    except Exception as error:  # the library raises bare Exception
        raise PolicyError(f"{where}: the tokenizer can't be built: {error}") from error


def _token_bytes(spec: Mapping[str, Any], added: Mapping[str, int], where: str) -> dict[int, bytes]:
    alphabet = _byte_alphabet()
    table: dict[int, bytes] = {}
    for token, token_id in spec["model"]["vocab"].items():
        if token in added:
            continue
        try:
            table[token_id] = bytes(alphabet[sign] for sign in token)
        except KeyError as error:
            raise PolicyError(f"{where}: token {token!r} isn't in the byte-level alphabet") from error
    return table | {token_id: token.encode("utf-8") for token, token_id in added.items()}


def _byte_alphabet() -> dict[str, int]:
    """Sign -> byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
