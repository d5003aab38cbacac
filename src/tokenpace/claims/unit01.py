"""The claims of one token at a time: on probabilities, then on the race between scoring a text and writing it (show/race.py).

Shares and counts of a model are judged narrowly, seconds widely: a machine has other things to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf, isfinite
from statistics import mean, median

from ..measure.roof import STEADY
from ..show.live import Shown
from ..show.plots import bytes_, seconds
from .runs import doubt, kept, passes
from .verdict import Judgement, judged, unknown

FEW = 16  # tokens, below which halves and averages say little
ROUNDING = 0.1  # nats: probabilities that differ by a tenth on average are no longer the same numbers
MORE = 3  # times the rounding: what a swapped token must do to those after it
BENT = 1.5  # times: how much longer the passes of one half may take than those of the other
OFF = 0.1  # of the whole latency: how far it may stray from a straight line
BOUGHT = 0.05  # of a predicted clock: what infinitely fast arithmetic may take from a floor that it doesn't remove
NEAR = 1.25  # times: two numbers that ought to be the same
WASTED = 2  # times: how much longer a token must take where it has a pass to itself


def product(written: Sequence[float], scored: Sequence[float], rescored: Sequence[float], at: int) -> Judgement:
    """log P [nat] of each token: as it was written, a pass for each; scored in one pass; scored in one after token `at` was swapped.

    Holds if written and scored differ by ROUNDING (0.1) or less on average, none before `at` moved by more than the largest of these
    differences, and more than half of those after it moved, on average MORE (3) times as far as rounding moves them.
    """
    if not len(written) == len(scored) == len(rescored) or len(scored) < max(FEW, at + 3):
        return unknown(f"{len(written)} tokens were written, {len(scored)} scored, {len(rescored)} scored again; run the cells in order")
    if not all(map(isfinite, [*written, *scored, *rescored])):
        return unknown("a log P is not finite; run the cells in order")
    gaps = [abs(a - b) for a, b in zip(written, scored)]
    moved = [abs(a - b) for a, b in zip(scored, rescored)]
    before, after = sum(m > max(gaps) for m in moved[:at]), sum(m > 0 for m in moved[at + 1 :])
    rest, gap, move = len(moved) - at - 1, mean(gaps), mean(moved[at + 1 :])
    return judged(
        gap <= ROUNDING and not before and after > rest / 2 and move > MORE * gap,
        f"log P of {len(scored)} tokens is {sum(written):.2f} as they were written, {sum(scored):.2f} as they were scored, {gap:.2g} apart for each; "
        f"with one token swapped {before} of the {at} before it moved and {after} of the {rest} after it, by {move:.2g} on average.",
        written=sum(written),
        scored=sum(scored),
        gap=gap,
        before=before,
        after=after,
        moved=move,
    )


def linear(shown: Shown) -> Judgement:
    """Latency against tokens of the lane "write": the median pass of its halves, and how far the sum strays from a straight line.

    Holds if the halves are within BENT (1.5) times and the line within OFF (0.1) of the whole. Beside it stands what the bytes say.
    """
    run = passes(shown, "write")
    took = [spent for _, spent in run]
    if why := doubt(shown, *took):
        return unknown(why)
    if len(run) < FEW:
        return unknown(f"{len(run)} passes are too few to tell a line from a curve; write {FEW} or more tokens")
    half = len(run) // 2
    first, second = median(took[:half]), median(took[-half:])
    read = [shown.view.cost(step).bytes for step, _ in run]
    grown = sum(read[-half:]) / sum(read[:half])
    tokens, spent = list(accumulate(kept(step) for step, _ in run)), list(accumulate(took))
    off = max(abs(s / spent[-1] - t / tokens[-1]) for s, t in zip(spent, tokens))
    return judged(
        1 / BENT <= second / first <= BENT and off <= OFF,
        f"{tokens[-1]} tokens, median pass {seconds(first)} in the first half and {seconds(second)} in the second "
        f"({second / first:.2f} times, by its bytes {grown:.2f}); the latency strays from a straight line by {off:.1%} of it at most.",
        tokens=tokens[-1],
        first=first,
        second=second,
        bytes_grown=grown,
        off=off,
    )


def floor(shown: Shown) -> Judgement:
    """The predicted clocks of both lanes, on this device and on the same with infinitely fast arithmetic.

    Holds if that takes BOUGHT (5 %) or less from writing, and the floors of the lanes are to each other as their passes, within NEAR (1.25) times.
    A floor that was undercut by a tenth, under the highest roof of the run, judges nothing: the probe was disturbed, or a cache held the weights.
    """
    runs = {lane: passes(shown, lane) for lane in ("score", "write")}
    if why := doubt(shown, *(spent for _, spent in runs["write"])):
        return unknown(why)
    here, lowest = ({lane: _clock(shown, run, device) for lane, run in runs.items()} for device in _devices(shown.view.device))
    least = _clock(shown, runs["write"], replace(shown.view.device, bandwidth=shown.band.high, flops=inf))
    took, n = sum(spent for _, spent in runs["write"]), {lane: len(run) for lane, run in runs.items()}
    if took < 0.9 * least:
        return unknown(f"writing took {seconds(took)}, less than the predicted floor of {seconds(least)}: run the first cell again")
    bought = {lane: 1 - lowest[lane] / here[lane] for lane in runs}
    ratio = (lowest["write"] / lowest["score"]) / (n["write"] / n["score"])
    return judged(
        bought["write"] <= BOUGHT and 1 / NEAR <= ratio <= NEAR,
        f"Predicted: infinitely fast arithmetic takes {bought['write']:.0%} from {n['write']} passes that write ({seconds(here['write'])}) "
        f"and {bought['score']:.0%} from {n['score']} that scores as many tokens ({seconds(here['score'])}); "
        f"the floors that are left are as {lowest['write'] / lowest['score']:.3g} to 1, and writing took {seconds(took)}.",
        passes=n["write"],
        predicted=here["write"],
        floor=lowest["write"],
        scoring_predicted=here["score"],
        scoring_floor=lowest["score"],
        measured=took,
    )


def _devices(device):
    return device, replace(device, flops=inf)


def _clock(shown: Shown, run, device) -> float:
    return sum(shown.view.cost(step).seconds(device) for step, _ in run)


def again(shown: Shown) -> Judgement:
    """The odometer: weights that the passes of "write" read, against as many readings of the whole model (that of "score") as there are tokens.

    Holds if they agree within a twentieth and were not faster than the roof (by STEADY, 1.2 times, or more): bytes that come faster than memory
    gives them didn't come from memory, so some of the weights had stayed in a cache.
    """
    run, whole = passes(shown, "write"), passes(shown, "score")
    if why := doubt(shown, *(spent for _, spent in run)):
        return unknown(why)
    model = shown.view.cost(whole[0].step).weight_bytes
    read, tokens, took = (sum(x) for x in zip(*((shown.view.cost(step).weight_bytes, kept(step), spent) for step, spent in run)))
    rate, turns = read / took, read / model
    return judged(
        abs(turns / tokens - 1) <= 0.05 and rate <= STEADY * shown.band.high,
        f"{bytes_(read)} of weights for {tokens} tokens, {turns:.3g} times the {bytes_(model)} that scoring them at once reads; "
        f"they came at {rate / 1e9:.3g} GB/s, and memory gave up to {shown.band.high / 1e9:.3g}.",
        read=read,
        model=model,
        tokens=tokens,
        rate=rate,
        roof=shown.band.high,
    )


def two_factors(shown: Shown) -> Judgement:
    """pace = cost of a pass ÷ tokens kept per pass, with the median pass for its cost, on both lanes of the race; and what it costs to have
    a pass for each token, the arithmetic being the same.

    Holds if the equation gives the measured pace within NEAR (1.25) times, the FLOP of the lanes are within NEAR, and writing, with fewer tokens
    per pass, takes WASTED (2) or more times as long for each: what a pass costs is then not its share of the arithmetic. Whether it is memory
    traffic only an intervention can say.
    """
    runs = {lane: passes(shown, lane) for lane in ("score", "write")}
    if why := doubt(shown, *(spent for _, spent in runs["write"])):
        return unknown(why)
    cost = {lane: median(spent for _, spent in run) for lane, run in runs.items()}
    tokens = {lane: sum(kept(step) for step, _ in run) for lane, run in runs.items()}
    each = {lane: tokens[lane] / len(run) for lane, run in runs.items()}
    pace = {lane: sum(spent for _, spent in run) / tokens[lane] for lane, run in runs.items()}
    flops = {lane: sum(shown.view.cost(step).total_flops for step, _ in run) for lane, run in runs.items()}
    said = {lane: cost[lane] / each[lane] for lane in runs}
    times = pace["write"] / pace["score"]
    fits = all(1 / NEAR <= pace[lane] / said[lane] <= NEAR for lane in runs) and 1 / NEAR <= flops["write"] / flops["score"] <= NEAR
    return judged(
        fits and each["write"] < each["score"] and times >= WASTED,
        "; ".join(
            f"{does}: {seconds(cost[lane])} ÷ {each[lane]:.3g} = {seconds(said[lane])} a token (measured {seconds(pace[lane])})"
            for does, lane in (("written", "write"), ("scored", "score"))
        )
        + f"; {times:.3g} times as long for the same arithmetic.",
        write_pass=cost["write"],
        score_pass=cost["score"],
        write_pace=pace["write"],
        score_pace=pace["score"],
        times=times,
    )
