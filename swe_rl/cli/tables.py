"""What verbs print of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def show_report(run_dir: Path) -> None:
    """Writes the report of what the run's logs hold by now, prints its table and where it is. Raises StoreError."""
    from swe_rl.analysis.report import write_report

    report = write_report(run_dir)
    Console().print(summary_table(json.loads((report / "summary.json").read_text())))
    print(report)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A run before and after: rates with their 95 % intervals over tasks, the mask, and where the time went."""
    table = Table(
        title=f"{summary['run']}: {summary['num_tasks']} held-out tasks, {summary['samples_per_task']} samples"
    )
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_row("sampled pass rate", *(_rate(summary, "pass_rate", when) for when in ("before", "after")))
    table.add_row("greedy pass rate", *(_rate(summary, "greedy", when) for when in ("before", "after")))
    for label, values in (summary.get("by_label") or {}).items():
        if label in ("holdout", "language"):
            for value, rates in values.items():
                table.add_row(f"  {label} {value}", *(_percent(rates.get(when)) for when in ("before", "after")))
    table.add_section()
    table.add_row("kept fraction of tokens", "", _number(summary["kept_fraction"], "{:.4f}"))
    table.add_row("mean |dlogp|", "", _number(summary["mean_abs_logprob_diff"], "{:.2e}"))
    table.add_section()
    for stage, seconds in summary["seconds_by_stage"].items():
        table.add_row(f"seconds: {stage}", "", f"{seconds:.0f}")
    table.add_row("seconds: all", "", f"{summary['wall_s']:.0f}")
    return table


def _rate(summary: Mapping[str, Any], name: str, when: str) -> str:
    interval = summary.get(f"ci95_{when}" if name == "pass_rate" else f"greedy_ci95_{when}")
    text = _percent(summary.get(f"{name}_{when}"))
    return text if interval is None else f"{text} [{interval[0]:.1%}, {interval[1]:.1%}]"


def _percent(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("value")
    return _number(value, "{:.1%}")


def _number(value: Any, form: str) -> str:
    return "-" if value is None else form.format(float(value))
