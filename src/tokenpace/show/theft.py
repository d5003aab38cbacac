"""Units 00 and 01: a thief on another core, and what becomes of a pass. Whatever a pass waits for, it slows when that is taken away.

Above, how long a pass takes in each round: free, with a thief that takes bandwidth, with one that takes only a core. ◆ is where the pass would be
if it slowed as reading memory does, which stands below. Once for the tiled kernels and once for PyTorch's own, on the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from math import isfinite
from statistics import median

from ..measure.clock import Stamped
from ..measure.intervention import CONDITIONS, STOLEN, UNKNOWN, Point, Taken, Verdict, judged, slowdowns, thefts
from ..measure.machine import cores, physical_cores
from ..measure.roof import Band
from ..measure.thief import NoThief, Thief, shared, thief, threads
from . import plots
from .live import Screen, Shown, watch
from .plots import GREEN, GREY, MEASURED, PREDICTED, RIVAL, Look, seconds

NAMES = {"tiled": "tiled kernels", "eager": "PyTorch's own kernels"}
LOOKS = {"free": MEASURED, "memory": RIVAL, "compute": Look(GREEN, "s", ":")}
LABELS = {"free": "no thief", "memory": "a thief takes bandwidth", "compute": "a thief takes only a core"}
WARM = 4  # passes that are given away: they compile, and fill the caches


@dataclass
class Theft:
    """A view. `lanes` are those to be expected, of so many `rounds`; `where` says machine, threads, dtype."""

    lanes: tuple[str, ...]
    rounds: int
    where: str = ""
    size = (10.4, 5.5)

    def __post_init__(self):
        self.points: dict[str, list[Point]] = {lane: [] for lane in self.lanes}
        self.band: Band | None = None
        self.over = False

    # the fold ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, point: Point) -> None:
        self.points[lane].append(point)

    def judge(self, band: Band | None) -> None:
        self.band, self.over = band, True

    def progress(self) -> float:
        return sum(map(len, self.points.values())) / (len(self.lanes) * self.rounds * len(CONDITIONS))

    def under(self, lane: str, condition: str) -> list[Point]:
        """In the order of the rounds, which is not that in which they were measured."""
        return sorted(point for point in self.points[lane] if point.condition == condition)

    def followed(self, lane: str) -> list[tuple[int, float]]:
        """(round, seconds) of a pass that would slow exactly as the roof did."""
        free = {point.round: point for point in self.under(lane, "free")}
        pairs = [(point, free[point.round]) for point in self.under(lane, "memory") if point.round in free]
        return [(with_thief.round, alone.seconds * alone.roof / with_thief.roof) for with_thief, alone in pairs]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """What the rounds so far say, by lane; once the run is over, only if the roof was probed and stood still."""
        if self.over and self.band is None:
            return {lane: Verdict(UNKNOWN, "the run was cut short") for lane in self.lanes}
        return {lane: judged(slowdowns(self.points[lane]), not self.band or self.band.steady) for lane in self.lanes}

    # the picture ---------------------------------------------------------------------------------------------------

    def axes(self, figure) -> None:
        grid = figure.subplots(2, len(self.lanes), sharex=True, squeeze=False, height_ratios=[5, 3])
        self.panels = {lane: self._panel(*grid[:, i]) for i, lane in enumerate(self.lanes)}
        handles = [line for name, line in self.panels[self.lanes[0]]["seconds"].items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
        figure.supxlabel(self.where, color=GREY, fontsize=plots.points() - 1)

    def _panel(self, above, below) -> dict:
        lines = {name: plots.line(above, LOOKS[name], LABELS[name]) for name in CONDITIONS}
        lines["followed"] = plots.line(above, PREDICTED, "if it slowed as reading does", linewidth=1.2, zorder=1.9)
        roofs = {name: plots.line(below, LOOKS[name], LABELS[name]) for name in CONDITIONS}
        above.set(ylabel="seconds of a pass")
        below.set(ylabel="reading memory", xlabel="round", xlim=(0.5, self.rounds + 0.5))
        below.xaxis.get_major_locator().set_params(integer=True)
        plots.engineering(above.yaxis, "s")
        plots.engineering(below.yaxis, "B/s")
        note = above.text(0.02, 0.97, "", va="top", transform=above.transAxes, linespacing=1.3)
        return {"above": above, "below": below, "seconds": lines, "roofs": roofs, "note": note}

    def draw(self) -> None:
        free = {lane: median(p.seconds for p in self.under(lane, "free")) for lane in self.lanes if self.under(lane, "free")}
        took = {lane: [p.seconds for p in self.points[lane]] + [seconds for _, seconds in self.followed(lane)] for lane in free}
        highest = max((one / free[lane] for lane in free for one in took[lane]), default=1)
        fastest = max((p.roof for points in self.points.values() for p in points), default=1)
        for lane, panel in self.panels.items():
            for condition in CONDITIONS:
                points = self.under(lane, condition)
                xs = [point.round + 1 for point in points]
                panel["seconds"][condition].set_data(xs, [point.seconds for point in points])
                panel["roofs"][condition].set_data(xs, [point.roof for point in points])
            followed = self.followed(lane)
            panel["seconds"]["followed"].set_data([number + 1 for number, _ in followed], [took for _, took in followed])
            if lane in free:  # the same multiple of a free pass is equally high in each panel
                panel["above"].set_ylim(0, free[lane] * max(1.6, 1.45 * highest))
            panel["below"].set_ylim(0, 1.15 * fastest)
            self._caption(lane, panel)

    def _caption(self, lane: str, panel: dict) -> None:
        verdict = self.verdicts[lane]
        lines = []
        if verdict.roof == verdict.roof:
            followed = f": {verdict.share:.2f} of it" if verdict.roof >= STOLEN else ""
            lines = [f"pass {verdict.memory:+.0%} where reading {verdict.roof:+.0%}{followed}", f"with only a core taken {verdict.compute:+.0%}"]
        panel["above"].set_title(_capital(NAMES[lane] + (f": {verdict.word}" if self.over else "")))
        panel["note"].set_text("\n".join(lines))

    # the words -----------------------------------------------------------------------------------------------------

    def sentence(self) -> str:
        told = [self._told(lane) for lane in self.lanes if self.points[lane]]
        return " ".join(told or ["Nothing is measured yet."]) + (f" [{self.where}]" if self.where else "")

    def _told(self, lane: str) -> str:
        verdict, name = self.verdicts[lane], _capital(NAMES[lane])
        took = {c: seconds(median(p.seconds for p in points)) for c in CONDITIONS if (points := self.under(lane, c))}
        if verdict.roof != verdict.roof:
            so_far = f"{name}: " + ", ".join(f"{LABELS[c]}: {value} a pass" for c, value in took.items())
            return f"{so_far}; {verdict.word}: {verdict.why}."
        said = verdict.word + (f": {verdict.why}" if verdict.why else "")
        sure = f"{verdict.low:.2f} to {verdict.high:.2f}, " if isfinite(verdict.low) and isfinite(verdict.high) else ""
        told = f"{max(verdict.roof, 0):.0%}"
        told += f"; the pass by {verdict.share:.2f} of that ({sure}{verdict.rounds} rounds)" if verdict.roof >= STOLEN else ""
        return (
            f"{name}: a pass takes {took['free']}, with a thief of bandwidth {took['memory']} ({verdict.memory:+.0%}), "
            f"with a thief of only a core {took['compute']} ({verdict.compute:+.0%}). Reading memory slowed by {told}: {said}."
        )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# measuring -----------------------------------------------------------------------------------------------------------


def decode_seconds(lm) -> Iterator[float]:
    """Seconds of one decode step after the other, for ever, after 16 to 272 tokens."""
    from ..generate import prepare

    while True:
        steps = prepare(lm, [1] * 16, max_new_tokens=256, min_new_tokens=256).timed()
        yield from (took for step, took in steps if step.rows[0].phase == "decode")


def reading() -> Callable[[], float]:
    """Reads memory once: bytes per second. Like `roof_now`, but its buffer is filled once, not every time."""
    from ..measure.probe import loads

    read = loads()[0]

    def roof() -> float:
        start = time.perf_counter()
        read.run(1)
        return read.task.work / (time.perf_counter() - start)

    roof()
    return roof


def lane(lm, roof: Callable[[], float], rounds: int, thieves: dict[str, Thief]) -> Iterator[Point]:
    """The rounds of one victim."""
    took = decode_seconds(lm)
    try:
        list(islice(took, WARM))
        yield from thefts(partial(next, took), roof, rounds, thieves)
    finally:
        took.close()


@contextmanager
def beside(device, *kinds: str) -> Iterator[tuple[dict[str, Thief], str]]:
    """Thieves that rest, on half of the cores, while everything here computes on the other half; and this in words. NoThief where it cannot be."""
    if device.type != "cpu":
        raise NoThief(f"no thief here: it takes from the processor's memory, and this model runs on {device.type}")
    mine, its = shared(cores(), physical_cores())
    with ExitStack() as stack:
        stack.enter_context(threads(mine))
        thieves = {kind: stack.enter_context(thief(kind, max(its, 1))) for kind in kinds}
        for one in thieves.values():
            one.wait()
        yield thieves, f"{mine} thread{'s' * (mine > 1)} beside {its} of a thief"


def steal(unit, rounds: int | None = None, budget: float | None = None, **shown) -> Shown:
    """Measure passes of `unit`, an open lesson, with and without thieves, live. `shown.view.verdicts` says by lane what came of it.

    `rounds` and `budget` [s] are by default what fits the lesson's mode; `shown` goes to `watch` (live, screen). A dry lesson replays `unit.theft`,
    which is otherwise set to what was measured, for the recording. Where there can be no thief, nothing is drawn and a sentence says why.
    """
    budget = budget or unit.size(quick=30, full=60)
    if unit.mode == "dry":
        return _replayed(unit, budget, **shown)
    victims = {"tiled": unit.lm, "eager": unit.plain} if unit.lm.card.get("kernels") == "tiled" else {"eager": unit.lm}
    rounds, where = rounds or unit.size(quick=20, full=40), f"{unit.dtype}, {unit.config.n_params / 1e6:.0f}M parameters"
    try:
        with beside(unit.lm.device, "memory", "compute") as (thieves, how):
            view, roof = Theft(tuple(victims), rounds, f"{unit.machine['name']}, {how}, {where}"), reading()
            lanes = {name: lane(lm, roof, rounds, thieves) for name, lm in victims.items()}
            found = watch(view, lanes, seconds=budget, roof=lambda: [roof() for _ in range(9)], **shown)
    except NoThief as none:
        print(none)
        screen = shown.get("screen") or Screen(live=False)
        return Shown(Theft(tuple(victims), rounds), screen.figure, str(none), screen, note=str(none))
    unit.theft = Taken(unit.machine, {"rounds": rounds, "where": view.where}, found.points, found.roof)
    return found


def _replayed(unit, budget: float, **shown) -> Shown:
    if unit.theft is None:
        raise FileNotFoundError(f"unit {unit.unit} has no recorded theft; leave COURSE_MODE=dry, or record one: python course/record.py {unit.unit}")
    kept = unit.theft
    view = Theft(tuple(kept.lanes), kept.about["rounds"], f"recorded on {kept.about['where']}")
    roof = partial(next, cycle([kept.roof["before"], kept.roof["after"]])) if kept.roof else None
    return watch(view, kept.lanes, seconds=budget, roof=roof, **shown)


def slower(unit, prompt, kind: str = "memory", tokens: int = 64) -> Iterator[Stamped]:
    """Write a text, one stamped Step at a time; half way a thief begins. A dry lesson replays the run "slower".

    Where there can be no thief the text is written without one, and a sentence says so.
    """
    steps = unit.run("slower", prompt, max_new_tokens=tokens, min_new_tokens=tokens)
    with ExitStack() as stack:
        thieves = {}
        if unit.mode != "dry":
            try:
                thieves, _ = stack.enter_context(beside(unit.lm.device, kind))
            except NoThief as none:
                print(none)
        for i, stamped in enumerate(steps, 1):
            yield stamped
            if thieves and i == tokens // 2:
                thieves[kind].go()
