"""The summary of known rows, and what a killed evaluation leaves."""

import json
from dataclasses import replace

import pytest

from swe_rl.errors import StoreError
from swe_rl.eval.result import (
    MAX_LABEL_VALUES,
    EpisodeLog,
    EpisodeRow,
    EvalResult,
    read_result,
    result_path,
    summarise,
    write_result,
)


def row(task_id, run=0, sample=0, resolved=False, fault=False, **fields):
    base = EpisodeRow(
        task_id=task_id,
        run=run,
        sample=sample,
        trajectory_id=f"{task_id}-{run}-{sample}",
        is_resolved=resolved,
        is_fault=fault,
        outcome=None if fault else ("resolved" if resolved else "unresolved"),
        stop_reason="sandbox_error" if fault else "submitted",
        num_tokens=100,
        num_sampled=40,
        num_turns=4,
        num_malformed=0,
        num_retries=2 if fault else 0,
        seconds=1.0,
    )
    return replace(base, **fields)


LABELS = {"a": {"language": "python", "kind": "x"}, "b": {"language": "python"}, "c": {"language": "rust", "kind": "y"}}


def grid(resolved):
    """resolved[task] = outcomes of its samples in run 0."""
    return [row(task, 0, n, bool(hit)) for task, hits in resolved.items() for n, hit in enumerate(hits)]


def make_result(rows=None, **fields):
    summary = summarise(rows or grid({"a": [1, 0], "b": [0, 0], "c": [1, 1]}), LABELS, [1, 2], seed=0)
    about = {
        "name": "before",
        "policy": "p",
        "version": 0,
        "key": {"seed": 0},
        "split": "verified",
        "num_tasks": 3,
        "samples_per_task": 2,
        "num_runs": 1,
        "wall_s": 2.0,
    }
    return EvalResult(**{**about, **summary, **fields})


def test_pass_rates_are_means_over_tasks():
    summary = summarise(grid({"a": [1, 0, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1]}), LABELS, [1, 2], 0)
    assert summary["pass_rate"].value == pytest.approx((0.25 + 0 + 1) / 3)
    assert summary["pass_at_k"]["2"].value == pytest.approx((0.5 + 0 + 1) / 3)
    assert summary["pass_rate"].num_tasks == 3
    low, high = summary["pass_rate"].ci95
    assert 0.0 <= low < summary["pass_rate"].value < high <= 1.0


def test_a_fault_stays_in_the_denominator_and_is_counted():
    rows = [row("a", 0, 0, True), row("a", 0, 1, fault=True), row("b", 0, 0, True), row("b", 0, 1, True)]
    summary = summarise(rows, LABELS, [1], 0)
    assert summary["pass_rate"].value == pytest.approx(0.75)
    assert (summary["num_faults"], summary["num_retries"], summary["num_episodes"]) == (1, 2, 4)
    assert summary["outcomes"] == {"resolved": 3, "not graded": 1}
    assert summary["stop_reasons"] == {"submitted": 3, "sandbox_error": 1}


def test_runs_are_averaged_and_shown_one_by_one():
    rows = [row("a", 0, 0, True), row("a", 1, 0, False), row("b", 0, 0, True), row("b", 1, 0, True)]
    summary = summarise(rows, LABELS, [1], 0)
    assert summary["pass_rate_by_run"] == (1.0, 0.5)
    assert summary["pass_rate"].value == pytest.approx(0.75)


def test_the_greedy_pass_is_apart_from_the_samples():
    rows = [*grid({"a": [0, 0], "b": [0, 0]}), row("a", -1, -1, True), row("b", -1, -1, False)]
    summary = summarise(rows, LABELS, [1], 0)
    assert summary["greedy"].value == 0.5
    assert summary["pass_rate"].value == 0.0
    assert summarise(grid({"a": [1]}), LABELS, [1], 0)["greedy"] is None


def test_every_label_makes_a_table_of_the_tasks_that_have_it():
    tables = make_result().by_label
    assert {value: rate.num_tasks for value, rate in tables["language"].items()} == {"python": 2, "rust": 1}
    assert tables["language"]["python"].value == pytest.approx(0.25)
    assert {value: rate.value for value, rate in tables["kind"].items()} == {"x": 0.5, "y": 1.0}


def test_a_label_that_is_as_good_as_a_name_makes_no_table():
    tasks = [f"t{n}" for n in range(MAX_LABEL_VALUES + 1)]
    labels = {task: {"seed": task, "language": "python"} for task in tasks}
    assert set(summarise([row(task) for task in tasks], labels, [1], 0)["by_label"]) == {"language"}


def test_the_malformed_rate_is_over_turns():
    rows = [row("a", num_turns=4, num_malformed=1), row("b", num_turns=1, num_malformed=1)]
    assert summarise(rows, LABELS, [1], 0)["malformed_rate"] == pytest.approx(2 / 5)


def test_a_result_survives_the_disk(tmp_path):
    result = make_result(rows=[*grid({"a": [1, 0], "b": [0, 0]}), row("a", -1, -1, True)])
    assert read_result(tmp_path, "before") is None
    (tmp_path / "eval").mkdir()
    write_result(tmp_path, result)
    assert read_result(tmp_path, "before") == result
    result_path(tmp_path, "before").write_text("{")
    with pytest.raises(StoreError, match="delete it to run it again"):
        read_result(tmp_path, "before")


def test_a_log_goes_on_without_its_faults_and_its_cut_line(tmp_path):
    log = EpisodeLog(tmp_path, "before", {"seed": 0})
    log.add(row("a", 0, 0, True))
    log.add(row("a", 0, 1, fault=True))
    path = tmp_path / "eval" / "before.episodes.jsonl"
    with path.open("a") as file:
        file.write('{"task_id": "b", "ru')
    again = EpisodeLog(tmp_path, "before", {"seed": 0})
    assert list(again.rows) == [("a", 0, 0)]
    again.add(row("b", 0, 0))
    assert list(EpisodeLog(tmp_path, "before", {"seed": 0}).rows) == [("a", 0, 0), ("b", 0, 0)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_log_of_other_weights_is_begun_anew(tmp_path):
    EpisodeLog(tmp_path, "before", {"weights": "x"}).add(row("a"))
    assert EpisodeLog(tmp_path, "before", {"weights": "y"}).rows == {}
