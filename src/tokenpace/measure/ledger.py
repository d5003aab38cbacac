"""One row for every way of decoding: what its passes cost, what they keep, and the pace that follows.

    pace [s/token]  =  cost of a pass [s]  ÷  tokens kept per pass

A row is folded from a stamped stream and a price for its passes, so a recorded run, a measured one and a predicted one all fit.
Nothing is timed here, and a share of the bandwidth is only claimed where it means something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..run import Step
from .clock import Stamped
from .cost import Cost, Device
from .energy import joules
from .roof import OUTSIDE, Band

LIKE = 2  # times: the most by which passes of one row may differ


@dataclass(frozen=True)
class Entry:
    """A decoder's row. The prompt's passes are not in it: they cost the same whoever decodes."""

    name: str
    passes: int  # of the target
    tokens: int  # kept
    pass_bytes: float  # mean over the passes: weights, and keys and values read and written
    pass_flops: float
    predicted: float  # [s/token]
    measured: float  # [s/token]
    mbu: tuple[float, float] | None  # share of the read bandwidth, under the highest and the lowest roof of the run
    why: str = ""  # no MBU is given
    exact: bool | None = None  # is its text that of plain decoding? None: not tested
    where: str = ""  # machine, dtype, threads, model
    joules: float | None = None  # [J/token] all that was counted meanwhile, an idle machine's share included; None: not readable here

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def pass_seconds(self) -> float:
        return self.measured * self.tokens_per_pass

    def cells(self) -> tuple[str, ...]:
        share = (
            "–"
            if self.mbu is None
            else f"{self.mbu[0]:.0%}"
            if round(self.mbu[0], 2) == round(self.mbu[1], 2)
            else f"{self.mbu[0]:.0%} – {self.mbu[1]:.0%}"
        )
        exact = {True: "yes", False: "no", None: "not tested"}[self.exact]
        pace = (f"{1e3 * seconds:.3g} ms" for seconds in (self.predicted, self.measured))
        energy = "not readable here" if self.joules is None else f"{self.joules:.3g} J"
        return (self.name, f"{self.passes:,}", f"{self.tokens_per_pass:.2f}", f"{self.pass_bytes / 1e6:,.0f} MB", *pace, share, energy, exact)


def entry(
    name: str,
    stamped: Iterable[Stamped],
    price: Callable[..., Cost],
    device: Device,
    cache: float,
    band: Band | None = None,
    exact: bool | None = None,
    where: str = "",
) -> Entry:
    """Fold a run into its row. `price` is the cost of a Step, `cache` the bytes of the last-level cache, `band` the roof around the run.

    The prediction stands under the band's highest roof, as the least that the run could take; without a band, under the device as it was probed.
    A pass counts if some row of it is no prefill, and a place of the text if a pass that counts was the last to write it: once, however often it
    was written, in every branch there is at the end. A draft's passes cost time and bytes but are not passes of the target.

    Where the passes of the target are unlike (the dearest predicted to take more than LIKE times the cheapest, as where all of a text is passed
    again for each token), bytes and pace are means over this text and would be others for a longer one: the row says so, and claims no share of the
    bandwidth, for that would be the mean of passes that wait for memory and of passes that do not.

    Raises ValueError if no token was kept: there is no pace then.
    """
    passes, seconds, total, energy = 0, 0.0, Cost(), []
    predicted: dict[str, list[float]] = {}  # by whom was asked
    weights, roof, texts = 0.0, replace(device, bandwidth=band.high) if band else device, {}
    for one in stamped:
        step, took = one
        counts = any(row.phase != "prefill" and row.width for row in step.rows)
        _write(texts, step, counts)
        if counts:
            cost, passes = price(step), passes + (step.to == "target")
            seconds, total = seconds + took, total + cost
            predicted.setdefault(step.to, []).append(cost.seconds(roof))
            energy.append(joules(one))
            weights = max(weights, cost.weight_bytes)
    tokens = sum(sum(text.values()) for branches in texts.values() for text in branches)
    if not tokens or not passes:
        raise ValueError(f"{name}: the run kept no token after its prompt, so it has no pace")
    why = _refusal(weights, cache, band, predicted["target"])
    rates = None if why else (total.bytes / seconds / band.high, total.bytes / seconds / band.low)
    ahead, mean = sum(map(sum, predicted.values())), (total.bytes / passes, total.total_flops / passes)
    counted = None if None in energy else sum(energy) / tokens
    return Entry(name, passes, tokens, *mean, ahead / tokens, seconds / tokens, rates, why, exact, where, counted)


def _write(texts: dict[int, list[dict[int, bool]]], step: Step, counts: bool) -> None:
    """What is on each request's canvas after `step`: for every branch, position -> does its token count?"""
    for row in step.rows:
        branches = texts.setdefault(row.request, [{}])
        if row.parents is not None:
            branches[:] = [dict(branches[parent]) for parent in row.parents]
        for text, writes in zip(branches, row.each):
            text.update({position: counts and token is not None for position, token, kept in writes if kept})


def _refusal(weights: float, cache: float, band: Band | None, predicted: list[float]) -> str:
    """Why no share of the bandwidth is claimed; empty if it is."""
    if max(predicted) > LIKE * min(predicted):
        span = f"predicted {1e3 * min(predicted):.3g} ms to {1e3 * max(predicted):.3g} ms"
        return f"no MBU: its passes are unlike ({span}), so its pace and bytes are means over this text and hold for no other length"
    if weights < OUTSIDE * cache:
        sizes = f"{weights / 1e6:.0f} MB of weights are less than {OUTSIDE} times the {cache / 1e6:.0f} MB of last-level cache"
        return f"no MBU: {sizes}, so they may not come from memory"
    if band is None:
        return "no MBU: the roof was not probed around this run"
    if not band.steady:
        return f"no MBU: the roof moved between {band.low / 1e9:.0f} and {band.high / 1e9:.0f} GB/s during the run"
    return ""


HEAD = ("decoder", "passes", "tokens/pass", "bytes/pass", "pace predicted", "pace measured", "MBU", "joules/token", "exact")


@dataclass
class Ledger:
    """All decoders so far. Prints as a table, in a notebook too."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, row: Entry) -> Ledger:
        """A newer run of a decoder takes the older one's place."""
        self.entries = [old for old in self.entries if old.name != row.name] + [row]
        return self

    def notes(self) -> list[str]:
        other = ", ".join(e.name for e in self.entries if e.exact is False)
        why = [f"{other}: another text than plain decoding wrote; where two tokens are nearly as likely, rounding may choose either"] if other else []
        return [f"{e.name}: {e.why}" for e in self.entries if e.why] + why + sorted({e.where for e in self.entries if e.where})

    def __str__(self) -> str:
        rows = [HEAD, *(e.cells() for e in self.entries)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
        lines = ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows]
        return "\n".join(lines + self.notes())

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        rows = [HEAD, ("---", *["---:"] * (len(HEAD) - 1)), *(e.cells() for e in self.entries)]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "".join(f"\n\n*{note}*" for note in self.notes())
