"""The look of every picture: colours that colour-blind readers can tell apart, light axes, and an atomic save."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swe_rl.store.files import disk_error

# Okabe and Ito's palette (2008); the roles are the same in every picture
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
INK = "#333333"
FAINT = "#8c8c8c"

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9a9a9a",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titlesize": 12,
    "figure.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def panels(path: Path, columns: int = 1, rows: int = 1, size: tuple[float, float] = (7.2, 4.2)) -> Iterator[list[Axes]]:
    """Axes to draw on, saved to `path` as PNG at the end; raises StoreError if the disk refuses."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        try:
            yield list(axes.flat)
            _save(figure, path)
        finally:
            pyplot.close(figure)


def describe(axes: Axes, title: str, x: str, y: str) -> None:
    """Title and labelled axes; `x` and `y` name the quantity and its unit."""
    axes.set_title(title, fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def note(axes: Axes, text: str) -> None:
    """A remark instead of data, where there is none."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT)


def _save(figure: Figure, path: Path) -> None:
    temp = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temp, format="png", dpi=150)
        os.replace(temp, path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise disk_error(path, error) from error
