"""The cost of grading in its short form: every figure is there, and a language that can't be measured is named."""

import pytest


@pytest.mark.slow
def test_a_grade_is_measured_against_its_bare_command_and_by_the_minute(run_script) -> None:
    report = run_script("grade.py", "--rounds", "1", "--only", "python,bash", "--concurrency", "1,2", "--grades", "2")
    assert set(report["overhead"]) | set(report["left_out"]) == {"python", "bash"}
    row = report["overhead"]["python"]
    assert row["bare_s"] > 0 and row["grade_s"] > 0
    assert row["aim_s"] == pytest.approx(1.25 * row["bare_s"] + 0.3, abs=0.002)
    assert row["is_met"] == (row["grade_s"] <= row["aim_s"])
    assert {count: row["num"] for count, row in report["throughput"].items()} == {"1": 2, "2": 4}
    assert all(row["grades_a_minute"] > 0 for row in report["throughput"].values())
    assert report["exit_code"] == 0
