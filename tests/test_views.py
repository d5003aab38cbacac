"""The views of units 02 and 03: folds fed with made-up points, checked against arithmetic done by hand."""

from functools import partial
from itertools import accumulate, pairwise
from math import pi, sqrt

import pytest

from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device, step_cost
from tokenpace.measure.roof import Band
from tokenpace.run import Row, Step
from tokenpace.show.cache import WithAndWithout
from tokenpace.show.distribution import Anatomy, Draws, parts
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


# 03: with and without a cache --------------------------------------------------------------------------------------

P, N = 6, 5
PLAN = {
    "with a cache": [Step((Row(0, "prefill", 0, P),)), *(Step((Row(0, "decode", P + i, 1),)) for i in range(N))],
    "without": [Step((Row(0, "prefill", 0, P + i),)) for i in range(N + 1)],
}


def told(lane, each):
    for i, planned in enumerate(PLAN[lane]):
        row = planned.rows[0]
        yield Stamped(Step((Row(0, row.phase, row.context, row.width, ((P + i, 1, True),)),)), each(i))


def compared(bandwidth=None):
    view = WithAndWithout(PLAN, price, HERE)
    roofs = iter([[1e9] * 3, [bandwidth] * 3])
    lanes = {"with a cache": told("with a cache", lambda i: 0.1 if i else 0.5), "without": told("without", lambda i: 0.2 + 0.1 * i)}
    return view, watch(view, lanes, roof=(lambda: next(roofs)) if bandwidth else None)


def test_each_token_and_all_of_them():
    view, shown = compared()
    with_, without = [0.5] + [0.1] * N, [0.2 + 0.1 * i for i in range(N + 1)]
    for lane, took in (("with a cache", with_), ("without", without)):
        assert [list(d) for d in view.lines[lane].get_data()] == [list(range(P, P + N + 1)), pytest.approx(took)]
        assert list(view.sums[lane].get_data()[1]) == pytest.approx(list(accumulate(took)))
    assert view.ttft("with a cache") == 0.5 and view.tpot("with a cache") == pytest.approx(0.1) and view.tpot("without") == pytest.approx(0.5)
    assert f"The cache makes it {sum(without) / sum(with_):.3g} times shorter" in shown.sentence
    assert "with a cache: first token 500 ms, then 100 ms each" in view.split.get_text()


def test_the_prediction_without_a_cache_is_a_parabola():
    view, _ = compared()
    compute_bound = WithAndWithout(PLAN, price, Device("slow to multiply", bandwidth=1e15, flops=1e6))
    each = [s for _, s in compute_bound.predicted("without")]
    first = [b - a for a, b in pairwise(each)]
    assert min(first) > 0  # each pass is dearer than the last, so the total bends up
    assert list(view.totals["without"].get_data()[1]) == pytest.approx(list(accumulate(price(s).seconds(HERE) for s in PLAN["without"])))


def test_a_roof_that_moved_judges_no_cache():
    view, shown = compared(bandwidth=2e9)
    assert "No verdict" in shown.sentence and view.band == Band(1e9, 2e9, False)
    assert "predicted" in compared(bandwidth=1e9)[1].sentence


def test_chunks_of_a_prompt_are_part_of_its_first_token():
    view = WithAndWithout(PLAN, price, HERE)
    watch(view, {"with a cache": [Stamped(Step((Row(0, "prefill", 0, 4),)), 0.3), Stamped(Step((Row(0, "prefill", 4, 2, ((6, 1, True),)),)), 0.2)]})
    assert view.took["with a cache"] == [(6, 0.5)] and view.tpot("with a cache") is None


def test_nothing_measured_is_said():
    assert watch(WithAndWithout(PLAN, price, HERE), {}).sentence == "Nothing is measured yet."
