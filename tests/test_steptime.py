"""Seconds of passes from a law that is known: the model must find it, and tell passes it has not seen.

Mutants that must die here: a fit of absolute errors; products that count scores; a kind of pass that shares the start of the other.
"""

import numpy as np
import pytest

from tokenpace.config import ModelConfig
from tokenpace.measure.steptime import fit, positive

C = ModelConfig(97, 32, 3, 4, 2, 8, 64)
SHAPES = [[(c, w)] * b for c in (10, 400, 3000) for b in (1, 2, 8, 32) for w in (1, 2, 4, 16)]


def flop(rows) -> tuple[float, float]:
    """Of products and of scores, by hand: every row's tokens times every matrix, twice; every query with every key it sees, four times."""
    matrices = 3 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 64) + 97 * 32
    products = sum(2 * matrices * w for _, w in rows)
    scores = sum(4 * 3 * 4 * 8 * (c + i + 1) for c, w in rows for i in range(w))
    return products, scores


def seconds(rows, free=6) -> float:
    """A pass that has six tokens' products for nothing."""
    products, scores = flop(rows)
    return 0.004 + 2e-5 * len(rows) + 3e-10 * max(products - free * flop([(0, 1)])[0], 0) + 2e-9 * scores


def test_a_law_of_this_kind_is_found_and_tells_other_passes():
    model = fit(C, [(rows, seconds(rows)) for rows in SHAPES[::2]])
    for rows in [*SHAPES[1::2], [(50, 1), (700, 5), (9, 3)]]:
        assert model.seconds(rows) == pytest.approx(seconds(rows), rel=1e-6)
    assert model.free == pytest.approx(6 * flop([(0, 1)])[0])


def test_passes_of_another_kind_have_a_start_and_a_pace_of_looking_of_their_own():
    wide = lambda rows: rows[0][1] > 4
    took = lambda rows: seconds(rows) + (0.01 - 1e-9 * flop(rows)[1] if wide(rows) else 0)
    model = fit(C, [(rows, took(rows)) for rows in SHAPES], wide)
    for rows in ([(1000, 3)] * 3, [(100, 10)] * 5):
        assert model.seconds(rows) == pytest.approx(took(rows), rel=1e-5)


def test_short_passes_count_as_much_as_long_ones():
    """Every pass is off by up to a tenth; the shortest, thousands of times as short, is told as well as the longest."""
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(SHAPES))
    model = fit(C, [(rows, seconds(rows) * n) for rows, n in zip(SHAPES, noise)])
    for rows in (min(SHAPES, key=seconds), max(SHAPES, key=seconds)):
        assert model.seconds(rows) == pytest.approx(seconds(rows), rel=0.08)


def test_nothing_takes_less_than_no_time():
    """Rows that make a pass faster are noise, and are left out."""
    a = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert positive(a, np.array([3.0, 2.0, 1.0])).tolist() == pytest.approx([2.0, 0.0])
    assert positive(a, np.array([1.0, 2.0, 3.0])) == pytest.approx([0.0, 1.0], abs=1e-9)
    assert positive(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([2.0, 2.0])) == pytest.approx([2.0, 0.0])


@pytest.mark.parametrize("some", [SHAPES[:5], [SHAPES[0]] * 20])
def test_too_few_shapes_are_refused(some):
    with pytest.raises(ValueError, match="six passes of different shapes"):
        fit(C, [(rows, seconds(rows)) for rows in some])
