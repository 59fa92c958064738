"""The directory of a run as its stages leave it, small, with numbers that are known."""

import json
from pathlib import Path

import numpy as np
import pytest

from swe_rl.metrics import MetricsWriter
from swe_rl.train.mask import Reason
from swe_rl.train.token_log import TokenColumns, write_token_log
from swe_rl.trajectory import Segment

PHI = 0.1


def make_columns(step: int, tokens: int, max_staleness: int = 2) -> TokenColumns:
    """Probabilities of a trained policy: most near 1, the trainer's off by rounding, a few far off."""
    rng = np.random.default_rng(step)
    infer = np.log(np.clip(rng.beta(0.9, 0.25, tokens), 1e-6, 1 - 1e-7))
    staleness = rng.integers(0, min(step, max_staleness) + 1, tokens)
    noise = rng.normal(0, 0.004 * (1 + 2 * staleness), tokens) + (rng.random(tokens) < 0.02) * rng.normal(
        0, 1.2, tokens
    )
    train = np.minimum(infer + noise * (1 - 0.6 * np.exp(infer)), -1e-7)
    infer[:3] = np.nan if step == 1 else infer[:3]
    p, q = np.exp(train), np.exp(infer)
    forward = p * (train - infer) + (1 - p) * (np.log1p(-p) - np.log1p(-q))
    reverse = q * (infer - train) + (1 - q) * (np.log1p(-q) - np.log1p(-p))
    finite = np.isfinite(infer)
    kept = finite & (np.maximum(forward, reverse) <= PHI)
    segments = rng.choice([s for s in Segment if s >= Segment.TEXT], tokens, p=[0.05, 0.1, 0.4, 0.35, 0.1])
    return TokenColumns(
        trajectory=np.zeros(tokens, np.int32),
        position=np.arange(tokens, dtype=np.int32),
        token_id=np.zeros(tokens, np.int32),
        segment=segments.astype(np.uint8),
        turn=np.zeros(tokens, np.int16),
        version=(step - staleness).astype(np.int32),
        staleness=staleness.astype(np.int32),
        infer_logprobs=infer.astype(np.float32),
        train_logprobs=train.astype(np.float32),
        divergence_forward=forward.astype(np.float32),
        divergence_reverse=reverse.astype(np.float32),
        kept=kept,
        weight=kept.astype(np.float32),
        reason=np.where(kept, Reason.KEPT, np.where(finite, Reason.OVER_PHI, Reason.NONFINITE)).astype(np.uint8),
        advantage=np.zeros(tokens, np.float32),
        reward=np.zeros(tokens, np.float32),
        router_agreement=np.where(rng.random(tokens) < 0.1 * (1 + staleness), 0.5, 1.0).astype(np.float32),
        trajectory_ids=np.array(["t0"]),
    )


def make_eval(name: str, version: int, rate: float, greedy: float | None = None) -> dict:
    def interval(value, reach=0.06):
        return {"value": value, "ci95": [max(0.0, value - reach), min(1.0, value + reach)], "num_tasks": 40}

    return {
        "name": name,
        "version": version,
        "split": "verified",
        "num_tasks": 40,
        "samples_per_task": 4,
        "num_runs": 1,
        "pass_rate": interval(rate),
        "greedy": None if greedy is None else interval(greedy, 0.1),
        "by_label": {"language": {"python": interval(rate + 0.02), "rust": interval(rate - 0.02)}},
        "num_faults": 1,
        "wall_s": 30.0,
    }


def write_run(run_dir: Path, steps: int = 30, tokens: int = 3000, evals: bool = True) -> Path:
    writer = MetricsWriter(run_dir / "metrics.jsonl")
    rng = np.random.default_rng(0)
    for step in range(steps):
        reward = 0.15 + 0.65 * (1 - np.exp(-step / 10)) + rng.normal(0, 0.05)
        writer.write(step, {"reward/mean": reward, "time/step_s": 4.0, "time/wait_s": 1.0})
        write_token_log(run_dir, step, make_columns(step, tokens))
    (run_dir / "config.json").write_text(json.dumps({"run": {"name": "tiny"}, "mask": {"rule": "kpop", "phi": PHI}}))
    if evals:
        folder = run_dir / "eval"
        folder.mkdir()
        rows = [("before", 0, 0.17, 0.2), ("after", steps, 0.74, 0.8)]
        rows += [(f"step_{s:06d}", s, 0.17 + 0.57 * (1 - np.exp(-s / 11)), None) for s in range(10, steps, 10)]
        for name, version, rate, greedy in rows:
            (folder / f"{name}.json").write_text(json.dumps(make_eval(name, version, rate, greedy)))
    return run_dir


@pytest.fixture(scope="session")
def make_run():
    return write_run


@pytest.fixture(scope="session")
def columns_of():
    return make_columns
