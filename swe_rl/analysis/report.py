"""The report of a run: <run>/report/ with summary.json, six pictures and an index.md that shows them.

A run directory flows in. Nothing is measured here: a number that no log holds is shown as missing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.analysis.plots import (
    plot_divergence,
    plot_kept_by_segment,
    plot_kept_over_steps,
    plot_learning,
    plot_probabilities,
    plot_staleness,
)
from swe_rl.analysis.summary import read_logs, summarise
from swe_rl.analysis.tokens import read_statistics
from swe_rl.store.files import disk_error, write_durably

PICTURES = {
    "learning.png": "Training reward and held-out pass rate by policy version.",
    "probabilities.png": "Probability of each sampled token under the trainer and under the engine. On the diagonal "
    "they agree.",
    "divergence.png": "How far apart the two are, token by token. The dashed line is the threshold.",
    "kept_over_steps.png": "Share of trainable tokens that entered the loss, and why the others did not.",
    "kept_by_segment.png": "The same by what the token belongs to.",
    "staleness.png": "Mismatch by the age of the policy that sampled, and over the run.",
}
_MISSING = "not measured"


def write_report(run_dir: Path) -> Path:
    """Writes the report anew and returns its directory. Raises StoreError if it isn't a run or can't be read."""
    run_dir = Path(run_dir)
    logs, tokens = read_logs(run_dir), read_statistics(run_dir)
    summary = summarise(logs, tokens)
    report = run_dir / "report"
    try:
        report.mkdir(exist_ok=True)
    except OSError as error:
        raise disk_error(report, error) from error
    plot_learning(report / "learning.png", logs)
    plot_probabilities(report / "probabilities.png", tokens, logs.phi if logs.rule.startswith("kpop") else None)
    plot_divergence(report / "divergence.png", tokens, logs.phi)
    plot_kept_over_steps(report / "kept_over_steps.png", tokens)
    plot_kept_by_segment(report / "kept_by_segment.png", tokens)
    plot_staleness(report / "staleness.png", tokens)
    write_durably(report / "index.md", _page(summary).encode())
    write_durably(report / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    return report


def _page(summary: Mapping[str, Any]) -> str:
    parts = [f"# Run {summary['run']}", _results(summary)]
    parts += [_label_table(label, table) for label, table in summary["by_label"].items() if len(table) > 1]
    parts += ["## Trainer against engine", _mismatch(summary)]
    parts += [f"![{text}]({name})\n\n{text}" for name, text in PICTURES.items()]
    parts += ["## Time", _times(summary)]
    return "\n\n".join(parts) + "\n"


def _results(summary: Mapping[str, Any]) -> str:
    rows = [
        ("pass rate, sampled", "pass_rate_before", "ci95_before", "pass_rate_after", "ci95_after"),
        ("pass rate, greedy", "greedy_before", "greedy_ci95_before", "greedy_after", "greedy_ci95_after"),
    ]
    lines = [
        f"| {name} | {_rate(summary[b], summary[bi])} | {_rate(summary[a], summary[ai])} |"
        for name, b, bi, a, ai in rows
    ]
    lines.append(
        f"| environment faults | {_count(summary['num_faults_before'])} | {_count(summary['num_faults_after'])} |"
    )
    num_tasks, samples, runs = (_count(summary[name]) for name in ("num_tasks", "samples_per_task", "num_runs"))
    about = (
        f"Split `{summary['split']}`: {num_tasks} tasks, {samples} samples a task, independent runs: {runs}. Intervals "
        "are 95 %, bootstrapped over tasks; an environment fault counts as not resolved. "
        "None is given where all tasks of a row have one rate other than 0 and 100 %. "
        f"{summary['num_steps']} optimiser steps."
    )
    return "\n".join([about, "", "| held out | before | after |", "|---|---|---|", *lines])


def _label_table(label: str, table: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"| {label} | tasks | before | after |", "|---|---:|---|---|"]
    for value, row in sorted(table.items()):
        before, after = _rate(row["before"], row["ci95_before"]), _rate(row["after"], row["ci95_after"])
        lines.append(f"| {value} | {row['num_tasks']} | {before} | {after} |")
    return "\n".join(lines)


def _mismatch(summary: Mapping[str, Any]) -> str:
    rule = summary["mask_rule"] or "unknown"
    phi = "" if summary["phi"] is None else f", phi = {summary['phi']:g}"
    lines = [f"| rule | {rule}{phi} |", "|---|---|", f"| trainable tokens | {summary['num_tokens']:,} |"]
    lines.append(f"| kept | {_percent(summary['kept_fraction'], 2)} |")
    gap = summary["mean_abs_logprob_diff"]
    lines.append(f"| mean \\|log p_train - log p_infer\\| | {_MISSING if gap is None else f'{gap:.5f} nats'} |")
    return "\n".join(lines)


def _times(summary: Mapping[str, Any]) -> str:
    lines = ["| stage | seconds |", "|---|---:|"]
    lines += [f"| {stage} | {seconds:.1f} |" for stage, seconds in summary["seconds_by_stage"].items()]
    return "\n".join([*lines, f"| **sum** | {summary['wall_s']:.1f} |"])


def _rate(value: float | None, interval: list[float] | None) -> str:
    if value is None or interval is None:
        return _MISSING
    if interval[0] == interval[1]:  # one task, or all with one rate: a bootstrap would read as certainty
        return f"{value:.1%}"
    return f"{value:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]"


def _percent(value: float | None, digits: int) -> str:
    return _MISSING if value is None else f"{value:.{digits}%}"


def _count(value: int | None) -> str:
    return _MISSING if value is None else f"{value}"
