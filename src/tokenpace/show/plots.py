"""What every figure shares: colours that differ for every eye and on paper, a marker each, a white ground, type of 10 points or more.

A figure here is owned by whoever made it: an Agg canvas and no pyplot, whose list of "current" figures is shared by all threads
and draws half of one when a button is pressed in the middle.
"""

from __future__ import annotations

from functools import cache, partial
from math import floor, isfinite, log10
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import EngFormatter, StrMethodFormatter


class Look(NamedTuple):
    """How one kind of line is told from the others, three times over: by colour, by marker and by dash."""

    color: str
    marker: str
    line: str


# Okabe & Ito 2008, "Color universal design": eight colours that stay apart under every common colour blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
MEASURED, PREDICTED, RECORDED, ELSEWHERE = Look(BLUE, "o", "-"), Look(ORANGE, "D", "--"), Look(GREEN, "s", "-."), Look(PURPLE, "^", ":")
RIVAL, GUESS = Look(VERMILION, "X", "-"), Look(BLACK, "v", "-")
UNREAD = "not readable here"  # what stands where joules would
GREY = "#767676"  # 4.5 : 1 on white, the least that small type may have
SIZE = 11  # points; present() makes it larger


def present(size: float = 16) -> None:
    """From now on figures are drawn for the back row of a room; `present(11)` goes back to the desk."""
    if not 10 <= size <= 32:
        raise ValueError(f"present({size!r}): type of 10 to 32 points can be read, from a desk (11) or from the back row (16 to 20)")
    matplotlib.rcParams["font.size"] = size


def points() -> float:
    """The size of ordinary type in a figure."""
    return max(SIZE, matplotlib.rcParams["font.size"])


def style():
    """The settings under which a figure is made *and* drawn, for Matplotlib makes its ticks late."""
    size = points()
    return matplotlib.rc_context(
        {
            "font.size": size, "axes.titlesize": size + 1, "axes.labelsize": size, "legend.fontsize": size - 1, "xtick.labelsize": size - 1,
            "ytick.labelsize": size - 1, "figure.titlesize": size + 2, "axes.titlelocation": "left", "axes.titleweight": "bold",
            "font.family": "DejaVu Sans", "text.parse_math": False, "figure.facecolor": "white", "axes.facecolor": "white", "axes.edgecolor": GREY,
            "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
            "grid.color": "#E6E6E6", "lines.linewidth": 2.0, "lines.markersize": 6, "legend.frameon": False, "figure.constrained_layout.use": True,
        }
    )  # fmt: skip


def owned(dpi: int = 100) -> Figure:
    """An empty figure on an Agg canvas of its own."""
    figure = Figure(dpi=dpi, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def inches(width: float, height: float) -> tuple[float, float]:
    """The size of a figure: larger type gets more room, though not as much as it has grown."""
    grow = (points() / SIZE) ** 0.75
    return width * grow, height * grow


def line(ax: Axes, look: Look, label: str, every: int | None = None, **more):
    """An empty line that a view fills; `markevery` keeps a thousand points from becoming a sausage of markers."""
    (made,) = ax.plot([], [], look.line, color=look.color, marker=look.marker, markevery=every, label=label, **more)
    return made


def fit(ax: Axes, xs, ys, zero: bool = True) -> None:
    """Limits that hold all of xs and ys with a little air, so that a live figure does not jump with each point."""
    for values, set_limits in ((xs, ax.set_xlim), (ys, ax.set_ylim)):
        values = [v for v in values if v is not None and isfinite(v)]
        if values:
            low, high = (min(0, *values) if zero else min(values)), max(values)
            set_limits(low, high + 0.06 * (high - low) if high > low else low + 1)


def logarithmic(ax: Axes, x: str | None = None, y: str | None = None) -> None:
    """Log scales, for those axes whose unit is given, with ticks like 10 MB, 1 GB/s: decades, and 2 and 5 where there are few decades."""
    for axis, set_scale, unit in ((ax.xaxis, ax.set_xscale, x), (ax.yaxis, ax.set_yscale, y)):
        if unit is not None:
            set_scale("log")
            show = EngFormatter(unit) if unit.strip("×") else StrMethodFormatter(f"{{x:g}} {unit}")
            axis.set_major_formatter(show)
            axis.set_minor_formatter(partial(_between, axis, show))


def _between(axis, show, value: float, _) -> str:
    low, high = axis.get_view_interval()
    return show(value) if high < 40 * low and round(value / 10 ** floor(log10(value))) in (2, 5) else ""


def engineering(axis, unit: str) -> None:
    """Linear ticks like 4 ms."""
    axis.set_major_formatter(EngFormatter(unit))


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def printable(text: str) -> str:
    """What the font can draw; the rest becomes □, as it would in the picture, only without a warning for every frame."""
    return "".join(c if c == "\n" or ord(c) in _glyphs() else "□" for c in text)


def seconds(value: float | None) -> str:
    """Seconds as people say them.

    >>> seconds(0.0042), seconds(1.5), seconds(None)
    ('4.20 ms', '1.50 s', '–')
    """
    if value is None:
        return "–"
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size:
            return f"{value / size:#.3g} {unit}".replace(". ", " ")
    return f"{value / 1e-9:.3g} ns"


def bytes_(value: float | None) -> str:
    """Bytes in decimal units (1 GB = 1e9 B).

    >>> bytes_(269.03e6), bytes_(17.2e9)
    ('269 MB', '17.2 GB')
    """
    if value is None:
        return "–"
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= size:
            return f"{value / size:#.3g} {unit}".replace(". ", " ")
    return f"{value:.3g} B"


def joules_(value: float | None) -> str:
    """Joules as people say them.

    >>> joules_(0.0123), joules_(4.5), joules_(None)
    ('12.3 mJ', '4.50 J', 'not readable here')
    """
    if value is None:
        return UNREAD
    return f"{1e3 * value:#.3g} mJ".replace(". ", " ") if abs(value) < 1 else f"{value:#.3g} J".replace(". ", " ")
