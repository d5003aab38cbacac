"""Unit 02: the pass that a token comes from, taken apart.

What each part has to read and to multiply is counted from shapes. How long it takes is measured beside that, with a stopwatch for each part, on
the plain model: the tiled kernels compute several parts in one call, so there is nothing between them to stop a watch at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from statistics import median
from typing import NamedTuple

from ..config import ModelConfig
from ..measure.clock import Stamped, synchronise
from ..measure.cost import Device, cost, part_of
from ..measure.parts import PARTS, by_part
from ..measure.roof import Band
from . import plots
from .live import Shown, verdict, watch
from .plots import GREY, MEASURED, ORANGE, bytes_, seconds

KERNELS = "PyTorch's own kernels"
ATTENTION = ("attention", "scores")
LITTLE = 0.02  # of a pass's bytes, and of its FLOP: a part with less has its time from something else


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


class Pass(NamedTuple):
    """A pass that was measured: the seconds of its parts, and of the like pass without stopwatches that was run beside it."""

    parts: dict[str, float]
    without: float


@dataclass
class Anatomy:
    """A view of decode passes, taken apart. Lane: Passes; without any, it shows what is counted.

    Beside the median time of each part stands how long it would take if only its bytes counted, and if only its FLOP did.
    `guess` is the learner's share of attention, in per cent.
    """

    config: ModelConfig
    device: Device
    context: int = 100
    number: float = 2.0
    planned: int = 0
    guess: float | None = None
    where: str = ""
    passes: list[Pass] = field(default_factory=list)
    band: Band | None = None
    size = (10.4, 5.5)

    def __post_init__(self):
        self.counted = parts(self.config, self.context, self.number)
        self.names = [part for part in PARTS if part in self.counted or self.planned]

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, point: Pass) -> None:
        self.passes.append(point)

    def judge(self, band: Band | None) -> None:
        self.band = band

    def progress(self) -> float:
        return len(self.passes) / self.planned if self.planned else 1.0

    @property
    def took(self) -> dict[str, float]:
        """Median seconds of each part; nothing if nothing was measured."""
        return {part: median(one.parts[part] for one in self.passes) for part in self.names} if self.passes else {}

    @property
    def share(self) -> float | None:
        """Attention's share of a pass, products and scores together."""
        took = self.took
        return sum(took[part] for part in ATTENTION) / sum(took.values()) if took else None

    def least(self, part: str) -> tuple[float, float]:
        """Seconds in which this machine could read the part's bytes, and multiply its numbers."""
        _, read, flops = self.counted.get(part, (0, 0.0, 0.0))
        return read / self.device.bandwidth, flops / self.device.flops

    def idle(self) -> list[str]:
        """The parts that hardly read or multiply anything."""
        wholes = [sum(taken[i] for taken in self.counted.values()) for i in (1, 2)]
        little = lambda counted: all(mine < LITTLE * whole for mine, whole in zip(counted[1:], wholes))
        return [part for part in self.names if part not in self.counted or little(self.counted[part])]

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        self.ax = ax = figure.subplots()
        ys, least = range(len(self.names)), [self.least(part) for part in self.names]
        height, shift = (0.27, 0.28) if self.planned else (0.36, 0.2)
        bars = lambda shift, widths, **look: ax.barh([y + shift for y in ys], widths, height, **look)
        self.measured = bars(0, [0] * len(ys), color=MEASURED.color, label="measured") if self.planned else ()
        self.memory = bars(-shift, [read for read, _ in least], color=ORANGE, label="reading its bytes")
        self.compute = bars(shift, [flops for _, flops in least], color="white", edgecolor=ORANGE, hatch="///", label="multiplying its numbers")
        self.labels = [ax.text(0, y, "", va="center", fontsize=plots.points() - 1) for y in ys]
        ax.set_yticks(list(ys), [self._name(part) for part in self.names])
        ax.invert_yaxis()
        ax.grid(visible=False)
        plots.engineering(ax.xaxis, "s")
        across = f"measured on {KERNELS}; reading and multiplying at the roof" if self.planned else f"at the roof of {self.device.name}"
        ax.set(title=f"One pass for one token after {self.context}, by part", xlabel=across)
        ax.legend(loc="lower right")
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def _name(self, part: str) -> str:
        if part not in self.counted:
            return part
        products, read, flops = self.counted[part]
        if not products:
            return f"{part}\nno product, {bytes_(read)}"
        return f"{part}\n{products} product{'s' * (products > 1)}, {bytes_(read)}, {flops / 1e6:,.0f} MFLOP"

    def draw(self) -> None:
        took = self.took
        whole, ends = sum(took.values()), []
        for y, part in enumerate(self.names):
            ends.append(max(*self.least(part), took.get(part, 0.0)))
            if took:
                self.measured[y].set_width(took[part])
                self.labels[y].set_text(f"  {seconds(took[part])}, {took[part] / whole:.0%}")
            self.labels[y].set_x(ends[-1])
        self.ax.set_xlim(0, 1.25 * max(ends))

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        read, flops = (sum(taken[i] for taken in self.counted.values()) for i in (1, 2))
        largest = max(self.counted, key=lambda part: self.counted[part][1])
        told = (
            f"One pass for one token after {self.context} reads {bytes_(read)} ({seconds(read / self.device.bandwidth)}) and does "
            f"{flops / 1e6:,.0f} MFLOP ({seconds(flops / self.device.flops)}); {largest} is {self.counted[largest][1] / read:.0%} of the bytes."
        )
        if not self.passes:
            return told
        return " ".join([told, *self._measured()]) + (f" [{self.where}]" if self.where else "")

    def _measured(self) -> Iterator[str]:
        took, wholes = self.took, [one.without for one in self.passes]
        whole, refused = sum(took.values()), verdict(self.band, "", wholes)
        longest = max(took, key=took.get)
        yield (
            f"Measured on {KERNELS}, {longest} takes {took[longest] / whole:.0%} of the time, attention with its scores {self.share:.0%} "
            f"({f'you said {self.guess:g}%' if self.guess is not None else 'no prediction'})."
        )
        if not refused and (idle := self.idle()):
            read, spent = sum(self.counted[part][1] for part in idle if part in self.counted), sum(took[part] for part in idle)
            all_read = sum(taken[1] for taken in self.counted.values())
            yield f"{', '.join(idle)} have {read / all_read:.1%} of the bytes and take {seconds(spent)}, {spent / whole:.0%}."
        alone = median(wholes)
        yield (
            f"Medians of {len(wholes)} passes of {seconds(alone)} ({seconds(min(wholes))} to {seconds(max(wholes))}); "
            f"the stopwatches make that {seconds(whole)}."
        )
        if refused:
            yield refused


