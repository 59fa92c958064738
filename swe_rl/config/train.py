"""How a step learns: the optimiser, the rows, the mask, the loss."""

import math
from typing import Literal

from pydantic import Field, field_validator

from swe_rl.config.section import Section

AdvantageKind = Literal["group_mean", "group_std", "leave_one_out", "batch_std", "rejection"]
MaskRule = Literal[
    "none", "tis", "icepop", "geometric", "kl_forward", "kl_reverse", "kpop", "kpop_soft", "dppo_tv", "dppo_kl"
]


class TrainConfig(Section):
    steps: int = Field(default=30, ge=0)
    lr: float = Field(default=3e-4, ge=0, description="at 0 nothing moves: what is left is the engines' own gap")
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0, description="near the size of gradients it spares what has hardly any")
    grad_clip: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear"] = Field(
        default="constant", description="linear: from lr after the warm-up down to a tenth of it at the last step"
    )
    frozen: list[str] = Field(default=[], description="prefixes of the names of parameters that keep their values")
    lora_rank: int = Field(default=0, ge=0, description="adapters of this rank train, the weights below stay; 0: off")
    lora_alpha: int = Field(default=32, ge=1, description="adapters count lora_alpha / lora_rank times")
    lora_targets: list[str] = Field(
        default=[], description="names of linear layers, e.g. q_proj; empty: all but the output head"
    )
    minibatches: int = Field(default=1, ge=1, description="optimiser updates a step")
    row_tokens: int = Field(default=2048, ge=16, description="length of one packed row")
    shared_prefix: bool = Field(default=True, description="siblings in one row have their prompt in it once")
    replay_routing: bool = Field(
        default=False, description="tokens pass through the experts that the engine recorded; see docs/training.md"
    )
    rows_per_microbatch: int = Field(default=1, ge=1)
    logprob_chunk: int = Field(default=1024, ge=1, description="positions whose logits are held at once")
    vocab_chunk: int = Field(default=2048, ge=1, description="words of the vocabulary whose logits are held at once")
    num_threads: int = Field(default=1, ge=1)
    num_ranks: int = Field(default=1, ge=1, description="processes of the trainer that `swe-rl run` starts by torchrun")
    context_ranks: int = Field(default=1, ge=1, description="of them that work on one row together, each on a part")
    dtype: Literal["float64", "float32", "bfloat16"] = Field(
        default="float32", description="compute; masters are float32, or float64 with float64 (an oracle for tests)"
    )
    recompute: bool = Field(default=False, description="activations anew in backward: less memory, more time")
    advantage: AdvantageKind = Field(
        default="group_mean", description="see train/advantage.py; rejection: supervised, a control"
    )
    discount: float = Field(default=1.0, gt=0, le=1, description="of the reward, for each turn after the first")
    unsubmitted: float = Field(default=1.0, ge=0, le=1, description="factor on the reward without a submission")
    overlong: list[Literal["context_full", "max_tokens", "max_turns", "time_limit", "group_limit"]] = Field(
        default=[], description="ends of episodes that don't train, though they count in their group's mean"
    )
    overlong_penalty: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="off the return at engine.max_context; it rises linearly over the buffer before",
    )
    overlong_buffer: int = Field(default=128, ge=1, description="tokens before engine.max_context that are penalised")
    shuffle_rewards: bool = Field(default=False, description="a control: rewards are permuted over the batch")
    max_mismatch: float | None = Field(
        default=None, gt=0, description="mean |dlogp| of tokens of the trainer's own version that ends the run"
    )
    save_every: int = Field(default=1, ge=1, description="steps between two states; a resume repeats those since")
    keep_last: int = Field(default=2, ge=2, description="states kept; the newest may be of a step that isn't published")
    keep_every: int = Field(default=0, ge=0, description="states of versions that it divides are kept, too; 0: none")


class MaskConfig(Section):
    rule: MaskRule = "kpop"
    phi: float = Field(default=0.1, gt=0)
    phi_by_segment: dict[str, float] = Field(default={}, description="phi of single segments, e.g. {diff = 0.2}")
    target_kept: float | None = Field(default=None, gt=0, lt=1, description="phi adapts until this share is kept")
    adapt_rate: float = Field(default=0.3, gt=0, le=1, description="of the way to the wanted phi (as log) in a step")
    level: Literal["rule", "token", "segment", "sequence"] = Field(
        default="rule", description="the unit that is kept or masked as one; rule: sequence for geometric, else token"
    )
    reference: Literal["theta_old", "theta"] = Field(
        default="theta_old", description="whose p_train: the replay's before the step, or the weights' of the update"
    )
    low: float = Field(default=0.5, gt=0, description="icepop, geometric: lower bound of p_train / p_infer")
    high: float = Field(default=5.0, gt=0, description="icepop, geometric: upper bound; tis: cap")
    eps_p: float = Field(default=1e-6, gt=0, lt=0.5, description="floor on 1 - p")
    importance_weight: Literal["rule", "none", "raw", "clamped"] = Field(
        default="rule", description="rule: what the rule is published with"
    )
    weight_cap: float = Field(default=2.0, gt=0, description="clamped: the largest weight")
    sharpness: float = Field(default=2.0, gt=0, description="kpop_soft: exponent of divergence / phi")
    soft_shape: Literal["rational", "exponential"] = "rational"

    @field_validator("phi_by_segment")
    @classmethod
    def _positive(cls, value: dict[str, float]) -> dict[str, float]:
        if wrong := [name for name, phi in value.items() if not (math.isfinite(phi) and phi > 0)]:
            raise ValueError(f"phi of {wrong[0]!r} is {value[wrong[0]]}, expected a finite number above 0")
        return value


class LossConfig(Section):
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    aggregation: Literal["token_mean", "sequence_sum", "sequence_mean", "constant"] = Field(
        default="token_mean", description="what the sum over tokens is divided by; see train/loss.py"
    )
    constant_length: int = Field(default=1024, ge=1, description="constant: tokens that a sequence is taken to have")
    denominator: Literal["original", "kept"] = Field(default="original", description="do masked tokens count in it?")
    kl_coef: float = Field(
        default=0.0, ge=0, description="of the KL to the cold start; above 0 it is held in memory, once with adapters"
    )
    kl_estimator: Literal["k2", "k3"] = Field(default="k3", description="of that KL for each token; see train/loss.py")
