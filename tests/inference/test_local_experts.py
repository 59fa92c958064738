"""The experts that the engine in this process records are those of a whole forward pass, position by position."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swe_rl.agent.record import Recording
from swe_rl.agent.render import ParsedCompletion, Rendered
from swe_rl.errors import PolicyError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.inference.local_decoder import SlotDecoder
from swe_rl.inference.local_scheduler import Request, Scheduler
from swe_rl.model import load_model
from swe_rl.trajectory import UNKNOWN_EXPERT, Segment, StopReason, Trajectory

VOCAB = 97
STOP = 7
MakePolicy = Callable[..., Path]
OpenEngine = Callable[..., Awaitable[LocalEngine]]


def whole_pass(policy: Path, token_ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[T, L, K] of one plain forward over the same tokens, UNKNOWN_EXPERT in layers without experts; and [T, L]: is the
    choice, and its order, beyond what float32 rounds?"""
    model = load_model(policy, "float32")
    with torch.no_grad():
        output = model(torch.tensor([list(token_ids)]), output_router_logits=True)
    best = [torch.topk(logits.softmax(-1), 4) for logits in output.router_logits]
    chosen, margins = iter(top.indices[:, :3] for top in best), iter(-top.values.diff(dim=1) for top in best)
    unknown, is_sparse = (
        torch.full((len(token_ids), 3), UNKNOWN_EXPERT),
        [hasattr(m.mlp, "experts") for m in model.model.layers],
    )
    experts = [next(chosen) if sparse else unknown for sparse in is_sparse]
    is_clear = [(next(margins) > 1e-5).all(1) if sparse else unknown[:, 0] < 0 for sparse in is_sparse]
    return torch.stack(experts, dim=1).numpy(), torch.stack(is_clear, dim=1).numpy()


def assert_recorded(trajectory: Trajectory, policy: Path) -> None:
    """Everything up to the last sampled token, which nobody computed, as little as what was said after it."""
    assert trajectory.routed_experts is not None
    last = int(np.flatnonzero(trajectory.sampled)[-1])
    expected, is_clear = whole_pass(policy, trajectory.token_ids.tolist())
    assert is_clear[:last].mean() > 0.98
    np.testing.assert_array_equal(trajectory.routed_experts[:last][is_clear[:last]], expected[:last][is_clear[:last]])
    assert (trajectory.routed_experts[last:] == UNKNOWN_EXPERT).all()


def parsed(completion: Completion) -> ParsedCompletion:
    return ParsedCompletion((), "", np.full(len(completion.token_ids), Segment.TEXT, np.uint8), "")


def rendered(rng: random.Random, length: int) -> Rendered:
    return Rendered([rng.randrange(VOCAB) for _ in range(length)], [int(Segment.OBSERVATION)] * length)


def finish(recording: Recording) -> Trajectory:
    return recording.to_trajectory(
        ids=("t", "g", "task", "train"), temperature=1.0, stop_reason=StopReason.SUBMITTED, verdict=None
    )


async def converse(engine: LocalEngine, index: int, num_turns: int) -> Trajectory:
    """Turns of random length; between them the session is sometimes forgotten, or its last token aborted away."""
    rng = random.Random(index)
    recording = Recording()
    recording.add_rendered(rendered(rng, rng.randrange(1, 30)))
    for _ in range(num_turns):
        sampling = SamplingParams(1.0, rng.randrange(1, 9), (STOP,), recording.num_routed)
        completion = await engine.generate(f"s{index}", recording.token_ids, sampling)
        recording.add_completion(completion, parsed(completion))
        recording.add_rendered(rendered(rng, rng.randrange(0, 7)))
        if rng.random() < 0.3:
            await engine.release(f"s{index}")
    return finish(recording)


async def test_recorded_experts_are_those_of_a_whole_forward_pass_at_every_position(
    make_policy: MakePolicy, open_engine: OpenEngine
) -> None:
    policy = make_policy("qwen3_moe")
    # fewer slots than sessions: caches are lost between turns and slots change places
    engine = await open_engine(policy, return_routed_experts=True, max_batch=5, max_context=256)
    trajectories = await asyncio.gather(*(converse(engine, i, num_turns=1 + i % 5) for i in range(24)))
    for trajectory in trajectories:
        assert_recorded(trajectory, policy)


@torch.no_grad()
def test_a_generation_that_is_aborted_and_resumed_tells_the_experts_of_what_it_computed(
    make_policy: MakePolicy,
) -> None:
    policy = make_policy("qwen3_moe")
    scheduler = Scheduler(SlotDecoder(load_model(policy, "float32"), 2, 128, True), 2, 128, 0, 0, Counter())
    recording = Recording()
    recording.add_rendered(rendered(random.Random(0), 5))
    for num_steps in (0, 1, 4, 1, 3):
        request = Request("s", recording.token_ids.copy(), SamplingParams(1.0, 50, (), recording.num_routed))
        scheduler.submit(request)
        for _ in range(num_steps):
            scheduler.step()
        scheduler.release("s")
        completion = request.future.result()
        assert completion.finish_reason == "abort"
        recording.add_completion(completion, parsed(completion))
    assert_recorded(finish(recording), policy)


async def test_experts_are_told_from_the_position_that_is_asked_for(
    make_policy: MakePolicy, open_engine: OpenEngine
) -> None:
    engine = await open_engine(make_policy("qwen3_moe"), return_routed_experts=True)
    prompt = list(range(20))
    for start in (0, 7, 20):
        completion = await engine.generate("s", prompt, SamplingParams(1.0, 4, (), start))
        assert completion.routed_experts is not None
        assert (completion.routed_experts.start, completion.routed_experts.end) == (start, 23)


async def test_nothing_is_recorded_unasked(make_policy: MakePolicy, open_engine: OpenEngine) -> None:
    engine = await open_engine(make_policy("qwen3_moe"))
    completion = await engine.generate("s", [1, 2, 3], SamplingParams(1.0, 4, ()))
    assert completion.routed_experts is None


async def test_a_policy_without_experts_is_refused_where_they_are_to_be_recorded(
    make_policy: MakePolicy, open_engine: OpenEngine
) -> None:
    with pytest.raises(PolicyError, match=r"return_routed_experts is true.*no layer of the policy has experts"):
        await open_engine(make_policy("qwen3"), return_routed_experts=True)
