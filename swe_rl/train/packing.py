"""Which trajectories lie in which row, and as which pieces.

A trajectory is one piece, or, where siblings lie in one row and their prompt is shared, a tail behind the prompt that
stands there once. No token of a trajectory that is sampled is ever shared. Lengths and numbers only; no tensors.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swe_rl.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Member:
    """A trajectory as packing sees it: members of one family have their first `prefix` tokens in common."""

    length: int
    family: Hashable
    prefix: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens start:stop of member `index`, one document of a row; a prompt that is shared is its first owner's."""

    index: int
    start: int
    stop: int
    is_shared: bool = False
    is_tail: bool = False


def shared_prompt(trajectories: Sequence[Trajectory], with_experts: bool = False) -> int:
    """The number of first tokens that all have in common and none has sampled.

    `with_experts`: and that passed through the same recorded experts in all; a shared token can replay only one's.
    """
    limit = min(int(np.argmax(t.sampled)) for t in trajectories)
    heads = np.stack([t.token_ids[:limit] for t in trajectories])
    differs = (heads != heads[0]).any(axis=0)
    if with_experts:
        differs |= _differ_in_experts(trajectories, limit)
    return int(np.argmax(differs)) if differs.any() else limit


def _differ_in_experts(trajectories: Sequence[Trajectory], limit: int) -> NDArray[np.bool_]:
    """[limit]; the order of a token's experts counts, as sums over them are rounded in it."""
    recorded = [t.routed_experts[:limit] for t in trajectories if t.routed_experts is not None]
    differs = np.zeros(limit, dtype=np.bool_)
    for experts in recorded:
        differs |= (experts != recorded[0]).any(axis=(1, 2))
    return differs


def pack(members: Sequence[Member], row_tokens: int) -> list[list[Piece]]:
    """First fit, longest first: the pieces of each row. A member that is longer than a row has one of its own.

    Families come one after another, and a member goes to a row that has its prompt already, if there is room.
    """
    rows: list[dict[Hashable, list[int]]] = []
    room: list[int] = []
    longest: dict[Hashable, int] = {}
    for member in members:
        longest[member.family] = max(longest.get(member.family, 0), member.length)
    first = {member.family: index for index, member in reversed(list(enumerate(members)))}

    def order(index: int) -> tuple[int, int, int]:
        member = members[index]
        return -longest[member.family], first[member.family], -member.length

    for index in sorted(range(len(members)), key=order):
        row, cost = _find_row(members[index], rows, room)
        if row == len(rows):
            rows.append({})
            room.append(row_tokens)
        rows[row].setdefault(members[index].family, []).append(index)
        room[row] -= cost
    return [[piece for family in row.values() for piece in _pieces(members, family)] for row in rows]


def _find_row(member: Member, rows: Sequence[dict[Hashable, list[int]]], room: Sequence[int]) -> tuple[int, int]:
    """(index of the row, tokens that the member adds to it); the index is that of a new row if none has room."""
    tail = member.length - member.prefix
    for index, row in enumerate(rows):
        if member.family in row and room[index] >= tail:
            return index, tail
    fitting = (index for index, left in enumerate(room) if left >= member.length and member.family not in rows[index])
    return next(fitting, len(rows)), member.length


def _pieces(members: Sequence[Member], indices: Sequence[int]) -> list[Piece]:
    prefix = members[indices[0]].prefix
    if len(indices) == 1 or prefix == 0:
        return [Piece(index, 0, members[index].length) for index in indices]
    tails = [Piece(index, prefix, members[index].length, is_tail=True) for index in indices]
    return [Piece(indices[0], 0, prefix, is_shared=True), *tails]
