"""Known cheats through the real service, by several seeds: none is rewarded, and every honest twin passes.

Here a sample, in the languages that start fastest; `swe-rl redteam` plays all of them.
"""

import random
from pathlib import Path

import pytest

from swe_rl.errors import ConfigError, SandboxUnavailableError
from swe_rl.redteam.attack import Attack, read_attacks
from swe_rl.redteam.field import facts_of, open_field
from swe_rl.redteam.run import play_all
from swe_rl.redteam.wording import Wording
from swe_rl.sandbox.backend import open_backend
from swe_rl.task.language import LanguageSpec, read_languages

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "tests" / "attacks"
LANGUAGES = read_languages(ROOT / "sandboxes")
FAST = {"python": 40, "javascript": 24, "perl": 14, "c": 14, "ruby": 14}
SEEDS = (0, 1, 2)


def sample(language: LanguageSpec, seed: int) -> list[Attack]:
    """One attack a class and seed at least, others by chance: what a seed leaves out, another takes."""
    attacks = read_attacks(ATTACKS, [language.language])
    draw = random.Random(f"{seed} {language.language}")
    return draw.sample(attacks, min(len(attacks), FAST[language.language] // len(SEEDS)))


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_cheat_is_rewarded_and_every_honest_twin_passes(seed: int, tmp_path: Path) -> None:
    here = {name: LANGUAGES[name] for name in FAST if not LANGUAGES[name].missing_tools}
    try:
        backend = await open_backend("bubblewrap", here, tmp_path / "backend")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    attacks = [attack for language in here.values() for attack in sample(language, seed)]
    async with open_field(backend, here, tmp_path, seed) as client:
        played = [one async for one in play_all(attacks, here, client, seed)]
    assert len(played) == len(attacks) > 0
    assert [one for one in played if not one.is_withstood] == []


def test_every_attack_has_words_for_every_seed_and_a_twin() -> None:
    attacks = read_attacks(ATTACKS, LANGUAGES)
    assert len({(attack.class_name, attack.name) for attack in attacks}) >= 60
    for attack in attacks:
        facts = facts_of(LANGUAGES[attack.language])
        for move in (attack.move, attack.twin):
            texts = [move.fault, move.script, move.before, move.patch, *move.files, *move.files.values()]
            filled = [Wording("x", facts).fill(text) for text in texts if text]
            assert not any(mark in text for text in filled for mark in "‹›")


def test_the_words_of_an_attack_follow_from_its_key_alone() -> None:
    text = "‹box› ‹Box› ‹lid› ‹a|b|c|d|e|f› ‹x ‹lid›|y ‹box›› a || b"
    fills = {key: Wording(key, {}).fill(text) for key in map(str, range(20))}
    assert fills == {key: Wording(key, {}).fill(text) for key in fills}
    assert len(set(fills.values())) == 20
    box, name, lid, *_ = fills["0"].split(" ")
    assert (name, box == lid) == (box.capitalize(), False)
    assert fills["0"].endswith(" a || b")


def test_an_unknown_fact_is_an_error() -> None:
    with pytest.raises(ConfigError, match="@nothing"):
        Wording("x", {"path": "a"}).fill("‹@nothing›")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cheat = 'x'\n", "caught_by"),
        ("cheat = 'x'\ncaught_by = ['tests']\n[attack.python]\n[twin.ruby]\n", "twin"),
        ("cheat = 'x'\ncaught_by = ['tests']\n[attack.python]\nfiles = 3\n[twin.all]\n", "files"),
        ("cheat = \n", "read"),
    ],
)
def test_a_broken_attack_is_an_error_that_names_its_file(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "one.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"one\.toml.*{problem}"):
        read_attacks(tmp_path, ["python"])
