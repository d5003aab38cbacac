"""What the passes of one lane took, kept and moved, added up as they come: two lanes of a race are compared by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..measure.clock import Stamped


@dataclass
class Tally:
    """One lane so far. The prompt's own pass is the same for every lane and stands apart."""

    prefill: float = 0.0  # [s]
    passes: list[float] = field(default_factory=list)  # [s] of each
    tokens: int = 0
    flops: float = 0.0
    weight_bytes: float = 0.0

    def add(self, stamped: Stamped, cost: Callable) -> None:
        """Take in one pass; `cost` prices a Step."""
        step, took = stamped
        if all(row.phase == "prefill" for row in step.rows):
            self.prefill += took
            return
        price = cost(step)
        self.passes.append(took)
        self.tokens += sum(row.width for row in step.rows)
        self.flops += price.total_flops
        self.weight_bytes += price.weight_bytes

    @property
    def seconds(self) -> float:
        """Of all passes after the prompt's."""
        return sum(self.passes)

    @property
    def pace(self) -> float | None:
        """Seconds a token; None before there is one."""
        return self.seconds / self.tokens if self.tokens else None


def tally(stamped: Iterable[Stamped], cost: Callable) -> Tally:
    """A whole run, added up."""
    whole = Tally()
    for one in stamped:
        whole.add(one, cost)
    return whole


def times(slow: Tally, fast: Tally) -> float | None:
    """How many times as long a token of `slow` takes as one of `fast`; None before both are measured.

    >>> times(Tally(passes=[3.0, 3.0], tokens=2), Tally(passes=[1.0], tokens=2))
    6.0
    """
    return slow.pace / fast.pace if slow.pace and fast.pace else None
