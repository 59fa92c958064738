"""Continuous batching over slots: which requests run, where their cache lies, and what each step samples.

    submit -> waiting -> (slot; prefill of what its cache lacks) -> running, one token a step -> Completion

A session keeps its slot between turns, so its next turn prefills only new tokens; idle slots are evicted, least
recently used first, when a request has none. Before a decode the running slots are moved to the front, so that it
reads one dense block. Single-threaded; it knows nothing of asyncio.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.local_decoder import ROW_BLOCK, Chunk, SlotDecoder
from swe_rl.inference.local_sampling import sample, uniforms
from swe_rl.inference.routed_experts import RoutedExperts

_WORTH_A_SWAP = 64  # tokens
_PREFILL_TOKENS = 4096  # of one forward: bounds its memory and how long running rows wait


@dataclass(slots=True, eq=False)
class Request:
    """One call of `generate`; its future is always resolved, with a Completion or an EngineError."""

    session_id: str
    token_ids: list[int]
    sampling: SamplingParams
    future: "Future[Completion]" = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Running:
    request: Request
    uniforms: NDArray[np.float64]
    limit: int
    cached_tokens: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Slot:
    """`cached`: the token ids whose keys and values the slot holds."""

    index: int
    session_id: str | None = None
    cached: list[int] = field(default_factory=list)
    last_used: int = 0
    running: _Running | None = None


class Scheduler:
    """Runs requests on one policy. `step` until `is_idle`; errors of a step leave it to `fail_all`."""

    def __init__(
        self, decoder: SlotDecoder, num_slots: int, max_context: int, version: int, seed: int, requests: Counter[str]
    ) -> None:
        """`requests`: how many each session has made under this version; counted on from there."""
        self.version = version
        self.requests = requests
        self._decoder = decoder
        self._max_context = max_context
        self._seed = seed
        self._slots = [_Slot(index) for index in range(num_slots)]
        self._by_session: dict[str, _Slot] = {}
        self._waiting: list[Request] = []
        self._clock = 0

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not any(slot.running for slot in self._slots)

    def submit(self, request: Request) -> None:
        """Queues a request, or resolves it at once if it can't run."""
        problem = self._problem(request)
        if problem:
            request.future.set_exception(EngineError(f"local engine: session {request.session_id}: {problem}"))
        elif len(request.token_ids) >= self._max_context:
            request.future.set_result(_completion([], [], self.version, "length", 0))
        else:
            self._waiting.append(request)

    def release(self, session_id: str) -> None:
        """Forgets a session; what it is generating ends as `abort`."""
        for request in [r for r in self._waiting if r.session_id == session_id]:
            self._waiting.remove(request)
            request.future.set_result(_completion([], [], self.version, "abort", 0))
        slot = self._by_session.get(session_id)
        if slot is not None:
            if slot.running is not None:
                self._finish(slot, "abort")
            self._vacate(slot)

    def fail_all(self, error: EngineError) -> None:
        """Resolves everything queued or running with the error and forgets every cache, which may be poisoned."""
        for request in self._waiting:
            request.future.set_exception(error)
        self._waiting.clear()
        for slot in self._slots:
            if slot.running is not None:
                slot.running.request.future.set_exception(error)
                slot.running = None
            self._vacate(slot)
        self._decoder.clear()

    def step(self) -> None:
        """Admits what fits, prefills it, then decodes one token of every running slot."""
        self._clock += 1
        admitted = self._admit()
        for batch in _batches(admitted):
            self._accept([slot for slot, _ in batch], self._decoder.prefill([chunk for _, chunk in batch]))
        slots = self._compact()
        if slots:
            positions = [len(slot.cached) for slot in slots]
            tokens = [slot.running.ids[-1] for slot in slots if slot.running]
            logits_BV = self._decoder.decode(tokens, positions)
            for slot, token in zip(slots, tokens, strict=True):
                slot.cached.append(token)
            self._accept(slots, logits_BV)

    def _problem(self, request: Request) -> str:
        ids, vocab = request.token_ids, self._decoder.vocab_size
        if not ids:
            return "no tokens to continue, expected at least one"
        if min(ids) < 0 or max(ids) >= vocab:
            return f"token ids span {min(ids)} to {max(ids)}, expected 0 to {vocab - 1}: is it this policy's tokenizer?"
        if request.sampling.max_tokens < 1 or not request.sampling.temperature >= 0:
            return f"{request.sampling}, expected max_tokens >= 1 and temperature >= 0"
        slot = self._by_session.get(request.session_id)
        if (slot and slot.running) or any(r.session_id == request.session_id for r in self._waiting):
            return "a generation of this session is still running; await it or release the session first"
        return ""

    def _admit(self) -> list[tuple[_Slot, Chunk]]:
        """Requests whose session still has its slot go first: nobody else may evict it from under them."""
        if not self._waiting:
            return []
        admitted, homeless = [], []
        for request in self._waiting:
            slot = self._by_session.get(request.session_id)
            if slot is None:
                homeless.append(request)
            else:
                admitted.append((slot, self._start(slot, request)))
        self._waiting = []
        for request in homeless:
            idle = [slot for slot in self._slots if slot.running is None]
            if not idle:
                self._waiting.append(request)
                continue
            slot = min(idle, key=lambda s: (s.session_id is not None, s.last_used))
            self._vacate(slot)
            slot.session_id = request.session_id
            self._by_session[request.session_id] = slot
            admitted.append((slot, self._start(slot, request)))
        return admitted

    def _start(self, slot: _Slot, request: Request) -> Chunk:
        ids = request.token_ids
        start = min(_common_prefix(slot.cached, ids), len(ids) - 1)  # the last token's logits are always computed anew
        limit = min(request.sampling.max_tokens, self._max_context - len(ids))
        session = request.session_id
        numbers = uniforms(self._seed, self.version, session, self.requests[session], limit)
        self.requests[session] += 1
        slot.running = _Running(request, numbers, limit, start)
        slot.cached = ids.copy()
        slot.last_used = self._clock
        return Chunk(slot.index, start, ids[start:])

    def _compact(self) -> list[_Slot]:
        """Moves running slots to the front; returns them in the order of their rows."""
        running = [slot for slot in self._slots if slot.running]
        count = len(running)
        holes = [slot for slot in self._slots[:count] if not slot.running]
        movers = sorted((slot for slot in running if slot.index >= count), key=lambda slot: len(slot.cached))
        for hole, slot in zip(holes, movers, strict=True):
            self._swap(hole, slot)
        self._sort_blocks(count)
        return self._slots[:count]

    def _sort_blocks(self, count: int) -> None:
        """Moves one long row of each block of decoded rows behind a short one of the last block, where that pays."""
        starts = range(0, count, ROW_BLOCK)
        last = self._slots[starts[-1] : count] if count else []
        for start in starts[:-1]:
            longest = max(self._slots[start : start + ROW_BLOCK], key=lambda slot: len(slot.cached))
            shortest = min(last, key=lambda slot: len(slot.cached))
            if len(longest.cached) > len(shortest.cached) + _WORTH_A_SWAP:
                self._swap(longest, shortest)
                last = self._slots[starts[-1] : count]

    def _swap(self, one: _Slot, two: _Slot) -> None:
        self._decoder.swap(one.index, two.index, max(len(one.cached), len(two.cached)))
        one.index, two.index = two.index, one.index
        self._slots[one.index], self._slots[two.index] = one, two

    def _accept(self, slots: Sequence[_Slot], logits_BV: torch.Tensor) -> None:
        """Samples one token for each slot and ends those that are done."""
        rows = [slot.running for slot in slots if slot.running]
        temperature_B = torch.tensor([row.request.sampling.temperature for row in rows])
        uniform_B = torch.tensor([row.uniforms[len(row.ids)] for row in rows], dtype=torch.float64)
        drawn, logprobs = sample(logits_BV, temperature_B, uniform_B).tolist()
        for slot, row, token, logprob in zip(slots, rows, drawn, logprobs, strict=True):
            if not logprob > -np.inf:
                raise EngineError(f"logits of session {row.request.session_id} aren't finite under v{self.version}")
            row.ids.append(int(token))
            row.logprobs.append(logprob)
            if row.ids[-1] in row.request.sampling.stop_token_ids:
                self._finish(slot, "stop")
            elif len(row.ids) == row.limit:
                self._finish(slot, "length")

    def _finish(self, slot: _Slot, reason: Literal["stop", "length", "abort"]) -> None:
        row = slot.running
        if row is None:
            return
        slot.running = None
        slot.last_used = self._clock
        completion = _completion(row.ids, row.logprobs, self.version, reason, row.cached_tokens)
        row.request.future.set_result(replace(completion, routed_experts=self._experts(slot, row.request)))

    def _experts(self, slot: _Slot, request: Request) -> RoutedExperts | None:
        """Of the tokens that were computed: a sampled one is by the next step, the last one not at all."""
        start = min(request.sampling.experts_from, len(slot.cached))
        experts = self._decoder.experts(slot.index, start, len(slot.cached))
        return None if experts is None else RoutedExperts(start, experts.numpy())

    def _vacate(self, slot: _Slot) -> None:
        if slot.session_id is not None:
            del self._by_session[slot.session_id]
        slot.session_id = None
        slot.cached = []


def _completion(
    ids: list[int], logprobs: list[float], version: int, reason: Literal["stop", "length", "abort"], cached: int
) -> Completion:
    return Completion(
        token_ids=np.array(ids, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        policy_version=np.full(len(ids), version, dtype=np.int32),
        finish_reason=reason,
        cached_tokens=cached,
    )


def _common_prefix(cached: list[int], ids: list[int]) -> int:
    if ids[: len(cached)] == cached:
        return len(cached)
    return next(i for i, token in enumerate(cached) if i >= len(ids) or token != ids[i])


def _batches(admitted: Sequence[tuple[_Slot, Chunk]]) -> list[list[tuple[_Slot, Chunk]]]:
    batches: list[list[tuple[_Slot, Chunk]]] = []
    room = 0
    for slot, chunk in admitted:
        if not batches or len(chunk.token_ids) > room:
            batches.append([])
            room = _PREFILL_TOKENS
        batches[-1].append((slot, chunk))
        room -= len(chunk.token_ids)
    return batches
