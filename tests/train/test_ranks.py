"""Two ranks by torchrun against one: equal gradients, weights and columns; a state goes on on another number."""

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_rl.train.batch import TokenBatch, build_batch
from swe_rl.train.ranks import Ranks
from swe_rl.train.trainer import Trainer

NUM_STEPS = 3

PROGRAM = """
import json, pickle, sys
from pathlib import Path
import torch
from swe_rl.config import Config
from swe_rl.train.ranks import leave_ranks
from swe_rl.train.trainer import Trainer

config = Config.model_validate_json(Path(sys.argv[1]).read_text())
batches = pickle.loads(Path(sys.argv[2]).read_bytes())
trainer = Trainer(config.policy.path, config, config.run.dir / "state")
if len(sys.argv) > 4:
    trainer.load_state(int(sys.argv[4]))
results = [trainer.update(batch) for batch in batches[trainer.version:]]
trainer.save_state()
write = trainer.export()
if trainer.ranks.is_first:
    write(config.run.dir / "policy")
    torch.save([(dict(r.metrics), {n: getattr(r.tokens, n) for n in r.tokens.__slots__}) for r in results], sys.argv[3])
leave_ranks()
"""


def run(tmp_path: Path, num_ranks: int, config, batches, *more: str):
    """[(metrics, columns)] of each step on `num_ranks` processes; weights are left in the run's state."""
    config.run.dir.mkdir(parents=True, exist_ok=True)
    names = {name: config.run.dir / name for name in ("program.py", "config.json", "batches", "results")}
    names["program.py"].write_text(PROGRAM)
    names["config.json"].write_text(config.model_dump_json())
    names["batches"].write_bytes(pickle.dumps(batches))
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    arguments = [*map(str, names.values()), *more]
    done = subprocess.run(
        [sys.executable, *(start if num_ranks > 1 else []), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return torch.load(names["results"], weights_only=False)


def state(config, version):
    return torch.load(config.run.dir / "state" / f"step_{version:06d}" / "state.pt", weights_only=True)


def assert_equal_states(one, two, tolerance):
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=tolerance, atol=tolerance)
    for name, moments in one["optimizer"]["state"].items():
        for key, value in moments.items():
            torch.testing.assert_close(two["optimizer"]["state"][name][key], value, rtol=tolerance, atol=tolerance)


@pytest.fixture
def batches(make_groups):
    groups = [make_groups(3, first=10 * i, noise=0.6) for i in range(NUM_STEPS)]
    return [build_batch(step, row_tokens=64, shared_prefix=True) for step in groups]


@pytest.mark.parametrize(
    "options",
    [
        ["mask.rule=kpop"],
        ["loss.aggregation=sequence_mean", "loss.denominator=kept", "train.minibatches=2"],
        ["train.frozen=['model.embed_tokens']", "train.recompute=true"],
    ],
    ids=" ".join,
)
def test_two_ranks_train_as_one(tmp_path, make_config, batches, options):
    base = ["train.dtype=float64", "mask.phi=0.002", "rollout.max_staleness=99", "train.lr=1e-3", *options]
    configs = [make_config(*base, f"run.dir={tmp_path}/ranks{n}") for n in (1, 2)]
    alone, together = (run(tmp_path, n, config, batches) for n, config in zip((1, 2), configs, strict=True))
    for (metrics, columns), (others, other_columns) in zip(alone, together, strict=True):
        assert 0.1 < metrics["mask/kept_fraction"] < 0.95
        for name, value in metrics.items():
            if not name.startswith("time/"):
                assert others[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
        for name, values in columns.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(other_columns[name], values, rtol=1e-6, atol=1e-7)
            else:
                np.testing.assert_array_equal(other_columns[name], values)
    assert_equal_states(state(configs[0], NUM_STEPS), state(configs[1], NUM_STEPS), 1e-10)


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_state_goes_on_on_another_number_of_ranks(tmp_path, make_config, batches, first, then):
    base = ["train.dtype=float64", "rollout.max_staleness=99", "train.lr=1e-3"]
    config, straight = make_config(*base, f"run.dir={tmp_path}/a"), make_config(*base, f"run.dir={tmp_path}/b")
    run(tmp_path, first, config, batches[:2])
    run(tmp_path, then, config, batches, "2")
    run(tmp_path, 1, straight, batches)
    assert_equal_states(state(straight, NUM_STEPS), state(config, NUM_STEPS), 1e-10)


def test_a_rank_whose_microbatches_are_all_masked_neither_hangs_nor_changes_the_others(
    tmp_path, make_config, make_groups
):
    """Two microbatches, one a rank; on the second rank the engine's log-probabilities are no numbers."""
    batch = build_batch(make_groups(1, noise=0.6), row_tokens=70, shared_prefix=True)
    rows = batch.rows[:2]
    assert len(rows) == 2
    rows[1].infer_logprobs_N.fill_(math.nan)
    masked = TokenBatch(rows, batch.trajectories, batch.metrics)
    nothing = TokenBatch(rows[1:], batch.trajectories, batch.metrics)
    base = ["train.dtype=float64", "mask.phi=0.002", "rollout.max_staleness=99", "train.lr=1e-3"]
    configs = [make_config(*base, f"run.dir={tmp_path}/ranks{n}") for n in (1, 2)]
    alone, together = (run(tmp_path, n, c, [masked, nothing]) for n, c in zip((1, 2), configs, strict=True))
    for results in (alone, together):
        assert results[0][0]["mask/nonfinite"] > 0.1 and results[0][0]["mask/kept_fraction"] > 0
        assert results[1][0]["train/loss"] == 0.0 and results[1][0]["train/num_skipped_updates"] == 1
    assert_equal_states(state(configs[0], 2), state(configs[1], 2), 1e-10)


def test_a_rank_with_fewer_microbatches_gets_silent_ones():
    parts = [Ranks(rank, 3, torch.device("cpu")).part([1, 2, 3, 4], lambda item: -item) for rank in range(3)]
    assert parts == [[1, 4], [2, -1], [3, -1]]


def test_a_rank_alone_needs_no_process_group(make_config, make_groups):
    config = make_config()
    ranks = Trainer(config.policy.path, config, config.run.dir / "state").ranks
    assert (ranks.rank, ranks.size) == (0, 1)
    assert ranks.sum(1.5, 2) == [1.5, 2]
    assert ranks.gather(json) == [json]
    with pytest.raises(KeyError):
        ranks.share(lambda: {}["gone"])
