"""How episodes are sampled: the engine, the agent, and the groups that it works through."""

import math
from typing import Literal

from pydantic import Field

from swe_rl.config.section import Section

Dialect = Literal[
    "auto", "hermes", "hermes-thinking", "qwen2.5-coder", "qwen3-coder", "qwen3-coder-first", "qwen3.5", "qwen3.8",
    "llama3", "deepseek-v3.1", "deepseek-r1", "glm-4.5", "glm-4.7", "glm-5.1", "glm-5.2", "gpt-oss", "plain",
]  # fmt: skip


class EngineConfig(Section):
    kind: Literal["local", "vllm", "scripted"] = "local"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_batch: int = Field(default=128, ge=1, description="rows decoded at once")
    max_context: int = Field(default=1024, ge=16, description="tokens of one trajectory")
    num_threads: int = Field(default=1, ge=1)
    url: str = Field(
        default="", description="vllm: address of a running server, several set apart by commas; empty: starts its own"
    )
    num_replicas: int = Field(default=1, ge=1, description="vllm: servers that the run starts; num_threads is of each")
    in_flight: Literal["keep", "drain", "abort"] = Field(
        default="keep",
        description="vllm: at new weights a running generation goes on with them, ends first, or is cut and resumed",
    )
    return_routed_experts: bool = Field(
        default=False, description="of a model with experts: record which ones each token passed through"
    )
    vllm_python: str = Field(default="", description="vllm: interpreter that has it; empty: the running one")


class SamplingConfig(Section):
    temperature: float = Field(default=1.0, ge=0)
    max_tokens_per_turn: int = Field(default=128, ge=1)


class AgentConfig(Section):
    max_turns: int = Field(default=6, ge=1)
    max_malformed: int = Field(default=2, ge=1, description="malformed completions in a row that end the episode")
    max_observation_tokens: int = Field(default=256, ge=16)
    prompt: Literal["full", "compact"] = "full"
    dialect: Dialect = Field(default="auto", description="see docs/rendering.md; auto: by what the policy's files say")
    episode_timeout_s: float = Field(default=300.0, gt=0)


class RolloutConfig(Section):
    split: str = "train"
    group_size: int = Field(default=8, ge=1)
    groups_per_step: int = Field(default=16, ge=1)
    max_backfill: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="groups more, by groups_per_step, that a step may have to get as many with a signal; 0: none",
    )
    max_staleness: int = Field(default=0, ge=0)
    concurrency: int = Field(default=128, ge=1, description="episodes in flight")
    group_quorum: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of a group that has to end before the others' grace begins; 1: never",
    )
    group_grace_s: float = Field(default=30.0, ge=0, description="turns of a group's last episodes, after the quorum")
    max_episode_retries: int = Field(default=2, ge=0, description="after faults of the environment or the engine only")

    @property
    def num_backfill(self) -> int:
        """The most groups more that a step may have."""
        return math.floor(self.max_backfill * self.groups_per_step + 1e-9)  # 0.29 of 100 is 29
