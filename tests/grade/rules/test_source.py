"""What rules read of a source: its words, whatever its layout, its comments and the way strings are put together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.grade.rules.added import AddedCode, Change
from swe_rl.grade.rules.source import _GRAMMARS, _LEXERS, read_source
from swe_rl.grade.rules.words import read_words


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("a.py", "getattr(sys,  '_get' +  # why\n   \"frame\")(1)\n", 'getattr(sys,"_getframe")(1)'),
        ("a.py", "def f():\n    '''sys._getframe'''\n    return 1\n", "def f():return 1"),
        ("a.py", "x = f'a{b!r}' 'c'\n", 'x="a"{b!r}"c"'),
        ("a.js", "const x = `a${b}` /* eval( */ + 'r'; // no\n", 'const x="a"${b}+"r";'),
        ("a.rs", 'let x = b"abc"; // y\n', 'let x="abc";'),
        ("a.go", 'x := "a" +\n\t`b`\n', 'x:="ab"'),
        ("a.php", "<?php $x = 'a' . \"b\"; # no\n", '<?php$x="ab";'),
        ("a.lua", "local x = 'a' .. 'b' -- no\n", 'local x="ab"'),
        ("a.pm", "my $x = 'a' . \"b\"; # no\n", 'my$x="ab";'),
        ("a.c", '/* exit(0) */ char *s = "a" "b";\n', 'char*s="ab";'),
        ("a.sml", 'val x = "a" ^ "b"; (* no *)\n', 'val x="ab";'),
        ("a.pl", "x :- halt(0). % no\n", "x:-halt(0)."),
    ],
)
def test_a_source_is_read_without_comments_layout_and_joins(path: str, text: str, said: str) -> None:
    source = read_source(path, text)
    assert source is not None and source.said() == said


def test_a_file_that_is_no_code_is_not_read() -> None:
    assert [read_source(path, "x") for path in ("README.md", "data.json", "Makefile", "x")] == [None] * 4


@pytest.mark.parametrize("ending", [*_GRAMMARS, *_LEXERS])
def test_every_language_is_read(ending: str) -> None:
    source = read_source("a" + ending, "alpha alphabet\n")  # a COBOL line begins with a margin
    assert source is not None and "bet" in source.said()


@settings(max_examples=60, deadline=None)
@given(
    ending=st.sampled_from([*_GRAMMARS, *_LEXERS]),
    text=st.text(st.sampled_from(list("ab\"'`(){}[]\\\n\r\t#/*-+=<>$%&;:., \0\u2028é\ud800")), max_size=120),
)
def test_no_text_is_too_strange_to_be_read(ending: str, text: str) -> None:
    source = read_source("a" + ending, text)
    assert source is not None
    source.said()
    source.said(range(2))


def test_only_new_lines_are_searched_and_moved_words_are_not_new() -> None:
    old = "import sys\nx = sys._getframe(1)\n"
    words = read_words("inspects_runner")
    assert not list(AddedCode([Change("a.py", old, "y = 2\n" + old)]).find(words))
    assert not list(AddedCode([Change("a.py", old, None), Change("b.py", None, old)]).find(words))
    added = list(AddedCode([Change("a.py", old, old + "z = sys._getframe(2)\n")]).find(words))
    assert [(one.path, one.words) for one in added] == [("a.py", "_getframe")]
