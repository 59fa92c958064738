"""Copying drills for a cold start: a file of made-up lines, and an edit call that changes one word of one line.

They carry no knowledge of repair; they keep a tiny policy able to copy what it has never seen.
"""

import json
from dataclasses import dataclass
from random import Random

from swe_rl.synth.nouns import made_up

_SIGNS = ("+", "-", "*", "<", ">=", "==", ".", ",", "(", ")", "[0]", "[1:]", ".at(2)", "'x'", ":", "=>", "and", "||")
_WORDS = ("return", "value", "values", "for", "in", "if", "limit", "word", "words", "left", "right", "text", "size")


@dataclass(frozen=True, slots=True)
class Drill:
    """`context` is read, `call` is what a policy should write after it."""

    context: str
    call: str


def make_drill(rng: Random) -> Drill:
    lines = [_line(rng) for _ in range(rng.randint(2, 4))]
    name = f"{made_up(rng, rng.randint(1, 2))}_{made_up(rng, rng.randint(1, 3))}"
    path = f"src/{name}.{rng.choice(['py', 'js'])}"
    old = rng.choice(lines)
    words = old.split(" ")
    place = rng.choice([i for i, word in enumerate(words) if word])
    words[place] = _token(rng)
    arguments = {"path": path, "old": old, "new": " ".join(words)}
    body = json.dumps({"name": "edit", "arguments": arguments}, ensure_ascii=False)
    context = (
        f"{path}\n<tool_response>\n" + "\n".join(lines) + f"\n\n</tool_response>{' '.join(words[place : place + 1])}\n"
    )
    return Drill(context, f"<tool_call>\n{body}\n</tool_call>")


def _line(rng: Random) -> str:
    return " " * rng.choice([2, 4]) + " ".join(_token(rng) for _ in range(rng.randint(4, 9)))


def _token(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.4:
        return made_up(rng, rng.randint(1, 3))
    return rng.choice(_SIGNS) if draw < 0.7 else rng.choice(_WORDS)
