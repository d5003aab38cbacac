"""How much slower, with something taken away? A thief takes bandwidth; this says whether a pass was waiting for it.

The machine of a learner is never quiet, so nothing is compared with what was measured a minute ago. A round measures the roof and a pass three times
over: free, with the thief of memory, with the thief of compute. What counts is how they differ within the round, and the median over rounds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb, inf, isfinite, nan
from pathlib import Path
from statistics import median
from typing import NamedTuple

CONDITIONS = ("free", "memory", "compute")
SETTLE = 0.02  # seconds between letting a thief go and believing a clock
TURNS = 2  # that reading and a pass take under one condition: by turns, so that what else disturbs a machine disturbs both alike
STOLEN = 0.15  # the least that the roof must be slowed: what takes less proves nothing
CONTROL = 0.1  # of the roof's slowdown: from here on the core that a thief takes explains too much
FOLLOWS, IGNORES = 0.8, 0.5  # of the roof's slowdown: a pass that takes as much is bound by bandwidth, one that takes less is not
BOUND, PARTLY, NOT, UNKNOWN = "bound by bandwidth", "partly bound by bandwidth", "not bound by bandwidth", "inconclusive"


def bound(roof: float, memory: float, compute: float) -> str:
    """Is a pass bound by bandwidth? Three slowdowns say it, as fractions: 0.5 is "took half as long again".

    roof: of reading memory, by the thief of memory · memory: of the pass, by the same thief · compute: of the pass, by the thief of compute

    A pass that is bound by bandwidth slows as reading does. A thief that has not slowed reading has stolen nothing; and if the one for compute slows
    the pass too, then it is a core that was missed, not bandwidth. Both are inconclusive.

    >>> bound(roof=0.8, memory=0.7, compute=0.01)
    'bound by bandwidth'
    >>> bound(roof=0.8, memory=0.2, compute=0.01)
    'not bound by bandwidth'
    >>> bound(roof=0.8, memory=0.5, compute=0.01)
    'partly bound by bandwidth'
    >>> bound(roof=0.8, memory=0.7, compute=0.3), bound(roof=0.05, memory=0.05, compute=0.0)
    ('inconclusive', 'inconclusive')
    """
    if roof < STOLEN or compute >= CONTROL * roof:
        return UNKNOWN
    share = memory / roof
    if share >= FOLLOWS:
        return BOUND
    return NOT if share <= IGNORES else PARTLY


class Point(NamedTuple):
    """Under one condition of one round: how fast memory was read, and how long a pass took."""

    round: int
    condition: str
    roof: float  # [B/s]
    seconds: float  # of a pass


def thefts(
    passes: Callable[[], float],
    roof: Callable[[], float],
    rounds: int,
    thieves: Mapping[str, object],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Point]:
    """Measure so many rounds, one Point at a time. When one is handed over nobody steals, so drawing it disturbs nothing.

    `passes()` gives the seconds of a pass, `roof()` bytes per second, once each time; `thieves` are {"memory": …, "compute": …} that can `go()`
    and `wait()`. A Point has medians of TURNS. Every second round goes backwards, so that a machine that becomes slower or faster all the time
    does so for all conditions alike.
    """
    for number in range(rounds):
        for condition in CONDITIONS[:: -1 if number % 2 else 1]:
            thief = thieves.get(condition)
            try:
                if thief:
                    thief.go()
                sleep(SETTLE)
                turns = [(roof(), passes()) for _ in range(TURNS)]
            finally:
                if thief:
                    thief.wait()
            yield Point(number, condition, *map(median, zip(*turns)))


class Round(NamedTuple):
    """What the thieves did to one round, as slowdowns: the one for memory to the roof and to the pass, the one for compute to the pass."""

    roof: float
    memory: float
    compute: float


def slowdowns(points: Iterable[Point]) -> list[Round]:
    """The rounds that are complete, each compared with itself.

    >>> slowdowns([Point(0, "free", 40e9, 0.02), Point(0, "memory", 20e9, 0.03), Point(0, "compute", 40e9, 0.02), Point(1, "compute", 40e9, 0.02)])
    [Round(roof=1.0, memory=0.5, compute=0.0)]
    """
    found: dict[int, dict[str, Point]] = {}
    for point in points:
        found.setdefault(point.round, {})[point.condition] = point
    whole = [[one[condition] for condition in CONDITIONS] for one in found.values() if len(one) == len(CONDITIONS)]
    return [Round(free.roof / m.roof - 1, m.seconds / free.seconds - 1, c.seconds / free.seconds - 1) for free, m, c in whole]


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Between these two of the values lies the median, at least 19 times of 20, whatever the law they come from; None where they are too few to say.

    The k-th smallest and the k-th largest: each lies beyond the median as often as n coins show fewer than k heads (the sign test, Arbuthnot 1710).

    >>> interval([1, 2, 3, 4, 5, 6]), interval([1, 2, 3, 4, 5]), interval(range(1, 21))
    ((1, 6), None, (6, 15))
    """
    n, k, beyond = len(values), 0, 0.0
    while (beyond := beyond + 2 * comb(n, k) / 2**n) <= 0.05:
        k += 1
    return (sorted(values)[k - 1], sorted(values)[n - k]) if k else None


