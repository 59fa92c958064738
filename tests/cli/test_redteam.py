"""`swe-rl redteam`: what it prints, and that a cheat which pays, or a twin which doesn't, ends with 1."""

import json
from pathlib import Path

import pytest

from swe_rl.cli.main import main
from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.bubblewrap import BubblewrapBackend
from swe_rl.task.language import read_languages

ROOT = Path(__file__).parents[2]
WORDS = ["redteam", "--backend", "bubblewrap", "--languages", str(ROOT / "sandboxes"), "--language", "python"]
PAYS = 'cheat = "mends it"\ncaught_by = ["tests"]\n[attack.python]\nfault = "return a + b"\n[twin.all]\n'
TWIN_FAILS = 'cheat = "nothing"\ncaught_by = ["capture"]\n[attack.all]\n[twin.python]\nfault = "return a * b"\n'
OTHER_LAYER = 'cheat = "wrong"\ncaught_by = ["rule:startup_file"]\n[attack.python]\nfault = "return 0"\n[twin.all]\n'
GOOD = 'cheat = "wrong"\ncaught_by = ["tests"]\n[attack.python]\nfault = "return ‹0|1|b - a›"\n[twin.all]\n'


@pytest.fixture(autouse=True)
async def _needs_bubblewrap(tmp_path: Path) -> None:
    backend = BubblewrapBackend(read_languages(ROOT / "sandboxes"), tmp_path / "backend")
    try:
        await backend.check()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    finally:
        await backend.close()


def attacks(tmp_path: Path, **files: str) -> list[str]:
    (tmp_path / "attacks" / "some").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "attacks" / "some" / f"{name}.toml").write_text(text)
    return ["--attacks", str(tmp_path / "attacks")]


def test_a_table_for_machines_has_every_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *attacks(tmp_path, one=GOOD, two=GOOD), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["attacks"]
    assert [row["name"] for row in rows] == ["one", "two"]
    for row in rows:
        assert (row["language"], row["class"], row["rewarded"], row["caught_by"]) == ("python", "some", False, "tests")
        assert row["honest_twin_passed"] is True and row["seconds"] > 0


@pytest.mark.parametrize(
    ("text", "words"), [(PAYS, "REWARDED"), (TWIN_FAILS, "TWIN FAILED"), (OTHER_LAYER, "expected rule:startup_file")]
)
def test_a_defence_that_does_not_hold_ends_with_one(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *attacks(tmp_path, one=text)]) == 1
    assert words in capsys.readouterr().out


def test_a_choice_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *attacks(tmp_path, one=GOOD), "--class", "other"]) == 2
    assert main(["redteam", "--languages", str(ROOT / "sandboxes"), "--language", "klingon"]) == 2
    assert "klingon" in capsys.readouterr().err
