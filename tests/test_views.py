"""The views of unit 02: folds fed with made-up points, checked against arithmetic done by hand."""

from functools import partial
from math import pi, sqrt

import pytest

from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device, step_cost
from tokenpace.run import Row, Step
from tokenpace.show.anatomy import Anatomy, parts
from tokenpace.show.distribution import Draws
from tokenpace.show.live import watch

CONFIG = ModelConfig(vocab_size=100, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_head=8, d_ff=64)
HERE = Device("here", bandwidth=1e6, flops=1e9)
price = partial(step_cost, CONFIG, number=2)

# 02: a distribution, a pass ----------------------------------------------------------------------------------------

LAW = [0.5, 0.3, 0.2, 0.0]


def step(*tokens):
    return Stamped(Step(tuple(Row(i, "prefill", 0, 3, ((3, t, True),)) for i, t in enumerate(tokens))), 0.1)


def draws(points, planned=10):
    view = Draws([0.4, 0.3, 0.2, 0.1], LAW, "abcd".__getitem__, planned, "top-k 3")
    return view, watch(view, {"draws": points})


def test_the_histogram_is_the_counts():
    view, shown = draws([step(0, 0, 1), step(2, 0)])
    assert view.counts == {0: 3, 1: 1, 2: 1} and list(view.drawn.get_ydata()) == [0.6, 0.2, 0.2, 0.0]
    assert view.distances == [(3, pytest.approx(0.2)), (5, pytest.approx(0.1))]
    assert "leaves 3 of 4 tokens. After 5 draws the total variation to that law is 0.100" in shown.sentence and view.progress() == 0.5


def test_a_token_outside_the_law_counts_as_distance():
    view, _ = draws([step(3, 3)])
    assert view.distance() == pytest.approx(1.0)


def test_draws_that_follow_the_law_exactly_have_no_distance():
    view, _ = draws([step(*[0] * 5, *[1] * 3, *[2] * 2)])
    assert view.distance() == pytest.approx(0.0)


def test_the_expected_distance_is_that_of_a_simulation():
    import numpy as np

    view, _ = draws([])
    counts = np.random.default_rng(1).multinomial(400, LAW, size=4000) / 400
    assert view.expected(400) == pytest.approx(0.5 * np.abs(counts - LAW).sum(1).mean(), rel=0.03)
    assert view.expected(400) == pytest.approx(0.5 * sum(sqrt(2 * p * (1 - p) / (pi * 400)) for p in LAW))


def test_rows_that_write_nothing_are_no_draws():
    view, shown = draws([Stamped(Step((Row(0, "prefill", 0, 3),)), 0.1)])
    assert view.n == 0 and shown.sentence == "Nothing is drawn yet."


@pytest.mark.parametrize("tied", [True, False])
def test_the_parts_of_a_pass_are_the_whole(tied):
    config = ModelConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__}, "tied": tied})
    taken, whole = parts(config, 50), step_cost(config, Step((Row(0, "decode", 50, 1),)), 2)
    assert sum(read for _, read, _ in taken.values()) == pytest.approx(whole.bytes) and sum(flops for _, _, flops in taken.values()) == pytest.approx(
        whole.total_flops
    )
    assert {part: products for part, (products, _, _) in taken.items() if products} == {"attention": 6, "mlp": 6, "scores": 6, "head": 1}


def test_the_anatomy_draws_seconds_at_the_ceilings():
    view = Anatomy(CONFIG, HERE, context=50)
    shown = watch(view, {})
    taken = parts(CONFIG, 50)
    assert sorted(bar.get_width() for bar in view.memory) == pytest.approx(sorted(read / 1e6 for _, read, _ in taken.values()))
    assert sorted(bar.get_width() for bar in view.compute) == pytest.approx(sorted(flops / 1e9 for _, _, flops in taken.values()))
    assert "mlp is" in shown.sentence
