"""The tokens of one episode while it runs: appended, never changed, and made into a `Trajectory` at the end.

Rendered text and completions flow in, one trajectory flows out. It doesn't call an engine or a sandbox.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.render import ParsedCompletion, Rendered
from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion
from swe_rl.inference.routed_experts import RoutedExperts, join_experts
from swe_rl.trajectory import UNKNOWN_EXPERT, Segment, StopReason, Trajectory, Turn
from swe_rl.verdict import Verdict


class Recording:
    """Per-token lists of equal length, aligned as `swe_rl.trajectory` says."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.turns: list[Turn] = []
        self._sampled: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._segments: list[int] = []
        self._turn: list[int] = []
        self._experts: list[RoutedExperts] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_routed(self) -> int:
        """So many first tokens have known experts."""
        return self._experts[-1].end if self._experts else 0

    def add_rendered(self, rendered: Rendered) -> None:
        """Tokens that weren't sampled: the prompt, or what came back after the latest turn."""
        n = len(rendered.token_ids)
        self.token_ids += rendered.token_ids
        self._segments += rendered.segments
        self._sampled += [False] * n
        self._logprobs += [math.nan] * n
        self._versions += [-1] * n
        self._turn += [len(self.turns) - 1] * n

    def add_completion(self, completion: Completion, parsed: ParsedCompletion) -> None:
        """Sampled tokens, as one more turn. Raises EngineError if it says of wrong tokens which experts they had."""
        n, start = len(completion.token_ids), len(self)
        self._add_experts(completion.routed_experts, start + n)
        self.turns.append(Turn(start, start + n, parsed.calls, is_malformed=bool(parsed.problem)))
        self.token_ids += completion.token_ids.tolist()
        self._segments += parsed.segments.tolist()
        self._sampled += [True] * n
        self._logprobs += completion.logprobs.tolist()
        self._versions += completion.policy_version.tolist()
        self._turn += [len(self.turns) - 1] * n

    def as_context(self, length: int) -> "Recording":
        """A new recording that begins with the first `length` tokens, none of them sampled there."""
        context = Recording()
        segments = self._segments[:length]
        context.token_ids = self.token_ids[:length]
        context._segments = [
            int(Segment.PROMPT) if sampled else segment
            for segment, sampled in zip(segments, self._sampled, strict=False)
        ]
        context._sampled = [False] * length
        context._logprobs = [math.nan] * length
        context._versions = [-1] * length
        context._turn = [-1] * length
        context._experts = [
            RoutedExperts(piece.start, piece.experts[: length - piece.start])
            for piece in self._experts
            if piece.start < length
        ]
        return context

    def cut(self, length: int) -> None:
        """Takes back what was rendered behind the first `length` tokens. Raises ValueError if some was sampled."""
        if any(self._sampled[length:]):
            raise ValueError(f"recording: sampled tokens behind token {length} can't be taken back")
        for column in (
            self.token_ids, self._sampled, self._logprobs, self._versions, self._segments, self._turn
        ):  # fmt: skip
            del column[length:]

    def to_trajectory(
        self,
        *,
        ids: tuple[str, str, str, str],
        temperature: float,
        stop_reason: StopReason,
        verdict: Verdict | None,
    ) -> Trajectory:
        """`ids`: trajectory, group, task, split."""
        return Trajectory(
            *ids,
            token_ids=np.asarray(self.token_ids, dtype=np.int32),
            sampled=np.asarray(self._sampled, dtype=np.bool_),
            infer_logprobs=np.asarray(self._logprobs, dtype=np.float32),
            policy_version=np.asarray(self._versions, dtype=np.int32),
            segment=np.asarray(self._segments, dtype=np.uint8),
            turn=np.asarray(self._turn, dtype=np.int16),
            turns=tuple(self.turns),
            temperature=temperature,
            stop_reason=stop_reason,
            verdict=verdict,
            routed_experts=self._routed_experts(),
        )

    def _add_experts(self, experts: RoutedExperts | None, length: int) -> None:
        if experts is None:
            return
        if experts.end > length:
            raise EngineError(f"engine: experts of token {experts.end - 1}, but the context has {length} tokens")
        self._experts.append(experts.beyond(self.num_routed))

    def _routed_experts(self) -> NDArray[np.int16] | None:
        known = join_experts(self._experts)
        if known is None:
            return None
        rest = np.full((len(self) - known.end, *known.experts.shape[1:]), UNKNOWN_EXPERT, dtype=np.int16)
        return np.concatenate([known.experts, rest])


def check_completion(completion: Completion, budget: int, stop_token_ids: Sequence[int], session_id: str) -> None:
    """Raises EngineError for what can't have been sampled: the engine is at fault then, not the policy."""
    ids, logprobs, versions = completion.token_ids, completion.logprobs, completion.policy_version
    where = f"engine, session {session_id}"
    if len(ids) > budget:
        raise EngineError(f"{where}: {len(ids)} tokens sampled, expected at most {budget}")
    for position in np.flatnonzero(~(logprobs <= 1e-6) | ~np.isfinite(logprobs))[:1]:
        raise EngineError(f"{where}: logprob {logprobs[position]} of sampled token {position}, expected finite, <= 0")
    if (ids < 0).any() or (versions < 0).any():
        raise EngineError(f"{where}: a negative token id or policy version, expected both >= 0; load a policy first")
    stops = np.flatnonzero(np.isin(ids, stop_token_ids))
    if len(stops) and stops[0] != len(ids) - 1:
        raise EngineError(f"{where}: went on after stop token {ids[stops[0]]}; expected it to be the last")
