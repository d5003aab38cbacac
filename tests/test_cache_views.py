"""Unit 03's views: folds fed with made-up points, checked against arithmetic done by hand, and what they plan against what is run."""

from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace

import pytest

from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device, step_cost
from tokenpace.measure.roof import Band
from tokenpace.run import Row, Step
from tokenpace.show.cache import WithAndWithout, compare, texts
from tokenpace.show.live import watch
from tokenpace.show.widths import Widths, passes, widths

CONFIG = ModelConfig(vocab_size=100, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_head=8, d_ff=64)
HERE = Device("here", bandwidth=1e6, flops=1e9)
price = partial(step_cost, CONFIG, number=2)

# with and without a cache --------------------------------------------------------------------------------------

P, N = 6, 5
PLAN = {
    "with a cache": [Step((Row(0, "prefill", 0, P),)), *(Step((Row(0, "decode", P + i, 1),)) for i in range(N))],
    "without": [Step((Row(0, "prefill", 0, P + i),)) for i in range(N + 1)],
}


def told(lane, each):
    for i, planned in enumerate(PLAN[lane]):
        row = planned.rows[0]
        yield Stamped(Step((Row(0, row.phase, row.context, row.width, ((P + i, 1, True),)),)), each(i))


def compared(bandwidth=None, with_=lambda i: 0.1 if i else 0.5, without=lambda i: 0.2 + 0.1 * i, **more):
    view = WithAndWithout(PLAN, price, HERE, **more)
    roofs = iter([[1e9] * 3, [bandwidth] * 3])
    lanes = {"with a cache": told("with a cache", with_), "without": told("without", without)}
    return view, watch(view, lanes, roof=(lambda: next(roofs)) if bandwidth else None)


def test_each_token_and_all_of_them():
    view, shown = compared()
    with_, without = [0.5] + [0.1] * N, [0.2 + 0.1 * i for i in range(N + 1)]
    for lane, took in (("with a cache", with_), ("without", without)):
        assert [list(d) for d in view.lines[lane].get_data()] == [list(range(P, P + N + 1)), pytest.approx(took)]
        assert list(view.sums[lane].get_data()[1]) == pytest.approx(list(accumulate(took)))
    assert view.ttft("with a cache") == 0.5 and view.tpot("with a cache") == pytest.approx(0.1) and view.tpot("without") == pytest.approx(0.5)
    assert f"Without a cache it takes {sum(without) / sum(with_):.3g} times as long" in shown.sentence
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


def test_the_tokens_passed_are_a_line_and_a_parabola():
    view, shown = compared(1e9, guess=7)
    assert view.tokens_passed("with a cache") == P + N and view.tokens_passed("without") == sum(range(P, P + N + 1))
    assert "(you said 7)" in shown.sentence and f"{sum(range(P, P + N + 1)) / (P + N):.3g} times as many tokens" in shown.sentence
    assert "(no prediction)" in compared(1e9)[1].sentence


@pytest.mark.parametrize(
    ("slow", "why"),
    [({"with_": lambda i: 0.9 if i == 3 else 0.1}, "the passes took between"), ({"without": lambda i: 2.0 if i == 3 else 0.2 + 0.1 * i}, "beside")],
    ids=["with a cache", "without"],
)
def test_passes_that_something_slowed_judge_no_cache(slow, why):
    """Alike with a cache; without one only like those beside them: a cost that rises is no disturbance."""
    shown = compared(1e9, **slow)[1]
    assert "No verdict" in shown.sentence and why in shown.sentence and "it takes" not in shown.sentence


def test_a_comparison_cut_short_judges_no_cache():
    view = WithAndWithout(PLAN, price, HERE)
    shown = watch(view, {lane: list(told(lane, lambda i: 0.1))[:3] for lane in PLAN}, roof=lambda: [1e9])
    assert "No verdict: the run was cut short" in shown.sentence


class Opened:
    """A lesson of a small random model, as far as a comparison asks for it."""

    def __init__(self):
        import torch

        from tokenpace.load import Lm
        from tokenpace.model.transformer import Transformer

        torch.manual_seed(0)
        self.lm = Lm(Transformer(CONFIG).eval().requires_grad_(False), None, CONFIG, torch.device("cpu"), torch.float32, {})
        self.price, self.device, self.where, self.elsewhere, self.roof = price, HERE, "", (), lambda: [1e9]

    def run(self, name, prompt, **settings):
        from tokenpace.generate import prepare

        return prepare(self.lm, prompt, **settings).timed()

    def length(self, prompt):
        return len(prompt)


def test_the_plan_of_a_comparison_is_what_is_run():
    shown = compare(Opened(), [5, 9, 2], 6)
    shapes = lambda steps: [[(row.phase, row.context, row.width) for row in step.rows] for step in steps]
    assert shown.view.progress() == 1 and texts(shown, str)[0]
    for lane, points in shown.points.items():
        assert shapes(step for step, _ in points) == shapes(shown.view.plan[lane])
        assert [position for position, _ in shown.view.took[lane]] == [position for position, _ in shown.view.predicted(lane)] == list(range(3, 9))


