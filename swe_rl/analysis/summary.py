"""The report's numbers: what a run's files say, as one JSON object with fixed keys.

Evaluations, metrics and token statistics flow in. A number whose source is missing is null, never made up.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.analysis.tokens import TokenStatistics
from swe_rl.errors import StoreError
from swe_rl.metrics import read_metrics

TIMINGS_NAME = "stages.json"
"""Written by whoever runs the stages: {stage: seconds}."""


@dataclass(frozen=True, slots=True)
class RunLogs:
    """A run's files as plain data; `evals` by version, each name's newest; before and after are None if absent."""

    name: str
    phi: float | None
    rule: str
    metrics: Sequence[Mapping[str, float]]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    evals: Sequence[Mapping[str, Any]]
    seconds_by_stage: Mapping[str, float]


def read_logs(run_dir: Path) -> RunLogs:
    """Raises StoreError if the directory isn't a run's, or a file in it is broken."""
    metrics = read_metrics(run_dir / "metrics.jsonl")
    evals = {path.stem: _read_json(path) for path in sorted((run_dir / "eval").glob("*.json"))}
    if not metrics and not evals:
        raise StoreError(f"{run_dir}: neither metrics.jsonl nor eval/*.json; expected the directory of a run")
    config = _read_json(run_dir / "config.json") if (run_dir / "config.json").exists() else {}
    mask = config.get("mask", {})
    on_curve = [e for name, e in evals.items() if name in ("before", "after") or name.startswith("step_")]
    return RunLogs(
        name=str(config.get("run", {}).get("name", run_dir.name)),
        phi=float(mask["phi"]) if "phi" in mask else None,
        rule=str(mask.get("rule", "")),
        metrics=metrics,
        before=evals.get("before"),
        after=evals.get("after"),
        evals=sorted(on_curve, key=lambda e: int(e["version"])),
        seconds_by_stage=_seconds(run_dir, metrics, evals),
    )


def summarise(logs: RunLogs, tokens: TokenStatistics) -> dict[str, Any]:
    """The content of report/summary.json; rates are fractions, intervals [low, high], null where unknown."""
    either = logs.after or logs.before or {}
    return {
        "run": logs.name,
        "num_steps": len(logs.metrics),
        "split": either.get("split"),
        "pass_rate_before": _value(logs.before, "pass_rate"),
        "pass_rate_after": _value(logs.after, "pass_rate"),
        "ci95_before": _interval(logs.before, "pass_rate"),
        "ci95_after": _interval(logs.after, "pass_rate"),
        "greedy_before": _value(logs.before, "greedy"),
        "greedy_after": _value(logs.after, "greedy"),
        "greedy_ci95_before": _interval(logs.before, "greedy"),
        "greedy_ci95_after": _interval(logs.after, "greedy"),
        "num_tasks": either.get("num_tasks"),
        "samples_per_task": either.get("samples_per_task"),
        "num_runs": either.get("num_runs"),
        "num_faults_before": (logs.before or {}).get("num_faults"),
        "num_faults_after": (logs.after or {}).get("num_faults"),
        "by_label": _labels(logs.before, logs.after),
        "mask_rule": logs.rule,
        "phi": logs.phi,
        "num_tokens": tokens.num_tokens,
        "kept_fraction": _finite(tokens.kept_fraction),
        "mask_fractions": {
            reason.name.lower(): count / tokens.num_tokens
            for reason, count in tokens.totals.items()
            if tokens.num_tokens
        },
        "kept_fraction_by_segment": {
            segment.name.lower(): kept / total for segment, (kept, total) in sorted(tokens.segments.items())
        },
        "mean_abs_logprob_diff": _finite(tokens.overall.mean),
        "mean_abs_logprob_diff_by_staleness": {
            str(staleness): _finite(moments.mean) for staleness, moments in sorted(tokens.staleness.items())
        },
        "router_agreement_by_staleness": {
            str(staleness): _finite(moments.mean) for staleness, moments in sorted(tokens.router_agreement.items())
        },
        "wall_s": sum(logs.seconds_by_stage.values()),
        "seconds_by_stage": dict(logs.seconds_by_stage),
    }


def _seconds(
    run_dir: Path, metrics: Sequence[Mapping[str, float]], evals: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """As the run's stages were timed; for a run without timings, what its steps and evaluations took."""
    path = run_dir / TIMINGS_NAME
    if path.exists():
        return {str(stage): float(seconds) for stage, seconds in _read_json(path).items()}
    seconds = {f"eval_{name}": float(e["wall_s"]) for name, e in evals.items()}
    return seconds | ({"train": sum(row.get("time/step_s") or 0.0 for row in metrics)} if metrics else {})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path}: can't be read: {error!r}; restore it, or delete it to do without") from error


def _value(evaluation: Mapping[str, Any] | None, name: str) -> float | None:
    rate = (evaluation or {}).get(name)
    return None if rate is None else float(rate["value"])


def _interval(evaluation: Mapping[str, Any] | None, name: str) -> list[float] | None:
    rate = (evaluation or {}).get(name)
    return None if rate is None else [float(bound) for bound in rate["ci95"]]


def _labels(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """{label: {value: {before, ci95_before, after, ci95_after, num_tasks}}}; before and after may be null."""
    tables: dict[str, Any] = {}
    for moment, evaluation in (("before", before), ("after", after)):
        for label, table in ((evaluation or {}).get("by_label") or {}).items():
            for value, rate in table.items():
                empty = {"before": None, "ci95_before": None, "after": None, "ci95_after": None}
                row = tables.setdefault(label, {}).setdefault(value, empty)
                row |= {moment: rate["value"], f"ci95_{moment}": rate["ci95"], "num_tasks": rate["num_tasks"]}
    return tables


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
