"""The token log gives back what was written, atomically, and says so when the disk or the file fails."""

import os
from dataclasses import fields

import numpy as np
import pytest

from swe_rl.errors import StoreError
from swe_rl.train.batch import build_batch
from swe_rl.train.token_log import COLUMN_DTYPES, TokenColumns, logged_steps, read_token_log, write_token_log
from swe_rl.train.trainer import Trainer


@pytest.fixture
def columns(make_config, make_groups):
    config = make_config()
    return Trainer(config.policy.path, config, config.run.dir / "state").update(build_batch(make_groups(1))).tokens


def test_every_column_comes_back_bit_for_bit_with_its_type(columns, tmp_path):
    write_token_log(tmp_path, 7, columns)
    read = read_token_log(tmp_path, 7)
    for field in fields(TokenColumns):
        ours, theirs = getattr(columns, field.name), getattr(read, field.name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
        if field.name != "trajectory_ids":
            assert ours.dtype == COLUMN_DTYPES[field.name] and len(ours) == len(columns)
    assert logged_steps(tmp_path) == [7]


def test_an_empty_step_has_a_log_too(make_config, make_groups, tmp_path):
    config = make_config()
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    write_token_log(tmp_path, 0, trainer.update(build_batch(make_groups(1, rewards=(0.0, 0.0)))).tokens)
    assert len(read_token_log(tmp_path, 0)) == 0


def test_a_step_that_is_written_again_replaces_the_first_and_leaves_no_temporary(columns, tmp_path):
    first = write_token_log(tmp_path, 0, columns)
    assert write_token_log(tmp_path, 0, columns) == first
    assert os.listdir(tmp_path / "tokens") == ["step_000000.npz"]


def test_a_missing_or_cut_file_is_a_store_error_that_names_it(columns, tmp_path):
    with pytest.raises(StoreError, match="step_000003"):
        read_token_log(tmp_path, 3)
    path = write_token_log(tmp_path, 3, columns)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(StoreError, match="step_000003"):
        read_token_log(tmp_path, 3)
