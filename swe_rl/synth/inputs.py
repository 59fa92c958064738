"""Drawers of arguments for the templates of the family: small values that tell a slot's choices apart."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

Inputs = Callable[[Random], tuple[Any, ...]]

WORDS = ("fig", "elm", "ash", "oak", "ivy", "yew", "bay", "fir", "sage", "mint", "reed", "moss", "pear", "plum")


def limit(rng: Random) -> tuple[Any, ...]:
    limit = rng.randint(2, 8)
    values = [limit, *(rng.choice([limit - 1, limit + 1, rng.randint(0, 9)]) for _ in range(rng.randint(2, 4)))]
    rng.shuffle(values)
    return values, limit


def near_limit(rng: Random) -> tuple[Any, ...]:
    limit = rng.randint(2, 8)
    low, high = rng.choice([(-1, -1), (-1, 0), (0, 0), (0, 1), (1, 1), (-1, 1)])
    return [limit + rng.randint(low, high) for _ in range(rng.randint(2, 4))], limit


def score(rng: Random) -> tuple[Any, ...]:
    limit = rng.randint(2, 8)
    return limit + rng.choice([-1, 0, 0, 1, 2]), limit


def pair(rng: Random) -> tuple[Any, ...]:
    return rng.randint(1, 9), rng.randint(2, 9)


def lists(rng: Random) -> tuple[Any, ...]:
    n = rng.randint(2, 4)
    return [rng.randint(1, 9) for _ in range(n)], [rng.randint(2, 9) for _ in range(n)]


def scaled(rng: Random) -> tuple[Any, ...]:
    return [rng.randint(1, 9) for _ in range(rng.randint(2, 4))], rng.randint(2, 5)


def numbers(rng: Random) -> tuple[Any, ...]:
    return (rng.sample(range(10), rng.randint(3, 5)),)


def words(rng: Random) -> tuple[Any, ...]:
    return (rng.sample(WORDS, rng.randint(3, 5)),)


def line(rng: Random) -> tuple[Any, ...]:
    return (",".join(rng.sample(WORDS, rng.randint(3, 5))),)


def sized(rng: Random) -> tuple[Any, ...]:
    return rng.sample(range(10), rng.randint(4, 6)), rng.randint(1, 3)


def sized_text(rng: Random) -> tuple[Any, ...]:
    return "".join(rng.sample("abcdefgh", rng.randint(4, 6))), rng.randint(1, 3)


def sized_words(rng: Random) -> tuple[Any, ...]:
    return " ".join(rng.sample(WORDS, rng.randint(4, 5))), rng.randint(1, 3)


def marked(rng: Random) -> tuple[Any, ...]:
    mark = rng.choice("abcde")
    shapes = [mark, mark + "x", "x" + mark, "x" + mark + "y", "xy", "yx"]
    return [rng.choice(shapes) for _ in range(rng.randint(3, 5))], mark


def _padded(rng: Random) -> str:
    word = rng.choice(WORDS)
    return rng.choice(["", " "]) + rng.choice([word, word.title(), word.upper()]) + rng.choice(["", " ", "  "])


def padded_words(rng: Random) -> tuple[Any, ...]:
    return ([_padded(rng) for _ in range(rng.randint(2, 3))],)


def padded_pair(rng: Random) -> tuple[Any, ...]:
    return _padded(rng), _padded(rng)


def flags(rng: Random) -> tuple[Any, ...]:
    return rng.random() < 0.5, rng.random() < 0.5


def flag_lists(rng: Random) -> tuple[Any, ...]:
    n = rng.randint(2, 4)
    return [rng.random() < 0.5 for _ in range(n)], [rng.random() < 0.5 for _ in range(n)]


def rows(rng: Random) -> tuple[Any, ...]:
    return ([[rng.randint(1, 9) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(2, 3))],)


INPUTS: Mapping[str, Inputs] = {
    drawer.__name__: drawer
    for drawer in (
        limit,
        near_limit,
        score,
        pair,
        lists,
        scaled,
        numbers,
        words,
        line,
        sized,
        sized_text,
        sized_words,
        marked,
        padded_words,
        padded_pair,
        flags,
        flag_lists,
        rows,
    )
}
