"""Unit 01: the same tokens, scored in one pass and written in as many passes as there are tokens.

Both lanes multiply the same numbers. One reads the weights once, the other once per token, for the next token has to be known
before anything can be computed from it. The figure shows what that costs: two bars racing, latency against length, bytes read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from textwrap import wrap

from ..decode.score import score
from ..measure.roof import Band
from ..run import Row, Step
from . import plots
from .live import Shown, verdict, watch
from .plots import ELSEWHERE, GREY, GUESS, MEASURED, PREDICTED, RECORDED, RIVAL, bytes_, seconds
from .tally import Tally, tally, times

LANES = ("score", "write")
LOOKS = {"score": RIVAL, "write": MEASURED}


@dataclass
class Race:
    """A view. `plan[lane]` are the steps to be expected (a prediction needs nothing else); `cost` prices a step, `device` is this machine's roof.

    `elsewhere` are devices that are not here (predicted, and labelled so), `recorded` are stamped lanes of named machines.
    `decode` turns token ids into text; `guess` is how many times as long as scoring the learner thinks writing takes.
    What is predicted stands under `device`, so it is there before the run and does not move; the band shows how the roof moved since.
    """

    plan: dict[str, list]
    cost: Callable
    device: object
    decode: Callable[[list[int]], str]
    guess: float | None = None
    elsewhere: tuple = ()
    recorded: dict[str, dict[str, list]] = field(default_factory=dict)
    where: str = ""  # machine, dtype, threads: a figure without its machine is not a result

    def __post_init__(self):
        self.tallies = {lane: Tally() for lane in LANES}
        self.tokens: dict[int, int] = {}
        self.band: Band | None = None
        self.over = False
        self.n = len(self.plan["write"])
        self.costs = {lane: [self.cost(step) for step in steps] for lane, steps in self.plan.items()}  # once: every frame asks for all of them

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped) -> None:
        self.tallies[lane].add(stamped, self.cost)
        if lane == "write":
            for row in stamped.step.rows:
                self.tokens.update((position, token) for position, token, kept in row.writes if kept)

    def judge(self, band: Band | None) -> None:
        self.band, self.over = band, True

    def progress(self) -> float:
        return sum(len(t.passes) for t in self.tallies.values()) / sum(map(len, self.plan.values()))

    @property
    def text(self) -> str:
        return self.decode([self.tokens[p] for p in sorted(self.tokens)])

    @property
    def ratio(self) -> float | None:
        """Seconds of writing a token ÷ seconds of scoring one, as far as both are measured."""
        return times(self.tallies["write"], self.tallies["score"])

    def devices(self) -> list:
        """This machine under the highest and the lowest roof there was during the run; as it was probed, until that is known."""
        return [replace(self.device, bandwidth=b) for b in (self.band.high, self.band.low)] if self.band else [self.device]

    def priced(self, lane: str, device) -> list[float]:
        """Predicted seconds of each pass of a lane."""
        return [cost.seconds(device) for cost in self.costs[lane]]

    def predicted_ratio(self, device) -> float:
        return sum(self.priced("write", device)) / sum(self.priced("score", device))

    # the picture ---------------------------------------------------------------------------------------------------

    @property
    def roomy(self) -> bool:
        """Does the type leave room for three lines of the text? With one, figure and caption fit 720 lines up to 16 points."""
        return plots.points() < 14

    @property
    def size(self) -> tuple[float, float]:
        return (10.4, 5.5) if self.roomy else (10.4, 4.6)

    def axes(self, figure) -> None:
        self.ax = axes = figure.subplot_mosaic(
            [["bars", "ratio"], ["latency", "odometer"], ["text", "text"]],
            width_ratios=[5, 4],
            height_ratios=[3, 5, 1.5] if self.roomy else [3.6, 4.8, 0.5],
        )
        self._bars(axes["bars"])
        self._latency(axes["latency"])
        self._ratio(axes["ratio"])
        for name in ("odometer", "text"):
            axes[name].set_axis_off()
        self.reading = axes["odometer"].text(0, 0.80, "", fontsize=2.2 * plots.points(), weight="bold", color=MEASURED.color)
        self.gloss = axes["odometer"].text(0, 0.74, "", va="top", linespacing=1.35)
        axes["odometer"].set_title("Weights read so far")
        self.writing = axes["text"].text(0, 1, "", va="top", family="DejaVu Sans Mono", fontsize=plots.points() - 1, linespacing=1.35)
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def _bars(self, ax) -> None:
        names = [f"score {self.n} given tokens: 1 pass", f"write {self.n} tokens: {self.n} passes"]
        self.bars = ax.barh([1, 0], [0, 0], height=0.42, color=[LOOKS[lane].color for lane in LANES])
        self.spans = ax.hlines([], [], [], color=PREDICTED.color, alpha=0.5, linewidth=11, zorder=1.9)
        (self.expected,) = ax.plot([], [], PREDICTED.marker, color=PREDICTED.color, markeredgecolor="black")
        self.times = [ax.text(0, y, "", va="center") for y in (1, 0)]
        for y, name in zip((1, 0), names):
            ax.text(0, y + 0.25, name, va="bottom", transform=ax.get_yaxis_transform())
        ax.set(
            title="The same tokens, the same arithmetic",
            xlabel=f"seconds after the prompt (◆ predicted for all {self.n})",
            yticks=[],
            ylim=(-0.4, 1.7),
        )
        ax.grid(axis="y", visible=False)

    def _latency(self, ax) -> None:
        self.between = ax.fill_between([0], [0], [0], color=PREDICTED.color, alpha=0.25, linewidth=0)
        self.line = plots.line(ax, MEASURED, "measured", every=max(self.n // 12, 1))
        self.predicted = plots.line(ax, PREDICTED, "predicted from the roof", every=max(self.n // 5, 1))
        self.floor = plots.line(ax, plots.Look(GREY, "", ":"), "with infinitely fast arithmetic", linewidth=2)
        ax.set(title="Latency against output length", xlabel="tokens written", ylabel="seconds after the prompt")
        ax.legend(loc="upper left")

    def _ratio(self, ax) -> None:
        rows = self._ratios()
        self.dots = [ax.plot([], [], look.marker, color=look.color, markeredgecolor="black", markersize=9)[0] for _, look, _ in rows]
        self.figures = [ax.text(1, -i, "", va="center") for i in range(len(rows))]
        ax.set_yticks([-i for i in range(len(rows))], [name for name, _, _ in rows])
        plots.logarithmic(ax, x="×")
        ax.set(title="Writing takes … times as long", ylim=(-len(rows) + 0.4, 0.6))
        ax.grid(axis="y", visible=False)
        ax.grid(axis="x", visible=True)

    def _ratios(self) -> list[tuple]:
        rows = [
            ("your prediction", GUESS, self.guess),
            ("measured here", MEASURED, self.ratio),
            ("predicted here", PREDICTED, self.predicted_ratio(self.device)),
        ]
        rows += [
            (f"{name}\nrecorded", RECORDED, times(*(tally(lanes[lane], self.cost) for lane in ("write", "score"))))
            for name, lanes in self.recorded.items()
        ]
        return rows + [(f"{device.name}\npredicted", ELSEWHERE, self.predicted_ratio(device)) for device in self.elsewhere]

    def draw(self) -> None:
        self._draw_bars()
        self._draw_latency()
        self._draw_ratio()
        write = self.tallies["write"]
        words = len(self.text.split())
        self.reading.set_text(bytes_(write.weight_bytes) if write.passes else "")
        self.gloss.set_text(self._odometer(words))
        text, width = plots.printable(self.text.replace("\n", " ")), int(1100 / plots.points())
        self.writing.set_text("\n".join(wrap(text, width)[-3:]) if self.roomy else text[-width:])

    def _draw_bars(self) -> None:
        expected = [sum(self.priced(lane, self.device)) for lane in LANES]
        within = [[sum(self.priced(lane, device)) for device in self.devices()] for lane in LANES]
        ends = [max(self.tallies[lane].seconds, mark, *span) for lane, mark, span in zip(LANES, expected, within)]
        for bar, label, lane, end in zip(self.bars, self.times, LANES, ends):
            bar.set_width(self.tallies[lane].seconds)
            label.set_x(end)
            label.set_text(self._took(lane))
        self.expected.set_data(expected, [1, 0])
        self.spans.set_segments([[(x, y) for x in span] for span, y in zip(within, (1, 0))])
        self.ax["bars"].set_xlim(0, 1.6 * max(ends))

    def _took(self, lane: str) -> str:
        """What stands at a bar's end; a bar that isn't whole says so."""
        so_far = self.tallies[lane]
        part = f" ({so_far.tokens} of {self.n})" if so_far.tokens < self.n else ""
        return f"   {seconds(so_far.seconds)}{part}" if so_far.passes else ""

    def _draw_latency(self) -> None:
        spans = [list(accumulate(self.priced("write", device))) for device in self.devices()]
        counts, took = range(1, self.n + 1), list(accumulate(self.tallies["write"].passes))
        floor = list(accumulate(self.priced("write", replace(self.device, flops=inf))))
        self.line.set_data(list(counts)[: len(took)], took[: self.n])
        predicted = list(accumulate(self.priced("write", self.device)))
        self.predicted.set_data(counts, predicted)
        self.floor.set_data(counts, floor)
        self.between.set_data(counts, spans[0], spans[-1])
        air = 1 if self.roomy else 1.5  # for the legend, which is as large as the type
        plots.fit(self.ax["latency"], [self.n], [air * y for y in (*took[-1:], *(line[-1] for line in (*spans, predicted)))])

    def _draw_ratio(self) -> None:
        rows = self._ratios()
        for i, (dot, label, (_, _, value)) in enumerate(zip(self.dots, self.figures, rows)):
            dot.set_data([value] if value else [], [-i] if value else [])
            label.set_text(f"   {value:.3g} ×" if value else ("no prediction" if i == 0 else ""))
            label.set_x(value or 1)
        known = [value for _, _, value in rows if value]
        self.ax["ratio"].set_xlim(min(0.8, *known), 12 * max(known))

    def _odometer(self, words: int) -> str:
        score, write = (self.tallies[lane] for lane in LANES)
        lines = []
        if write.passes:
            per_pass = write.weight_bytes / len(write.passes)
            lines += [
                f"{len(write.passes)} × the same {bytes_(per_pass)}",
                f"{bytes_(write.weight_bytes / max(words, 1))} for each of {words} words",
                "",
            ]
        lines += ["pace = cost of a pass ÷ tokens per pass"] if score.passes or write.passes else []
        for name, t in (("scored", score), ("written", write)):
            if t.passes:
                each, kept = t.seconds / len(t.passes), t.tokens / len(t.passes)
                lines.append(f"{name}: {seconds(each / kept)} = {seconds(each)} ÷ {kept:.3g}")
        if score.passes and write.passes:
            lines.append(f"GFLOP: {score.flops / 1e9:.3g} scored, {write.flops / 1e9:.3g} written")
        return "\n".join(lines)

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        score, write = (self.tallies[lane] for lane in LANES)
        if not write.passes:
            return (
                f"Scoring {score.tokens} tokens took {seconds(score.seconds)}; nothing is written yet."
                if score.tokens
                else "Nothing is measured yet."
            )
        words = len(self.text.split())
        parts = [f"Writing {write.tokens} tokens took {seconds(write.seconds)} in {len(write.passes)} passes"]
        if self.ratio:
            parts[0] += (
                f"; scoring {score.tokens} took {seconds(score.seconds)} in {len(score.passes)}: "
                f"writing takes {self.ratio:.3g} times as long per token"
            )
        parts[0] += f" ({f'you said {self.guess:g}' if self.guess else 'no prediction'})."
        parts.append(f"{bytes_(write.weight_bytes)} of weights were read, {bytes_(write.weight_bytes / max(words, 1))} per word.")
        expected = [sum(self.priced("write", d)[: len(write.passes)]) for d in self.devices()]
        nearest = min(expected, key=lambda e: abs(e - write.seconds))
        says = f"Predicted from the roof: {_span(expected)}; measured is {write.seconds / nearest:.3g} times that."
        parts.append(self._verdict(says))
        return " ".join(parts) + (f" [{self.where}]" if self.where else "")

    def _verdict(self, says: str) -> str:
        """A run that ended before its plan did is not judged; while it lasts, it says where it stands."""
        if self.over and self.progress() < 1:
            return "No verdict: the run was cut short; run it again."
        if self.over and self.band is None:
            return "No verdict: the roof was not probed before and after this run."
        return verdict(self.band, says, self.tallies["write"].passes)


def _span(values: list[float]) -> str:
    low, high = seconds(min(values)), seconds(max(values))
    return low if low == high else f"{low} to {high}"


def race(unit, prompt: str, given: list[int], guess: float | None = None, seconds: float = 20, **shown) -> Shown:
    """Score `given`, a text that follows the prompt, in one pass; write as many tokens in as many passes; show both racing.

    `unit` is an open lesson. Returns what `watch` returns; `seconds` is the budget, `shown` goes to `watch` (live, screen).
    """
    n = len(given) - 1
    settings = {"max_new_tokens": n + 1, "min_new_tokens": n + 1}
    lanes = {"score": unit.run("score", prompt, decoder=score(given), **settings), "write": unit.run("write", prompt, **settings)}
    start = unit.length(prompt)
    plan = {"score": [Step((Row(0, "verify", start, n),))], "write": [Step((Row(0, "decode", start + i, 1),)) for i in range(n)]}
    view = Race(plan, unit.price, unit.device, unit.decode, guess, unit.elsewhere, unit.recorded("score", "write"), unit.where)
    return watch(view, lanes, seconds=seconds, roof=unit.roof, **shown)
