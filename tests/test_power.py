"""Unit 07's views and its judge: folds fed with made-up passes, checked against arithmetic done by hand, and what is planned against what is run."""

from functools import partial

import pytest

from tokenpace.claims import unit07
from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device, step_cost
from tokenpace.measure.counters import Counter, nothing
from tokenpace.measure.energy import Metered
from tokenpace.measure.price import foretold
from tokenpace.run import Row, Step
from tokenpace.show.live import watch
from tokenpace.show.plots import joules_
from tokenpace.show.power import Phases, phases
from tokenpace.show.price import Prices, listed, prices

CONFIG = ModelConfig(vocab_size=100, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_head=8, d_ff=64)
HERE = Device("here", bandwidth=1e6, flops=1e9)
price = partial(step_cost, CONFIG, number=2)
RAPL, NONE = Counter("a script", 0.001), nothing("a fuse is blown")
P, N = 10, 6


def prompts(n, seconds, watts=None):
    return counted(Step(tuple(Row(i, "prefill", 0, P, ((P, 1, True),)) for i in range(n))), seconds, watts)


def written(n, seconds, watts=None, i=0):
    return counted(Step(tuple(Row(r, "decode", P + i, 1, ((P + i + 1, 1, True),)) for r in range(n))), seconds, watts)


def counted(step, seconds, watts):
    return Stamped(step, seconds) if watts is None else Metered(step, seconds, seconds * watts)


def steady():
    return [1e9]


# one text ------------------------------------------------------------------------------------------------------------


def answer(first=80.0, rest=50.0, each=0.1):
    return [prompts(1, 0.5, first), *(written(1, each, rest, i) for i in range(N - 1))]


def seen(points, counter=RAPL, idle=20.0, roof=steady, **more):
    view = Phases(price, HERE, N, counter, idle, where="a laptop", **more)
    return view, watch(view, {"answer": points}, roof=roof)


def test_seconds_bytes_and_joules_of_a_token():
    view, shown = seen(answer(), guess=3)
    moved = [price(step).bytes for step, _ in answer()]
    assert [bar.get_width() for bar in view.bars["seconds"]] == pytest.approx([0.05, 0.1])
    assert [bar.get_width() for bar in view.bars["bytes"]] == pytest.approx([moved[0] / P, sum(moved[1:]) / (N - 1)])
    assert [bar.get_width() for bar in view.bars["joules"]] == pytest.approx([4.0, 5.0])
    assert "An output token took 2 times as long (you said 3)" in shown.sentence and "4.00 J for an input token, 5.00 J" in shown.sentence
    assert "1.25 times as many; above idle (20 W) 3.00 J, 3.00 J" in shown.sentence and shown.sentence.endswith("[a laptop]")


