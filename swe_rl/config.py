"""Every knob of a run, once. One TOML serves all verbs; unknown keys are errors; secrets come from the environment."""

import difflib
import json
import math
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from swe_rl.errors import ConfigError

MaskRule = Literal[
    "none", "tis", "icepop", "geometric", "kl_forward", "kl_reverse", "kpop", "kpop_soft", "dppo_tv", "dppo_kl"
]
Dialect = Literal[
    "auto", "hermes", "hermes-thinking", "qwen2.5-coder", "qwen3-coder", "qwen3-coder-first", "qwen3.5", "qwen3.8",
    "llama3", "deepseek-v3.1", "deepseek-r1", "glm-4.5", "glm-4.7", "glm-5.1", "glm-5.2", "gpt-oss", "plain",
]  # fmt: skip


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class RunConfig(Section):
    name: str = "run"
    dir: Path = Path("runs/run")
    seed: int = 0
    store_url: str = Field(
        default="", description="SQLAlchemy URL of the index; empty: index.sqlite in the run directory"
    )


class PolicyConfig(Section):
    path: Path = Field(default=Path("checkpoints/tiny-repair"), description="Hugging Face directory of the cold start")


class SynthConfig(Section):
    """The parametric family, materialised under <run dir>/tasks when `num_train` is above 0."""

    num_train: int = Field(default=0, ge=0)
    num_verified: int = Field(default=0, ge=0)
    seed: int = Field(default=0, description="moves the train part; verified is frozen")


class SandboxConfig(Section):
    url: str = Field(default="", description="address of a running service; empty: the run starts its own")
    backend: Literal["auto", "bubblewrap", "docker", "docker-runsc"] = "auto"
    languages: Path = Field(default=Path("sandboxes"), description="folder <language>/sandbox.toml")
    tasks: list[Path] = Field(default_factory=list, description="folders <split>/<task_id>; synth's is added by itself")
    max_sessions: int = Field(default=256, ge=1)
    grade_concurrency: int = Field(default=4, ge=1)
    grade_level: Literal["standard", "strict"] = Field(
        default="standard", description="strict: two runs in random order, and the tests' variants, see docs/tasks.md"
    )
    exec_timeout_s: float = Field(default=10.0, gt=0)
    session_ttl_s: float = Field(default=900.0, gt=0)


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
    max_staleness: int = Field(default=0, ge=0)
    concurrency: int = Field(default=128, ge=1, description="episodes in flight")
    max_episode_retries: int = Field(default=2, ge=0, description="after faults of the environment or the engine only")


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
    minibatches: int = Field(default=1, ge=1, description="optimiser updates a step")
    row_tokens: int = Field(default=2048, ge=16, description="length of one packed row")
    shared_prefix: bool = Field(default=True, description="siblings in one row have their prompt in it once")
    rows_per_microbatch: int = Field(default=1, ge=1)
    logprob_chunk: int = Field(default=1024, ge=1, description="positions whose logits are held at once")
    vocab_chunk: int = Field(default=2048, ge=1, description="words of the vocabulary whose logits are held at once")
    num_threads: int = Field(default=1, ge=1)
    num_ranks: int = Field(default=1, ge=1, description="processes of the trainer that `swe-rl run` starts by torchrun")
    dtype: Literal["float64", "float32", "bfloat16"] = Field(
        default="float32", description="compute; masters are float32, or float64 with float64 (an oracle for tests)"
    )
    recompute: bool = Field(default=False, description="activations anew in backward: less memory, more time")
    advantage: Literal["group_mean", "group_std", "leave_one_out", "batch_std", "rejection"] = Field(
        default="group_mean", description="see train/advantage.py; rejection: supervised, a control"
    )
    discount: float = Field(default=1.0, gt=0, le=1, description="of the reward, for each turn after the first")
    unsubmitted: float = Field(default=1.0, ge=0, le=1, description="factor on the reward without a submission")
    shuffle_rewards: bool = Field(default=False, description="a control: rewards are permuted over the batch")
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
    kl_coef: float = Field(default=0.0, ge=0, description="of the KL to the cold start; above 0 it is held in memory")
    kl_estimator: Literal["k2", "k3"] = Field(default="k3", description="of that KL for each token; see train/loss.py")


