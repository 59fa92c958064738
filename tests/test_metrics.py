"""The metrics file survives crashes and repeated steps."""

import json
from pathlib import Path

import pytest

from swe_rl.metrics import MetricsWriter, read_metrics


def test_a_step_written_again_after_a_resume_replaces_the_earlier_line(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step, loss in ((0, 1.0), (1, 2.0), (1, 3.0), (2, 4.0)):
        writer.write(step, {"train/loss": loss})
    assert [(row["step"], row["train/loss"]) for row in read_metrics(path)] == [(0, 1.0), (1, 3.0), (2, 4.0)]


def test_a_line_cut_short_by_a_crash_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).write(0, {"train/loss": 1.0})
    with path.open("a") as file:
        file.write('{"step": 1, "train/lo')
    assert [row["step"] for row in read_metrics(path)] == [0]


def test_a_number_that_json_has_no_word_for_is_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).write(0, {"train/loss": float("nan"), "train/lr": float("inf")})
    assert json.loads(path.read_text()) == {"step": 0, "train/loss": None, "train/lr": None}


@pytest.mark.parametrize("name", ["loss", "Train/loss", "train/", "/loss", "train loss"])
def test_a_name_without_an_area_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="area/name"):
        MetricsWriter(tmp_path / "metrics.jsonl").write(0, {name: 1.0})
