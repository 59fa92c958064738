"""A run, its tasks, its sandboxes, its evaluations, and the recipe of its cold start."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from swe_rl.config.section import Section


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
