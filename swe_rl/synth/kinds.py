"""The kinds of fault of the parametric family: one slot of an expression, and what may stand in it.

Every choice of a kind means the same in each language, so that one reference computes the expected values of all.
The phrase is what an issue or a docstring says; it is the only hint at which choice is right.
"""

from dataclasses import dataclass
from typing import Literal

Language = Literal["python", "javascript"]
LANGUAGES: tuple[Language, ...] = ("python", "javascript")


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that may stand in a slot: its source text by language, and the words that ask for it."""

    python: str
    javascript: str
    phrase: str

    def text(self, language: Language) -> str:
        return self.python if language == "python" else self.javascript


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    choices: tuple[Choice, ...]


def _kind(name: str, *rows: tuple[str, str, str]) -> Kind:
    return Kind(name, tuple(Choice(*row) for row in rows))


COMPARE = _kind(
    "compare",
    ("<", "<", "below"),
    ("<=", "<=", "at most"),
    (">", ">", "above"),
    (">=", ">=", "at least"),
)
ARITHMETIC = _kind(
    "arithmetic",
    ("+", "+", "the sum"),
    ("-", "-", "the difference"),
    ("*", "*", "the product"),
    ("%", "%", "the remainder"),
)
INDEX = _kind(
    "index",
    ("[0]", ".at(0)", "the first"),
    ("[1]", ".at(1)", "the second"),
    ("[-1]", ".at(-1)", "the last"),
    ("[-2]", ".at(-2)", "the second to last"),
)
SLICE = _kind(
    "slice",
    ("[:size]", ".slice(0, size)", "only the first"),
    ("[-size:]", ".slice(-size)", "only the last"),
    ("[size:]", ".slice(size)", "all but the first"),
    ("[:-size]", ".slice(0, -size)", "all but the last"),
)
MATCH = _kind(
    "match",
    (".startswith(mark)", ".startsWith(mark)", "begin with"),
    (".endswith(mark)", ".endsWith(mark)", "end with"),
    (".count(mark) > 0", ".includes(mark)", "contain"),
    (" == mark", " === mark", "equal"),
)
CASE = _kind(
    "case",
    (".upper()", ".toUpperCase()", "in upper case"),
    (".lower()", ".toLowerCase()", "in lower case"),
    (".strip()", ".trim()", "without outer spaces"),
    (".rstrip()", ".trimEnd()", "without trailing spaces"),
)
LOGIC = _kind(
    "logic",
    ("and", "&&", "both"),
    ("or", "||", "any"),
    ("==", "===", "both or none"),
    ("!=", "!==", "exactly one"),
)
AGGREGATE = _kind(
    "aggregate",
    ("min", "min", "the smallest"),
    ("max", "max", "the largest"),
    ("sum", "sum", "the total"),
    ("len", "len", "the number"),
)
KINDS = {kind.name: kind for kind in (COMPARE, ARITHMETIC, INDEX, SLICE, MATCH, CASE, LOGIC, AGGREGATE)}
