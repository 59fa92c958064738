"""A policy of a few thousand parameters on disk, and groups that were sampled from it by the plainest sampler."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from swe_rl.config import Config, load_config
from swe_rl.model import load_model, save_policy, token_logprobs
from swe_rl.trajectory import UNKNOWN_EXPERT, Group, Segment, StopReason, Trajectory, Turn
from swe_rl.verdict import Outcome, Verdict

VOCAB = 48


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return _save(Qwen3ForCausalLM(Qwen3Config(**SIZES)), tmp_path_factory)


@pytest.fixture(scope="session")
def moe_policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 6 experts, 2 of them a token; wide weights, as otherwise experts hardly matter."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0, 0.1) if parameter.ndim == 1 else parameter.normal_(0.0, 0.15)
    return _save(model, tmp_path_factory)


def _save(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer_dir, out_dir = (tmp_path_factory.mktemp(name) for name in ("tokenizer", "policy"))
    Tokenizer(models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0")).save(
        str(tokenizer_dir / "tokenizer.json")
    )
    save_policy(model, tokenizer_dir, out_dir)
    return out_dir


@pytest.fixture
def make_config(tmp_path: Path, policy_dir: Path) -> Callable[..., Config]:
    def make(*overrides: str) -> Config:
        base = [
            f"run.dir={tmp_path / 'run'}",
            f"policy.path={policy_dir}",
            "engine.dtype=float32",
            "train.lr=0.01",
            "train.row_tokens=64",
            "train.logprob_chunk=16",
            "rollout.groups_per_step=2",
        ]
        return load_config(None, [*base, *overrides])

    return make


@pytest.fixture(scope="session")
def make_groups(policy_dir: Path) -> Callable[..., list[Group]]:
    """make_groups(number, first=index of the first, version=..., noise=std of the engine's log-probability error)."""
    model = load_model(policy_dir, torch.float32)

    def make(
        number: int = 2, first: int = 0, version: int = 0, noise: float = 0.0, rewards: tuple[float | None, ...] = ()
    ) -> list[Group]:
        groups = []
        for index in range(first, first + number):
            rng = np.random.default_rng([index, version])
            prompt = rng.integers(0, VOCAB, int(rng.integers(3, 9))).astype(np.int32)
            fixed = rewards or (1.0, 0.0, 0.0, 1.0)
            members = tuple(
                _trajectory(model, rng, prompt, f"g{index}", f"g{index}-t{i}", version, noise, reward)
                for i, reward in enumerate(fixed)
            )
            groups.append(Group(f"g{index}", "task", "train", index, version, members))
        return groups

    return make


def _trajectory(
    model: object,
    rng: np.random.Generator,
    prompt: NDArray[np.int32],
    group_id: str,
    name: str,
    version: int,
    noise: float,
    reward: float | None,
) -> Trajectory:
    """The prompt, then random tokens: completion, observation, completion; priced by the model itself, plus noise."""
    spans = [("prompt", len(prompt)), ("turn", int(rng.integers(2, 12)))]
    spans += [("observation", int(rng.integers(2, 6))), ("turn", int(rng.integers(2, 12)))]
    length = sum(n for _, n in spans)
    token_ids = rng.integers(0, VOCAB, length).astype(np.int32)
    token_ids[: len(prompt)] = prompt
    segment, turn = np.zeros(length, np.uint8), np.full(length, -1, np.int16)
    turns: list[Turn] = []
    start = 0
    for kind, n in spans:
        end = start + n
        if kind == "turn":
            segment[start:end] = rng.choice([Segment.TEXT, Segment.TOOL_NAME, Segment.TOOL_ARGS], n)
            segment[end - 1] = Segment.STOP
            turn[start:end] = len(turns)
            turns.append(Turn(start, end))
        else:
            segment[start:end] = Segment.PROMPT if kind == "prompt" else Segment.OBSERVATION
            turn[start:end] = len(turns) - 1
        start = end
    sampled = segment >= Segment.REASONING
    with torch.no_grad():
        ids = torch.from_numpy(token_ids).long()
        logprobs = token_logprobs(model, ids, torch.zeros_like(ids), torch.full(ids.shape, 0.8), chunk=64)  # type: ignore[arg-type]
    infer = logprobs.numpy() + rng.normal(0, noise, length) if noise else logprobs.numpy()
    return Trajectory(
        trajectory_id=name,
        group_id=group_id,
        task_id="task",
        split="train",
        token_ids=token_ids,
        sampled=sampled,
        infer_logprobs=np.where(sampled, np.minimum(infer, 0.0), np.nan).astype(np.float32),
        policy_version=np.where(sampled, version, -1).astype(np.int32),
        segment=segment,
        turn=turn,
        turns=tuple(turns),
        temperature=0.8,
        stop_reason=StopReason.SUBMITTED if reward is not None else StopReason.SANDBOX_ERROR,
        verdict=make_verdict(reward),
    )


def make_verdict(reward: float | None) -> Verdict:
    outcome = {None: Outcome.ENVIRONMENT_ERROR, 0.0: Outcome.UNRESOLVED}.get(reward, Outcome.RESOLVED)
    return Verdict(outcome=outcome, reward=reward)


@pytest.fixture
def with_experts() -> Callable[[list[Group]], list[Group]]:
    """Records random experts of `moe_policy_dir`: siblings have the same in their prompt, the last token none."""

    def draw(rng: np.random.Generator, length: int) -> NDArray[np.int16]:
        return rng.random((length, 2, 6)).argsort(axis=2)[:, :, :2].astype(np.int16)

    def change(groups: list[Group]) -> list[Group]:
        def one(group: Group, index: int) -> Trajectory:
            t = group.trajectories[index]
            of_prompt = draw(np.random.default_rng(group.index), int(np.argmax(t.sampled)))
            experts = np.concatenate([of_prompt, draw(np.random.default_rng([group.index, index]), len(t))])[: len(t)]
            experts[-1] = UNKNOWN_EXPERT
            return replace(t, routed_experts=experts)

        return [replace(g, trajectories=tuple(one(g, i) for i in range(len(g.trajectories)))) for g in groups]

    return change


@pytest.fixture
def with_infer() -> Callable[..., list[Group]]:
    """Replaces the engine's log-probabilities of all sampled tokens by one value."""

    def change(groups: list[Group], value: float) -> list[Group]:
        def one(t: Trajectory) -> Trajectory:
            return replace(t, infer_logprobs=np.where(t.sampled, value, np.nan).astype(np.float32))

        return [replace(g, trajectories=tuple(one(t) for t in g.trajectories)) for g in groups]

    return change
