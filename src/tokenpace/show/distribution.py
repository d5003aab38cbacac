"""Unit 02: what a sampler does to the law of the next token, and the draws that converge on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import exp, log2, pi, sqrt

import torch

from ..decode.protocol import Ask, Keep
from ..decode.sampling import Sampler, probs
from ..measure.roof import Band
from . import plots
from .live import Shown, watch
from .plots import BLUE, GREY, MEASURED, ORANGE, PREDICTED

MOST = 2048  # tokens that a law is asked about: as many as a recording can hold, and more than a sampler mostly leaves


def likeliest(n: int = MOST) -> Callable[..., Iterator]:
    """A decoder that draws nothing: after one pass over the prompt it tells the prompt's tokens, and the n likeliest to follow, none of them kept.

    With logprobs=True the latter come with their log P.
    """

    def decoder(setting):
        prompt, at = setting.prompt, len(setting.prompt)
        out = yield Ask("decode", prompt, 0, sure=at)
        top = out.logits[0].float().topk(min(n, out.logits.shape[1])).indices.tolist()
        yield Keep(0, (*((i, token, False) for i, token in enumerate(prompt)), *((at, token, False) for token in top)))

    return decoder


@dataclass(frozen=True)
class Law:
    """What the model says about the token after a prompt: log P of the likeliest ones, as far as it was asked."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # likeliest first
    logprobs: tuple[float, ...]
    size: int  # of the vocabulary

    @property
    def raw(self) -> list[float]:
        """[V] probabilities; 0 for those not asked about."""
        return self._spread(exp(value) for value in self.logprobs)

    def under(self, sampler: Sampler) -> list[float]:
        """[V] probabilities under a sampler. It draws among the tokens that were asked about: as with top_k at most that many."""
        return self._spread(probs(torch.tensor([self.logprobs]), [sampler])[0].tolist())

    def _spread(self, values) -> list[float]:
        found = dict(zip(self.tokens, values))
        return [found.get(token, 0.0) for token in range(self.size)]


def law(unit, prompt: str) -> Law:
    """Ask the lesson's model about the token after `prompt`; a dry lesson replays."""
    ((step, _),) = unit.run("law", prompt, decoder=likeliest(), logprobs=True)
    (row,) = step.rows
    told = [(token, value) for (_, token, _), value in zip(row.writes, row.logprobs) if value is not None]
    return Law(tuple(token for position, token, _ in row.writes if position < row.width), *zip(*told), unit.config.vocab_size)


def said(sampler: Sampler) -> str:
    """A sampler's settings, in words.

    >>> said(Sampler(temperature=0.7, top_p=0.9))
    'temperature 0.7, top-p 0.9'
    """
    more = {"top-k": sampler.top_k, "top-p": sampler.top_p if sampler.top_p < 1 else 0, "min-p": sampler.min_p}
    return ", ".join([f"temperature {sampler.temperature:g}", *(f"{name} {value:g}" for name, value in more.items() if value)])


def bars(ax, raw: list[float], law: list[float], tokens: list[int], name: Callable[[int], str], setting: str) -> None:
    """The model's probabilities of `tokens`, and the law's inside them."""
    places = range(len(tokens))
    ax.bar(places, [raw[t] for t in tokens], color="white", edgecolor=GREY, label="the model")
    ax.bar(places, [law[t] for t in tokens], width=0.55, color=ORANGE, label=setting or "the sampler")
    names = [plots.printable(repr(name(t))[1:-1]) for t in tokens]
    ax.set_xticks(list(places), names, rotation=60, ha="right", rotation_mode="anchor")
    ax.set(title="The next token", ylabel="probability")


@dataclass
class Shape:
    """A view of a law before and after a sampler; it folds nothing."""

    raw: list[float]
    law: list[float]
    name: Callable[[int], str]
    setting: str = ""
    where: str = ""  # the model, and the machine that asked it
    shown: int = 24  # tokens
    size = (10.4, 4.4)

    def see(self, lane: str, point) -> None:
        raise ValueError("Shape draws a law as it is; it has no lanes")

    def judge(self, band: Band | None) -> None:
        pass

    def progress(self) -> float:
        return 1.0

    def axes(self, figure) -> None:
        ax = figure.subplots()
        bars(ax, self.raw, self.law, sorted(range(len(self.raw)), key=lambda t: -self.raw[t])[: self.shown], self.name, self.setting)
        ax.legend(loc="upper right")
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def draw(self) -> None:
        pass

    def sentence(self) -> str:
        kept = [p for p in self.law if p > 0]
        first, bits = max(range(len(self.law)), key=self.law.__getitem__), -sum(p * log2(p) for p in kept)
        had = sum(raw for raw, p in zip(self.raw, self.law) if p > 0)
        asked = sum(raw > 0 for raw in self.raw)
        return (
            f"{self.setting or 'The sampler'} leaves {len(kept):,} of the {asked:,} likeliest tokens (the vocabulary has {len(self.law):,}), "
            f"which had {had:.1%} of the model's probability; that is shared out anew. "
            f"The likeliest, {self.name(first)!r}, has {self.law[first]:.3g} (before: {self.raw[first]:.3g}). "
            f"The draw is as open as one among {2**bits:,.1f} equally likely tokens." + (f" [{self.where}]" if self.where else "")
        )


def reshape(unit, told: Law, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, **shown) -> Shown:
    """Draw a law under a sampler's settings; `shown` goes to `watch` (screen)."""
    sampler = Sampler(temperature, top_k, top_p, min_p)
    return watch(Shape(told.raw, told.under(sampler), lambda token: unit.decode([token]), said(sampler), unit.where), {}, **shown)


def sample(unit, prompt: str, told: Law, sampler: Sampler, draws: int, seconds: float = 20, **shown) -> Shown:
    """Draw the token after `prompt` so many times, each with a seed of its own, many rows in a pass; show the draws beside their law."""
    view = Draws(told.raw, told.under(sampler), lambda token: unit.decode([token]), draws, said(sampler), unit.where)
    run = unit.run("draws", [prompt] * draws, sampler=sampler, max_new_tokens=1, seed=list(range(draws)))
    return watch(view, {"draws": run}, seconds=seconds, **shown)


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
    where: str = ""  # the model, and the machine that drew
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
        bars(left, self.raw, self.law, self.tokens, self.name, self.setting)
        (self.drawn,) = left.plot([], [], MEASURED.marker, color=BLUE, markeredgecolor="black", label="drawn")
        left.legend(loc="upper right")
        self.line = plots.line(right, MEASURED, "drawn", every=1)
        self.curve = plots.line(right, PREDICTED, "exact draws, on average", every=8)
        plots.logarithmic(right, "", "")
        right.set(title="Distance to the law", xlabel="draws", ylabel="total variation")
        right.set(xlim=(1, max(self.planned, 10)), ylim=(1e-3, 1))
        right.grid(visible=True)
        right.legend(loc="lower left")
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)
        self.left, self.right = left, right

    def draw(self) -> None:
        if not self.n:
            return
        shares = [self.counts[t] / self.n for t in self.tokens]
        self.drawn.set_data(range(len(self.tokens)), shares)
        self.left.set_ylim(0, 1.1 * max(*shares, *(p[t] for p in (self.raw, self.law) for t in self.tokens)))
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
            f"exact draws would on average leave {self.expected(self.n):.3f}." + (f" [{self.where}]" if self.where else "")
        )