class EvalConfig(Section):
    split: str = "verified"
    num_tasks: int = Field(default=0, ge=0, description="0: all of the split")
    samples_per_task: int = Field(default=4, ge=1)
    num_runs: int = Field(default=1, ge=1, description="independent runs that are averaged")
    ks: list[int] = Field(default=[1], min_length=1)
    every: int = Field(default=0, ge=0, description="steps between evaluations; 0: before and after training only")
    greedy: bool = True


class ColdStartConfig(Section):
    """The recipe of `swe-rl coldstart`: demonstrations that run in the sandbox, and documents of right sources."""

    seed: int = 0
    num_demonstrations: int = Field(default=3000, ge=1, description="episodes of the expert, in the sandbox")
    num_documents: int = Field(default=6000, ge=1, description="issues with their right sources")
    num_drills: int = Field(default=6000, ge=1, description="made-up functions to be copied")
    steps: int = Field(default=700, ge=1)
    lr: float = Field(default=6e-3, gt=0)
    warmup_steps: int = Field(default=20, ge=1)
    examples_per_step: int = Field(default=16, ge=1, description="of each of the three sorts")
    document_weight: float = Field(default=0.5, ge=0, description="of a document's token against a demonstration's")
    drill_weight: float = Field(default=0.5, ge=0)
    dtype: Literal["float32", "bfloat16"] = Field(default="bfloat16", description="compute; masters are float32")


class Config(Section):
    run: RunConfig = RunConfig()
    policy: PolicyConfig = PolicyConfig()
    synth: SynthConfig = SynthConfig()
    sandbox: SandboxConfig = SandboxConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    agent: AgentConfig = AgentConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    mask: MaskConfig = MaskConfig()
    loss: LossConfig = LossConfig()
    eval: EvalConfig = EvalConfig()
    coldstart: ColdStartConfig = ColdStartConfig()


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Reads a TOML file and applies `section.key=value` overrides.

    `path` may also be a run's config.json, or the bare name of a shipped file, e.g. `quickstart`. Raises
    ConfigError that names the file and the key.
    """
    data: dict[str, Any] = {}
    where = "the defaults"
    if path is not None:
        where = str(path)
        data = _parse(path)
    for override in overrides:
        _apply(data, override)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _known(first["loc"])
            nearest = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}expected one of {', '.join(known)}") from error
        raise ConfigError(f"{where}: {key} = {first.get('input')!r}: {first['msg']}") from error


def shipped_configs() -> list[str]:
    """Names of the TOML files that come with the package."""
    return sorted(f.name.removesuffix(".toml") for f in _shipped().iterdir() if f.name.endswith(".toml"))


def _shipped() -> Any:
    return resources.files("swe_rl") / "configs"


def _parse(path: str | Path) -> dict[str, Any]:
    raw = _read(path)
    try:
        text = raw.decode("utf-8")
        data = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML (or JSON, by its name): {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds a {type(data).__name__}, expected an object of sections")
    return data


def _read(path: str | Path) -> bytes:
    file = Path(path)
    if file.is_file():
        return file.read_bytes()
    if str(path) in shipped_configs():
        return bytes((_shipped() / f"{path}.toml").read_bytes())
    raise ConfigError(f"config {path}: no such file; shipped ones are {', '.join(shipped_configs())}")


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise ConfigError(f"--set {override!r}: expected section.key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    keys = data.setdefault(section, {})
    if not isinstance(keys, dict):
        raise ConfigError(f"{section} = {keys!r}: expected a section of keys, so that --set {override!r} can set one")
    keys[name] = value


def _known(location: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in location[:-1]:
        model = model.model_fields[part].annotation
    return sorted(model.model_fields)
