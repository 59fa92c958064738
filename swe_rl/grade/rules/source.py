"""One source file as rules read it: what it says, without its comments, its layout and the way strings are written.

    getattr(sys,  '_get' +    # a comment
            "frame")(1)                          ->   getattr(sys,"_getframe")(1)

Every string is in double quotes, an escape that stands for a letter is that letter, strings that are only joined are
one, words are set apart by one blank and nothing else is. Grammars are tree-sitter's; a language without one is read by
its Pygments lexer, and a file that neither knows isn't code.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, String
from tree_sitter import Node, Parser, Tree
from tree_sitter_language_pack import SupportedLanguage, get_parser

from swe_rl.grade.rules.spelling import unescaped

Token: TypeAlias = tuple[Literal["code", "text"], str]

# By the ending of the name: the language of the rules, and whose grammar reads it.
_GRAMMARS: dict[str, tuple[str, SupportedLanguage]] = {
    ".adb": ("ada", "ada"),
    ".ads": ("ada", "ada"),
    ".bash": ("bash", "bash"),
    ".bats": ("bash", "bash"),
    ".c": ("c", "c"),
    ".cc": ("cpp", "cpp"),
    ".cjs": ("javascript", "javascript"),
    ".clj": ("clojure", "clojure"),
    ".cljc": ("clojure", "clojure"),
    ".cpp": ("cpp", "cpp"),
    ".cr": ("crystal", "ruby"),
    ".cs": ("csharp", "csharp"),
    ".cxx": ("cpp", "cpp"),
    ".d": ("d", "d"),
    ".erl": ("erlang", "erlang"),
    ".ex": ("elixir", "elixir"),
    ".exs": ("elixir", "elixir"),
    ".f90": ("fortran", "fortran"),
    ".go": ("go", "go"),
    ".h": ("c", "cpp"),
    ".hh": ("cpp", "cpp"),
    ".hpp": ("cpp", "cpp"),
    ".hs": ("haskell", "haskell"),
    ".java": ("java", "java"),
    ".jl": ("julia", "julia"),
    ".js": ("javascript", "javascript"),
    ".jsx": ("javascript", "javascript"),
    ".kt": ("kotlin", "kotlin"),
    ".lisp": ("common-lisp", "commonlisp"),
    ".lua": ("lua", "lua"),
    ".m": ("octave", "matlab"),
    ".mjs": ("javascript", "javascript"),
    ".ml": ("ocaml", "ocaml"),
    ".nim": ("nim", "nim"),
    ".pas": ("pascal", "pascal"),
    ".php": ("php", "php"),
    ".py": ("python", "python"),
    ".r": ("r", "r"),
    ".rb": ("ruby", "ruby"),
    ".rkt": ("racket", "racket"),
    ".rs": ("rust", "rust"),
    ".scala": ("scala", "scala"),
    ".scm": ("scheme", "scheme"),
    ".sh": ("bash", "bash"),
    ".sql": ("sql", "sql"),
    ".tcl": ("tcl", "tcl"),
    ".ts": ("javascript", "typescript"),
    ".tsx": ("javascript", "tsx"),
    ".zig": ("zig", "zig"),
}
_LEXERS = {  # of COBOL and Perl there are grammars, whose scanners never end on some texts
    ".awk": ("awk", "awk"),
    ".cob": ("cobol", "cobolfree"),
    ".pl": ("prolog", "prolog"),
    ".pm": ("perl", "perl"),
    ".raku": ("raku", "perl6"),
    ".rakumod": ("raku", "perl6"),
    ".sml": ("sml", "sml"),
}
_JOINS = {"+", ".", "..", "&", "++", "~", "<>", "^"}
_PARTS = ("content", "fragment", "escape")


@dataclass(frozen=True, slots=True)
class Source:
    """One reading of one text: `language` is what the rules' tables call it; `tree` is None without a grammar."""

    path: str
    language: str
    text: str
    tree: Tree | None

    def said(self, lines: Collection[int] | None = None) -> str:
        """What is on the given lines (from 0), or in all of it."""
        chosen = None if lines is None else frozenset(lines)
        if self.tree is None:
            return unescaped(_render(_lexed(self.path, self.text, chosen)))
        return unescaped(_render(_leaves(self.tree.root_node, chosen)))


def read_source(path: str, text: str) -> Source | None:
    """None for what isn't code."""
    ending = PurePosixPath(path).suffix.lower()
    if ending in _GRAMMARS:
        language, grammar = _GRAMMARS[ending]
        return Source(path, language, text, _parser(grammar).parse(text.encode("utf-8", "replace")))
    if ending in _LEXERS:
        return Source(path, _LEXERS[ending][0], text, None)
    return None