def wrote(*lanes):
    """What `texts` says of two lanes of (token, log P), each token from a pass of its own."""
    points = {
        lane: [Stamped(Step((Row(0, "decode", 0, 1, ((i, token, True),), logprobs=(p,)),)), 0.1) for i, (token, p) in enumerate(told)]
        for lane, told in zip(PLAN, lanes)
    }
    return texts(SimpleNamespace(points=points), str)


@pytest.mark.parametrize(
    ("other", "same", "says"),
    [
        ([(5, -1.0), (9, -2.1), (7, -1.5)], True, "The same text, all 3 tokens of it; log P of a token differs by 0.1 at most"),
        (
            [(5, -1.0), (9, -2.1), (8, -1.6)],
            True,
            "The same text up to token 3: there '[7]' (log P -1.500) came with a cache and '[8]' (-1.600) without",
        ),
        ([(5, -1.0), (9, -2.1), (8, -1.8)], False, "rounding does not explain that"),
        ([(6, -1.2), (9, -2.1), (8, -1.8)], False, "up to token 1"),
        ([], False, "Only one of the texts"),
    ],
)
def test_texts_that_part_where_rounding_may_choose_are_the_same(other, same, says):
    found, told = wrote([(5, -1.0), (9, -2.0), (7, -1.5)], other)
    assert found is same and says in told


# a pass by its width -------------------------------------------------------------------------------------------

SIZES = (1, 2, 4, 8, 16)


def wide(width, seconds, phase="decode"):
    return Stamped(Step((Row(0, phase, 0, width),)), seconds)


def by_width(points, device=HERE, **more):
    view = Widths(SIZES, 2, price, device, **more)
    return view, watch(view, {"passes": points}, roof=lambda: [1e9])


def test_a_width_is_its_median_and_the_prompt_is_a_warm_up():
    view, shown = by_width([wide(16, 9.0, "prefill"), *(wide(w, s * w) for s in (0.1, 0.2) for w in SIZES)], guess=3)
    assert view.medians() == pytest.approx({w: 0.15 * w for w in SIZES}) and view.progress() == 1 and view.times(8) == pytest.approx(8)
    assert [list(d) for d in view.line.get_data()] == [list(SIZES), pytest.approx([0.15 * w for w in SIZES])]
    assert view.guessed.get_data()[1] == [pytest.approx(0.45)]
    assert "a pass over 8 tokens 1.20 s, 8 times (you said 3)" in shown.sentence


def test_the_crossing_is_where_multiplying_takes_as_long_as_reading():
    numbers, head = sum(a * b for a, b in (s for s in CONFIG.tensors.values() if len(s) == 2)), CONFIG.vocab_size * CONFIG.d_model
    attention = lambda w: 4 * CONFIG.n_layers * CONFIG.n_heads * CONFIG.d_head * w * (w + 1) / 2
    flops = lambda w: 2 * (numbers - head) * w + 2 * head + attention(w)
    kept = lambda w: 2 * (CONFIG.n_params + CONFIG.kv_numbers * w)
    view, _ = by_width([], Device("here", bandwidth=1e6, flops=5e6))
    expected = next(w for w in range(1, 1000) if flops(w) / 5e6 >= kept(w) / 1e6)
    assert view.crossing() == expected > 1
    assert view.ceilings(4) == pytest.approx({"bandwidth": kept(4) / 1e6, "compute": flops(4) / 5e6})
    assert view.crossing(Device("fast", bandwidth=1e9, flops=5e6)) == 1


def test_widths_that_something_slowed_or_cut_short_say_so():
    busy = [wide(w, 5.0 if w in (4, 8) and i == 2 else 0.1) for i in range(3) for w in SIZES]
    assert "No verdict: a tenth" in by_width(busy)[1].sentence
    assert "No verdict: the run was cut short" in by_width([wide(w, 0.1) for w in SIZES])[1].sentence
    assert by_width([])[1].sentence == "Nothing is measured yet."


def test_the_passes_have_the_widths_that_were_asked_for():
    from tokenpace.generate import prepare

    unit = Opened()
    steps = list(prepare(unit.lm, [3] * 7, decoder=passes((1, 4), 3), max_new_tokens=7, min_new_tokens=7).steps())
    assert [(s.rows[0].phase, s.rows[0].context, s.rows[0].width) for s in steps] == [("prefill", 0, 7), *[("decode", 0, 1), ("decode", 0, 4)] * 3]
    shown = widths(unit, most=16, repeats=2)
    assert shown.view.widths == (1, 2, 3, 4, 6, 8, 12, 16) and shown.view.progress() == 1
