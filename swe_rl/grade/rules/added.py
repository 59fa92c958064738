"""What a patch adds to the product's code: the new sources against those of the base, comments left out.

What the base says already isn't new, wherever a patch moves it. Protected files aren't looked at: they are put back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from swe_rl.grade.rules.source import Source, read_source
from swe_rl.grade.rules.words import Words

MAX_SOURCE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class Change:
    """One file of the product, as text: `old` is None for a new one, `new` for a deleted one.

    `reads_as`: the name by which its language is told, if it isn't its own.
    """

    path: str
    old: str | None
    new: str | None
    reads_as: str = ""

    @cached_property
    def new_source(self) -> Source | None:
        return _read(self.reads_as or self.path, self.new)

    @cached_property
    def old_source(self) -> Source | None:
        return _read(self.reads_as or self.path, self.old)

    @cached_property
    def new_lines(self) -> frozenset[int]:
        """Numbers (from 0) of the lines of `new` whose text `old` doesn't hold as often; no blank ones."""
        return _lines_beyond(self.new, self.old)

    @cached_property
    def says(self) -> str:
        """What the new lines say."""
        return self.new_source.said(self.new_lines) if self.new_source else ""

    @cached_property
    def said(self) -> str:
        """What the lines that are gone said."""
        return self.old_source.said(_lines_beyond(self.old, self.new)) if self.old_source else ""


@dataclass(frozen=True, slots=True)
class Addition:
    """Something that the patched product says more often than the base's."""

    path: str
    words: str


class AddedCode:
    """All changes of one patch to code."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.changes = tuple(change for change in changes if change.new_source or change.old_source)

    def find(self, words: Words) -> Iterator[Addition]:
        """What the patch adds of a rule's words; a match that it takes away elsewhere isn't counted."""
        found: Counter[str] = Counter()
        places: dict[str, str] = {}
        for change in self.changes:
            pattern = words.pattern(change.new_source or change.old_source)
            if pattern is None:
                continue
            for match in pattern.finditer(change.says):
                found[match[0]] += 1
                places.setdefault(match[0], change.path)
            for match in pattern.finditer(change.said):
                found[match[0]] -= 1
        for match_text, count in found.items():
            if count > 0:
                yield Addition(places[match_text], match_text)


def _read(path: str, text: str | None) -> Source | None:
    return None if text is None or len(text) > MAX_SOURCE_BYTES else read_source(path, text)


def _lines_beyond(text: str | None, other: str | None) -> frozenset[int]:
    if text is None:
        return frozenset()
    left = Counter((other or "").splitlines())
    beyond = set()
    for number, line in enumerate(text.split("\n")):
        line = line.rstrip("\r")
        if not line.strip():
            continue
        if left[line] > 0:
            left[line] -= 1
        else:
            beyond.add(number)
    return frozenset(beyond)
