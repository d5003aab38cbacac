"""The cache's claim: what is computed again and again grows with the square of the text, and with a cache it doesn't."""

from __future__ import annotations

from math import log
from statistics import median
from typing import NamedTuple

from ..measure.cost import Cost
from ..show.cache import stretched
from ..show.live import Shown
from ..show.plots import seconds
from .runs import doubt
from .verdict import Judgement, holds_if, judged, unknown

WITH, WITHOUT = "with a cache", "without"
POWERS = {WITHOUT: (2, 3), WITH: (1, 2)}  # of the length, by which all matrix products and all of attention grow
NEAR = 0.25  # how far a power may be from these: N (N + 1) / 2 is not quite N²
FEW = 16  # tokens of each lane
SPREAD = 2  # times: how much longer the context must be at the end, to tell powers apart
GREW = 1.3  # times: by how much the seconds of a pass must grow more without a cache than with one


class Written(NamedTuple):
    position: int
    cost: Cost  # of the passes that led to this token
    seconds: float


def quadratic(shown: Shown) -> Judgement:
    """The lanes of show.cache.WithAndWithout: the FLOP of each token against its position, and the seconds beside them.

    The powers of all tokens' FLOP are one more than those of each token's, from its second token to its last. Holds if all four are within
    NEAR (0.25) of POWERS, and a pass of the last quarter took GREW (1.3) times as much longer than one of the first without a cache as with one.
    If the FLOP grow and the seconds don't, it holds if the text is long enough.
    """
    run = {lane: written(shown, lane) for lane in POWERS}
    if why := doubt(shown, *(token.seconds for token in run[WITH][1:])):
        return unknown(why)
    if stretched(shown.view.beside(WITHOUT)):
        return unknown("a tenth of the passes without a cache took more than twice as long as those beside them; run it again")
    if any(len(tokens) < FEW or tokens[-1].position < SPREAD * tokens[1].position for tokens in run.values()):
        return unknown("the texts are too short to tell how cost grows with length; write more tokens after a shorter prompt")
    powers = {lane: tuple(1 + power for power in _powers(tokens[1], tokens[-1])) for lane, tokens in run.items()}
    grew = {lane: _grew([token.seconds for token in tokens[1:]]) for lane, tokens in run.items()}
    total = {lane: sum(token.seconds for token in tokens) for lane, tokens in run.items()}
    figures = (
        "; ".join(
            f"{lane}: matrix products like N^{powers[lane][0]:.1f}, attention like N^{powers[lane][1]:.1f}, "
            f"a pass grew {grew[lane]:.3g} times from the first to the last quarter, {seconds(total[lane])} in all"
            for lane in POWERS
        )
        + f"; N = {run[WITH][-1].position} tokens."
    )
    numbers = {f"{lane}, {what}": value for lane in POWERS for what, value in zip(("products", "attention"), powers[lane])}
    numbers |= {f"{lane}, {what}": of[lane] for lane in POWERS for what, of in (("grew", grew), ("seconds", total))}
    if not all(abs(found - want) <= NEAR for lane in POWERS for found, want in zip(powers[lane], POWERS[lane])):
        return judged(False, figures, **numbers)
    if grew[WITHOUT] < GREW * grew[WITH]:
        return holds_if("the text is so long that its arithmetic takes longer than what every pass takes", figures, **numbers)
    return judged(True, figures, **numbers)


def written(shown: Shown, lane: str) -> list[Written]:
    """Each token of a lane; a pass that writes nothing (a chunk of a prompt) belongs to the token that it leads to."""
    found, cost, spent = [], Cost(), 0.0
    for step, took in shown.points.get(lane, ()):
        cost, spent = cost + shown.view.cost(step), spent + took
        positions = [position for row in step.rows for position, _, stayed in row.writes if stayed]
        if positions:
            found.append(Written(max(positions), cost, spent))
            cost, spent = Cost(), 0.0
    return found


def _powers(first: Written, last: Written) -> tuple[float, float]:
    """By which power of its position a token's matrix products and its attention grow."""
    length = log(last.position / first.position)
    products, scores = ([sum(token.cost.flops[part] for part in parts) for token in (first, last)] for parts in (("attention", "mlp"), ("scores",)))
    return log(products[1] / products[0]) / length, log(scores[1] / scores[0]) / length


def _grew(took: list[float]) -> float:
    quarter = max(len(took) // 4, 1)
    return median(took[-quarter:]) / median(took[:quarter])
