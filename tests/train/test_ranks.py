"""Ranks by torchrun against one: equal gradients, weights and columns; a state goes on on another number of them."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swe_rl.errors import ConfigError
from swe_rl.model import Context
from swe_rl.train.batch import TokenBatch, build_batch
from swe_rl.train.ranks import Ranks
from swe_rl.train.trainer import Trainer

NUM_STEPS = 3
SEQUENCES = ["loss.aggregation=sequence_mean", "loss.denominator=kept", "train.minibatches=2", "loss.kl_coef=0.1"]

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


@pytest.fixture
def run(torchrun):
    """run(num_ranks, config, batches): [(metrics, columns)] of each step; weights are left in the run's state."""

    def start(num_ranks: int, config, batches, *more: str):
        config.run.dir.mkdir(parents=True, exist_ok=True)
        names = {name: config.run.dir / name for name in ("config.json", "batches", "results")}
        names["config.json"].write_text(config.model_dump_json())
        names["batches"].write_bytes(pickle.dumps(batches))
        torchrun(num_ranks, PROGRAM, *names.values(), *more)
        return torch.load(names["results"], weights_only=False)

    return start


def state(config, version):
    return torch.load(config.run.dir / "state" / f"step_{version:06d}" / "state.pt", weights_only=True)


def assert_equal_policies(one, two):
    """Weights and, if there are any, the adapters beside them."""
    directories = [config.run.dir / "policy" for config in (one, two)]
    files, others = ([file.relative_to(d) for file in sorted(d.rglob("*.safetensors"))] for d in directories)
    assert files == others
    for file in files:
        ours, theirs = (load_file(directory / file) for directory in directories)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            torch.testing.assert_close(theirs[name], value, rtol=1e-6, atol=1e-7)


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


