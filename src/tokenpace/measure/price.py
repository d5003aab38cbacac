"""What a token costs. An input token is one of the prompt, passed together with the others; an output token is one that was written.

Seconds come first, for whoever owns a machine or rents one pays for its time. Joules come second. What either of them costs is for you to say:
there is no price here that would be true for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from .clock import Stamped
from .cost import Cost, Device
from .energy import joules, phase

SIDES = {"input": "prefill", "output": "decode"}  # kind of token -> the passes that are its own


def price(seconds: float, joules: float, rate: float, kwh: float) -> float:
    """What so many seconds and joules cost, in the currency of the two rates.

    seconds: that the machine is taken for · rate: what an hour of it costs
    joules: that it takes meanwhile · kwh: what a kilowatt-hour costs. A kilowatt-hour is 1000 watts for an hour.

    price(3600, 7_200_000, 2.0, 0.25) is 2.5: an hour, and two kilowatt-hours.
    """
    return seconds / 3600 * rate + joules / 3.6e6 * kwh


@dataclass
class Side:
    """Input or output tokens: the passes that were theirs alone."""

    passes: list[tuple[int, float]] = field(default_factory=list)  # (tokens, seconds) of each
    bytes: float = 0.0
    counted: float | None = 0.0  # joules; None where nobody counted

    def add(self, one: Stamped, tokens: int, moved: float) -> None:
        self.passes.append((tokens, one.seconds))
        self.bytes += moved
        self.counted = None if self.counted is None or joules(one) is None else self.counted + joules(one)

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _ in self.passes)

    @property
    def total(self) -> float:
        """Seconds of all passes."""
        return sum(seconds for _, seconds in self.passes)

    @property
    def seconds(self) -> float | None:
        """Of a token, in the median pass; None where there is none."""
        return median(seconds / tokens for tokens, seconds in self.passes) if self.passes else None

    @property
    def moved(self) -> float | None:
        """Bytes read and written for a token, on average."""
        return self.bytes / self.tokens if self.passes else None

    @property
    def joules(self) -> float | None:
        """Of a token, on average (a counter is too coarse for a median)."""
        return None if self.counted is None or not self.passes else self.counted / self.tokens


def sides(stamped: Iterable[Stamped], cost: Callable[..., Cost] | None = None, rows: int = 1) -> dict[str, Side]:
    """{"input": …, "output": …} of a run; `cost` prices a Step, for the bytes.

    The prompt's pass writes the first token of its answer: that one comes with the input. Output tokens are those that later passes keep, and only of
    passes that `rows` texts share. A pass that has prompts and other rows in it is nobody's alone, and is in neither.
    """
    found = {kind: Side() for kind in SIDES}
    for one in stamped:
        step, moved = one.step, cost(one.step).bytes if cost else 0.0
        there = [row for row in step.rows if row.width]
        if phase(step) == "prefill" and there:
            found["input"].add(one, sum(row.width for row in there), moved)
        elif phase(step) == "decode" and len(there) >= rows and (kept := _kept(there)):
            found["output"].add(one, kept, moved)
    return found


def _kept(rows: list) -> int:
    """Tokens that a pass wrote and that stayed."""
    return sum(stays for row in rows for writes in row.each for _, _, stays in writes)


def times(found: dict[str, Side], what: str = "seconds") -> float | None:
    """How many times as dear as an input token an output token is, in "seconds", "joules" or bytes ("moved"); None where one of them isn't known."""
    dear, cheap = getattr(found["output"], what), getattr(found["input"], what)
    return dear / cheap if dear and cheap else None


def foretold(cost: Callable[[list[tuple[int, int]]], Cost], device: Device, prompt: int, context: int, batch: int, budget: int = 512) -> float:
    """The same ratio as the roof has it: `batch` texts that share each pass of writing, after `context` tokens; prompts of `prompt` tokens that are
    passed together, up to `budget` of them a pass. `cost` is that of a pass over rows of (context, width).
    """
    together = max(min(batch, budget // prompt), 1)
    given = cost([(0, prompt)] * together).seconds(device) / (together * prompt)
    return cost([(context, 1)] * batch).seconds(device) / batch / given
