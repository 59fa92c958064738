"""Numbers of a run as they are written: one JSON line a step in `metrics.jsonl`, names of the form `area/name`."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from swe_rl.errors import StoreError

Metrics = Mapping[str, float]
_NAME = re.compile(r"[a-z0-9_]+(/[a-zA-Z0-9_.\-]+)+")


class MetricsWriter:
    """Appends steps to one file; a step that is written again (after a resume) replaces the earlier line on read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, metrics: Metrics) -> None:
        """Raises ValueError for a name that isn't `area/name`, StoreError if the disk refuses."""
        bad = [name for name in metrics if not _NAME.fullmatch(name)]
        if bad:
            raise ValueError(f"metric name {bad[0]!r}, expected area/name")
        row = {"step": step} | {k: _plain(v) for k, v in metrics.items()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise StoreError(f"{self._path}: metrics can't be written: {error.strerror}; free some disk") from error


def read_metrics(path: Path) -> list[dict[str, float]]:
    """All steps in order, the last line of each; a line cut short by a crash is skipped."""
    rows = {int(row["step"]): row for row in _rows(path)}
    return [rows[step] for step in sorted(rows)]


def _rows(path: Path) -> Iterator[dict[str, float]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the tail of a killed process
        yield row


def _plain(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
