"""A picture that fills while something is measured, and a sentence that says the same in words.

The picture is one output, updated in place: a PNG from a figure of its own, with the sentence as its text. Whoever cannot see
the picture, or reads the notebook where no kernel runs, has the last frame and the sentence.

Drawing costs time, so it is kept out of what is measured: `timed` stops its clock whenever it hands over a step, and drawing
happens only then, at most 5 times a second and for at most a third of the time.
"""

from __future__ import annotations

import base64
import io
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median, quantiles
from typing import Protocol

from matplotlib.figure import Figure

from ..measure.roof import Band, band
from . import plots
from .plots import inches, owned, style

PERIOD = 0.2  # s between frames: 5 Hz
SHARE = 1 / 3  # of the time, at most, goes into drawing
SLOW = 2  # times the median: where a tenth of like passes takes longer, something else was running


class View(Protocol):
    """One idea of a figure: a fold over what was measured. `see` updates numbers only, `draw` moves numbers into artists only."""

    size: tuple[float, float]  # of the figure, in inches, with type for the desk

    def see(self, lane: str, point) -> None:
        """Take in one point of a lane (a Stamped step, or whatever the lane yields)."""

    def axes(self, figure: Figure) -> None:
        """Make the axes and all artists, empty."""

    def draw(self) -> None:
        """Move the numbers so far into the artists."""

    def sentence(self) -> str:
        """What the picture shows, in one or two sentences, computed."""

    def progress(self) -> float:
        """How much of what was planned is there, from 0 to 1."""

    def judge(self, band: Band | None) -> None:
        """Learn where the roof stood during the run; None: it was not probed, or the run was interrupted."""


def verdict(band: Band | None, says: str, passes: Sequence[float] = ()) -> str:
    """What was to be said, or why nothing is: a roof that moved during a run judges nothing, nor do like `passes` [s] that took unlike times.

    The roof alone is not enough: cores that another program takes slow the passes down, and may be free again while the roof is probed.

    >>> from ..measure.roof import Band
    >>> verdict(Band(75e9, 80e9, steady=True), "As predicted.")
    'As predicted.'
    >>> verdict(Band(40e9, 80e9, steady=False), "As predicted.")
    'No verdict: the roof moved between 40 and 80 GB/s meanwhile, so another program was busy; run it again.'
    """
    if band and not band.steady:
        why = f"the roof moved between {band.low / 1e9:.0f} and {band.high / 1e9:.0f} GB/s meanwhile"
    elif len(passes) > 1 and quantiles(passes, n=10, method="inclusive")[-1] > SLOW * median(passes):
        why = f"the passes took between {plots.seconds(min(passes))} and {plots.seconds(max(passes))}"
    else:
        return says
    return f"No verdict: {why}, so another program was busy; run it again."


class Screen:
    """Where a figure is shown: one output of a notebook cell, updated in place, or nowhere but in memory (then the sentence is printed)."""

    def __init__(self, live: bool = True, now: Callable[[], float] = time.perf_counter):
        self.live, self.now, self.figure = live, now, owned()
        self.picture = self.caption = None
        self._drawn_at, self._drawing = float("-inf"), 0.0
        self._notebook = _in_notebook()

    def clear(self, view: View) -> None:
        """A new run of a view, in the same place."""
        self.figure.clear()
        self.figure.set_layout_engine("constrained")
        self.figure.set_size_inches(inches(*view.size))
        with style():
            view.axes(self.figure)

    @property
    def watched(self) -> bool:
        """Does anybody see the frames before the last?"""
        return self.live and self._notebook

    @property
    def due(self) -> bool:
        """Is it time for a frame? Never more often than PERIOD, and less often where a frame takes long to draw."""
        return self.watched and self.now() - self._drawn_at >= max(PERIOD, self._drawing / SHARE)

    def frame(self, view: View, sentence: str, last: bool = False) -> None:
        started = self.now()
        with style():
            view.draw()
            if last:
                self.figure.set_layout_engine("constrained")
            png = _png(self.figure)
        self.figure.set_layout_engine("none")  # places that were found once will do until the last frame: finding them is a third of the drawing
        self._publish(png, sentence, last)
        self._drawn_at = self.now()
        self._drawing = self._drawn_at - started

    def _publish(self, png: bytes, sentence: str, last: bool) -> None:
        if not self._notebook:
            if last:
                print(sentence)
            return
        data = {"image/png": base64.b64encode(png).decode("ascii"), "text/plain": sentence}
        about = {"image/png": {"alt": sentence, "width": int(self.figure.bbox.width)}}
        self.picture = _show(self.picture, data, about)
        # JupyterLab gives images no alt text, so the sentence also stands below, where eyes and screen readers find it
        whole = re.sub(r"(?<=\d) (?=[kMGT]?B\b|[mµn]?s\b)", "&nbsp;", escape(sentence))  # a number and its unit stay together
        self.caption = _show(self.caption, {"text/html": f'<p role="status"><em>{whole}</em></p>'}, {})


