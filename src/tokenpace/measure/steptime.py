"""How long a pass will take here. `cost` knows the least that a roof allows; who plans passes (a server, a drafter's length) wants what they take.

A few passes are measured, and their seconds fitted by what the shapes say of them:

    seconds = start + row · rows + flop · max(FLOP of products - free, 0) + look · FLOP of scores

`start` holds the reading of the weights, and with it come the first products for nothing: `free` of them, the knee of the roofline. Passes that the
kernels run in another way (tiled models: many tokens far into a text go from block to block) have a start and a pace of looking of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..config import ModelConfig
from .cost import cost

Rows = Sequence[tuple[int, int]]  # (context, width) of each row of a pass
KNEES = 64  # tokens, up to which the knee is looked for


@dataclass(frozen=True)
class StepTime:
    """Seconds of a pass of one model on one machine."""

    config: ModelConfig
    other: Callable[[Rows], bool]  # is this a pass of the other kind?
    free: float  # FLOP of products
    weights: tuple[float, ...]  # seconds for each number that `about` tells

    def about(self, rows: Rows) -> list[float]:
        return about(self.config, rows, self.free, self.other)

    def seconds(self, rows: Rows) -> float:
        """Of a pass whose rows have (context, width): tokens cached, tokens in flight, the logits of all of which are read."""
        return float(np.dot(self.about(rows), self.weights))


def products(config: ModelConfig, rows: Rows) -> float:
    """FLOP of the products with weights."""
    found = cost(config, list(rows), read=sum(width for _, width in rows))
    return found.total_flops - found.flops["scores"]


def about(config: ModelConfig, rows: Rows, free: float, other: Callable[[Rows], bool]) -> list[float]:
    """What seconds are made of: 1, rows, FLOP beyond the free ones, FLOP of scores; then 1 and FLOP of scores again, for the other kind."""
    scores, apart = cost(config, list(rows)).flops["scores"], other(rows)
    return [1.0, len(rows), max(products(config, rows) - free, 0.0), scores * (not apart), float(apart), scores * apart]


def fit(config: ModelConfig, measured: Iterable[tuple[Rows, float]], other: Callable[[Rows], bool] = lambda rows: False) -> StepTime:
    """From measured passes (rows, seconds): the numbers whose largest share of error is least in the square, none of them negative.

    ValueError for fewer than six passes, or such as are all alike.

    >>> from ..config import preset
    >>> config = preset("smollm2-135m")
    >>> some = [([(c, w)] * b, 0.01 + 1e-4 * c * b * w / 500 + 1e-3 * max(b * w - 4, 0)) for b in (1, 8, 32) for w in (1, 8) for c in (100, 2000)]
    >>> round(fit(config, some).seconds([(1000, 2)] * 16), 3)
    0.044
    """
    measured = [(list(rows), seconds) for rows, seconds in measured]
    if len(measured) < 6 or len({str(rows) for rows, _ in measured}) < 6:
        raise ValueError("six passes of different shapes are the least that tells a start, a knee and slopes: measure more")
    took, best = np.array([seconds for _, seconds in measured]), None
    for tokens in range(KNEES):
        free = products(config, [(0, tokens)]) if tokens else 0.0
        numbers = np.array([about(config, rows, free, other) for rows, _ in measured])
        weights = positive(numbers / took[:, None], np.ones(len(took)))
        error = float(np.square(numbers @ weights / took - 1).sum())
        if best is None or error < best[0]:
            best = error, free, tuple(weights)
    return StepTime(config, other, *best[1:])


def positive(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x ≥ 0 for which |a·x - b|² is small: least squares without the columns that would count negative, which go one after the other, worst first."""
    scale = np.linalg.norm(a, axis=0)
    used = scale > 0
    while True:
        x = np.zeros(a.shape[1])
        x[used] = np.linalg.lstsq(a[:, used] / scale[used], b, rcond=None)[0] / scale[used]
        if (x >= 0).all():
            return x
        used = used & (np.arange(len(x)) != np.argmin(x * scale))
