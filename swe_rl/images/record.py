"""What was seen of each language, in sandboxes/proved.json, and the table that docs/environments.md shows of it.

An entry has two halves: `image` is what the last build on this project's machines gave, `proved` when each backend last
ran the language's hello-repository through the service, whole. A failed proof takes its backend's entry away.
"""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.errors import ConfigError
from swe_rl.images.check import Proof
from swe_rl.task.language import LanguageSpec

BEGIN, END = "<!-- languages: written by swe-rl images -->", "<!-- end of languages -->"
BACKENDS = ("docker", "docker-runsc", "bubblewrap")
_MB = 1_000_000
_SUPPORT = frozenset({"gcc", "libc6-dev", "make"})


class Record:
    """The file `proved.json`; `save` writes it, and the table between two marks of `document` if that is there."""

    def __init__(self, path: Path, document: Path | None = None) -> None:
        self._path, self._document = path, document
        try:
            self.entries: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise ConfigError(f"{path}: isn't JSON: {error}; remove it and prove the languages again") from error

    def note_image(self, label: str, size_bytes: int, own_bytes: int, versions: Mapping[str, str]) -> None:
        self._entry(label)["image"] = {
            "mb": round(size_bytes / _MB),
            "own_mb": round(own_bytes / _MB),
            "versions": dict(versions),
        }

    def note_proof(self, proof: Proof, backend: str) -> None:
        proved = self._entry(proof.language).setdefault("proved", {})
        if proof.is_whole:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            proved[backend] = {"date": today, "seconds": round(proof.seconds, 1)}
        else:
            proved.pop(backend, None)

    def save(self, languages: Mapping[str, LanguageSpec]) -> None:
        """Languages that are no longer there are dropped."""
        self.entries = {
            name: self.entries[name] for name in sorted(self.entries) if name in languages or name == "base"
        }
        self._path.write_text(json.dumps(self.entries, indent=1, ensure_ascii=False) + "\n")
        if self._document is not None and self._document.exists():
            text = self._document.read_text(encoding="utf-8")
            before, begin, rest = text.partition(BEGIN)
            _, end, after = rest.partition(END)
            if not begin or not end:
                raise ConfigError(f"{self._document}: lacks the marks {BEGIN!r} and {END!r} around its table")
            self._document.write_text(f"{before}{BEGIN}\n\n{self.table(languages)}\n{END}{after}", encoding="utf-8")

    def table(self, languages: Mapping[str, LanguageSpec]) -> str:
        """Markdown, a row a language."""
        rows = [
            f"| language | toolchain | report | image MB (own) | {' | '.join(BACKENDS)} |",
            f"|---|---|---|---:|{'---|' * len(BACKENDS)}",
        ]
        rows += [self._row(name, languages[name]) for name in sorted(languages)]
        return "\n".join(rows) + "\n"

    def _row(self, name: str, language: LanguageSpec) -> str:
        entry = self.entries.get(name, {})
        image, proved = entry.get("image", {}), entry.get("proved", {})
        versions = dict(image.get("versions", {}))
        telling = {package: text for package, text in versions.items() if package not in _SUPPORT} or versions
        toolchain = ", ".join(f"{package} {short_version(text)}" for package, text in telling.items())
        size = f"{image['mb']} ({image['own_mb']})" if image else "not built"
        cells = [name, toolchain, language.report_format, size, *(_when(proved.get(kind)) for kind in BACKENDS)]
        return f"| {' | '.join(cells)} |"

    def _entry(self, name: str) -> dict[str, Any]:
        return self.entries.setdefault(name, {})


def short_version(version: str) -> str:
    """A Debian version without its epoch and its revision."""
    upstream = version.partition(":")[2] or version
    return upstream.rpartition("-")[0].partition("+dfsg")[0] or upstream


def _when(proof: Mapping[str, Any] | None) -> str:
    return f"{proof['date']}, {proof['seconds']:g} s" if proof else "–"
