"""Unit 03: the same text with and without a cache. With one, a pass is fed what is new; without, everything, again and again.

Left, what each token costs as the text grows; right, what all of them cost together: a straight line and a parabola. Both are
predicted from the same steps, and beneath stands what a reader feels of each: time to the first token, and time per token after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from ..measure.roof import Band
from . import plots
from .live import verdict
from .plots import GREY, MEASURED, PREDICTED, RIVAL, seconds

LOOKS = {"with a cache": MEASURED, "without": RIVAL}


@dataclass
class WithAndWithout:
    """A view. Lanes as in LOOKS, of stamped steps; `plan[lane]` are the steps expected, `cost` prices a step, `device` is this machine's roof."""

    plan: dict[str, list]
    cost: Callable
    device: object
    where: str = ""
    took: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: {lane: [] for lane in LOOKS})  # (position written, seconds)
    waiting: float = 0.0  # seconds of passes that have not led to a token yet
    band: Band | None = None
    size = (11.0, 5.6)

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped) -> None:
        """A pass that writes nothing (a chunk of a long prompt) is part of the token that it leads to."""
        step, spent = stamped
        self.waiting += spent
        written = [position for row in step.rows for position, _, kept in row.writes if kept]
        if written:
            self.took[lane] += [(position, self.waiting / len(written)) for position in written]
            self.waiting = 0.0

    def judge(self, band: Band | None) -> None:
        self.band = band

    def progress(self) -> float:
        return sum(map(len, self.took.values())) / sum(map(len, self.plan.values()))

    def ttft(self, lane: str) -> float | None:
        return self.took[lane][0][1] if self.took[lane] else None

    def tpot(self, lane: str) -> float | None:
        after = [spent for _, spent in self.took[lane][1:]]
        return sum(after) / len(after) if after else None

    def total(self, lane: str) -> float:
        return sum(spent for _, spent in self.took[lane])

    def predicted(self, lane: str) -> list[tuple[int, float]]:
        """(position written, seconds) of every pass planned."""
        return [(max(row.context + row.width for row in step.rows), self.cost(step).seconds(self.device)) for step in self.plan[lane]]

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        self.each, self.all = figure.subplots(1, 2)
        self.lines, self.sums, self.guides, self.totals = {}, {}, {}, {}
        n = max(map(len, self.plan.values()))
        for lane, look in LOOKS.items():
            ahead = plots.Look(look.color, PREDICTED.marker, "--")
            self.guides[lane] = plots.line(self.each, ahead, f"{lane}, predicted", every=max(n // 4, 1), markerfacecolor="white", linewidth=1.2)
            self.totals[lane] = plots.line(self.all, ahead, f"{lane}, predicted", every=max(n // 4, 1), markerfacecolor="white", linewidth=1.2)
            self.lines[lane] = plots.line(self.each, look, lane, every=max(n // 12, 1))
            self.sums[lane] = plots.line(self.all, look, lane, every=max(n // 12, 1))
        self.each.set(title="Each token", xlabel="context [tokens]", ylabel="seconds")
        self.all.set(title="All tokens so far", xlabel="context [tokens]", ylabel="seconds")
        self.each.legend(loc="upper left")
        self.split = self.all.text(0.03, 0.97, "", va="top", transform=self.all.transAxes, linespacing=1.4)
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        for lane in LOOKS:
            self._fill(self.took[lane], self.lines[lane], self.sums[lane])
            self._fill(self.predicted(lane), self.guides[lane], self.totals[lane])
        split = (f"{lane}: first token {seconds(self.ttft(lane))}, then {seconds(self.tpot(lane))} each" for lane in LOOKS if self.took[lane])
        self.split.set_text("\n".join(split))
        for ax in (self.each, self.all):
            xs, ys = zip(*(line.get_data() for line in ax.lines))
            plots.fit(ax, [x for line in xs for x in line], [y for line in ys for y in line])
            ax.set_xlim(left=min((x for line in xs for x in line), default=0))

    @staticmethod
    def _fill(points: list[tuple[int, float]], each, total) -> None:
        positions, spent = zip(*points) if points else ((), ())
        each.set_data(positions, spent)
        total.set_data(positions, list(accumulate(spent)))

    def sentence(self) -> str:
        done = [lane for lane in LOOKS if self.took[lane]]
        if not done:
            return "Nothing is measured yet."
        told = [
            f"{lane}: first token after {seconds(self.ttft(lane))}, then {seconds(self.tpot(lane))} each, {seconds(self.total(lane))} in all"
            for lane in done
        ]
        text = f"{len(self.took[done[-1]])} tokens; " + "; ".join(told) + "."
        if len(done) == 2:
            ahead = [sum(s for _, s in self.predicted(lane)) for lane in LOOKS]
            totals = [self.total(lane) for lane in LOOKS]
            text += " " + verdict(
                self.band, f"The cache makes it {totals[1] / totals[0]:.3g} times shorter; predicted {ahead[1] / ahead[0]:.3g} times."
            )
        return text + (f" [{self.where}]" if self.where else "")
