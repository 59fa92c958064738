"""The tables of words.toml, as patterns on what a source says (see source.py)."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from swe_rl.grade.rules.source import Source

ANY = "any"


@dataclass(frozen=True, slots=True)
class Words:
    """What one rule looks for, by language."""

    patterns: dict[str, re.Pattern[str]]

    def pattern(self, source: Source | None) -> re.Pattern[str] | None:
        """None where the rule has nothing to look for in such a source."""
        if source is None:
            return None
        return self.patterns.get(source.language) or self.patterns.get(ANY)


@cache
def read_words(rule: str) -> Words:
    """A language's own words come beside those of every language."""
    table = _tables()["words"][rule]
    common = table.get(ANY, [])
    own = {language: [*common, *words] for language, words in table.items() if language != ANY}
    return Words({language: re.compile("|".join(words)) for language, words in ({ANY: common} | own).items() if words})


@cache
def read_names(kind: str) -> frozenset[str]:
    """Plain names: of a library's functions, of a language's keywords."""
    return frozenset(_tables()["names"][kind].split())


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files("swe_rl.grade.rules").joinpath("words.toml").read_text(encoding="utf-8"))