def test_seconds_are_predicted_here_and_elsewhere():
    there = Device("a card", bandwidth=1e9, flops=1e6)
    view, shown = seen(answer(), elsewhere=(there,))
    costs = [price(step) for step, _ in answer()]
    due = {d: (costs[0].seconds(d) / P, sorted(c.seconds(d) for c in costs[1:])[(N - 1) // 2]) for d in (HERE, there)}
    assert [list(d) for d in view.ahead.get_data()] == [pytest.approx(list(due[HERE])), [1, 0]]
    for device, place in ((HERE, "here"), (there, "on a card")):
        assert f"{due[device][1] / due[device][0]:.3g} times {place}" in shown.sentence


def test_power_over_time_is_drawn_in_both_phases():
    view, _ = seen(answer())
    lines = {line.get_label(): line.get_data() for line in view.ax["power"].lines if line.get_gid() == "span"}
    prefill, decode = lines["prefill: the prompt is passed"], lines["decode: a pass for each token"]
    assert (list(prefill[0][:2]), list(prefill[1][:2])) == ([0.0, 0.5], [80.0, 80.0])
    assert decode[0][0] == 0.5 and max(decode[0]) == pytest.approx(0.5 + 0.1 * (N - 1)) and decode[1][0] == pytest.approx(50.0)
    (rest,) = (line for line in view.ax["power"].lines if line.get_label().startswith("idle"))
    assert rest.get_ydata()[0] == 20.0


def test_where_nothing_can_be_read_the_picture_says_so_and_shows_the_rest():
    view, shown = seen([Stamped(*one) for one in answer()], NONE, None)
    assert "Joules are not readable here: a fuse is blown." in shown.sentence and "took 2 times as long (no prediction)" in shown.sentence
    top = view.ax["power"]
    assert top.get_title(loc="left") == "Power: not readable here" and "a fuse is blown" in [text.get_text() for text in top.texts]
    assert [label.get_text() for label in view.texts["joules"]] == [" not readable here"] * 2
    blocks = {c.get_label(): [(min(p.vertices[:, 0]), max(p.vertices[:, 0])) for p in c.get_paths()] for c in top.collections}
    assert blocks["prefill: the prompt is passed"] == [(0.0, 0.5)]
    assert len(blocks["decode: a pass for each token"]) == N - 1 and blocks["decode: a pass for each token"][0] == pytest.approx((0.5, 0.6))
    assert [bar.get_width() for bar in view.bars["seconds"]] == pytest.approx([0.05, 0.1])


def test_drawing_again_leaves_one_picture():
    view, _ = seen(answer())
    before = len(view.ax["power"].lines)
    view.draw()
    assert len(view.ax["power"].lines) == before


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (answer()[:3], "the run was cut short"),
        ([*answer()[:-1], written(1, 1.0, 50.0)], "the passes took between"),
        ([], "Nothing is measured yet."),
        (answer()[:1], "10 input tokens in 500 ms"),
    ],
)
def test_what_judges_nothing(points, why):
    sentence = seen(points)[1].sentence
    assert why in sentence and "times as long" not in sentence


def test_without_idle_power_there_is_nothing_above_it():
    assert "above idle" not in seen(answer(), idle=None)[1].sentence
    assert "not counted in every pass" in seen([*answer()[:-1], written(1, 0.1)])[1].sentence


@pytest.mark.parametrize(("value", "text"), [(1.0, "1.00 J"), (250.0, "250 J"), (-0.002, "-2.00 mJ"), (None, "not readable here")])
def test_joules_in_words(value, text):
    assert joules_(value) == text


# by how many texts share a pass --------------------------------------------------------------------------------------

BATCHES = (1, 2, 4, 8)


def batch(b, alone=0.8, more=0.1, watts=None):
    """An input token takes 0.05 s; a pass of writing takes `alone`, and `more` for each further text."""
    return [prompts(b, 0.05 * P * b, watts), *(written(b, alone + more * (b - 1), watts, i) for i in range(N - 1))] * 2


def shared(counter=NONE, watts=None, batches=BATCHES, roof=steady, alone=0.8, more=0.1, **about):
    view = Prices(price, CONFIG, 2.0, HERE, counter, batches, P, N, 2, where="a laptop", **about)
    return view, watch(view, {str(b): batch(b, alone, more, watts) for b in batches}, roof=roof)


def test_the_ratio_by_seconds():
    view, shown = shared(listed=3.0, guess=5)
    due = {b: (0.8 + 0.1 * (b - 1)) / b / 0.05 for b in BATCHES}
    assert view.ratios() == pytest.approx(due) and view.progress() == 1
    assert [list(d) for d in view.measured.get_data()] == [list(due), pytest.approx(list(due.values()))]
    assert list(view.lines["input"].get_ydata()) == pytest.approx([0.05] * 4)
    assert list(view.lines["output"].get_ydata()) == pytest.approx([ratio * 0.05 for ratio in due.values()])
    assert "1 text a pass: 50.0 ms for an input token, 800 ms for an output token, 16 times as long;" in shown.sentence
    assert f"{due[8]:.3g} times as long (you said 5)" in shown.sentence and "The list you chose asks 3 times." in shown.sentence
    assert "Joules are not readable here: a fuse is blown." in shown.sentence


def test_the_ratio_by_joules():
    view, shown = shared(RAPL, watts=10.0)
    assert view.ratios("joules") == pytest.approx(view.ratios()) and list(view.counted.get_xdata()) == list(BATCHES)
    assert "Joules of an input and of an output token: 500 mJ and 8.00 J for 1, 16 times" in shown.sentence


def test_the_prediction_is_that_of_the_roof_here_and_elsewhere():
    there = Device("a card", bandwidth=1e9, flops=1e12)
    view, shown = shared(elsewhere=(there,))
    for device, label in ((HERE, "predicted here"), (there, "a card, predicted")):
        (line,) = (line for line in view.ratio.lines if line.get_label() == label)
        costs = lambda rows: price(Step(tuple(Row(0, "decode", context, width) for context, width in rows)))
        assert list(line.get_ydata()) == pytest.approx([foretold(costs, device, P, P + N // 2, b) for b in range(1, 33)])
    assert f"Predicted here: {view.predicted(1):.3g} times for 1" in shown.sentence


def test_prices_that_judge_nothing():
    view = Prices(price, CONFIG, 2.0, HERE, NONE, BATCHES, P, N, 2)
    assert watch(view, {}).sentence == "Nothing is measured yet."
    view = Prices(price, CONFIG, 2.0, HERE, NONE, BATCHES, P, N, 2)
    assert "No verdict: the run was cut short" in watch(view, {"1": batch(1)}, roof=steady).sentence
    roofs = iter([[1e9], [2e9]])
    assert "No verdict: the roof moved" in shared(roof=lambda: next(roofs))[1].sentence


@pytest.mark.parametrize(
    ("pair", "ratio", "says"),
    [((0.5, 2.0), 4.0, "costs 4 input tokens"), ((None, 2.0), None, "no price list"), ((0.0, 2.0), None, "no two prices")],
)
def test_a_list_is_two_prices(pair, ratio, says, capsys):
    assert listed(*pair) == ratio and says in capsys.readouterr().out


class Opened:
    """A lesson of a small random model, as far as the figures ask for it."""

    def __init__(self, counter=NONE):
        import torch

        from tokenpace.load import Lm
        from tokenpace.model.transformer import Transformer

        torch.manual_seed(0)
        self.lm = Lm(Transformer(CONFIG).eval().requires_grad_(False), None, CONFIG, torch.device("cpu"), torch.float32, {})
        self.price, self.device, self.where, self.elsewhere, self.roof, self.config, self.number = price, HERE, "", (), steady, CONFIG, 2.0
        self.counter, self.idle = counter, None

    def run(self, name, prompt, **settings):
        from tokenpace.generate import prepare

        return prepare(self.lm, prompt, **settings).timed()

    def length(self, prompt):
        return len(prompt)


def test_what_is_planned_is_what_is_run():
    unit = Opened()
    assert phases(unit, [3] * 9, 5).view.progress() == 1
    shown = prices(unit, [3, 1, 4, 1, 5], batches=(1, 3), n=4, waves=2)
    assert shown.view.progress() == 1 and list(shown.view.ratios()) == [1, 3]
    for b in (1, 3):
        sides = shown.view.sides(b)
        assert sides["input"].tokens == 5 * b * 2 and sides["output"].tokens == (4 - 1) * b * 2
        assert {len(step.rows) for step, _ in shown.points[str(b)]} == {b}


# the judge -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "verdict", "condition"),
    [
        ({"counter": RAPL, "watts": 10.0, "more": 0.2}, "holds", ""),
        ({"more": 0.2}, "holds if", "seconds are what is paid for (joules are not readable here)"),
        ({"counter": RAPL, "watts": 10.0, "alone": 0.35, "more": 0.02}, "holds if", "no more than 4 texts share a pass"),
        ({"counter": RAPL, "watts": 10.0, "alone": 0.101, "more": 0.02}, "holds if", "each text has its passes to itself"),
        ({"counter": RAPL, "watts": 10.0, "alone": 0.099, "more": 0.2}, "not here", ""),
        ({"alone": 0.09}, "not here", ""),
    ],
)
def test_price(settings, verdict, condition):
    found = unit07.price(shared(**settings)[1])
    assert (found.verdict, found.condition) == (verdict, condition)


def test_price_by_joules_that_say_otherwise():
    view = Prices(price, CONFIG, 2.0, HERE, RAPL, (1, 2), P, N, 2)
    hot, cool = {"watts": 90.0}, 10.0
    points = {str(b): [prompts(b, 0.05 * P * b, **hot), *(written(b, 0.4 * b, cool, i) for i in range(N - 1))] * 2 for b in (1, 2)}
    found = unit07.price(watch(view, points, roof=steady))
    assert (found.verdict, found.condition) == ("holds if", "seconds are what is paid for, not joules")
    assert found.numbers["1 texts"] == pytest.approx(8) and found.numbers["1 texts, joules"] == pytest.approx(8 / 9)


def test_price_wants_enough():
    roofs = iter([[1e9], [2e9]])
    assert "the roof moved" in unit07.price(shared(roof=lambda: next(roofs))[1]).figures
    assert "not probed" in unit07.price(shared(roof=None)[1]).figures
    view = Prices(price, CONFIG, 2.0, HERE, NONE, BATCHES, P, N, 2)
    assert "cut short" in unit07.price(watch(view, {}, roof=steady)).figures
    view = Prices(price, CONFIG, 2.0, HERE, NONE, (1,), P, 6, 1)
    assert "5 passes of writing are too few" in unit07.price(watch(view, {"1": batch(1)[:N]}, roof=steady)).figures
    view = Prices(price, CONFIG, 2.0, HERE, NONE, (1, 2), P, 6, 2)
    apart = [prompts(1, 0.5), *(written(1, 0.8, None, i) for i in range(N - 1))] * 4  # nobody ever shared
    assert "of 2 texts a pass there are no passes" in unit07.price(watch(view, {"1": batch(1), "2": apart}, roof=steady)).figures
