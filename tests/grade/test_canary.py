"""Planting: names nobody can guess, in the file's own style, at both ends of each file that holds expected tests."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from swe_rl.errors import ConfigError
from swe_rl.grade.canary import add_canaries, plant, target_files
from swe_rl.task.canary import CanarySpec
from swe_rl.task.language import LanguageSpec, read_language, read_languages

SANDBOXES = Path(__file__).parents[2] / "sandboxes"
LANGUAGES = read_languages(SANDBOXES)
SPEC = CanarySpec(
    files=("tests/*.py",),
    first="^def test_",
    name="test_{snake}",
    forms=("def {name}():\n    assert {a} + {b} == {sum}", "def {name}():\n    assert len('{word}') == {size}"),
)
TEXT = "from add import (\n    add,\n)\n\n\ndef test_adds():\n    assert add(2, 3) == 5\n"


def hello_tests(language: LanguageSpec) -> dict[str, str]:
    root = language.root / "hello"
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in paths.items() if language.is_test_file(name)}


@pytest.mark.parametrize("name", sorted(LANGUAGES))
def test_every_language_takes_canaries_in_its_own_test_files(name: str) -> None:
    files = hello_tests(LANGUAGES[name])
    assert files
    for text in files.values():
        spec = LANGUAGES[name].canary
        assert spec is not None
        for form in spec.forms:  # each form alone: a mistake in one isn't hidden by the luck of the draw
            grown, canaries = add_canaries(text, replace(spec, forms=(form,)), Random(1))
            assert sorted((canary.must_fail, canary.is_first) for canary in canaries) == [
                (False, False),
                (False, True),
                (True, False),
                (True, True),
            ]
            assert all(canary.name in grown for canary in canaries)
            assert not re.search(r"\{(name|a|b|sum|word|size|indent)\}", grown.replace(text, ""))


def test_canaries_that_pass_are_right_and_those_that_must_fail_are_wrong() -> None:
    for seed in range(50):
        grown, canaries = add_canaries(TEXT.replace("from add import (\n    add,\n)", ""), SPEC, Random(seed))
        namespace: dict[str, object] = {}
        exec(grown, namespace)
        for canary in canaries:
            try:
                namespace[canary.name]()  # type: ignore[operator]
                has_failed = False
            except AssertionError:
                has_failed = True
            assert has_failed is canary.must_fail


def test_the_first_stand_behind_the_imports_and_the_last_at_the_end() -> None:
    grown, canaries = add_canaries(TEXT, SPEC, Random(0))
    order = re.findall(r"^def (\w+)", grown, re.MULTILINE)
    first, last = ({canary.name for canary in canaries if canary.is_first is is_first} for is_first in (True, False))
    assert (set(order[:2]), order[2], set(order[3:])) == (first, "test_adds", last)
    assert grown.index(order[0]) > grown.index("    add,\n)")


def test_the_last_stand_inside_the_class_that_holds_the_tests() -> None:
    text = "module Deep\n  class T\n    def test_adds\n      assert true\n    end\n  end\nend\n"
    spec = LANGUAGES["ruby"].canary
    assert spec is not None
    grown, canaries = add_canaries(text, spec, Random(0))
    assert len(canaries) == 4
    assert all(f"\n    def {canary.name}\n" in grown for canary in canaries)
    assert grown.endswith("    end\n  end\nend\n")


def test_names_differ_from_run_to_run_and_repeat_nothing_of_the_file() -> None:
    names = [canary.name for seed in range(200) for canary in add_canaries(TEXT, SPEC, Random(seed))[1]]
    assert len(set(names)) == len(names)
    assert not any(name in TEXT for name in names)


def test_nothing_but_the_arithmetic_tells_the_two_kinds_apart() -> None:
    shapes: dict[bool, set[str]] = {True: set(), False: set()}
    for seed in range(200):
        grown, canaries = add_canaries(TEXT, SPEC, Random(seed))
        for canary in canaries:
            body = grown.split(f"def {canary.name}():\n")[1].split("\n")[0]
            shapes[canary.must_fail].add(re.sub(r"\d+|'\w+'", "_", body))
    assert shapes[True] == shapes[False] and len(shapes[True]) == len(SPEC.forms)


@pytest.mark.parametrize("text", ["", "x = 1\n", "for i in range(3):\n    globals()[f'test_{i}'] = print\n"])
def test_a_file_without_a_place_for_them_stays_as_it_is(text: str) -> None:
    assert add_canaries(text, SPEC, Random(0)) == (text, ())


def test_a_file_that_closes_nothing_or_announces_nothing_stays_as_it_is() -> None:
    for spec in (replace(SPEC, last="^never"), replace(SPEC, plan=r"plan (\d+)"), replace(SPEC, definitions="^never")):
        assert add_canaries(TEXT, spec, Random(0)) == (TEXT, ())


def test_the_number_of_announced_tests_grows_with_them() -> None:
    grown, _ = add_canaries("# 1..7\n" + TEXT, replace(SPEC, plan=r"1\.\.(\d+)"), Random(0))
    assert grown.startswith("# 1..11\n")


def test_bytes_that_are_no_text_and_a_missing_last_newline_are_kept(tmp_path: Path) -> None:
    data = b"# caf\xe9\r\n\ndef test_adds():\r\n    pass"
    (tmp_path / "t.py").write_bytes(data)
    planted = plant(tmp_path, SPEC, ["t.py"], Random(0))
    grown = (tmp_path / "t.py").read_bytes()
    assert len(planted.canaries) == 4
    assert grown.startswith(b"# caf\xe9\r\n\ndef ") and b"def test_adds():\r\n    pass\n\ndef " in grown


def test_only_files_that_hold_expected_tests_are_targets(tmp_path: Path) -> None:
    files = {"tests/a.py": "def test_one(): pass", "tests/b.py": "def test_two(): pass", "tests/c.py": "test_three"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert target_files(files, tmp_path, ["tests/a.py::test_one"]) == ["tests/a.py"]
    assert target_files(files, tmp_path, ["pkg::test_two[x-1]", 'T::test_three with data set "a"']) == [
        "tests/b.py",
        "tests/c.py",
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("files = []", "files"),
        ("name = 'test_x'", "name"),
        ("forms = ['{name} {sum}']", "forms"),
        ("forms = ['{name} {sum}', 'nothing']", "nothing"),
        ("first = '('", "pattern"),
        ("plan = '1'", "group"),
        ("call = 'x'", "definitions"),
        ("colour = 'red'", "colour"),
        ("exit_code = 0", "exit_code"),
    ],
)
def test_a_table_that_can_not_work_is_an_error_with_its_key(table: str, message: str, tmp_path: Path) -> None:
    right = {
        "files": "files = ['t/*.py']",
        "name": "name = 'test_{snake}'",
        "first": "first = '^def'",
        "forms": "forms = ['{name} {sum}', '{name} {size}']",
    }
    lines = "\n".join((right | {table.split(" =")[0]: table}).values())
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "sandbox.toml").write_text(
        'language = "toy"\n[test]\ncommand = ["x"]\nvisible_command = ["x"]\nreport_format = "tap"\n[canary]\n' + lines
    )
    with pytest.raises(ConfigError, match=message):
        read_language(folder)