@dataclass(frozen=True)
class Verdict:
    """What `bound` says of the medians, or "inconclusive" and why. `low` and `high` are the interval of the share."""

    word: str
    why: str
    roof: float = nan
    memory: float = nan
    compute: float = nan
    low: float = nan
    high: float = nan
    rounds: int = 0

    @property
    def share(self) -> float:
        return self.memory / self.roof if self.roof else nan


def judged(rounds: Sequence[Round], steady: bool = True) -> Verdict:
    """`bound`, unless noise could have said it. `steady`: did the roof stand where it stood, before and after?

    Refused: too few rounds to tell noise from effect; a roof that moved; and any verdict that is not the same at both ends of the intervals
    in which the medians lie.
    """
    controls = interval([r.compute for r in rounds])
    if not controls:
        return Verdict(UNKNOWN, f"{len(rounds)} complete round{'' if len(rounds) == 1 else 's'} cannot tell noise from effect", rounds=len(rounds))
    roof, memory, compute = (median(column) for column in zip(*rounds))
    word, why = bound(roof, memory, compute), ""
    # a round in which the roof did not fall has any share; and the quotient of the medians may lie outside of the quotients' interval
    low = min(interval([r.memory / r.roof if r.roof > 0 else -inf for r in rounds])[0], memory / roof if roof > 0 else inf)
    high = max(interval([r.memory / r.roof if r.roof > 0 else inf for r in rounds])[1], memory / roof if roof > 0 else -inf)
    said = {bound(roof, share * roof, control) for share in (low, high) for control in controls}
    if not steady:
        why = "the roof before and after differs by more than a fifth, so another program was busy"
    elif roof < STOLEN:
        why = f"the thief of memory slowed reading by {max(roof, 0):.0%} only, so next to nothing was stolen"
    elif word == UNKNOWN:
        why = f"the thief of compute slowed the pass by {compute:.0%}, so a core was missed and not bandwidth"
    elif UNKNOWN in said:
        why = f"what the thief of compute did to the pass lies anywhere between {controls[0]:+.0%} and {controls[1]:+.0%}"
    elif said != {word}:
        sure = "it is bound at least in part, but " if NOT not in said else "it is not wholly bound, but " if BOUND not in said else ""
        why = f"{sure}the rounds differ too much, the share lies anywhere between {low:.2f} and {high:.2f}"
    return Verdict(UNKNOWN if why else word, why, roof, memory, compute, low, high, len(rounds))


# kept as a file ----------------------------------------------------------------------------------------------------


@dataclass
class Taken:
    """What was measured: points by lane, the machine, whatever else explains them, and the roof before and after in bytes per second."""

    machine: dict
    about: dict
    lanes: dict[str, list[Point]]
    roof: dict[str, Sequence[float]]


def save(path: str | Path, taken: Taken) -> None:
    """One JSON object per line: what it is, each point, the roof. The file appears complete or not at all."""
    path = Path(path)
    lines = [{"tokenpace": "theft", "version": 1, "machine": taken.machine, "about": taken.about, "lanes": [*taken.lanes]}]
    lines += [{"lane": lane, **point._asdict()} for lane, points in taken.lanes.items() for point in points]
    lines += [{"end": "complete", "roof": taken.roof}]
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8", newline="\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | Path) -> Taken:
    """What `save` wrote. ValueError with the line for anything else."""
    lines, number = Path(path).read_bytes().splitlines(), 1
    try:
        head = json.loads(lines[0])
        if (head["tokenpace"], head["version"]) != ("theft", 1):
            raise ValueError("its first line would say theft, version 1")
        lanes: dict[str, list[Point]] = {lane: [] for lane in head["lanes"]}
        for number, line in enumerate(lines[1:-1], 2):
            saved = json.loads(line)
            lanes[saved.pop("lane")].append(point := Point(**saved))
            if point.condition not in CONDITIONS or not all(isfinite(value) and value > 0 for value in (point.roof, point.seconds)):
                raise ValueError(f"nobody measured {point}")
        number = len(lines)
        roof = {when: tuple(map(float, samples)) for when, samples in json.loads(lines[-1])["roof"].items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} line {number}: not a saved theft: {type(error).__name__} {error}") from None
    return Taken(head["machine"], head["about"], lanes, roof)
