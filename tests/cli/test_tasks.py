"""`swe-rl tasks` as a user runs it."""

import json
import shutil
from pathlib import Path

import pytest

from swe_rl.cli.main import main
from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.backend import open_backend

ROOT = Path(__file__).parents[2]
SOURCE, FIXED = "def one():\n    return 2\n", "def one():\n    return 1\n"
PATCH = "diff --git a/src/one.py b/src/one.py\n--- a/src/one.py\n+++ b/src/one.py\n@@ -1,2 +1,2 @@\n def one():\n"
FILES = {
    "task.toml": 'schema_version = "1"\ntask_id = "one"\nlanguage = "python"\n[labels]\nkind = "slot"\n[tests]\n'
    'fail_to_pass = ["tests/test_one.py::test_one"]\n',
    "instruction.md": "one() must be 1.\n",
    "environment/src/one.py": SOURCE,
    "tests/tests/test_one.py": "from one import one\n\n\ndef test_one():\n    assert one() == 1\n",
    "solution/solution.patch": PATCH + "-    return 2\n+    return 1\n",
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        target = tmp_path / "tasks/dev/one" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return tmp_path / "tasks"


@pytest.fixture
async def has_bubblewrap(tmp_path: Path) -> None:
    try:
        backend = await open_backend("bubblewrap", {}, tmp_path / "probe")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    await backend.close()


def check(tasks: Path, *more: str) -> int:
    languages = str(ROOT / "sandboxes")
    return main(["tasks", "check", "--tasks", str(tasks), "--languages", languages, "--backend", "bubblewrap", *more])


def test_list_prints_one_line_a_task(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "--tasks", str(tasks)]) == 0
    assert capsys.readouterr().out == "dev\tone\tpython\tkind=slot\n"
    assert main(["tasks", "list", "--tasks", str(tasks), "--json", "--split", "dev"]) == 0
    assert json.loads(capsys.readouterr().out)["task_id"] == "one"


def test_show_prints_the_whole_task(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", "--tasks", str(tasks), "one"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["fail_to_pass"] == ["tests/test_one.py::test_one"] and len(shown["content_sha256"]) == 64


def test_an_unknown_task_is_one_line_and_exit_code_1(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", "--tasks", str(tasks), "two"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("has_bubblewrap")
def test_check_of_a_sound_task_ends_with_0(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tasks) == 0
    captured = capsys.readouterr()
    assert captured.out == "ok      dev/one\n" and "1 ok, 0 failed, 0 flaky, 0 skipped of 1" in captured.err


@pytest.mark.usefixtures("has_bubblewrap")
def test_check_of_an_unfit_task_ends_with_1(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tasks / "dev/one/environment/src/one.py").write_text(FIXED)
    (tasks / "dev/one/solution/solution.patch").write_text(PATCH + "-    return 1\n+    return 1  # one\n")
    assert check(tasks, "--json") == 1
    line = json.loads(capsys.readouterr().out)
    assert (line["task_id"], line["status"]) == ("one", "failed") and "unpatched base" in line["problem"]


@pytest.mark.usefixtures("has_bubblewrap")
def test_a_missing_toolchain_is_skipped_and_fails_only_when_strict(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    languages = tmp_path / "languages" / "python"
    languages.mkdir(parents=True)
    (languages / "sandbox.toml").write_text(
        'language = "python"\nrequires = ["no-such-python"]\n[test]\n'
        'command = ["x"]\nvisible_command = ["x"]\nreport_format = "lines"\n'
    )
    arguments = ["tasks", "check", "--tasks", str(tasks), "--languages", str(languages.parent)]
    assert main([*arguments, "--backend", "bubblewrap"]) == 0
    assert "no-such-python" in capsys.readouterr().out
    assert main([*arguments, "--backend", "bubblewrap", "--strict"]) == 1


@pytest.mark.usefixtures("has_bubblewrap")
def test_check_quarantines_a_flaky_task_and_then_no_load_gives_it(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sound = tasks / "dev/two"
    shutil.copytree(tasks / "dev/one", sound)
    (sound / "task.toml").write_text(FILES["task.toml"].replace('"one"', '"two"'))
    hidden = tasks / "dev/one/tests/tests/test_one.py"
    hidden.write_text("import random\n\n\ndef test_one():\n    assert random.random() < 0.5\n")
    assert check(tasks, "--runs", "40") == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("flaky   dev/one: run ") and "ok      dev/two\n" in captured.out
    assert "one is quarantined in" in captured.err
    assert set(json.loads((tasks / "quarantine.json").read_text())) == {"one"}

    assert check(tasks) == 0
    assert capsys.readouterr().out == "ok      dev/two\n"
    assert "one is left out: quarantined" in caplog.text
    hidden.write_text(FILES["tests/tests/test_one.py"])
    assert check(tasks) == 0
    assert "dev/one" in capsys.readouterr().out and "has changed since it was quarantined" in caplog.text


def test_import_writes_tasks_that_load_and_names_a_broken_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "task_id": "Python/7", "declaration": "def one():\n", "buggy_solution": "    return 2\n",
        "canonical_solution": "    return 1\n", "test": "def check(one):\n    assert one() == 1\n\ncheck(one)\n",
        "entry_point": "one", "docstring": "One.", "bug_type": "value misuse", "failure_symptoms": "incorrect output",
    }  # fmt: skip
    rows, out = tmp_path / "rows.jsonl", tmp_path / "made"
    rows.write_text(json.dumps(row) + "\n")
    assert main(["tasks", "import", "humanevalpack", str(rows), "--out", str(out)]) == 0
    assert main(["tasks", "list", "--tasks", str(out)]) == 0
    assert "humanevalpack-python-7\tpython\tbug_type=value misuse" in capsys.readouterr().out
    rows.write_text(json.dumps(row) + "\n" + json.dumps(row | {"test": None}) + "\n")
    assert main(["tasks", "import", "humanevalpack", str(rows), "--out", str(out)]) == 1
    assert "line 2: Python/7: test is missing" in capsys.readouterr().err


def test_synth_writes_tasks_that_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "synth", str(tmp_path / "made"), "--num-train", "3", "--num-verified", "2"]) == 0
    capsys.readouterr()
    assert main(["tasks", "list", "--tasks", str(tmp_path / "made")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
