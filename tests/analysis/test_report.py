"""The report of a whole run, of half a run, and of what isn't one."""

import dataclasses
import json

import numpy as np
import pytest
from matplotlib.image import imread

from swe_rl.analysis.report import PICTURES, write_report
from swe_rl.analysis.tokens import read_statistics
from swe_rl.errors import StoreError
from swe_rl.metrics import MetricsWriter
from swe_rl.train.mask import Reason
from swe_rl.train.token_log import write_token_log

REQUIRED = {
    *("pass_rate_before", "pass_rate_after", "ci95_before", "ci95_after", "num_tasks", "samples_per_task"),
    *("kept_fraction", "mean_abs_logprob_diff", "wall_s", "seconds_by_stage", "greedy_before", "greedy_after"),
}


def read_summary(report):
    return json.loads((report / "summary.json").read_text())


def check_pictures(report):
    for name in PICTURES:
        image = imread(report / name)
        assert min(image.shape[:2]) > 250
        assert image[..., :3].std() > 0.02  # something is drawn


def test_a_whole_run_gives_numbers_pictures_and_a_page(tmp_path, make_run):
    run_dir = make_run(tmp_path)
    report = write_report(run_dir)
    summary = read_summary(report)
    assert summary.keys() >= REQUIRED
    assert (summary["pass_rate_before"], summary["pass_rate_after"]) == (0.17, 0.74)
    assert summary["ci95_after"] == pytest.approx([0.68, 0.80])
    assert (summary["greedy_before"], summary["greedy_after"]) == (0.2, 0.8)
    assert (summary["num_tasks"], summary["samples_per_task"], summary["num_steps"]) == (40, 4, 30)
    assert summary["by_label"]["language"]["rust"]["after"] == pytest.approx(0.72)
    tokens = read_statistics(run_dir)
    assert summary["kept_fraction"] == tokens.kept_fraction
    assert sum(summary["mask_fractions"].values()) == pytest.approx(1.0)
    assert summary["mean_abs_logprob_diff"] == tokens.overall.mean
    assert list(summary["mean_abs_logprob_diff_by_staleness"]) == ["0", "1", "2"]
    page = (report / "index.md").read_text()
    assert all(f"]({name})" in page for name in PICTURES)
    assert "| pass rate, sampled | 17.0% [11.0%, 23.0%] | 74.0% [68.0%, 80.0%] |" in page
    check_pictures(report)


def test_the_stages_own_times_win_over_what_the_steps_add_up_to(tmp_path, make_run):
    run_dir = make_run(tmp_path, steps=2, tokens=50)
    summary = read_summary(write_report(run_dir))
    assert summary["seconds_by_stage"] == {"eval_after": 30.0, "eval_before": 30.0, "train": 8.0}
    assert summary["wall_s"] == 68.0
    (run_dir / "stages.json").write_text('{"tasks": 1.5, "train": 60}')
    summary = read_summary(write_report(run_dir))
    assert summary["seconds_by_stage"] == {"tasks": 1.5, "train": 60.0}
    assert summary["wall_s"] == 61.5


def test_what_was_not_measured_is_null_and_not_zero(tmp_path, make_run):
    report = write_report(make_run(tmp_path, steps=3, tokens=50, evals=False))
    summary = read_summary(report)
    for name in ("pass_rate_before", "ci95_after", "greedy_after", "num_tasks"):
        assert summary[name] is None
    assert "not measured" in (report / "index.md").read_text()
    check_pictures(report)


def test_an_evaluation_alone_gives_a_report(tmp_path, make_run):
    run_dir = make_run(tmp_path, steps=1, tokens=50)
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "tokens" / "step_000000.npz").unlink()
    (run_dir / "config.json").unlink()
    report = write_report(run_dir)
    summary = read_summary(report)
    assert (summary["kept_fraction"], summary["mean_abs_logprob_diff"], summary["num_tokens"]) == (None, None, 0)
    assert summary["pass_rate_after"] == 0.74
    check_pictures(report)


def test_an_interval_without_width_is_left_out(tmp_path, make_run):
    run_dir = make_run(tmp_path, steps=1, tokens=50)
    path = run_dir / "eval" / "after.json"
    after = json.loads(path.read_text())
    after["by_label"]["language"]["rust"] |= {"ci95": [0.75, 0.75], "value": 0.75, "num_tasks": 1}
    path.write_text(json.dumps(after))
    assert "| 75.0% |" in (write_report(run_dir) / "index.md").read_text()


@pytest.mark.parametrize("case", ["all kept", "none kept", "all NaN"])
def test_a_run_at_the_edge_is_drawn_too(tmp_path, columns_of, case):
    columns = columns_of(0, 60)
    kept = np.full(60, case == "all kept")
    reason = {"all kept": Reason.KEPT, "none kept": Reason.OVER_PHI, "all NaN": Reason.NONFINITE}[case]
    columns = dataclasses.replace(columns, kept=kept, reason=np.full(60, reason, np.uint8))
    if case == "all NaN":
        nan = np.full(60, np.nan, np.float32)
        columns = dataclasses.replace(columns, infer_logprobs=nan, divergence_forward=nan, divergence_reverse=nan)
    write_token_log(tmp_path, 0, columns)
    MetricsWriter(tmp_path / "metrics.jsonl").write(0, {"reward/mean": float("nan")})
    report = write_report(tmp_path)
    assert read_summary(report)["kept_fraction"] == float(case == "all kept")
    check_pictures(report)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="expected the directory of a run"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", ["eval/before.json", "config.json"])
def test_a_broken_file_is_named(tmp_path, make_run, name):
    run_dir = make_run(tmp_path, steps=1, tokens=50)
    (run_dir / name).write_text("{")
    with pytest.raises(StoreError, match=name):
        write_report(run_dir)