def assert_equal_results(alone, together):
    for (metrics, columns), (others, other_columns) in zip(alone, together, strict=True):
        for name, value in metrics.items():
            if not name.startswith("time/"):
                assert others[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
        for name, values in columns.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(other_columns[name], values, rtol=1e-6, atol=1e-7)
            else:
                np.testing.assert_array_equal(other_columns[name], values)


@pytest.mark.parametrize(
    ("options", "num_ranks"),
    [
        (["mask.rule=kpop"], ["2", "2 of one context", "4 of two contexts"]),
        (["mask.rule=geometric", "mask.low=0.9", "mask.high=1.2", *SEQUENCES], ["2", "2 of one context"]),
        (["train.frozen=['model.embed_tokens']", "train.recompute=true"], ["2", "2 of one context"]),
        (["train.lora_rank=3", "train.recompute=true", "loss.kl_coef=0.2"], ["2", "2 of one context"]),
    ],
    ids=["tokens", "sequences and a reference", "frozen and recomputed", "adapters and a reference"],
)
def test_ranks_train_as_one(run, tmp_path, make_config, batches, options, num_ranks):
    base = ["train.dtype=float64", "mask.phi=0.002", "rollout.max_staleness=99", "train.lr=1e-3", *options]
    config = make_config(*base, f"run.dir={tmp_path}/alone")
    alone = run(1, config, batches)
    assert all(0.1 < metrics["mask/kept_fraction"] < 0.95 for metrics, _ in alone)
    for index, kind in enumerate(num_ranks):
        size = int(kind[0])
        of_context = ["train.context_ranks=2"] if "context" in kind else []
        other = make_config(*base, *of_context, f"run.dir={tmp_path}/{index}")
        assert_equal_results(alone, run(size, other, batches))
        assert_equal_states(state(config, NUM_STEPS), state(other, NUM_STEPS), 1e-10)
        assert_equal_policies(config, other)


@pytest.mark.parametrize("context_ranks", [1, 2])
def test_two_ranks_replay_experts_as_one(
    run, tmp_path, make_config, make_groups, with_experts, moe_policy_dir, context_ranks
):
    groups = [with_experts(make_groups(3, first=10 * i, noise=0.6)) for i in range(NUM_STEPS)]
    batches = [build_batch(step, row_tokens=64, shared_prefix=True, replay_routing=True) for step in groups]
    base = [f"policy.path={moe_policy_dir}", "engine.return_routed_experts=true", "train.replay_routing=true"]
    base += ["mask.rule=none", "rollout.max_staleness=99", "train.lr=1e-3", "train.recompute=true"]
    configs = [
        make_config(*base, f"run.dir={tmp_path}/alone"),
        make_config(*base, f"run.dir={tmp_path}/together", f"train.context_ranks={context_ranks}"),
    ]
    alone, together = run(1, configs[0], batches), run(2, configs[1], batches)
    for (metrics, columns), (others, other_columns) in zip(alone, together, strict=True):
        # two of six experts at random: the routers choose the same ones once in fifteen times
        assert 0.02 < metrics["mismatch/router_agreement"] < 0.15
        assert others["train/loss"] == pytest.approx(metrics["train/loss"], rel=1e-4, abs=1e-6)
        assert others["mismatch/router_agreement"] == pytest.approx(metrics["mismatch/router_agreement"], rel=0.02)
        np.testing.assert_allclose(other_columns["train_logprobs"], columns["train_logprobs"], atol=1e-4)
    assert_equal_states(state(configs[0], NUM_STEPS), state(configs[1], NUM_STEPS), 1e-4)


@pytest.mark.parametrize(
    ("first", "then", "options"),
    [(2, 1, []), (1, 2, []), (2, 1, ["train.lora_rank=3", "loss.kl_coef=0.2"])],
    ids=["fewer", "more", "fewer, with adapters"],
)
def test_a_state_goes_on_on_another_number_of_ranks(run, tmp_path, make_config, batches, first, then, options):
    base = ["train.dtype=float64", "rollout.max_staleness=99", "train.lr=1e-3", *options]
    config, straight = make_config(*base, f"run.dir={tmp_path}/a"), make_config(*base, f"run.dir={tmp_path}/b")
    run(first, config, batches[:2])
    run(then, config, batches, "2")
    run(1, straight, batches)
    assert_equal_states(state(straight, NUM_STEPS), state(config, NUM_STEPS), 1e-10)
    assert_equal_policies(straight, config)


@pytest.mark.parametrize("options", [[], ["train.lora_rank=3"]], ids=["whole", "adapters"])
def test_a_rank_whose_microbatches_are_all_masked_neither_hangs_nor_changes_the_others(
    run, tmp_path, make_config, make_groups, options
):
    """Two microbatches, one a rank; on the second rank the engine's log-probabilities are no numbers."""
    batch = build_batch(make_groups(1, noise=0.6), row_tokens=70, shared_prefix=True)
    rows = batch.rows[:2]
    assert len(rows) == 2
    rows[1].infer_logprobs_N.fill_(math.nan)
    masked = TokenBatch(rows, batch.trajectories, batch.metrics)
    nothing = TokenBatch(rows[1:], batch.trajectories, batch.metrics)
    base = ["train.dtype=float64", "mask.phi=0.002", "rollout.max_staleness=99", "train.lr=1e-3", *options]
    kinds = [(1, 1), (2, 1), (2, 2)]
    configs = [make_config(*base, f"train.context_ranks={c}", f"run.dir={tmp_path}/{n}-{c}") for n, c in kinds]
    for config, (num_ranks, _) in zip(configs, kinds, strict=True):
        results = run(num_ranks, config, [masked, nothing])
        assert results[0][0]["mask/nonfinite"] > 0.1 and results[0][0]["mask/kept_fraction"] > 0
        assert results[1][0]["train/loss"] == 0.0 and results[1][0]["train/num_skipped_updates"] == 1
        assert_equal_states(state(configs[0], 2), state(config, 2), 1e-10)


def test_a_rank_with_fewer_microbatches_gets_silent_ones():
    parts = [Ranks(rank, 3, torch.device("cpu")).part([1, 2, 3, 4], lambda item: -item) for rank in range(3)]
    assert parts == [[1, 4], [2, -1], [3, -1]]


def test_the_ranks_of_a_context_have_the_same_microbatches():
    parts = [
        Ranks(rank, 4, torch.device("cpu"), Context(rank % 2, 2)).part([1, 2, 3], lambda item: -item)
        for rank in range(4)
    ]
    assert parts == [[1, 3], [1, 3], [2, -1], [2, -1]]


def test_ranks_that_no_context_gets_are_refused(make_config):
    config = make_config("train.context_ranks=2")
    with pytest.raises(ConfigError, match=r"train\.context_ranks is 2, expected a divisor of .* which is 1"):
        Trainer(config.policy.path, config, config.run.dir / "state")


def test_a_rank_alone_needs_no_process_group(make_config, make_groups):
    config = make_config()
    ranks = Trainer(config.policy.path, config, config.run.dir / "state").ranks
    assert (ranks.rank, ranks.size) == (0, 1)
    assert ranks.sum(1.5, 2) == [1.5, 2]
    assert ranks.gather(json) == [json]
    with pytest.raises(KeyError):
        ranks.share(lambda: {}["gone"])
