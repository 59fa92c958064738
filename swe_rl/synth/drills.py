"""Copying drills for a cold start: made-up functions, and an edit call that puts another word into the returned line.

They look like episodes and carry no knowledge of repair: expressions are random, and the issue names the new word.
They keep a tiny policy able to copy what it has never seen.
"""

import json
from dataclasses import dataclass
from random import Random

from swe_rl.synth.nouns import made_up

_ATOMS = (
    "value", "values", "limit", "left", "right", "text", "word", "words", "line", "size", "at", "score", "mark", "x",
    "0", "1", "2", "-1", "','", "' '", "'='", "'-'", "'a'", "true", "None",
)  # fmt: skip
_OPERATORS = ("+", "-", "*", "%", "<", "<=", ">", ">=", "==", "===", "!=", "and", "or", "&&", "||", "in", "??")
_FUNCTIONS = (
    "sum", "min", "max", "len", "sorted", "list", "abs", "str", "String", "Number", "next", "all", "any", "range",
    "enumerate", "Math.max", "zip",
)  # fmt: skip
_METHODS = (
    "at", "slice", "map", "filter", "split", "join", "strip", "upper", "lower", "trim", "every", "some", "findIndex",
    "includes", "startsWith", "endswith", "count", "replace", "index", "toUpperCase", "reduce", "concat",
)  # fmt: skip
_INDEXES = ("[0]", "[1]", "[-1]", "[-2]", "[:size]", "[size:]", "[-size:]", "[::2]", "[at]")
_SORTS = (_ATOMS, _OPERATORS, _FUNCTIONS, _METHODS, _INDEXES)
_ENDS = ([" ", "+", " ", "value"], ["[0]"], [" ", "<", " ", "limit"])  # each holds a piece that can be exchanged


@dataclass(frozen=True, slots=True)
class Drill:
    """`context` is read, `call` is what a policy should write after it."""

    context: str
    call: str


def make_drill(rng: Random) -> Drill:
    """Deterministic for the state of `rng`."""
    is_python = rng.random() < 0.5
    name = _made_up_name(rng, is_python)
    path = f"src/{name}.{'py' if is_python else 'js'}"
    pieces = [*_expression(rng, rng.randint(1, 3)), *rng.choice(_ENDS)]
    place = rng.choice([i for i, piece in enumerate(pieces) if _rivals(piece)])
    changed = [*pieces[:place], rng.choice(_rivals(pieces[place])), *pieces[place + 1 :]]
    old, new = _return_line(pieces, is_python), _return_line(changed, is_python)
    says = " ".join([*(made_up(rng, rng.randint(1, 3)) for _ in range(rng.randint(2, 5))), changed[place]])
    view = json.dumps({"name": "view", "arguments": {"path": path}})
    edit = json.dumps({"name": "edit", "arguments": {"path": path, "old": old, "new": new}}, ensure_ascii=False)
    context = (
        f"<|im_start|>user\nExpected {name} to {says}.\nFiles:\n{path}<|im_end|>\n<|im_start|>assistant\n"
        f"<tool_call>\n{view}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"
        f"{_source(name, says, old, is_python)}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    return Drill(context, f"<tool_call>\n{edit}\n</tool_call>")


def _rivals(piece: str) -> list[str]:
    """What may stand in the piece's place: others of its sort."""
    return [other for sort in _SORTS if piece in sort for other in sort if other != piece]


def _source(name: str, says: str, line: str, is_python: bool) -> str:
    if is_python:
        return f'def {name}(value, text):\n    """Return {says}."""\n{line}\n'
    return f"// Return {says}.\nfunction {name}(value, text) {{\n{line}\n}}\n\nmodule.exports = {{ {name} }};\n"


def _return_line(pieces: list[str], is_python: bool) -> str:
    return f"    return {''.join(pieces)}" if is_python else f"  return {''.join(pieces)};"


def _made_up_name(rng: Random, is_python: bool) -> str:
    verb, noun = made_up(rng, rng.randint(1, 2)), made_up(rng, rng.randint(1, 3))
    return f"{verb}_{noun}" if is_python else verb + noun.capitalize()


def _expression(rng: Random, depth: int) -> list[str]:
    """Pieces of source text that make one expression; it needn't mean anything, it has to look like code."""
    if depth == 0:
        return [rng.choice(_ATOMS) if rng.random() < 0.8 else made_up(rng, rng.randint(1, 3))]
    inner = _expression(rng, depth - 1)
    other = _expression(rng, rng.randint(0, depth - 1))
    variable = rng.choice(_ATOMS[:12])
    form = rng.randrange(9)
    if form == 0:
        return [rng.choice(_FUNCTIONS), "(", *inner, ")"]
    if form == 1:
        return [rng.choice(_FUNCTIONS), "(", *inner, ", ", *other, ")"]
    if form == 2:
        return [*inner, ".", rng.choice(_METHODS), "(", *other, ")"]
    if form == 3:
        return [*inner, rng.choice(_INDEXES)]
    if form == 4:
        return ["[", *inner, " for ", variable, " in ", *other, "]"]
    if form == 5:
        return [*other, ".", rng.choice(_METHODS), "((", variable, ") => ", *inner, ")"]
    if form == 6:
        return [*inner, " if ", *other, " else ", rng.choice(_ATOMS)]
    return [*inner, " ", rng.choice(_OPERATORS), " ", *other]
