"""Every language's folder: what the house asks of its settings, its Dockerfile and its hello-repository."""

import re
from pathlib import Path

import pytest

from swe_rl.grade.parsers import PARSERS
from swe_rl.images.check import hello_source, require_hello, write_task
from swe_rl.images.context import language_recipe
from swe_rl.task.language import read_languages
from swe_rl.task.taskset import TaskSet

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = read_languages(ROOT / "sandboxes")
EACH = pytest.mark.parametrize("name", sorted(LANGUAGES))
PROMISED = {
    *("python", "javascript", "typescript", "go", "rust", "java", "c", "cpp", "ruby", "php", "perl", "lua", "bash"),
    *("haskell", "ocaml", "erlang", "elixir", "clojure", "r", "fortran", "ada", "d", "nim", "zig", "racket", "scheme"),
    *("common-lisp", "prolog", "tcl", "octave", "crystal", "raku", "sml", "sql", "awk", "cobol", "pascal"),
}


def test_every_promised_language_has_its_folder() -> None:
    assert set(LANGUAGES) >= PROMISED


@EACH
def test_the_hello_repository_is_a_valid_task_whose_tests_are_protected(name: str, tmp_path: Path) -> None:
    language = LANGUAGES[name]
    write_task(language, tmp_path)
    (task,) = TaskSet.load([tmp_path]).tasks("hello")
    hello = require_hello(language)
    assert (task.fail_to_pass, task.pass_to_pass) == ((hello.fixed,), (hello.kept,))
    assert not language.is_protected(hello.path)
    assert len({hello_source(language, text) for text in (hello.old, hello.new, hello.leave)}) == 3


@EACH
def test_the_report_format_is_known_and_the_runner_is_asked_for_the_nonce(name: str) -> None:
    language = LANGUAGES[name]
    assert language.report_format in PARSERS
    assert {"{report}", "{nonce}"} <= set(language.test_command)
    assert not {"{report}", "{nonce}"} & set(language.visible_command)


@EACH
def test_the_dockerfile_adds_a_toolchain_and_nothing_else(name: str) -> None:
    recipe = language_recipe(LANGUAGES[name], "")
    text = recipe.dockerfile.decode()
    steps = [line.split()[0] for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps[:2] == ["ARG", "FROM"] and steps[-1] == "USER"
    assert set(steps) <= {"ARG", "FROM", "RUN", "COPY", "USER"}, "no ENV: what an agent sees is in sandbox.toml"
    assert re.findall(r"^ARG (\w+)", text, re.MULTILINE) == ["BASE_IMAGE"]
    assert all(source.startswith("wheels/") for source in re.findall(r"^COPY (\S+)", text, re.MULTILINE))
    assert bool(recipe.packages) != bool(recipe.wheels)
    if recipe.packages:
        assert "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists/*" in text


def test_every_file_of_the_shared_runners_is_used() -> None:
    used = {
        language.runner_dir / file for language in LANGUAGES.values() for file in language.runner if language.runner_dir
    }
    shared = {path.resolve() for folder in ("tap", "junit") for path in (ROOT / "sandboxes" / folder).iterdir()}
    assert shared <= used
