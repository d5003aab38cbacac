"""Unit 07: what the machine takes while a prompt is passed and while its answer is written; watts over time, and each kind of token's share.

Where no counter of joules can be read, the picture says so and why, and shows what it knows: the seconds and the bytes of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import wrap

from ..measure.clock import Stamped
from ..measure.counters import Counter
from ..measure.energy import Energy, phase, power
from ..measure.price import Side, sides, times
from ..measure.roof import Band
from . import plots
from .live import Shown, verdict, watch
from .plots import GREY, MEASURED, PREDICTED, RIVAL, UNREAD, bytes_, joules_, seconds

LOOKS = {"input": RIVAL, "output": MEASURED}  # kind of token
PHASES = {"prefill": RIVAL, "decode": MEASURED, "both": plots.Look(GREY, "s", "-")}
NAMES = {"prefill": "prefill: the prompt is passed", "decode": "decode: a pass for each token", "both": "both"}


@dataclass
class Phases:
    """A view. Lane "answer": the passes of one text, metered where `counter` is readable; `planned` tokens are to be written.

    `cost` prices a step, `device` is this machine's roof, `elsewhere` are devices that are not here; `idle` is the machine at rest in watts (None:
    not readable), `guess` how many times as long as an input token the learner thinks an output token takes.
    """

    cost: Callable
    device: object
    planned: int
    counter: Counter
    idle: float | None = None
    elsewhere: tuple = ()
    where: str = ""
    guess: float | None = None
    points: list = field(default_factory=list)
    band: Band | None = None
    over: bool = False

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped) -> None:
        self.points.append(stamped)

    def judge(self, band: Band | None) -> None:
        self.band, self.over = band, True

    def progress(self) -> float:
        return sum(kept for step, _ in self.points for row in step.rows for _, _, kept in row.writes) / self.planned

    def sides(self) -> dict[str, Side]:
        return sides(self.points, self.cost)

    def predicted(self, device) -> dict[str, Side]:
        """The same tokens in the seconds that their passes are predicted to take on a device."""
        return sides(Stamped(one.step, self.cost(one.step).seconds(device)) for one in self.points)

    def own(self, side: Side) -> float | None:
        """Joules of a token above what the machine at rest would have taken meanwhile."""
        if side.joules is None or self.idle is None:
            return None
        return Energy(side.counted, side.total, self.idle).own / side.tokens

    # the picture ---------------------------------------------------------------------------------------------------

    size = (10.4, 5.0)

    def axes(self, figure) -> None:
        self.ax = figure.subplot_mosaic([["power"] * 3, ["seconds", "bytes", "joules"]], height_ratios=[3, 2])
        titles = {"seconds": "Seconds of a token", "bytes": "Bytes moved for it", "joules": "Joules of it"}
        self.bars, self.texts = {}, {}
        for name, title in titles.items():
            ax = self.ax[name]
            self.bars[name] = ax.barh([1, 0], [0, 0], height=0.55, color=[look.color for look in LOOKS.values()])
            self.texts[name] = [ax.text(0, y, "", va="center") for y in (1, 0)]
            ax.set(title=title, xticks=[], yticks=[1, 0], yticklabels=["input", "output"] if name == "seconds" else ["", ""], ylim=(-0.5, 1.5))
            ax.tick_params(axis="y", length=0)
            ax.grid(visible=False)
            ax.spines["bottom"].set_visible(False)
        (self.ahead,) = self.ax["seconds"].plot([], [], PREDICTED.marker, color=PREDICTED.color, markeredgecolor="black")
        self.ax["seconds"].set_xlabel("◆ predicted")
        top = self.ax["power"]
        top.set(title=f"Power ({self.counter.name})" if self.counter.readable else f"Power: {UNREAD}", xlabel="seconds of passes")
        if self.counter.readable:
            top.set_ylabel("watts")
            if self.idle is not None:
                top.axhline(self.idle, color=GREY, linestyle="--", label="idle: nothing runs")
        else:
            top.set(yticks=[], ylim=(0, 2.2))
            top.text(0.5, 0.97, "\n".join(wrap(self.counter.why, 95)), ha="center", va="top", transform=top.transAxes)
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        self._draw_time(self.ax["power"])
        found = self.sides()
        shown = {
            "seconds": [(side.seconds, seconds(side.seconds)) for side in found.values()],
            "bytes": [(side.moved, bytes_(side.moved)) for side in found.values()],
            "joules": [(side.joules, joules_(side.joules)) for side in found.values()],
        }
        for name, pairs in shown.items():
            most = max((value or 0 for value, _ in pairs), default=0)
            for bar, label, (value, text) in zip(self.bars[name], self.texts[name], pairs):
                bar.set_width(value or 0)
                label.set_text(f" {text}")
                label.set_x(value or 0)
            self.ax[name].set_xlim(0, 1.5 * most or 1)
        ahead = [(side.seconds, y) for side, y in zip(self.predicted(self.device).values(), (1, 0)) if side.passes]
        self.ahead.set_data(*zip(*ahead) if ahead else ((), ()))

    def _draw_time(self, ax) -> None:
        for artist in [*ax.collections, *(line for line in ax.lines if line.get_gid() == "span")]:
            artist.remove()
        spans = power(self.points, self.counter.step)
        for what, look in PHASES.items():
            if mine := [span for span in spans if span.phase == what]:
                xs = [x for span in mine for x in (span.start, span.end, span.end)]
                ys = [y for span in mine for y in (span.watts, span.watts, float("nan"))]  # a gap after each: no line where nothing was counted
                ax.plot(xs, ys, color=look.color, marker=look.marker, markersize=4, label=NAMES[what], gid="span")
        if not self.counter.readable:
            self._blocks(ax)
        end = sum(one.seconds for one in self.points)
        ax.set_xlim(0, end or 1)
        if spans:
            ax.set_ylim(0, 1.3 * max([*(span.watts for span in spans), self.idle or 0]))
        if ax.get_legend_handles_labels()[1]:
            ax.legend(loc="upper right", ncols=3) if self.counter.readable else ax.legend(loc="lower right", ncols=2, bbox_to_anchor=(1, 0.55))

    def _blocks(self, ax) -> None:
        """Each pass as a block as wide as its time."""
        clock, found = 0.0, {}
        for one in self.points:
            found.setdefault(phase(one.step), []).append((clock, one.seconds))
            clock += one.seconds
        for what, blocks in found.items():
            ax.broken_barh(blocks, (0.1, 0.9), color=PHASES[what].color, edgecolor="white", linewidth=0.8, label=NAMES[what])

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        found = self.sides()
        if not found["input"].passes:
            return "Nothing is measured yet."
        told = [f"{side.tokens} {kind} tokens in {seconds(side.total)}, {self._each(side)}" for kind, side in found.items() if side.passes]
        text = f"{'; '.join(told)}. {self._verdict(found)} {self._energy(found)}"
        return text.strip() + (f" [{self.where}]" if self.where else "")

    def _each(self, side: Side) -> str:
        return f"{seconds(side.seconds)} and {bytes_(side.moved)} each"

    def _verdict(self, found: dict[str, Side]) -> str:
        if self.over and self.progress() < 1:
            return "No verdict: the run was cut short; run it again."
        if not times(found):
            return ""
        said = f"you said {self.guess:g}" if self.guess else "no prediction"
        places = [("here", self.device), *((f"on {device.name}", device) for device in self.elsewhere)]
        ahead = ", ".join(f"{times(self.predicted(device)):.3g} times {place}" for place, device in places)
        moved = f"moved {times(found, 'moved'):.3g} times the bytes"
        says = f"An output token took {times(found):.3g} times as long ({said}) and {moved}. Predicted: {ahead}."
        return verdict(self.band, says, [spent for _, spent in found["output"].passes])

    def _energy(self, found: dict[str, Side]) -> str:
        if not self.counter.readable:
            return f"Joules are {UNREAD}: {self.counter.why}."
        if None in (joules := [side.joules for side in found.values()]):
            return "Joules were not counted in every pass."
        text = f"{joules_(joules[0])} for an input token, {joules_(joules[1])} for an output token"
        if self.idle is None:
            return f"{text}, {times(found, 'joules'):.3g} times as many."
        above = ", ".join(joules_(self.own(side)) for side in found.values())
        return f"{text}, {times(found, 'joules'):.3g} times as many; above idle ({self.idle:.3g} W) {above}."


def phases(unit, prompt: str, n: int, guess: float | None = None, seconds: float = 20, **shown) -> Shown:
    """Pass `prompt` and write n tokens after it; `unit` is an open lesson. Returns what `watch` returns.

    Power at rest is measured first. `seconds` is the budget, `shown` goes to `watch` (live, screen).
    """
    view = Phases(unit.price, unit.device, n, unit.counter, unit.idle, unit.elsewhere, unit.where, guess)
    lane = unit.run("power", prompt, max_new_tokens=n, min_new_tokens=n)
    return watch(view, {"answer": lane}, seconds=seconds, roof=unit.roof, **shown)
