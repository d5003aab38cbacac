"""The claims of a decoder you can read: what a pass consists of, counted; and that drawn tokens follow the law that the sampler states."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi, sqrt

from ..show.live import Shown
from ..show.plots import bytes_
from .verdict import Judgement, judged, unknown

NEARLY = 0.9  # of all bytes
ALARM = 1e-3  # how often draws that do follow the law are said not to
BLUNT = 0.25  # total variation: if only more than that could be noticed, nothing is said
EARLY = 16  # times fewer draws, at which the distance is looked at too


def weights(parts: Mapping[str, tuple[int, float, float]]) -> Judgement:
    """A decode pass by part, as show.anatomy.parts counts it: (products, bytes, FLOP), keys and values under "scores".

    Holds if NEARLY (0.9) of the bytes or more are weights, and half of these or more the feed-forward's and the head's.
    """
    read = {part: taken[1] for part, taken in parts.items()}
    total, model = sum(read.values()), sum(read.values()) - read["scores"]
    two = read["mlp"] + read["head"]
    return judged(
        model >= NEARLY * total and two >= model / 2,
        f"A pass for one token reads {bytes_(total)}: {model / total:.1%} are weights, the feed-forward has {read['mlp'] / model:.0%} of these, "
        f"the head {read['head'] / model:.0%}.",
        bytes=total,
        weights=model / total,
        mlp=read["mlp"] / model,
        head=read["head"] / model,
    )


def law(shown: Shown) -> Judgement:
    """The draws of show.distribution.Draws: the total variation between what was drawn and the law, after all draws and after an EARLY part of them.

    Draws from the law lie by more than `allowed` from it once in a thousand times (ALARM), whatever the law; allowed falls like one over the
    square root of the draws. Holds if neither distance is beyond. Not judged if the run was cut, the law leaves one token,
    or a distance below BLUNT (0.25) could not be noticed.
    """
    view = shown.view
    if view.progress() < 1:
        return unknown(f"{view.n:,} of {view.planned:,} draws were made; run it again")
    if len(view.support) < 2:
        return unknown("the sampler leaves one token, so nothing is drawn; choose a higher temperature")
    early, at_first = next((n, distance) for n, distance in view.distances if EARLY * n >= view.n)
    distance, most = view.distance(), allowed(view.expected(view.n), view.n)
    if most > BLUNT:
        return unknown(f"{view.n:,} draws can't tell a total variation of {most:.2g} from chance; draw more")
    return judged(
        distance <= most and at_first <= allowed(view.expected(early), early),
        f"Total variation to the law {at_first:.3f} after {early:,} draws and {distance:.3f} after {view.n:,}; exact draws would on average leave "
        f"{view.expected(early):.3f} and {view.expected(view.n):.3f}, and more than {most:.3f} in the end once in {1 / ALARM:,.0f} runs.",
        draws=view.n,
        distance=distance,
        early=at_first,
        expected=view.expected(view.n),
        allowed=most,
    )


def allowed(expected: float, draws: int) -> float:
    """The total variation that `draws` exact draws exceed less often than ALARM.

    Its mean is at most √(π/2) times `expected`, which takes each count as normal (Jensen's inequality: E|X| ≤ √E X²). One draw more or less
    moves it by 1/draws at most, so it exceeds its mean by √(ln(1/ALARM) / 2 draws) less often than ALARM (McDiarmid 1989, *On the method of
    bounded differences*, lemma 1.2).

    >>> round(allowed(0.01, 10_000), 3)
    0.031
    """
    return min(1.0, sqrt(pi / 2) * expected + sqrt(log(1 / ALARM) / (2 * draws)))
