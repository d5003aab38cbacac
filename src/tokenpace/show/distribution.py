"""Unit 02: what a sampler does to the next token's distribution, and the draws that converge on it; and the pass that made it, taken apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import pi, prod, sqrt

from ..config import ModelConfig
from ..measure.cost import Device, cost, part_of
from ..measure.roof import Band
from . import plots
from .plots import BLUE, GREY, MEASURED, ORANGE, PREDICTED


@dataclass
class Draws:
    """A view. `raw` and `law` are the probabilities [V] before and after the sampler's settings, `name` spells a token.

    Lane: stamped steps whose rows each draw a token from `law`; the first token that a row writes counts.
    """

    raw: list[float]
    law: list[float]
    name: Callable[[int], str]
    planned: int
    setting: str = ""  # the sampler, in words
    shown: int = 16  # tokens
    counts: Counter = field(default_factory=Counter)
    distances: list[tuple[int, float]] = field(default_factory=list)  # (draws, total variation)
    size = (11.0, 5.2)

    def __post_init__(self):
        order = sorted(range(len(self.raw)), key=lambda t: -self.raw[t])
        self.tokens = order[: self.shown]
        self.support = [t for t in range(len(self.law)) if self.law[t] > 0]

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, stamped) -> None:
        fresh = [row.writes[0][1] for row in stamped.step.rows if row.writes]
        if fresh:
            self.counts.update(fresh)
            self.distances.append((self.n, self.distance()))

    def judge(self, band: Band | None) -> None:
        pass  # nothing here is about pace

    def progress(self) -> float:
        return self.n / self.planned

    @property
    def n(self) -> int:
        return self.counts.total()

    def distance(self) -> float:
        """Total variation between what was drawn and the law: half the sum of the differences."""
        outside = sum(c for t, c in self.counts.items() if self.law[t] == 0)
        return 0.5 * (sum(abs(self.counts[t] / self.n - self.law[t]) for t in self.support) + outside / self.n)

    def expected(self, n: int) -> float:
        """Its mean after n exact draws, each count taken as normal: ½ Σ √(2 p (1 − p) / π n), and never more than it can be."""
        return min(1.0, 0.5 * sum(sqrt(2 * p * (1 - p) / (pi * n)) for p in (self.law[t] for t in self.support)))

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        places = range(len(self.tokens))
        left.bar(places, [self.raw[t] for t in self.tokens], color="white", edgecolor=GREY, label="the model")
        left.bar(places, [self.law[t] for t in self.tokens], width=0.55, color=ORANGE, label=self.setting or "the sampler")
        (self.drawn,) = left.plot([], [], MEASURED.marker, color=BLUE, markeredgecolor="black", label="drawn")
        names = [plots.printable(repr(self.name(t))[1:-1]) for t in self.tokens]
        left.set_xticks(list(places), names, rotation=60, ha="right", rotation_mode="anchor")
        left.set(title="The next token", ylabel="probability")
        left.legend(loc="upper right")
        self.line = plots.line(right, MEASURED, "drawn", every=1)
        self.curve = plots.line(right, PREDICTED, "exact draws, on average", every=8)
        plots.logarithmic(right, "", "")
        right.set(title="Distance to the law", xlabel="draws", ylabel="total variation")
        right.set(xlim=(1, max(self.planned, 10)), ylim=(1e-3, 1))
        right.grid(visible=True)
        right.legend(loc="lower left")
        self.right = right

    def draw(self) -> None:
        if not self.n:
            return
        self.drawn.set_data(range(len(self.tokens)), [self.counts[t] / self.n for t in self.tokens])
        self.line.set_data(*zip(*self.distances))
        self.line.set_markevery(max(len(self.distances) // 12, 1))
        first, last = self.distances[0][0], max(self.n, self.planned)
        ns = [first * (last / first) ** (i / 32) for i in range(33)]
        self.curve.set_data(ns, [self.expected(n) for n in ns])
        ys = [d for _, d in self.distances if d > 0] + [self.expected(ns[0]), self.expected(last)]
        if min(ys) > 0:
            self.right.set(xlim=(first / 1.2, last * 1.2), ylim=(min(ys) / 1.5, max(ys) * 1.5))

    def sentence(self) -> str:
        if not self.n:
            return "Nothing is drawn yet."
        kept = len(self.support)
        return (
            f"{self.setting or 'The sampler'} leaves {kept:,} of {len(self.law):,} tokens. "
            f"After {self.n:,} draws the total variation to that law is {self.distance():.3f}; "
            f"exact draws would on average leave {self.expected(self.n):.3f}."
        )


def parts(config: ModelConfig, context: int, number: float = 2.0) -> dict[str, tuple[int, float, float]]:
    """One decode pass by part of the model: (matrix products, bytes read, FLOP). "scores" are attention's own: queries · keys, weights · values.

    >>> from tokenpace.config import preset
    >>> taken = parts(preset("smollm2-135m"), context=100)
    >>> taken["mlp"][0], round(sum(b for _, b, _ in taken.values()) / 1e6)
    (60, 271)
    """
    price = cost(config, [(context, 1)], number)
    products, read = Counter(), Counter()
    for name, shape in config.tensors.items():
        part = "head" if name == "embed.weight" and config.tied else part_of(name)
        looked_up = name == "embed.weight" and not config.tied
        products[part] += len(shape) == 2 and not looked_up
        read[part] += number * (shape[1] if looked_up else prod(shape))
    found = {part: (products[part], read[part], price.flops.get(part, 0.0)) for part in read}
    return found | {"scores": (2 * config.n_layers, price.kv_read + price.kv_written, price.flops["scores"])}


@dataclass
class Anatomy:
    """A view of one decode pass, taken apart; it folds nothing. Each part's time if only bytes counted, and if only FLOP did."""

    config: ModelConfig
    device: Device
    context: int = 100
    number: float = 2.0
    size = (9.0, 4.4)

    def see(self, lane: str, point) -> None:
        raise ValueError("Anatomy computes a pass from the config; it has no lanes")

    def judge(self, band: Band | None) -> None:
        pass

    def progress(self) -> float:
        return 1.0

    def axes(self, figure) -> None:
        self.ax = figure.subplots()

    def draw(self) -> None:
        taken = parts(self.config, self.context, self.number)
        names = sorted(taken, key=lambda part: -taken[part][1])
        ys = range(len(names))
        self.memory = self.ax.barh(
            [y + 0.2 for y in ys], [taken[p][1] / self.device.bandwidth for p in names], 0.36, color=BLUE, label="reading its bytes"
        )
        self.compute = self.ax.barh(
            [y - 0.2 for y in ys], [taken[p][2] / self.device.flops for p in names], 0.36, color=ORANGE, hatch="//", label="multiplying its numbers"
        )
        for y, part in zip(ys, names):
            products, read, flops = taken[part]
            x = max(read / self.device.bandwidth, flops / self.device.flops)
            self.ax.text(
                x,
                y,
                f"  {products} product{'' if products == 1 else 's'}, {plots.bytes_(read)}, {flops / 1e6:,.0f} MFLOP",
                va="center",
                fontsize=plots.points() - 1,
            )
        self.ax.set_yticks(list(ys), names)
        self.ax.invert_yaxis()
        self.ax.margins(x=0.6)
        plots.engineering(self.ax.xaxis, "s")
        self.ax.set(title="One pass for one token, by part", xlabel=f"seconds at the ceilings of {self.device.name}")
        self.ax.legend(loc="lower right")

    def sentence(self) -> str:
        taken = parts(self.config, self.context, self.number)
        read, flops = (sum(t[i] for t in taken.values()) for i in (1, 2))
        largest = max(taken, key=lambda part: taken[part][1])
        return (
            f"One pass for one token reads {plots.bytes_(read)} ({plots.seconds(read / self.device.bandwidth)}) and does {flops / 1e6:,.0f} MFLOP "
            f"({plots.seconds(flops / self.device.flops)}); {largest} is {taken[largest][1] / read:.0%} of the bytes."
        )
