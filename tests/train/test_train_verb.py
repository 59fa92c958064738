"""`swe-rl train` from the outside: progress to stderr, the result to stdout, and exit codes."""

from swe_rl.cli.main import main
from swe_rl.store.rollouts import RolloutStore


def arguments(config, *more):
    options = [f"run.dir={config.run.dir}", f"policy.path={config.policy.path}", "rollout.groups_per_step=2", *more]
    return ["train", *(part for option in options for part in ("--set", option))]


def test_the_verb_trains_reports_each_step_and_prints_the_last_version(make_config, make_groups, capsys):
    config = make_config()
    store = RolloutStore(config.run.dir)
    for group in make_groups(4):
        store.append(group)
    store.close()
    assert main(arguments(config, "train.steps=2", "rollout.max_staleness=9")) == 0
    out, err = capsys.readouterr()
    assert out == f"policy version 2 in {config.run.dir}\n"
    lines = [line for line in err.splitlines() if line.startswith("step ")]
    assert len(lines) == 2 and "reward 0.500" in lines[0] and "kept 1.0000" in lines[0]


def test_a_dead_producer_is_one_line_and_exit_code_one(make_config, capsys):
    assert main([*arguments(make_config(), "train.steps=1"), "--group-timeout", "0.2"]) == 1
    assert "no new group" in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_wrong_key_is_bad_usage(make_config, capsys):
    assert main(arguments(make_config(), "mask.pi=3")) == 2
    assert "unknown key 'mask.pi'" in capsys.readouterr().err
