"""The last figure of every unit: the pace equation as a plane, with all decoders so far in it.

Across: tokens kept per pass. Up: cost of a pass. Along a diagonal the pace is the same, so every idea of the course is an arrow:
down (a cheaper pass), or to the right (more tokens from each).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..measure.ledger import Ledger
from ..measure.roof import Band
from . import plots
from .plots import GREY, MEASURED, PREDICTED, seconds


@dataclass
class Plane:
    """A view of a finished ledger; it has nothing to fold."""

    ledger: Ledger
    size: tuple = (9.0, 4.6)
    dots: list = field(default_factory=list)

    def see(self, lane: str, point) -> None:
        self.ledger.add(point)

    def judge(self, band: Band | None) -> None:
        pass

    def progress(self) -> float:
        return 1.0

    def axes(self, figure) -> None:
        self.ax = ax = figure.subplots()
        plots.logarithmic(ax, "", "s")
        ax.set(xlabel="tokens kept per pass", ylabel="cost of a pass", title="pace = cost of a pass ÷ tokens kept per pass")
        ax.grid(visible=True)

    def draw(self) -> None:
        ax, rows = self.ax, self.ledger.entries
        for artist in [*ax.lines, *ax.texts]:
            artist.remove()
        across = [e.tokens_per_pass for e in rows] or [1.0]
        up = [cost for e in rows for cost in (e.pass_seconds, e.predicted * e.tokens_per_pass)] or [1e-2]
        left, right, low, high = min(0.5, *across) / 1.3, max(16, *across) * 1.3, min(up) / 8, max(up) * 8
        ax.set(xlim=(left, right), ylim=(low, high))
        self._diagonals(left, right, low, high)
        self.dots = []
        for e in rows:
            x, y, floor = e.tokens_per_pass, e.pass_seconds, e.predicted * e.tokens_per_pass
            ax.plot([x, x], [floor, y], ":", color=GREY)
            self.dots.append(ax.plot(x, y, MEASURED.marker, color=MEASURED.color, markersize=9, label="measured")[0])
            ax.plot(x, floor, PREDICTED.marker, color=PREDICTED.color, markeredgecolor="black", label="predicted")
            ax.annotate(f"{e.name}: {seconds(e.measured)} a token", (x, y), (10, 2), textcoords="offset points", va="bottom")
        handles = dict(zip(*ax.get_legend_handles_labels()[::-1]))  # one for each label, however many dots
        if handles:
            ax.legend(handles.values(), handles.keys(), loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)  # beside the title

    def _diagonals(self, left: float, right: float, low: float, high: float) -> None:
        """Lines of equal pace, a decade apart, each named where it leaves the frame."""
        for decade in range(-7, 3):
            pace = 10.0**decade
            if low < pace * right and pace * left < high:
                self.ax.plot([left, right], [pace * left, pace * right], "-", color="#D0D0D0", linewidth=1, zorder=0)
                x = min(right / 1.15, high / pace / 1.4)  # so that its name stays under the title
                if x > left and pace * x > low:
                    self.ax.text(x, pace * x, f"{seconds(pace)} a token", color=GREY, ha="right", va="bottom", fontsize=plots.points() - 1)

    def sentence(self) -> str:
        rows = self.ledger.entries
        told = [
            f"{e.name} keeps {e.tokens_per_pass:.3g} a pass of {seconds(e.pass_seconds)}: "
            f"{seconds(e.measured)} a token ({seconds(e.predicted)} predicted)"
            for e in rows
        ]
        return "; ".join(told) + "." if told else "The ledger is empty."
