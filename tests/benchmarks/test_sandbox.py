"""The comparison in its short form: every figure is there, ratios are peer by ours, and who is absent is named."""

import json

import pytest

OURS = {"start_cold", "start_warm", "exec", "exec_backend", "file_up", "file_down", "concurrent", "fork"}
SHORT = ("--rounds", "1", "--execs", "3", "--concurrent", "2", "--forks", "2")


@pytest.mark.slow
def test_each_operation_gets_a_figure_and_an_absent_peer_is_named(run_script) -> None:
    report = run_script("sandbox.py", *SHORT, "--backends", "bubblewrap", "--peers", "swe_rex_local")
    assert set(report["figures"]) >= OURS
    assert all(report["figures"][name]["ours_bubblewrap"]["median_ms"] > 0 for name in OURS)
    assert set(report["service_overhead_ms"]) == {"ours_bubblewrap"}
    assert list(report["left_out"]) == ["swe_rex_local"]
    assert report["ratios"] == {}
    assert report["exit_code"] == 0


@pytest.mark.slow
@pytest.mark.docker
def test_the_docker_command_is_compared_with_both_backends(run_script, load) -> None:
    if not load("sandbox_soak.census").engine_baseline():
        pytest.skip("no Docker engine answers")
    report = run_script("sandbox.py", *SHORT, "--peers", "docker_cli")
    if "docker_cli" in report["left_out"]:
        pytest.skip(report["left_out"]["docker_cli"])
    assert report["left_out"] == {}
    assert {"exec_vs_docker_exec_cli", "warm_start_vs_docker_run", "fork_vs_docker_commit"} <= set(report["ratios"])
    assert "bubblewrap_exec_vs_docker_exec_cli" in report["ratios"]


def test_a_ratio_is_the_peers_median_by_ours(load) -> None:
    sandbox = load("sandbox")
    figures = {
        "exec": {
            "ours_docker": sandbox._figure([0.010, 0.004, 0.006]),
            "docker_cli": sandbox._figure([0.090, 0.060, 0.080, 0.070]),
            "ours_bubblewrap": sandbox._figure([0.003]),
        },
        "exec_backend": {"ours_docker": sandbox._figure([0.004])},
    }
    assert figures["exec"]["docker_cli"] == {"median_ms": 75.0, "p95_ms": 90.0, "num": 4}
    assert sandbox._ratios(figures) == {"exec_vs_docker_exec_cli": 12.5, "bubblewrap_exec_vs_docker_exec_cli": 25.0}
    assert sandbox._overheads(figures) == {"ours_docker": 2.0}


def test_the_sum_of_a_metrics_samples_is_read_by_its_labels(load) -> None:
    text = '# TYPE made counter\nmade_total{source="warm"} 3.0\nmade_total{source="cold"} 2.0\nmade_totals 9.0\n'
    metric = load("served").metric
    assert metric(text, "made_total") == 5
    assert metric(text, "made_total", source="warm") == 3
    assert metric(text, "absent") == 0


def test_the_file_that_is_sent_is_one_megabyte_of_text(load) -> None:
    data = load("sandbox_speed.subject").MEGABYTE
    assert len(data) == 1 << 20
    assert json.loads(json.dumps(data.decode())).encode() == data
