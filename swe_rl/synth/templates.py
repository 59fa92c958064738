"""The functions of the parametric family: each has one slot, the same meaning in Python and JavaScript, and inputs.

A template never says which choice is right: its `says` sentence takes the phrase of the choice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from swe_rl.synth import kinds
from swe_rl.synth.kinds import Kind, Language

Inputs = Callable[[Random], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Template:
    """`python` and `javascript` are the returned expression with `{slot}`; `inputs` draws one tuple of arguments.

    A held-out template appears in the verified part only.
    """

    name: str
    kind: Kind
    verb: str
    arguments: tuple[str, ...]
    says: str
    python: str
    javascript: str
    inputs: Inputs
    is_held_out: bool = False

    def expression(self, language: Language, slot: str) -> str:
        text = self.python if language == "python" else self.javascript
        return text.replace("{slot}", slot)


WORDS = ("fig", "elm", "ash", "oak", "ivy", "yew", "bay", "fir", "sage", "mint", "reed", "moss", "pear", "plum")


def _limit(rng: Random) -> tuple[Any, ...]:
    limit = rng.randint(2, 8)
    values = [limit, *(rng.choice([limit - 1, limit + 1, rng.randint(0, 9)]) for _ in range(rng.randint(2, 4)))]
    rng.shuffle(values)
    return values, limit


def _near_limit(rng: Random) -> tuple[Any, ...]:
    limit = rng.randint(2, 8)
    low, high = rng.choice([(-1, -1), (-1, 0), (0, 0), (0, 1), (1, 1), (-1, 1)])
    return [limit + rng.randint(low, high) for _ in range(rng.randint(2, 4))], limit


def _score(rng: Random) -> tuple[Any, ...]:
    limit = rng.randint(2, 8)
    return limit + rng.choice([-1, 0, 0, 1, 2]), limit


def _pair(rng: Random) -> tuple[Any, ...]:
    return rng.randint(1, 9), rng.randint(2, 9)


def _lists(rng: Random) -> tuple[Any, ...]:
    n = rng.randint(2, 4)
    return [rng.randint(1, 9) for _ in range(n)], [rng.randint(2, 9) for _ in range(n)]


def _scaled(rng: Random) -> tuple[Any, ...]:
    return [rng.randint(1, 9) for _ in range(rng.randint(2, 4))], rng.randint(2, 5)


def _numbers(rng: Random) -> tuple[Any, ...]:
    return (rng.sample(range(10), rng.randint(3, 5)),)


def _words(rng: Random) -> tuple[Any, ...]:
    return (rng.sample(WORDS, rng.randint(3, 5)),)


def _line(rng: Random) -> tuple[Any, ...]:
    return (",".join(rng.sample(WORDS, rng.randint(3, 5))),)


def _sized(rng: Random) -> tuple[Any, ...]:
    return rng.sample(range(10), rng.randint(4, 6)), rng.randint(1, 3)


def _sized_text(rng: Random) -> tuple[Any, ...]:
    return "".join(rng.sample("abcdefgh", rng.randint(4, 6))), rng.randint(1, 3)


def _sized_words(rng: Random) -> tuple[Any, ...]:
    return " ".join(rng.sample(WORDS, rng.randint(4, 5))), rng.randint(1, 3)


def _marked(rng: Random) -> tuple[Any, ...]:
    mark = rng.choice("abcde")
    shapes = [mark, mark + "x", "x" + mark, "x" + mark + "y", "xy", "yx"]
    return [rng.choice(shapes) for _ in range(rng.randint(3, 5))], mark


def _padded(rng: Random) -> str:
    word = rng.choice(WORDS)
    return rng.choice(["", " "]) + rng.choice([word, word.title(), word.upper()]) + rng.choice(["", " ", "  "])


def _padded_words(rng: Random) -> tuple[Any, ...]:
    return ([_padded(rng) for _ in range(rng.randint(2, 3))],)


def _padded_pair(rng: Random) -> tuple[Any, ...]:
    return _padded(rng), _padded(rng)


def _flags(rng: Random) -> tuple[Any, ...]:
    return rng.random() < 0.5, rng.random() < 0.5


def _flag_lists(rng: Random) -> tuple[Any, ...]:
    n = rng.randint(2, 4)
    return [rng.random() < 0.5 for _ in range(n)], [rng.random() < 0.5 for _ in range(n)]


def _rows(rng: Random) -> tuple[Any, ...]:
    return ([[rng.randint(1, 9) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(2, 3))],)


def _two(kind: Kind, rows: list[tuple[Any, ...]]) -> list[Template]:
    return [Template(name, kind, *rest) for name, *rest in rows]


_VALUES_LIMIT = ("values", "limit")
TEMPLATES: tuple[Template, ...] = tuple(
    _two(
        kinds.COMPARE,
        [
            (
                "count",
                "count",
                _VALUES_LIMIT,
                "return how many of values are {phrase} limit",
                "sum(1 for value in values if value {slot} limit)",
                "values.filter((value) => value {slot} limit).length",
                _limit,
            ),
            (
                "keep",
                "keep",
                _VALUES_LIMIT,
                "return the values that are {phrase} limit",
                "[value for value in values if value {slot} limit]",
                "values.filter((value) => value {slot} limit)",
                _limit,
            ),
            (
                "grade",
                "grade",
                ("score", "limit"),
                "return 'pass' if score is {phrase} limit, else 'fail'",
                "'pass' if score {slot} limit else 'fail'",
                "score {slot} limit ? 'pass' : 'fail'",
                _score,
            ),
            (
                "every",
                "check",
                _VALUES_LIMIT,
                "tell whether all values are {phrase} limit",
                "all(value {slot} limit for value in values)",
                "values.every((value) => value {slot} limit)",
                _near_limit,
            ),
            (
                "locate",
                "check",
                _VALUES_LIMIT,
                "return the position of the first of values {phrase} limit, or -1",
                "next((at for at, value in enumerate(values) if value {slot} limit), -1)",
                "values.findIndex((value) => value {slot} limit)",
                _limit,
                True,
            ),
        ],
    )
    + _two(
        kinds.ARITHMETIC,
        [
            (
                "combine",
                "combine",
                ("left", "right"),
                "return {phrase} of left and right",
                "left {slot} right",
                "left {slot} right",
                _pair,
            ),
            (
                "pairwise",
                "merge",
                ("left", "right"),
                "return a list with {phrase} of each left and right",
                "[a {slot} b for a, b in zip(left, right)]",
                "left.map((a, at) => a {slot} right[at])",
                _lists,
            ),
            (
                "scale",
                "scale",
                ("values", "step"),
                "return a list with {phrase} of each value and step",
                "[value {slot} step for value in values]",
                "values.map((value) => value {slot} step)",
                _scaled,
            ),
            (
                "label",
                "combine",
                ("left", "right"),
                "return '=' followed by {phrase} of left and right",
                "'=' + str(left {slot} right)",
                "'=' + String(left {slot} right)",
                _pair,
                True,
            ),
        ],
    )
    + _two(
        kinds.INDEX,
        [
            ("pick", "pick", ("values",), "return {phrase} of values", "values{slot}", "values{slot}", _numbers),
            (
                "initials",
                "letters",
                ("words",),
                "return a list with {phrase} letter of each of words",
                "[word{slot} for word in words]",
                "words.map((word) => word{slot})",
                _words,
            ),
            (
                "ranked",
                "rank",
                ("values",),
                "return {phrase} of values in sorted order",
                "sorted(values){slot}",
                "[...values].sort((a, b) => a - b){slot}",
                _numbers,
            ),
            (
                "field",
                "pick",
                ("line",),
                "return {phrase} part of line, parts split by commas",
                "line.split(','){slot}",
                "line.split(','){slot}",
                _line,
                True,
            ),
        ],
    )
    + _two(
        kinds.SLICE,
        [
            (
                "take",
                "take",
                ("values", "size"),
                "return {phrase} size of values",
                "values{slot}",
                "values{slot}",
                _sized,
            ),
            (
                "cut",
                "cut",
                ("text", "size"),
                "return {phrase} size letters of text",
                "text{slot}",
                "text{slot}",
                _sized_text,
            ),
            (
                "shout",
                "shout",
                ("text", "size"),
                "return {phrase} size letters of text, then '!'",
                "text{slot} + '!'",
                "text{slot} + '!'",
                _sized_text,
            ),
            (
                "phrase",
                "take",
                ("text", "size"),
                "return {phrase} size words of text",
                "' '.join(text.split(' '){slot})",
                "text.split(' '){slot}.join(' ')",
                _sized_words,
                True,
            ),
        ],
    )
    + _two(
        kinds.MATCH,
        [
            (
                "find",
                "find",
                ("words", "mark"),
                "return the words that {phrase} mark",
                "[word for word in words if word{slot}]",
                "words.filter((word) => word{slot})",
                _marked,
            ),
            (
                "tally",
                "tally",
                ("words", "mark"),
                "return how many words {phrase} mark",
                "sum(1 for word in words if word{slot})",
                "words.filter((word) => word{slot}).length",
                _marked,
            ),
            (
                "drop",
                "drop",
                ("words", "mark"),
                "return a list that tells which words {phrase} mark",
                "[word{slot} for word in words]",
                "words.map((word) => word{slot})",
                _marked,
            ),
        ],
    )
    + _two(
        kinds.CASE,
        [
            (
                "clean",
                "clean",
                ("words",),
                "return a list of words {phrase}",
                "[word{slot} for word in words]",
                "words.map((word) => word{slot})",
                _padded_words,
            ),
            (
                "join",
                "join",
                ("words",),
                "return the words {phrase}, joined by dashes",
                "'-'.join(word{slot} for word in words)",
                "words.map((word) => word{slot}).join('-')",
                _padded_words,
            ),
            (
                "name",
                "name",
                ("left", "right"),
                "return left {phrase}, then right as it is",
                "left{slot} + right",
                "left{slot} + right",
                _padded_pair,
            ),
        ],
    )
    + _two(
        kinds.LOGIC,
        [
            (
                "flag",
                "flag",
                ("left", "right"),
                "tell whether {phrase} of left and right is set",
                "left {slot} right",
                "left {slot} right",
                _flags,
            ),
            (
                "mask",
                "mask",
                ("left", "right"),
                "return a list that tells where {phrase} of left and right is set",
                "[a {slot} b for a, b in zip(left, right)]",
                "left.map((a, at) => a {slot} right[at])",
                _flag_lists,
            ),
            (
                "vote",
                "vote",
                ("left", "right"),
                "return 'yes' if {phrase} of left and right is set, else 'no'",
                "'yes' if left {slot} right else 'no'",
                "left {slot} right ? 'yes' : 'no'",
                _flags,
            ),
        ],
    )
    + _two(
        kinds.AGGREGATE,
        [
            ("stat", "stat", ("values",), "return {phrase} of values", "{slot}(values)", "{slot}(values)", _numbers),
            (
                "double",
                "double",
                ("values",),
                "return two times {phrase} of values",
                "2 * {slot}(values)",
                "2 * {slot}(values)",
                _numbers,
            ),
            (
                "tops",
                "tops",
                ("rows",),
                "return a list with {phrase} of values of each row",
                "[{slot}(row) for row in rows]",
                "rows.map((row) => {slot}(row))",
                _rows,
            ),
            (
                "range",
                "stat",
                ("values",),
                "return a list of values, each plus {phrase} of values",
                "[value + {slot}(values) for value in values]",
                "values.map((value) => value + {slot}(values))",
                _numbers,
                True,
            ),
        ],
    )
)