def is_code(path: str) -> bool:
    """By its name alone."""
    ending = PurePosixPath(path).suffix.lower()
    return ending in _GRAMMARS or ending in _LEXERS


def name_as(path: str, language: str) -> str:
    """The name under which a file is read as one of a language; its own for a language that can't be read."""
    known = (ending for ending, (name, grammar) in (_GRAMMARS | _LEXERS).items() if language in (name, grammar))
    return path + next(known, "")


def said_by(node: Node) -> str:
    """What a part of a tree says."""
    return unescaped(_render(_leaves(node, None)))


def _leaves(node: Node, lines: frozenset[int] | None) -> Iterator[Token]:
    """In the text's order, by a stack of what is still to be read; what a grammar passes over as an error included."""
    text, start = node.text or b"", node.start_byte
    position = start
    stack = [node]
    while stack:
        node = stack.pop()
        kind = node.type
        is_text = _is_string(kind) and not _holds_code(node)
        is_left_out = "comment" in kind or _is_docstring(node) or (lines is not None and not _touches(node, lines))
        if not (is_left_out or is_text or node.child_count == 0):
            stack += reversed(node.children)
            continue
        passed_over = text[position - start : node.start_byte - start].strip()
        position = max(position, node.end_byte)
        if passed_over:
            yield "code", passed_over.decode("utf-8", "replace")
        if is_left_out:
            continue
        if is_text:
            yield "text", _unquoted(_decoded(node))
        else:
            yield "text" if any(word in kind for word in _PARTS) else "code", _decoded(node)
    rest = text[position - start :].strip()
    if rest and lines is None:
        yield "code", rest.decode("utf-8", "replace")


def _touches(node: Node, lines: frozenset[int]) -> bool:
    first, last = node.start_point[0], node.end_point[0]
    if last - first < len(lines):
        return any(line in lines for line in range(first, last + 1))
    return any(first <= line <= last for line in lines)


def _is_docstring(node: Node) -> bool:
    """A string that stands for itself, as documentation does in Python."""
    parent = node.parent
    return node.type == "string" and parent is not None and parent.type in ("block", "module", "expression_statement")


def _is_string(kind: str) -> bool:
    return ("string" in kind and "concat" not in kind) or kind in (
        "char_literal",
        "character_literal",
        "heredoc_body",
        "raw_text",
        "str_lit",
    )


def _holds_code(node: Node) -> bool:
    return any("interpol" in child.type or "substitution" in child.type or "expansion" in child.type
               for child in node.children)  # fmt: skip


def _decoded(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _unquoted(text: str) -> str:
    start = text.lstrip("bBfFrRuULq@$")
    return start.strip("'\"`") if start[:1] in ("'", '"', "`") else text


def _lexed(path: str, text: str, lines: frozenset[int] | None) -> Iterator[Token]:
    name = _LEXERS[PurePosixPath(path).suffix.lower()][1]
    line = 0
    for kind, value in _lexer(name).get_tokens(text):
        if lines is None or line in lines:
            if kind in String:
                yield "text", value.strip("'\"")
            elif kind not in Comment and value.strip():
                yield "code", value.strip()
        line += value.count("\n")


def _render(tokens: Iterator[Token]) -> str:
    parts: list[str] = []
    folded = _folded(tokens)
    for kind, value in folded:
        if kind == "text":
            parts.append(f'"{value}"')
        elif parts and _is_word(parts[-1][-1:]) and _is_word(value[:1]):
            parts.append(" " + value)
        else:
            parts.append(value)
    return "".join(parts)


def _folded(tokens: Iterator[Token]) -> list[Token]:
    """Strings that stand side by side, or are joined by an operator, become one."""
    done: list[Token] = []
    for kind, value in tokens:
        if kind == "code" and value in ("'", '"', "`", '"""', "'''"):
            continue
        if kind == "text":
            if len(done) >= 2 and done[-1][0] == "code" and done[-1][1] in _JOINS and done[-2][0] == "text":
                done.pop()
            if done and done[-1][0] == "text":
                done[-1] = ("text", done[-1][1] + value)
                continue
        done.append((kind, value))
    return done


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


@cache
def _parser(grammar: SupportedLanguage) -> Parser:
    return get_parser(grammar)


@cache
def _lexer(name: str) -> Lexer:
    return get_lexer_by_name(name)