def dissect(unit, prompt: str, guess: float | None = None, passes: int = 16, seconds: float = 20, **shown) -> Shown:
    """Time the parts of so many decode passes of the plain model; returns what `watch` returns.

    `unit` is an open lesson; a dry one replays. `seconds` is the budget, `shown` goes to `watch` (live, screen).
    """
    context = unit.length(prompt) + passes // 2
    view = Anatomy(unit.config, unit.device, context, unit.number, passes, guess, unit.where)
    return watch(
        view, {"parts": _replayed(unit) if unit.mode == "dry" else _measured(unit, prompt, passes)}, seconds=seconds, roof=unit.roof, **shown
    )


def _measured(unit, prompt: str, passes: int) -> Iterator[Pass]:
    """Every other pass has the stopwatches on. What is measured is also a run of the lesson: for each pass its step once without, then once for
    each part, stamped with that part's seconds.
    """
    from ..generate import prepare

    lm, settings = unit.plain, {"max_new_tokens": passes + 1, "min_new_tokens": passes + 1}
    without = prepare(lm, prompt, **settings).timed()
    within = by_part(lm.model, prepare(lm, prompt, **settings).timed(), synchronise(lm.device))
    kept = unit.runs["parts"] = []
    for alone, (one, taken) in zip(without, within):
        if one.step.rows[0].phase != "prefill":
            kept += [alone, *(Stamped(one.step, taken[part]) for part in PARTS)]
            yield Pass(taken, alone.seconds)


def _replayed(unit) -> Iterator[Pass]:
    taken = [stamped.seconds for stamped in unit.run("parts", None)]
    size = 1 + len(PARTS)
    for at in range(0, len(taken) - size + 1, size):
        without, *each = taken[at : at + size]
        yield Pass(dict(zip(PARTS, each)), without)
