"""Unit 03: the same text with and without a cache. With one, a pass is fed what is new; without, everything, again and again.

Left, what each token costs as the text grows; right, what all of them cost together: a straight line and a parabola. Both are
predicted from the same steps, and beneath stands what a reader feels of each: time to the first token, and time per token after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

from ..measure.roof import Band
from ..run import Row, Step
from . import plots
from .live import SLOW, Shown, verdict, watch
from .plots import GREY, MEASURED, PREDICTED, RIVAL, seconds

LOOKS = {"with a cache": MEASURED, "without": RIVAL}
NEAR = 2  # passes on either side, whose cost is nearly that of the pass between them


def stretched(passes: list[tuple[float, float]]) -> bool:
    """(seconds, usual seconds): did a tenth of the passes take more than SLOW times what is usual for them? `verdict` asks the same of like passes.

    >>> stretched([(1.0, 1.0)] * 18 + [(3.0, 1.0)]), stretched([(1.0, 1.0)] * 8 + [(3.0, 1.0)])
    (False, True)
    """
    return sum(took > SLOW * usual for took, usual in passes) > len(passes) / 10


@dataclass
class WithAndWithout:
    """A view. Lanes as in LOOKS, of stamped steps; `plan[lane]` are the steps expected, `cost` prices a step, `device` is this machine's roof.

    `guess` is how many times as long as with a cache the learner thinks it takes without.
    """

    plan: dict[str, list]
    cost: Callable
    device: object
    where: str = ""
    guess: float | None = None
    took: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: {lane: [] for lane in LOOKS})  # (position written, seconds)
    waiting: float = 0.0  # seconds of passes that have not led to a token yet
    band: Band | None = None
    over: bool = False
    size = (10.4, 5.2)

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
        self.band, self.over = band, True

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

    def tokens_passed(self, lane: str) -> int:
        """Tokens that go through the model in all passes planned."""
        return sum(row.width for step in self.plan[lane] for row in step.rows)

    def beside(self, lane: str) -> list[tuple[float, float]]:
        """(seconds, median of the passes beside it) of each pass after the first: unlike passes, but hardly unlike their neighbours."""
        spent = [s for _, s in self.took[lane][1:]]
        return [(s, median(spent[max(i - NEAR, 0) : i + NEAR + 1])) for i, s in enumerate(spent)]

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
        for ax, title in ((self.each, "Each token"), (self.all, "All tokens so far")):
            ax.set(title=title, xlabel="context [tokens]", ylabel="seconds")
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
            plots.fit(ax, [x for line in xs for x in line], [1.25 * y for line in ys for y in line])  # room for what stands at the top
            ax.set_xlim(left=min((x for line in xs for x in line), default=0))

    @staticmethod
    def _fill(points: list[tuple[int, float]], each, total) -> None:
        positions, spent = zip(*points) if points else ((), ())
        each.set_data(positions, spent)
        total.set_data(positions, list(accumulate(spent)))

    # the words -----------------------------------------------------------------------------------------------------

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
            text += " " + self._verdict()
        return text + (f" [{self.where}]" if self.where else "")

    def _verdict(self) -> str:
        """Where both lanes have come to now; in the end of a whole run, unless something else was running."""
        if self.over and self.progress() < 1:
            return "No verdict: the run was cut short; run it again."
        if self.over and stretched(self.beside("without")):
            slow = "a tenth of the passes without a cache took more than twice as long as those beside them"
            return f"No verdict: {slow}, so another program was busy; run it again."
        ahead, counts = ([value(lane) for lane in LOOKS] for value in (lambda lane: sum(s for _, s in self.predicted(lane)), self.tokens_passed))
        said = f"you said {self.guess:g}" if self.guess else "no prediction"
        says = (
            f"Without a cache it takes {self.total('without') / self.total('with a cache'):.3g} times as long ({said}); "
            f"predicted {ahead[1] / ahead[0]:.3g} times; {counts[1] / counts[0]:.3g} times as many tokens go through the model."
        )
        return verdict(self.band, says, [spent for _, spent in self.took["with a cache"][1:]])


def compare(unit, prompt: str, n: int, guess: float | None = None, seconds: float = 30, **shown) -> Shown:
    """Write n tokens after `prompt` with a cache, and the same ones without; `unit` is an open lesson. Returns what `watch` returns.

    `seconds` is the budget, `shown` goes to `watch` (live, screen).
    """
    settings = {"max_new_tokens": n, "min_new_tokens": n, "logprobs": True}
    lanes = {lane: unit.run(lane.split()[0], prompt, decoder=decoder, **settings) for lane, decoder in zip(LOOKS, ("autoregressive", "uncached"))}
    start = unit.length(prompt)
    first = Step((Row(0, "prefill", 0, start),))
    plan = {
        "with a cache": [first, *(Step((Row(0, "decode", start + i, 1),)) for i in range(n - 1))],
        "without": [first, *(Step((Row(0, "decode", 0, start + 1 + i),)) for i in range(n - 1))],
    }
    return watch(WithAndWithout(plan, unit.price, unit.device, unit.where, guess), lanes, seconds=seconds, roof=unit.roof, **shown)


def texts(shown: Shown, decode: Callable[[list[int]], str]) -> tuple[bool, str]:
    """Did both lanes of a comparison write the same text, but for rounding? And that in a sentence.

    A pass over many tokens adds up in another order than one over few, so log P of a token is off by a little in each lane. By how much, the tokens
    tell that both lanes wrote; where two tokens are nearer to each other than twice that, either may come out on top. What follows such a parting
    has another context, and can't be compared.
    """
    first, second = (
        [(w[1], p) for step, _ in points for row in step.rows for w, p in zip(row.writes, row.logprobs)] for points in shown.points.values()
    )
    if not first or not second:
        return False, "Only one of the texts is there; run the figure again."
    pairs = list(zip(first, second))
    at = next((i for i, ((a, _), (b, _)) in enumerate(pairs) if a != b), len(pairs))
    rounding = max((abs(p - q) for (_, p), (_, q) in pairs[:at]), default=0.0)
    off = f"log P of a token differs by {rounding:.2g} at most"
    if at == len(pairs):
        return True, f"The same text, all {at} tokens of it; {off}, which is rounding."
    (a, p), (b, q) = pairs[at]
    said = f"The same text up to token {at + 1}: there {decode([a])!r} (log P {p:.3f}) came with a cache and {decode([b])!r} ({q:.3f}) without."
    tie = abs(p - q) <= 2 * rounding
    return tie, f"{said} Before it {off}: {'two tokens so near to each other that rounding chose' if tie else 'rounding does not explain that'}."
