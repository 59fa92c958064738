"""Which experts of a model the tokens of one context passed through, as one generation tells it.

A context is computed in pieces: turn by turn, and anew after a generation was cut or a cache was lost. Pieces are put
together by position, without a gap, and where two overlap the earlier one stands: by it the next token was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swe_rl.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class RoutedExperts:
    """int16 [m, L, K]: K experts in each of L layers, of the m tokens of the context from position `start` on."""

    start: int
    experts: NDArray[np.int16]

    def __post_init__(self) -> None:
        if self.start < 0 or self.experts.ndim != 3 or self.experts.dtype != np.int16:
            raise EngineError(
                f"engine: experts from token {self.start} on are {self.experts.dtype} {self.experts.shape}, "
                "expected int16 (tokens, layers, experts) from 0 or more"
            )

    @property
    def end(self) -> int:
        return self.start + len(self.experts)

    def beyond(self, position: int) -> "RoutedExperts":
        """What is said of the tokens from `position` on. Raises EngineError if one of them is passed over."""
        if self.start > position:
            raise EngineError(
                f"engine: experts are told from token {self.start} on, expected from {position} on, without a gap"
            )
        return RoutedExperts(position, self.experts[position - self.start :])


def join_experts(pieces: Sequence[RoutedExperts | None]) -> RoutedExperts | None:
    """One of several in the order in which they were computed; None for none. Raises EngineError for a gap."""
    told = [piece for piece in pieces if piece is not None]
    if not told:
        return None
    parts, end = [told[0].experts], told[0].end
    for piece in told[1:]:
        parts.append(piece.beyond(end).experts)
        end = max(end, piece.end)
    if len({part.shape[1:] for part in parts}) > 1:
        raise EngineError(
            f"engine: experts of {sorted({part.shape[1:] for part in parts})} in one context: two models?"
        )
    return RoutedExperts(told[0].start, np.concatenate(parts))
