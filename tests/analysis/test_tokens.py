"""Counts over token logs, against the same counts made the slow way."""

import dataclasses

import numpy as np
import pytest

from swe_rl.analysis.tokens import SAMPLE_SIZE, read_statistics
from swe_rl.errors import StoreError
from swe_rl.train.mask import Reason
from swe_rl.train.token_log import token_log_path, write_token_log
from swe_rl.trajectory import Segment


def test_counts_over_several_steps_are_those_of_all_tokens_together(tmp_path, columns_of):
    logs = [columns_of(step, 500 + step) for step in range(4)]
    for step, columns in enumerate(logs):
        write_token_log(tmp_path, step, columns)
    statistics = read_statistics(tmp_path)
    joined = {
        name: np.concatenate([getattr(columns, name) for columns in logs])
        for name in ("kept", "segment", "staleness", "train_logprobs", "infer_logprobs", "reason", "router_agreement")
    }
    gap = np.abs(joined["train_logprobs"].astype(np.float64) - joined["infer_logprobs"])
    assert statistics.num_tokens == len(gap) == 500 * 4 + 6
    assert statistics.kept_fraction == pytest.approx(joined["kept"].mean())
    assert statistics.overall.mean == pytest.approx(np.nanmean(gap))
    assert statistics.totals[Reason.NONFINITE] == 3
    assert sum(statistics.totals.values()) == len(gap)
    for segment, (kept, total) in statistics.segments.items():
        chosen = joined["segment"] == segment
        assert (kept, total) == (joined["kept"][chosen].sum(), chosen.sum())
    for staleness, moments in statistics.staleness.items():
        assert moments.mean == pytest.approx(np.nanmean(gap[joined["staleness"] == staleness]))
        agreement = joined["router_agreement"][joined["staleness"] == staleness]
        assert statistics.router_agreement[staleness].mean == pytest.approx(agreement.mean())
        assert 0.5 < agreement.mean() < 1.0
    assert statistics.divergence_counts.sum() == np.isfinite(gap).sum()
    assert statistics.divergence_counts[1].sum() == joined["kept"].sum()


def test_a_divergence_of_zero_and_a_huge_one_are_counted_in_the_outer_bins(tmp_path, columns_of):
    columns = columns_of(0, 100)
    extreme = np.where(np.arange(100) % 2 == 0, 0.0, 1e6).astype(np.float32)
    write_token_log(tmp_path, 0, dataclasses.replace(columns, divergence_forward=extreme, divergence_reverse=extreme))
    counts = read_statistics(tmp_path).divergence_counts.sum(axis=0)
    assert (counts[0], counts[-1], counts.sum()) == (50, 50, 100)


def test_the_points_of_the_scatter_are_bounded_and_the_same_each_time(tmp_path, columns_of):
    for step in range(3):
        write_token_log(tmp_path, step, columns_of(step, 20_000))
    first, second = read_statistics(tmp_path), read_statistics(tmp_path)
    assert SAMPLE_SIZE <= len(first.sample_kept) <= SAMPLE_SIZE + 3
    assert 0 < len(first.sample_masked) < 3000
    assert np.array_equal(first.sample_kept, second.sample_kept)
    assert np.isfinite(first.sample_masked).all()


def test_an_interval_of_the_mean_narrows_with_more_tokens(tmp_path, columns_of):
    write_token_log(tmp_path, 0, columns_of(0, 400))
    write_token_log(tmp_path, 1, columns_of(0, 40_000))
    steps = read_statistics(tmp_path).steps
    assert steps[1].half_width < steps[0].half_width / 3


def test_no_logs_are_no_tokens(tmp_path):
    statistics = read_statistics(tmp_path)
    assert statistics.num_tokens == 0
    assert np.isnan(statistics.kept_fraction)
    assert np.isnan(statistics.overall.mean)


def test_a_cut_log_is_a_store_error(tmp_path, columns_of):
    write_token_log(tmp_path, 0, columns_of(0, 100))
    path = token_log_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(StoreError, match="step_000000"):
        read_statistics(tmp_path)


def test_segments_are_named(tmp_path, columns_of):
    write_token_log(tmp_path, 0, columns_of(0, 1000))
    assert set(read_statistics(tmp_path).segments) == {s for s in Segment if s >= Segment.TEXT}
