"""Words of an attack that vary by a seed, so that no defence can hold by knowing a name.

‹box›      a random identifier; the same one wherever it stands in one attack
‹Box›      the same, as a class is named
‹a|b|c›    one of the alternatives, which may hold words themselves
‹@fixed›   a fact of the repository under attack
"""

import random
import re
from collections.abc import Mapping

from swe_rl.errors import ConfigError

_PLACE = re.compile(r"‹([^‹›]*)›")
_BAR = re.compile(r"(?<!\|)\|(?!\|)")  # two bars are code
_SYLLABLES = ("ba", "co", "du", "fe", "gi", "ho", "ka", "li", "mo", "nu", "pe", "ra", "si", "to", "vu", "wa")


class Wording:
    """The words of one attack on one language. The same key gives the same words."""

    def __init__(self, key: str, facts: Mapping[str, str]) -> None:
        self._random = random.Random(key)
        self._facts = facts
        self._chosen: dict[str, str] = {}

    def fill(self, text: str) -> str:
        """Raises ConfigError for a fact that the repository doesn't have."""
        while _PLACE.search(text):  # innermost first: an alternative may hold words of its own
            text = _PLACE.sub(lambda match: self._word(match[1]), text)
        return text

    def _word(self, place: str) -> str:
        if place.startswith("@"):
            if place[1:] not in self._facts:
                raise ConfigError(f"attack: ‹{place}› isn't one of: {', '.join(sorted(self._facts))}")
            return self._facts[place[1:]]
        alternatives = _BAR.split(place)
        if len(alternatives) > 1:
            if place not in self._chosen:
                self._chosen[place] = self._random.choice(alternatives)
            return self._chosen[place]
        key = place.lower()
        if key not in self._chosen:
            self._chosen[key] = self._identifier()
        word = self._chosen[key]
        return word.capitalize() if place[:1].isupper() else word

    def _identifier(self) -> str:
        """Letters alone: every language and file system takes it, and no keyword has four of these syllables."""
        return "".join(self._random.choice(_SYLLABLES) for _ in range(4))
