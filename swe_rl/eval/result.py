"""What an evaluation found: one row an episode, and their summary with intervals.

Rows flow in as they end and the summary flows out, to `<run>/eval/<name>.episodes.jsonl` and `<name>.json`. An episode
that the environment or the engine failed counts as not resolved: it stays in the denominator and is counted.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swe_rl.errors import StoreError
from swe_rl.eval.estimate import interval_over_tasks, pass_at_k
from swe_rl.store.files import disk_error, write_durably

MAX_LABEL_VALUES = 32
"""A label with more values than this (a name, a seed) makes no table."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One finished episode. `run` and `sample` are -1 in the greedy pass; `outcome` is None if it wasn't graded."""

    task_id: str
    run: int
    sample: int
    trajectory_id: str
    is_resolved: bool
    is_fault: bool
    outcome: str | None
    stop_reason: str
    num_tokens: int
    num_sampled: int
    num_turns: int
    num_malformed: int
    num_retries: int
    seconds: float

    @property
    def is_greedy(self) -> bool:
        return self.run < 0

    @property
    def key(self) -> tuple[str, int, int]:
        return self.task_id, self.run, self.sample


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean over tasks with its 95 % interval over tasks."""

    value: float
    ci95: tuple[float, float]
    num_tasks: int


@dataclass(frozen=True, slots=True)
class EvalResult:
    """`key` is all that the numbers depend on: policy weights, tasks' contents, settings."""

    name: str
    policy: str
    version: int
    key: Mapping[str, Any]
    split: str
    num_tasks: int
    samples_per_task: int
    num_runs: int
    pass_rate: Rate
    pass_at_k: Mapping[str, Rate]
    pass_rate_by_run: tuple[float, ...]
    greedy: Rate | None
    by_label: Mapping[str, Mapping[str, Rate]]
    stop_reasons: Mapping[str, int]
    outcomes: Mapping[str, int]
    num_episodes: int
    num_faults: int
    num_retries: int
    mean_tokens: float
    mean_sampled_tokens: float
    mean_turns: float
    malformed_rate: float
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the inverse of `from_dict`."""
        return dict(json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EvalResult":
        """Raises KeyError or TypeError for another shape."""
        rates = {
            "pass_rate": _rate(data["pass_rate"]),
            "pass_at_k": {k: _rate(v) for k, v in data["pass_at_k"].items()},
            "greedy": None if data["greedy"] is None else _rate(data["greedy"]),
            "by_label": {name: {k: _rate(v) for k, v in table.items()} for name, table in data["by_label"].items()},
            "pass_rate_by_run": tuple(data["pass_rate_by_run"]),
        }
        return cls(**{**data, **rates})


def result_path(run_dir: Path, name: str) -> Path:
    return run_dir / "eval" / f"{name}.json"


def read_result(run_dir: Path, name: str) -> EvalResult | None:
    """A finished evaluation, None if there is none of this name. Raises StoreError if the file is broken."""
    path = result_path(run_dir, name)
    try:
        return EvalResult.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: not an evaluation of this release: {error!r}; delete it to run it again") from error


def write_result(run_dir: Path, result: EvalResult) -> Path:
    path = result_path(run_dir, result.name)
    write_durably(path, (json.dumps(result.to_dict(), indent=1) + "\n").encode())
    return path


class EpisodeLog:
    """Rows of one evaluation on disk as they come. A log with another key is begun anew; faults are tried again."""

    def __init__(self, run_dir: Path, name: str, key: Mapping[str, Any]) -> None:
        self._path = run_dir / "eval" / f"{name}.episodes.jsonl"
        self.rows: dict[tuple[str, int, int], EpisodeRow] = {}
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        if lines and lines[0] == json.dumps(key):
            self.rows = {row.key: row for row in _parse(lines[1:]) if not row.is_fault}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # rewritten whole, so that a line which a crash cut short doesn't swallow the next one
            head = [json.dumps(key), *(json.dumps(asdict(row)) for row in self.rows.values())]
            write_durably(self._path, ("\n".join(head) + "\n").encode())
        except OSError as error:
            raise error if isinstance(error, StoreError) else disk_error(self._path, error) from error

    def add(self, row: EpisodeRow) -> None:
        """Raises StoreError if the disk refuses."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        except OSError as error:
            raise disk_error(self._path, error) from error
        self.rows[row.key] = row


def summarise(
    rows: Sequence[EpisodeRow], labels: Mapping[str, Mapping[str, str]], ks: Sequence[int], seed: int
) -> dict[str, Any]:
    """The fields of `EvalResult` that follow from the rows; `labels` of each task by its id."""
    sampled = [row for row in rows if not row.is_greedy]
    greedy = [row for row in rows if row.is_greedy]
    num_turns = sum(row.num_turns for row in sampled)
    return {
        "pass_rate": _pass_rate(sampled, 1, seed),
        "pass_at_k": {str(k): _pass_rate(sampled, k, seed) for k in ks},
        "pass_rate_by_run": tuple(
            _pass_rate([row for row in sampled if row.run == run], 1, seed).value
            for run in sorted({row.run for row in sampled})
        ),
        "greedy": _pass_rate(greedy, 1, seed) if greedy else None,
        "by_label": _tables(sampled, labels, seed),
        "stop_reasons": dict(Counter(row.stop_reason for row in sampled)),
        "outcomes": dict(Counter(row.outcome or "not graded" for row in sampled)),
        "num_episodes": len(rows),
        "num_faults": sum(row.is_fault for row in rows),
        "num_retries": sum(row.num_retries for row in rows),
        "mean_tokens": _mean(row.num_tokens for row in sampled),
        "mean_sampled_tokens": _mean(row.num_sampled for row in sampled),
        "mean_turns": _mean(row.num_turns for row in sampled),
        "malformed_rate": sum(row.num_malformed for row in sampled) / max(1, num_turns),
    }


def _pass_rate(rows: Iterable[EpisodeRow], k: int, seed: int) -> Rate:
    """pass@k of each run of each task, averaged over the task's runs, then over tasks."""
    by_task: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_task[row.task_id][row.run].append(row.is_resolved)
    values = [
        _mean(pass_at_k(len(passed), sum(passed), k) for passed in runs.values()) for _, runs in sorted(by_task.items())
    ]
    return Rate(_mean(values), interval_over_tasks(values, seed), len(values))


def _tables(
    rows: Sequence[EpisodeRow], labels: Mapping[str, Mapping[str, str]], seed: int
) -> dict[str, dict[str, Rate]]:
    labels = {row.task_id: labels[row.task_id] for row in rows}
    tables: dict[str, dict[str, Rate]] = {}
    for name in sorted({name for of_task in labels.values() for name in of_task}):
        values = {task_id: of_task[name] for task_id, of_task in labels.items() if name in of_task}
        if len(set(values.values())) > MAX_LABEL_VALUES:
            continue
        tables[name] = {
            value: _pass_rate([row for row in rows if values.get(row.task_id) == value], 1, seed)
            for value in sorted(set(values.values()))
        }
    return tables


def _parse(lines: Iterable[str]) -> list[EpisodeRow]:
    rows = []
    for line in lines:
        try:
            rows.append(EpisodeRow(**json.loads(line)))
        except (ValueError, TypeError):
            continue  # the tail of a killed process: that episode runs again
    return rows


def _rate(data: Mapping[str, Any]) -> Rate:
    return Rate(data["value"], (data["ci95"][0], data["ci95"][1]), data["num_tasks"])


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