@dataclass
class Shown:
    """What a measurement left: its raw points by lane, the figure, the sentence, and the roof it stands under."""

    view: View
    figure: Figure
    sentence: str
    screen: Screen
    points: dict[str, list] = field(default_factory=dict)
    band: Band | None = None
    roof: dict[str, tuple[float, ...]] = field(default_factory=dict)  # the samples that the band is made of
    note: str = ""

    def __repr__(self) -> str:
        return self.sentence

    def save(self, path) -> None:
        """Write the picture as a PNG file."""
        with style():
            self.figure.savefig(path, metadata={"Software": None, "Description": self.sentence})


def watch(
    view: View,
    lanes: Mapping[str, Iterable],
    *,
    seconds: float = 30,
    roof: Callable[[], Iterable[float]] | None = None,
    live: bool = True,
    screen: Screen | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Shown:
    """Measure the lanes one after another while `view` fills, within a budget of `seconds`; return what was seen.

    `lanes` are iterables of points, mostly `timed(...)` steps. `roof` gives samples of the read bandwidth, before and after.
    Each lane has its share of the budget, and what the lanes before it left, so that a slow first lane doesn't keep the next from starting.
    An interrupt or the end of the budget ends the measurement, not the figure: what was measured stays and is drawn, and the sentence says
    how much that is.
    `live=False` draws the last frame only. In a notebook the figure is an output; elsewhere the sentence is printed.
    """
    screen = screen or Screen(live, now)
    run = _Run(view, screen, seconds, now, {lane: [] for lane in lanes})
    screen.clear(view)
    if screen.watched:
        screen.frame(view, "measuring …")
    probed = {}
    try:
        before = tuple(roof()) if roof else ()
        note = run.measure(lanes)
        if roof:
            probed = {"before": before, "after": tuple(roof())}
    except KeyboardInterrupt:
        note = f"Interrupted: {run.kept()}."
    stood = band(**probed) if probed else None
    view.judge(stood)
    sentence = " ".join(filter(None, (view.sentence(), note)))
    screen.frame(view, sentence, last=True)
    return Shown(view, screen.figure, sentence, screen, run.points, stood, probed, note)


@dataclass
class _Run:
    """The state of one measurement between its first point and its last."""

    view: View
    screen: Screen
    budget: float
    now: Callable[[], float]
    points: dict[str, list]

    def measure(self, lanes: Mapping[str, Iterable]) -> str:
        """Go through all lanes; return why it ended early, if its budget was at fault."""
        started, share, cut = self.now(), self.budget / max(len(lanes), 1), False
        for i, (lane, points) in enumerate(lanes.items(), 1):
            end = max(started + i * share, self.now() + share)
            cut |= self._lane(lane, iter(points), started, end)
        return f"Stopped by its budget of {self.budget:.3g} s: {self.kept()}." if cut and self.view.progress() < 1 else ""

    def _lane(self, lane: str, points: Iterator, started: float, end: float) -> bool:
        """Go through one lane; was it cut off at its end?"""
        try:
            for point in points:
                self.points[lane].append(point)
                self.view.see(lane, point)
                now = self.now()
                if now >= end and self.view.progress() < 1:
                    return True
                if self.screen.due:
                    self.screen.frame(self.view, f"{self.view.sentence()} {self._left(now - started)}")
            return False
        finally:
            getattr(points, "close", lambda: None)()  # frees what the run holds, now and not some day

    def kept(self) -> str:
        n = sum(map(len, self.points.values()))
        return f"{n} point{'' if n == 1 else 's'} kept, {self.view.progress():.0%} of the plan"

    def _left(self, spent: float) -> str:
        done = min(max(self.view.progress(), 0.0), 1.0)
        guess = min(spent * (1 - done) / done, self.budget - spent) if done else self.budget - spent
        return f"({done:.0%} measured, about {max(guess, 0):.0f} s left)"


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.canvas.print_png(file, metadata={"Software": None}, pil_kwargs={"compress_level": 3})
    return file.getvalue()


def _in_notebook() -> bool:
    """Is there a frontend that takes pictures? IPython is asked only if it is there already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def _show(handle, data: dict, about: dict):
    from IPython.display import DisplayHandle

    if handle is None:
        handle = DisplayHandle()
        handle.display(data, metadata=about, raw=True)
    else:
        handle.update(data, metadata=about, raw=True)
    return handle
