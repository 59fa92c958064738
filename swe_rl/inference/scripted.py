"""An engine that plays a script: deterministic, without a model, for tests and demonstrations.

A function is asked for the text of every completion; its tokens come back as if they had been sampled, each with the
constant log-probability `LOGPROB` and the version that was loaded last. Temperature plays no part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion, SamplingParams

LOGPROB = -0.5
_STOP = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One completion; only after `stop` is the stop token appended (if the text lacks it)."""

    text: str
    finish_reason: Literal["stop", "length", "abort"] = "stop"


Reply = Callable[[str, int, str], str | ScriptedReply]
"""(session_id, turn counted from 0, the whole context as text) -> the completion's text."""


class ScriptedEngine:
    """Implements `Engine`. Special tokens that a reply spells out become special tokens."""

    def __init__(self, reply: Reply, tokenizer_json: Path) -> None:
        self._reply = reply
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._version = -1
        self._turns: dict[str, int] = {}

    @property
    def open_sessions(self) -> tuple[str, ...]:
        """Sessions that generated and weren't released."""
        return tuple(self._turns)

    async def load(self, policy_dir: Path, version: int) -> None:
        """Takes on the version; the directory isn't read."""
        self._version = version

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Raises EngineError before the first `load`. A reply longer than `max_tokens` ends as `length`."""
        if self._version < 0:
            raise EngineError(f"scripted engine: session {session_id} generates before a policy is loaded; call load")
        turn = self._turns.get(session_id, 0)
        self._turns[session_id] = turn + 1
        reply = self._reply(session_id, turn, self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        if isinstance(reply, str):
            reply = ScriptedReply(reply)
        finish_reason = reply.finish_reason
        text = reply.text
        if finish_reason == "stop" and not text.endswith(_STOP):
            text += _STOP
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) > sampling.max_tokens:
            ids, finish_reason = ids[: sampling.max_tokens], "length"
        return Completion(
            token_ids=np.asarray(ids, dtype=np.int32),
            logprobs=np.full(len(ids), LOGPROB, dtype=np.float32),
            policy_version=np.full(len(ids), self._version, dtype=np.int32),
            finish_reason=finish_reason,
        )

    async def release(self, session_id: str) -> None:
        self._turns.pop(session_id, None)

    async def close(self) -> None:
        self._turns.clear()
