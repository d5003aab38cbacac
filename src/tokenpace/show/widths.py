"""What a pass costs by the number of tokens in it, with nothing cached before them.

A pass reads all weights, whether for one token or for many, and multiplies by each of them once for every token. So there are two
ceilings, one flat and one rising, and where they cross lies the width up to which more tokens in a pass should cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from ..decode.protocol import Ask, Keep
from ..measure.roof import Band
from ..run import Row, Step
from . import plots
from .cache import stretched
from .live import Shown, verdict, watch
from .plots import ELSEWHERE, GREY, GUESS, MEASURED, PREDICTED, seconds

BEYOND = 4  # times the widest pass measured: as far as the prediction is drawn


def passes(widths: Sequence[int], repeats: int) -> Callable:
    """A decoder for `generate(…, decoder=passes(…))` that keeps nothing: a pass over the first w tokens of the prompt, for each w, so many times.

    Before them all of the prompt is passed once, as a warm-up (that pass is the run's prefill). The widths take turns because the speed of a
    shared machine changes within seconds. What is "written" is of no use.
    """

    def decoder(setting):
        prompt = setting.prompt
        for i, width in enumerate([len(prompt), *list(widths) * repeats]):
            out = yield Ask("decode", prompt[:width], 0, sampler=setting.sampler)
            yield Keep(0, ((len(prompt) + i, out.tokens[0], True),))

    return decoder


@dataclass
class Widths:
    """A view. Lane "passes": stamped steps of `passes(widths, repeats)`; `cost` prices a step, `device` is this machine's roof.

    `elsewhere` are devices that are not here, predicted. `guess` is how many times as long as a pass over one token the learner thinks that one over
    `asked` tokens takes.
    """

    widths: tuple[int, ...]
    repeats: int
    cost: Callable
    device: object
    where: str = ""
    elsewhere: tuple = ()
    guess: float | None = None
    asked: int = 8
    took: dict[int, list[float]] = field(default_factory=dict)
    band: Band | None = None
    over: bool = False
    size = (10.4, 5.0)

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped) -> None:
        for row in stamped.step.rows:
            if row.phase != "prefill":
                self.took.setdefault(row.width, []).append(stamped.seconds)

    def judge(self, band: Band | None) -> None:
        self.band, self.over = band, True

    def progress(self) -> float:
        return sum(map(len, self.took.values())) / (len(self.widths) * self.repeats)

    def medians(self) -> dict[int, float]:
        """width -> seconds"""
        return {width: median(self.took[width]) for width in sorted(self.took)}

    def times(self, width: int) -> float | None:
        """How many times as long as a pass over one token one over `width` takes."""
        found = self.medians()
        return found[width] / found[1] if width in found and 1 in found else None

    def ceilings(self, width: int, device=None) -> dict[str, float]:
        """Seconds that reading and multiplying would allow such a pass, each alone."""
        found = self.cost(Step((Row(0, "decode", 0, width),))).ceilings(device or self.device)
        return {name: found[name] for name in ("bandwidth", "compute")}

    def crossing(self, device=None) -> int:
        """The least width at which a pass is predicted to wait for arithmetic."""
        width = 1
        while (found := self.ceilings(width, device))["compute"] < found["bandwidth"]:
            width += 1
        return width

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        self.ax = ax = figure.subplots()
        plots.logarithmic(ax, "", "s")
        low, high = min(self.widths), BEYOND * max(self.widths)
        self.across = sorted({round(low * (high / low) ** (i / 64)) for i in range(65)})
        ticks = [1 << i for i in range(high.bit_length())]
        ax.set_xticks(ticks, map(str, ticks))
        ax.minorticks_off()
        for device in self.elsewhere:
            look, label = ELSEWHERE, f"{device.name}, predicted"
            line = plots.line(ax, look, label, every=16, linewidth=1.2)
            line.set_data(self.across, [max(self.ceilings(w, device).values()) for w in self.across])
        ceilings = (("bandwidth", "reading all weights once", (0, (1, 1))), ("compute", "multiplying, once for each token", (0, (4, 2))))
        for name, label, dash in ceilings:
            ax.plot(self.across, [self.ceilings(w)[name] for w in self.across], color=GREY, linestyle=dash, linewidth=1.2, label=label)
        predicted = plots.line(ax, PREDICTED, "predicted here: the longer of the two", every=16)
        predicted.set_data(self.across, [max(self.ceilings(w).values()) for w in self.across])
        self.spread = ax.vlines([], [], [], color=MEASURED.color, alpha=0.35, linewidth=5)
        self.line = plots.line(ax, MEASURED, "measured: median, and the middle half")
        (self.guessed,) = ax.plot([], [], GUESS.marker, color=GUESS.color, markersize=9, linestyle="none", label="your prediction")
        ax.set(title="One pass, by the number of tokens in it", xlabel="tokens in the pass", ylabel="time of a pass")
        ax.grid(visible=True)
        ax.legend(loc="upper left", ncols=2)
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        found = self.medians()
        self.line.set_data(list(found), list(found.values()))
        middle = {w: quantiles(took, n=4, method="inclusive")[::2] for w, took in self.took.items() if len(took) > 1}
        self.spread.set_segments([[(w, low), (w, high)] for w, (low, high) in middle.items()])
        if self.guess and 1 in found:
            self.guessed.set_data([self.asked], [self.guess * found[1]])
        devices = (self.device, *self.elsewhere)
        ys = [max(self.ceilings(w, d).values()) for w in (self.across[0], self.across[-1]) for d in devices] + list(found.values())
        ys += list(self.guessed.get_ydata())
        self.ax.set(xlim=(self.across[0] / 1.2, self.across[-1] * 1.2), ylim=(min(ys) / 1.6, max(ys) * 12))  # the legend's room

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        found = self.medians()
        if 1 not in found:
            return "Nothing is measured yet."
        said = {self.asked: f" ({f'you said {self.guess:g}' if self.guess else 'no prediction'})"}
        wanted = {w: s for w, s in found.items() if w in (self.asked, max(self.widths))}
        parts = [f"a pass over {w} tokens {seconds(s)}, {self.times(w):.3g} times{said.get(w, '')}" for w, s in wanted.items()]
        text = f"{'; '.join([f'A pass over 1 token takes {seconds(found[1])}', *parts])}. {self._verdict()}"
        return text + (f" [{self.where}]" if self.where else "")

    def _verdict(self) -> str:
        if self.over and self.progress() < 1:
            return "No verdict: the run was cut short; run it again."
        usual = [(spent, median(took)) for took in self.took.values() for spent in took]
        if self.over and stretched(usual):
            slow = "a tenth of the passes took more than twice as long as others over as many tokens"
            return f"No verdict: {slow}, so another program was busy; run it again."
        until = "".join(f"; on {device.name} until there are {self.crossing(device)}" for device in self.elsewhere)
        return verdict(self.band, f"Predicted here: no dearer than over 1 token until there are {self.crossing()}{until}.")


def widths(unit, guess: float | None = None, most: int = 128, repeats: int = 5, seconds: float = 15, **shown) -> Shown:
    """Time passes over 1 to `most` tokens (a power of two), `repeats` times each; `unit` is an open lesson. Returns what `watch` returns.

    Which tokens they are makes no difference to the time. `seconds` is the budget, `shown` goes to `watch` (live, screen).
    """
    powers = [1 << i for i in range(most.bit_length())]
    sizes = tuple(sorted({w for p in powers for w in (p, 3 * p // 2) if w <= most}))
    n = 1 + len(sizes) * repeats
    lane = unit.run("widths", [1] * most, decoder=passes(sizes, repeats), max_new_tokens=n, min_new_tokens=n)
    view = Widths(sizes, repeats, unit.price, unit.device, unit.where, unit.elsewhere, guess)
    return watch(view, {"passes": lane}, seconds=seconds, roof=unit.roof, **shown)
