"""Nouns for the names of functions: half of them words, half made up, so that a name has to be copied, not recalled.

The two parts of the family share none: their words differ, and made-up nouns end in other syllables.
"""

from random import Random

WORDS = {
    "train": (
        "apples", "boats", "cards", "doors", "eggs", "files", "games", "hats", "items", "jobs", "keys", "lamps",
        "maps", "notes", "orders", "pages", "rooms", "seats", "tools", "users",
    ),
    "verified": ("bills", "coins", "desks", "farms", "goals", "lines", "marks", "towns"),
}  # fmt: skip
_CONSONANTS = "bdfgklmnprstvz"
_LAST_SYLLABLES = {
    "train": ("ba", "do", "ki", "lu", "mo", "ne", "ra", "so", "ti", "vu"),
    "verified": ("ga", "pe", "zo"),
}


def draw_nouns(split: str, rng: Random) -> tuple[str, str]:
    """Two different nouns of the split."""
    first = _draw(split, rng)
    second = _draw(split, rng)
    while second == first:
        second = _draw(split, rng)
    return first, second


def _draw(split: str, rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(WORDS[split])
    return made_up(rng, rng.randint(1, 2)) + rng.choice(_LAST_SYLLABLES[split])


def made_up(rng: Random, num_syllables: int) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice("aeiou") for _ in range(num_syllables))
