"""The command line: help is light, and every foreseeable mistake is one line on stderr that says what to do."""

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.cli.main import VERBS

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "fastapi", "sqlalchemy", "numpy", "docker", "httpx", "pydantic", "rich")


def swe_rl(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swe_rl.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    lines = [line for line in result.stderr.splitlines() if line.startswith("swe-rl: ")]
    assert result.returncode == code, result.stderr
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in lines[0]


def test_help_lists_every_verb_and_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom swe_rl.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(verb in result.stdout for verb in VERBS)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_of_its_own_without_torch(verb: str) -> None:
    script = (
        "import sys\nfrom swe_rl.cli.main import main\n"
        f"try:\n    main([{verb!r}, '--help'])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules or 'fastapi' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert f"usage: swe-rl {verb}" in result.stdout
    assert result.stderr.strip() == "False"


def test_a_wrong_key_is_one_line_and_exit_code_2() -> None:
    assert_one_line(swe_rl("run", "--config", "quickstart", "--set", "train.lrr=1"), 2, "train.lrr", "expected one of")


def test_a_missing_config_is_one_line_and_exit_code_2() -> None:
    assert_one_line(swe_rl("run", "--config", "nowhere.toml"), 2, "nowhere.toml", "quickstart")


def test_ranks_of_a_row_that_do_not_divide_the_ranks_are_one_line_and_exit_code_2() -> None:
    settings = ("--set", "train.num_ranks=3", "--set", "train.context_ranks=2")
    assert_one_line(swe_rl("run", "--config", "quickstart", *settings), 2, "train.num_ranks is 3", "multiple", "is 2")


def test_dry_run_prints_the_resolved_configuration() -> None:
    result = swe_rl("run", "--config", "quickstart", "--set", "train.steps=3", "--dry-run")
    assert json.loads(result.stdout)["train"]["steps"] == 3


def test_a_policy_directory_without_weights_is_one_line(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "config.json").write_text("{}")
    (policy / "tokenizer.json").write_text("{}")
    settings = [f"run.dir={tmp_path / 'run'}", f"policy.path={policy}", "synth.num_train=1", "synth.num_verified=1"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert_one_line(swe_rl("run", "--config", "quickstart", *arguments), 1, str(policy), "weights")


def test_a_missing_policy_directory_is_one_line(tmp_path: Path) -> None:
    settings = [f"run.dir={tmp_path / 'run'}", f"policy.path={tmp_path / 'none'}", "synth.num_train=1"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert_one_line(swe_rl("run", "--config", "quickstart", *arguments), 1, "none")


def test_a_dead_service_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    settings = [f"run.dir={tmp_path / 'run'}", f"sandbox.url=http://127.0.0.1:{port}"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    result = swe_rl("eval", "--config", "quickstart", *arguments, env=os.environ | {"SWE_RL_SANDBOX_TOKEN": "secret"})
    assert_one_line(result, 1, str(port))


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk's end: the kernel answers writes with an error alike."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    settings = [f"run.dir={tmp_path / 'run'}", "synth.num_train=1", "synth.num_verified=0"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    result = swe_rl("run", "--config", "quickstart", *arguments, preexec_fn=limit)
    assert_one_line(result, 1, str(tmp_path))


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = swe_rl("run", "--config", "quickstart", "--set", f"run.dir={tmp_path}")
    assert_one_line(result, 2, "another configuration", "train.steps")


def test_a_directory_written_before_a_key_existed_goes_on(tmp_path: Path) -> None:
    settings = [f"run.dir={tmp_path}", "synth.num_train=0", "synth.num_verified=0"]
    arguments = ["run", "--config", "quickstart", *(part for setting in settings for part in ("--set", setting))]
    assert_one_line(swe_rl(*arguments), 2, "no tasks")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sandbox"]["languages"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_one_line(swe_rl(*arguments), 2, "no tasks")


def test_an_unknown_log_level_is_one_line_and_exit_code_2() -> None:
    result = swe_rl("--log-level", "loud", "doctor")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "LOUD" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("flag", "value"), [("--port", "80432"), ("--max-sessions", "0"), ("--port", "-1")])
def test_a_number_out_of_range_is_refused_before_anything_starts(flag: str, value: str) -> None:
    result = swe_rl("serve", "sandbox", "--tasks", "tasks", f"{flag}={value}")
    assert result.returncode == 2
    assert f"argument {flag}: is {value!r}, expected" in result.stderr.splitlines()[-1]


def test_without_git_it_says_so(tmp_path: Path) -> None:
    result = swe_rl("tasks", "check", "--id", "python-ledger-rounding", env=os.environ | {"PATH": str(tmp_path)})
    assert_one_line(result, 2, "git on the PATH")


def test_two_commands_in_one_run_directory_are_refused(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = swe_rl("run", "--config", "quickstart", "--set", f"run.dir={tmp_path}")
    assert_one_line(result, 2, "another command")
