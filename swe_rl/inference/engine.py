"""The seam to a sampler: token ids in; token ids, their log-probabilities and the policy version of each out.

An engine of a model with experts also says, where it is asked to, which of them each token passed through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from swe_rl.errors import EngineError
from swe_rl.inference.routed_experts import RoutedExperts


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Full-support sampling only: truncation (top-p, top-k) would make the log-probabilities lie.

    temperature 0 is greedy; its log-probabilities are those at temperature 1. `experts_from`: the first position of the
    context whose experts the caller doesn't know yet; it matters only with `engine.return_routed_experts`.
    """

    temperature: float
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    experts_from: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """n sampled tokens (the stop token is one of them): ids int32 [n], logprobs float32 [n] after temperature,
    policy_version int32 [n]. `cached_tokens`: how much of the prompt a prefix cache served. `routed_experts`: of the
    context's and the sampled tokens from `SamplingParams.experts_from` on; the last sampled one was never computed."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    policy_version: NDArray[np.int32]
    finish_reason: Literal["stop", "length", "abort"]
    cached_tokens: int = 0
    routed_experts: RoutedExperts | None = None

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if len(self.logprobs) != n or len(self.policy_version) != n:
            raise EngineError(
                f"engine: {n} token ids, {len(self.logprobs)} log-probabilities, "
                f"{len(self.policy_version)} versions; expected equal counts"
            )


class Engine(Protocol):
    """Samples from one policy at a time. Raises EngineError for its own faults."""

    async def load(self, policy_dir: Path, version: int) -> None:
        """Serves the weights of a Hugging Face directory as `version`; no cache of older weights is used after."""
        ...

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Continues `token_ids` (the whole context so far). `session_id` ties the turns of an episode to a cache."""
        ...

    async def release(self, session_id: str) -> None:
        """The episode is over: drop what is cached for it; aborts its generation if one runs."""
        ...

    async def close(self) -> None: ...
