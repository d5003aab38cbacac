"""The instrument's claims: memory is slower than the caches before it, and a pass slows as memory does."""

from __future__ import annotations

from ..measure.intervention import BOUND, UNKNOWN, Verdict
from ..measure.roof import OUTSIDE, Point, Roof
from ..show.live import Shown
from ..show.plots import bytes_
from .verdict import Judgement, holds_if, judged, unknown

FASTER = 1.5  # times: what a cache must at least give over memory to be seen
WIDE = 0.5  # spread of a point above which it is no point


def hierarchy(roof: Roof) -> Judgement:
    """Reads of a buffer within half the last-level cache, against those of a buffer OUTSIDE (4) times as large as it, by as many threads.

    Holds from FASTER (1.5) times on. Not judged where a size is missing or spreads WIDE, nor on a GPU, where a read that fits the cache
    is over before the next is launched.
    """
    if roof.machine["device"] != "cpu":
        return unknown("on a GPU a read that fits the cache is over before the next is launched, so these reads can't show it")
    cache, source = roof.machine["last_level_cache"]["bytes"], roof.machine["last_level_cache"]["source"]
    pair = _pair([p for p in roof.seen("read") if p.spread <= WIDE], cache)
    if pair is None:
        return unknown(f"no steady reads both of {bytes_(cache / 2)} or less and of {bytes_(OUTSIDE * cache)} or more; probe again, for longer")
    inside, outside = pair
    times = inside.rate / outside.rate
    return judged(
        times >= FASTER,
        f"{bytes_(inside.task.size)} were read at {inside.rate / 1e9:.0f} GB/s, {bytes_(outside.task.size)} at {outside.rate / 1e9:.0f} GB/s: "
        f"{times:.2g} times as fast within the last-level cache of {bytes_(cache)}{' (assumed)' if source == 'assumed' else ''}.",
        inside=inside.rate,
        outside=outside.rate,
        times=times,
        cache=cache,
    )


def _pair(points: list[Point], cache: float) -> tuple[Point, Point] | None:
    """The fastest point within the cache and the largest outside of it, with the most threads that have both."""
    for threads in sorted({p.task.threads for p in points}, reverse=True):
        mine = [p for p in points if p.task.threads == threads]
        inside, outside = [p for p in mine if p.task.size <= cache / 2], [p for p in mine if p.task.size >= OUTSIDE * cache]
        if inside and outside:
            return max(inside, key=lambda p: p.rate), max(outside, key=lambda p: p.task.size)
    return None


def bandwidth(shown: Shown) -> Judgement:
    """The thieves' verdicts (show.theft.steal), one for each kind of kernels that the pass ran on; measure.intervention says how they are reached.

    Holds if the pass is bound by bandwidth on all of them; "holds if" names those on which it is, where it isn't, or isn't known to be, on others.
    Bound in part is not bound.
    """
    verdicts: dict[str, Verdict] = shown.view.verdicts
    known = {name: one for name, one in verdicts.items() if one.word != UNKNOWN}
    bound = [name for name, one in verdicts.items() if one.word == BOUND]
    if (not bound and len(known) < len(verdicts)) or not verdicts:
        return unknown(shown.note or "; ".join(f"{name} kernels: {one.why}" for name, one in verdicts.items() if one.why) or "no pass was measured")
    figures = "; ".join(_told(name, one) for name, one in verdicts.items()) + "."
    numbers = {f"{name}, {what}": getattr(one, what) for name, one in known.items() for what in ("roof", "memory", "compute", "rounds")}
    if bound and len(bound) < len(verdicts):
        return holds_if(f"the pass runs on {' or '.join(bound)} kernels", figures, **numbers)
    return judged(bool(bound), figures, **numbers)


def _told(name: str, one: Verdict) -> str:
    if one.word == UNKNOWN:
        return f"{name} kernels: {one.word}, {one.why}"
    return (
        f"{name} kernels: {one.word}; a thief of bandwidth slowed reading by {one.roof:.0%} and the pass by {one.memory:.0%}, "
        f"a thief of a core the pass by {one.compute:.0%} ({one.rounds} rounds)"
    )
