"""`swe-rl images`: one line a language, exit codes, and a record only where one is wanted."""

import shutil
from pathlib import Path

import pytest

from swe_rl.cli.main import main
from swe_rl.task.language import read_language

SANDBOXES = Path(__file__).resolve().parents[2] / "sandboxes"


@pytest.mark.parametrize("verb", ["build", "check"])
def test_an_unknown_language_is_bad_usage(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", verb, "perl", "klingon", "--languages", str(SANDBOXES)]) == 2
    assert "klingon" in capsys.readouterr().err


def test_a_language_is_proved_in_one_line_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    if read_language(SANDBOXES / "python").missing_tools:
        pytest.skip("this machine lacks python3 on its PATH")
    before = (SANDBOXES / "proved.json").read_bytes()
    code = main(["images", "check", "python", "--backend", "bubblewrap", "--no-record", "--languages", str(SANDBOXES)])
    out, err = capsys.readouterr()
    if code == 1 and "bubblewrap" in err:
        pytest.skip(err)
    assert (code, len(out.splitlines())) == (0, 1)
    assert out.startswith("python ") and "built, passing passes, failing fails, " in out
    assert (SANDBOXES / "proved.json").read_bytes() == before


def test_a_language_without_its_toolchain_is_skipped_and_strictness_makes_that_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sandboxes" / "perl"
    (folder / "hello/t").mkdir(parents=True)
    (folder / "hello/t/sum.t").write_text("1;\n")
    text = (SANDBOXES / "perl/sandbox.toml").read_text()
    text = text.replace('requires = ["perl"', 'requires = ["no-such-perl"')
    (folder / "sandbox.toml").write_text(text)
    shutil.copytree(SANDBOXES / "tap", tmp_path / "sandboxes" / "tap")
    arguments = ["images", "check", "--backend", "bubblewrap", "--languages", str(tmp_path / "sandboxes")]
    code = main(arguments)
    out, err = capsys.readouterr()
    if "SandboxUnavailableError" in err:
        pytest.skip(err)
    assert (code, out.split()[:4]) == (0, ["perl", "skipped:", "lacks", "no-such-perl"])
    assert main([*arguments, "--strict"]) == 1
