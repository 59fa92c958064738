"""A language's folder: strict keys, globs that mean what they say, and placeholders."""

from pathlib import Path

import pytest

from swe_rl.errors import ConfigError
from swe_rl.task.language import compile_globs, fill_command, read_language, read_languages

TOML = """language = "lisp"
requires = ["sh", "no-such-lisp"]
runner = ["run.sh"]
protected_globs = ["tests/**", "**/conftest.py", "*.ini"]
[test]
command = ["sh", "{runner}/run.sh", "{report}", "{nonce}", "{other}"]
visible_command = ["sh", "{runner}/run.sh"]
report_format = "lines"
[limits]
timeout_s = 30
[env]
A = "1"
"""


def write_language(root: Path, toml: str = TOML, name: str = "lisp") -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "sandbox.toml").write_text(toml)
    (root / name / "run.sh").write_text("exit 0\n")
    return root / name


def test_a_language_is_read_whole(tmp_path: Path) -> None:
    language = read_language(write_language(tmp_path))
    assert (language.timeout_s, language.memory_mb, language.env) == (30.0, 1024, {"A": "1"})
    assert language.runner_dir == (tmp_path / "lisp").resolve()
    assert language.missing_tools == ("no-such-lisp",)
    assert read_languages(tmp_path) == {"lisp": language}


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('"lisp"', '"scheme"', "scheme"),
        ('["run.sh"]', '["absent.sh"]', r"absent\.sh"),
        ('["run.sh"]', '["../run.sh"]', "runner"),
        ("[env]", "[environment]", "environment"),
        ("timeout_s = 30", "timeout_s = -1", r"limits\.timeout_s"),
        ('report_format = "lines"', "", r"test\.report_format"),
        ("[env]", "[env", "TOML"),
    ],
)
def test_a_broken_language_file_is_one_line_with_file_and_key(old: str, new: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        read_language(write_language(tmp_path, TOML.replace(old, new)))
    assert "\n" not in str(caught.value) and "sandbox.toml" in str(caught.value)


def test_a_runner_may_lie_in_a_folder_beside_the_language(tmp_path: Path) -> None:
    toml = TOML.replace("requires", 'runner_folder = "../shared"\nrequires')
    with pytest.raises(ConfigError, match=r"runner: 'run\.sh'"):
        read_language(write_language(tmp_path, toml))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "run.sh").write_text("exit 0\n")
    assert read_language(tmp_path / "lisp").runner_dir == (tmp_path / "shared").resolve()


@pytest.mark.parametrize("folder", ["/tmp", "../..", "../a/b", "tests", ".."])
def test_a_runner_lies_nowhere_else(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runner_folder"):
        read_language(write_language(tmp_path, TOML.replace("requires", f'runner_folder = "{folder}"\nrequires')))


def test_a_root_without_languages_is_an_error(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError):
            read_languages(root)


@pytest.mark.parametrize(
    ("glob", "matches", "misses"),
    [
        ("tests/**", ["tests/a", "tests/a/b.py"], ["tests", "src/tests/a", "testsx/a"]),
        ("**/conftest.py", ["conftest.py", "a/b/conftest.py"], ["my_conftest.py", "conftest.py/a", "conftestxpy"]),
        ("*.ini", ["a.ini"], ["b/a.ini", "a.ini.py"]),
        ("**/*_test.go", ["a_test.go", "x/a_test.go"], ["a_test.gox", "_test/go"]),
        ("**/testdata/**", ["testdata/a", "x/testdata/y/z"], ["testdata", "xtestdata/a"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("**", ["a", "a/b", "a\nb"], []),
    ],
)
def test_a_glob_matches_whole_paths(glob: str, matches: list[str], misses: list[str]) -> None:
    pattern = compile_globs([glob, "never-there"])
    assert [path for path in matches if not pattern.fullmatch(path)] == []
    assert [path for path in misses if pattern.fullmatch(path)] == []


def test_no_globs_match_nothing() -> None:
    assert compile_globs([]).fullmatch("") is None and compile_globs([]).fullmatch("a") is None


def test_placeholders_are_filled_once_and_other_braces_stay() -> None:
    filled = fill_command(
        ["{runner}/x", "{report}", "{nonce}{nonce}", "{other}", "{}"], report="{nonce}", runner="/r", nonce="n"
    )
    assert filled == ("/r/x", "{nonce}", "nn", "{other}", "{}")
