"""Unit 07: seconds of an input and of an output token by how many texts share a pass, and the ratio of their prices that follows.

A pass of writing reads the weights once for all texts that share it; a prompt's pass is shared by its own tokens already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..config import ModelConfig
from ..measure.cost import cost
from ..measure.price import Side, foretold, sides, times
from ..measure.roof import Band
from . import plots
from .live import Shown, verdict, watch
from .plots import BLACK, ELSEWHERE, GREEN, GUESS, MEASURED, PREDICTED, UNREAD, Look, joules_, seconds
from .power import LOOKS

BEYOND = 4  # times the largest batch measured: as far as predictions are drawn
LINE = 0.07  # of a panel's height: a line of its legend
JOULES = Look(GREEN, "s", "-.")


@dataclass
class Prices:
    """A view. Lanes are batches: "4" has the passes of `waves` times 4 texts, 4 at a time, metered where `counter` is readable.

    `price` prices a step; `config` and `number` (bytes of a weight) are for what is predicted, with prompts of `prompt` tokens and `new` written
    ones, on `device`, which is this machine's roof, and `elsewhere`. `listed` is the ratio of two prices of a list that the learner chose, `guess`
    what they think becomes of the ratio where `asked` texts share a pass.
    """

    price: Callable
    config: ModelConfig
    number: float
    device: object
    counter: object
    batches: Sequence[int]
    prompt: int
    new: int
    waves: int = 1
    elsewhere: tuple = ()
    listed: float | None = None
    guess: float | None = None
    asked: int = 8
    where: str = ""
    points: dict[int, list] = field(default_factory=dict)
    band: Band | None = None
    over: bool = False

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped) -> None:
        self.points.setdefault(int(lane), []).append(stamped)

    def judge(self, band: Band | None) -> None:
        self.band, self.over = band, True

    def progress(self) -> float:
        """By tokens written, for a larger batch takes fewer passes for each."""
        wrote = sum(kept for points in self.points.values() for step, _ in points for row in step.rows for _, _, kept in row.writes)
        return wrote / (self.new * self.waves * sum(self.batches))

    def sides(self, batch: int) -> dict[str, Side]:
        return sides(self.points.get(batch, ()), self.price, rows=batch)

    def ratios(self, what: str = "seconds") -> dict[int, float]:
        """batch -> output ÷ input, of those that are measured."""
        found = {batch: times(self.sides(batch), what) for batch in self.batches}
        return {batch: ratio for batch, ratio in found.items() if ratio}

    def predicted(self, batch: int, device=None) -> float:
        return foretold(self._cost, device or self.device, self.prompt, self.prompt + self.new // 2, batch)

    def _cost(self, rows: list[tuple[int, int]]):
        return cost(self.config, rows, self.number)

    # the picture ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[float, float]:
        return (10.4, 4.8)

    def axes(self, figure) -> None:
        self.each, self.ratio = figure.subplots(1, 2)
        for ax, unit in ((self.each, "s"), (self.ratio, "×")):
            plots.logarithmic(ax, "", unit)
            ax.set_xticks(ticks := [1 << i for i in range((BEYOND * max(self.batches)).bit_length())], map(str, ticks))
            ax.minorticks_off()
            ax.set_xlabel("texts that share a pass")
            ax.grid(visible=True)
        self.lines = {kind: plots.line(self.each, look, f"{kind} token") for kind, look in LOOKS.items()}
        self.each.set(title="Seconds of a token", xlim=(0.8, 1.25 * max(self.batches)))
        self.ratio.set(title="An output token costs … input tokens", xlim=(0.8, 1.25 * BEYOND * max(self.batches)))
        self.across = range(1, BEYOND * max(self.batches) + 1)
        for device, look, label in ((self.device, PREDICTED, "predicted here"), *((d, ELSEWHERE, f"{d.name}, predicted") for d in self.elsewhere)):
            ys = [self.predicted(batch, device) for batch in self.across]
            plots.line(self.ratio, look, label, linewidth=1.2).set(data=(self.across, ys), markevery=[b - 1 for b in ticks])
        if self.listed:
            self.ratio.axhline(self.listed, color=BLACK, linestyle=(0, (1, 1)), linewidth=1.5, label="the price list you chose")
        self.measured = plots.line(self.ratio, MEASURED, "measured, by seconds")
        self.counted = plots.line(self.ratio, JOULES, "measured, by joules") if self.counter.readable else None
        if self.guess:
            self.ratio.plot([self.asked], [self.guess], GUESS.marker, color=GUESS.color, markersize=9, linestyle="none", label="your prediction")
        for ax in (self.each, self.ratio):
            ax.legend(loc="upper right")
        figure.supxlabel(self.where, color=plots.GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        for kind, line in self.lines.items():
            found = {batch: self.sides(batch)[kind].seconds for batch in self.batches}
            line.set_data(*zip(*[(b, s) for b, s in found.items() if s]) if any(found.values()) else ((), ()))
        for line, what in ((self.measured, "seconds"), (self.counted, "joules")):
            if line:
                found = self.ratios(what)
                line.set_data(list(found), list(found.values()))
        for ax in (self.each, self.ratio):
            if ys := [y for line in ax.lines for y in line.get_ydata() if y > 0]:
                legend = LINE * len(ax.get_legend_handles_labels()[1])  # its share of the height, above all lines
                ax.set_ylim(min(ys) / 1.4, max(ys) * (2 * max(ys) / min(ys)) ** (legend / (1 - legend)))

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        found = self.ratios()
        if not found:
            return "Nothing is measured yet."
        told = []
        for batch in sorted({min(found), self.asked if self.asked in found else max(found), max(found)}):
            each = self.sides(batch)
            said = f" (you said {self.guess:g})" if batch == self.asked and self.guess else ""
            pair = f"{seconds(each['input'].seconds)} for an input token, {seconds(each['output'].seconds)} for an output token"
            told.append(f"{batch} text{'s' * (batch > 1)} a pass: {pair}, {found[batch]:.3g} times as long{said}")
        text = f"{'; '.join(told)}. {self._verdict(found)} {self._energy()}"
        return text + (f" [{self.where}]" if self.where else "")

    def _verdict(self, found: dict[int, float]) -> str:
        if self.over and self.progress() < 1:
            return "No verdict: the run was cut short; run it again."
        ahead = ", ".join(f"{self.predicted(batch):.3g} times for {batch}" for batch in (min(found), max(found)))
        says = f"Predicted here: {ahead}."
        if self.listed:
            says += f" The list you chose asks {self.listed:.3g} times."
        return verdict(self.band, says, [spent for _, spent in self.sides(min(found))["output"].passes])

    def _energy(self) -> str:
        if not self.counter.readable:
            return f"Joules are {UNREAD}: {self.counter.why}."
        told = []
        for batch, ratio in self.ratios("joules").items():
            each = self.sides(batch)
            told.append(f"{joules_(each['input'].joules)} and {joules_(each['output'].joules)} for {batch}, {ratio:.3g} times")
        return f"Joules of an input and of an output token: {'; '.join(told)}." if told else "Joules were not counted in every pass."


def listed(input_price: float | None, output_price: float | None) -> float | None:
    """How many input tokens one output token costs in a price list: both prices for as many tokens, in one currency. None: no list was chosen.

    >>> listed(0.5, 1.5)
    an output token of that list costs 3 input tokens
    3.0
    """
    if input_price is None or output_price is None:
        print("no price list chosen: put two prices in place of None")
        return None
    if not (input_price > 0 and output_price > 0):
        print(f"{input_price!r} and {output_price!r} are no two prices: both should be above 0")
        return None
    print(f"an output token of that list costs {output_price / input_price:.3g} input tokens")
    return output_price / input_price


def prices(
    unit, prompt: str, guess=None, listed=None, batches: Sequence[int] = (1, 2, 4, 8, 16), n: int = 16, waves: int = 3, seconds=40, **shown
) -> Shown:
    """Write n tokens after `prompt` for each batch, with so many texts sharing each pass, `waves` times; `unit` is an open lesson.

    All texts have the same prompt, and each passes it for itself. `seconds` is the budget, `shown` goes to `watch` (live, screen).
    """
    how = {"max_new_tokens": n, "min_new_tokens": n}
    lanes = {str(b): unit.run(f"batch_{b}", [prompt] * b * waves, slots=b, **how) for b in batches}
    known = unit.price, unit.config, unit.number, unit.device, unit.counter, tuple(batches), unit.length(prompt), n, waves
    view = Prices(*known, unit.elsewhere, listed, guess, where=unit.where)
    return watch(view, lanes, seconds=seconds, roof=unit.roof, **shown)
