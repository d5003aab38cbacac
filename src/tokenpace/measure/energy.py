"""Joules of a span of time, and of each pass: power is joules per second, in watts.

    here = counter("cpu")                       what counts joules here, or why nothing does (counters)
    rest = idle(here)                           the watts of a machine that does nothing, first
    for one in metered(timed(steps), here):     each pass with its seconds and its joules
    power(points)                               the same as watts over time

No thread reads along: the counter is read between passes, so a pass is the shortest span that is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..run import Step
from .clock import Stamped
from .counters import Counter

UPDATES = 5  # of a counter's number within a span, below which its watts would be too coarse
SHORTEST = 0.02  # seconds of a span of power


@dataclass(frozen=True)
class Energy:
    """What was counted in a span, and the watts that the machine takes when nothing runs: both are kept, for a bill has both in it."""

    joules: float
    seconds: float
    idle: float = 0.0  # W

    @property
    def watts(self) -> float:
        return self.joules / self.seconds

    @property
    def own(self) -> float:
        """Joules that the work itself took: those above what the machine would have taken anyway. Noise may make it negative."""
        return self.joules - self.idle * self.seconds


def idle(
    counter: Counter, seconds: float = 1.0, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.perf_counter
) -> float | None:
    """Watts while this program sleeps; None where they can't be read. What other programs do meanwhile is in it."""
    if not counter.readable:
        return None
    before, start = counter.joules(), now()
    sleep(seconds)
    return (counter.joules() - before) / (now() - start)


class Metered(Stamped):
    """A Stamped pass that knows its joules, too. It unpacks to (step, seconds), so whatever reads stamped steps reads it."""

    joules: float

    def __new__(cls, step: Step, seconds: float, joules: float) -> Metered:
        made = super().__new__(cls, step, seconds)
        made.joules = joules
        return made


def joules(one: Stamped) -> float | None:
    """A pass's joules; None where nobody counted."""
    return getattr(one, "joules", None)


def metered(stamped: Iterable[Stamped], counter: Counter, now: Callable[[], float] = time.perf_counter) -> Iterator[Stamped]:
    """The same passes with the joules of each; where no counter can be read, just the same passes.

    What the consumer does between two passes (drawing) is not counted, unless it is over before the counter could have noticed: a counter that is
    renewed ten times a second tells of a pass a little late, and would lose that if each pass had a beginning of its own.
    """
    if not counter.readable:
        yield from stamped
        return
    before = counter.joules()
    for step, seconds in stamped:
        after, paused = counter.joules(), now()
        yield Metered(step, seconds, after - before)
        before = counter.joules() if now() - paused > counter.step else after


class Power(NamedTuple):
    """Watts from `start` to `end`, in seconds of passes, so that pauses between them take no room."""

    start: float
    end: float
    watts: float
    phase: str


def phase(step: Step) -> str:
    """What a pass was for: "prefill", "decode" (whatever is written, and however), or "both" where rows of either kind share it."""
    prompts = {row.phase == "prefill" for row in step.rows if row.width}
    return "both" if len(prompts) > 1 else "prefill" if prompts == {True} else "decode"


def power(points: Iterable[Stamped], step: float = 0.001) -> list[Power]:
    """Power over time of metered passes; empty where nobody counted.

    step: seconds between two updates of the counter. Passes of one phase are taken together until UPDATES (5) of these, and SHORTEST (0.02 s) at
    least, have gone by; what is left at a phase's end is a span of its own, and tells less.
    """
    spans, clock, at = [], 0.0, None  # at: [start, joules, phase] of the span that is open
    shortest = max(SHORTEST, UPDATES * step)
    for one in points:
        what, counted = phase(one.step), joules(one)
        if counted is None:
            return []
        if at and (at[2] != what or clock - at[0] >= shortest):
            spans.append(Power(at[0], clock, at[1] / (clock - at[0]), at[2]))
            at = None
        at = at or [clock, 0.0, what]
        clock, at[1] = clock + one.seconds, at[1] + counted
    if at and clock > at[0]:
        spans.append(Power(at[0], clock, at[1] / (clock - at[0]), at[2]))
    return spans
