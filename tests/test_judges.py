"""The judges of the claims say yes, no and "not yet" where they should: on made-up data, of which that is known before, with sums done by hand."""

from dataclasses import dataclass, replace
from math import nan, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from tokenpace.claims import unit00, unit01, unit02, unit03
from tokenpace.config import ModelConfig, preset
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device, step_cost
from tokenpace.measure.intervention import Verdict
from tokenpace.measure.roof import Band, Point, Roof, Task
from tokenpace.run import Row, Step
from tokenpace.show.anatomy import parts
from tokenpace.show.cache import WithAndWithout
from tokenpace.show.distribution import Draws

# 00: the instrument --------------------------------------------------------------------------------------------------

CACHE = 32 << 20
MACHINE = {"device": "cpu", "name": "a laptop", "last_level_cache": {"bytes": CACHE, "source": "system"}}


def read(size: float, rate: float, threads: int = 2, spread: float = 0.0) -> Point:
    task, once = Task("read", int(size), "float32", threads, "a loop", size), size / rate
    return Point(task, (once * (1 - spread), once, once * (1 + spread)))


@pytest.mark.parametrize("inside, verdict", [(200e9, "holds"), (30e9, "holds"), (29e9, "not here"), (10e9, "not here")])
def test_hierarchy(inside, verdict):
    found = unit00.hierarchy(Roof(MACHINE, (read(1e6, inside), read(64 << 20, 999e9), read(256 << 20, 20e9))))
    assert found.verdict == verdict and found.numbers["times"] == pytest.approx(inside / 20e9)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [read(1e6, 90e9)],
        [read(256 << 20, 20e9)],
        [read(1e6, 90e9), read(100 << 20, 20e9)],  # neither within the cache nor well outside of it
        [read(1e6, 90e9, threads=1), read(256 << 20, 20e9, threads=2)],
        [read(1e6, 90e9), read(256 << 20, 20e9, spread=0.9)],
        [read(1e6, 90e9), Point(read(256 << 20, 20e9).task, (0.01,))],
    ],
)
def test_hierarchy_wants_both_sizes(points):
    assert unit00.hierarchy(Roof(MACHINE, tuple(points))).verdict == "not yet measured"


def test_hierarchy_takes_like_threads_and_knows_no_gpu():
    pair = read(1e6, 90e9, threads=1), read(256 << 20, 10e9, threads=1)
    found = unit00.hierarchy(Roof(MACHINE, (*pair, read(256 << 20, 20e9))))
    assert found.numbers["times"] == pytest.approx(9) and "(assumed)" not in found.figures
    assumed = {**MACHINE, "last_level_cache": {"bytes": CACHE, "source": "assumed"}}
    assert "(assumed)" in unit00.hierarchy(Roof(assumed, pair)).figures
    assert "on a GPU" in unit00.hierarchy(Roof({**MACHINE, "device": "cuda"}, pair)).figures


def stolen(**words):
    """A theft that ended so for each kind of kernels."""
    numbers = {"bound by bandwidth": (0.8, 0.72, 0.01), "not bound by bandwidth": (0.8, 0.2, 0.01), "partly bound by bandwidth": (0.8, 0.5, 0.01)}
    verdicts = {
        name: Verdict(word, "", *numbers[word], 0.0, 1.0, 20) if word in numbers else Verdict("inconclusive", word) for name, word in words.items()
    }
    return SimpleNamespace(view=SimpleNamespace(verdicts=verdicts), note="")


BOUND, PARTLY, NOT = "bound by bandwidth", "partly bound by bandwidth", "not bound by bandwidth"


@pytest.mark.parametrize(
    "words, verdict, condition",
    [
        ({"tiled": BOUND, "eager": BOUND}, "holds", ""),
        ({"tiled": BOUND, "eager": NOT}, "holds if", "the pass runs on tiled kernels"),
        ({"tiled": BOUND, "eager": PARTLY}, "holds if", "the pass runs on tiled kernels"),
        ({"tiled": BOUND, "eager": "the rounds differ"}, "holds if", "the pass runs on tiled kernels"),
        ({"tiled": PARTLY, "eager": NOT}, "not here", ""),
        ({"eager": NOT}, "not here", ""),
        ({"eager": BOUND}, "holds", ""),
        ({"tiled": "the rounds differ", "eager": NOT}, "not yet measured", ""),
        ({"tiled": "a", "eager": "b"}, "not yet measured", ""),
        ({}, "not yet measured", ""),
    ],
)
def test_bandwidth(words, verdict, condition):
    found = unit00.bandwidth(stolen(**words))
    assert (found.verdict, found.condition) == (verdict, condition)
    assert all(word in found.figures for word in words.values() if word not in (PARTLY, NOT) or verdict != "not yet measured")


def test_bandwidth_tells_the_thieves_apart():
    found = unit00.bandwidth(stolen(tiled=BOUND))
    assert "slowed reading by 80% and the pass by 72%, a thief of a core the pass by 1% (20 rounds)" in found.figures
    assert found.numbers == {"tiled, roof": 0.8, "tiled, memory": 0.72, "tiled, compute": 0.01, "tiled, rounds": 20}
    nobody = stolen(eager="0 rounds")
    nobody.note = "one core cannot be shared"
    assert unit00.bandwidth(nobody).figures == "one core cannot be shared"


# 01: one token at a time ---------------------------------------------------------------------------------------------


@dataclass
class Toy:
    """A pass that reads so many bytes of weights, some others, and multiplies so much."""

    weight_bytes: float
    total_flops: float
    others: float = 0.0

    @property
    def bytes(self):
        return self.weight_bytes + self.others

    def seconds(self, device):
        return max(self.bytes / device.bandwidth, self.total_flops / device.flops)


MODEL, TOKEN = 1e9, 1e9  # bytes of weights, FLOP of a token
HERE = Device("here", bandwidth=1e9, flops=2e9)  # 1 s to read the weights, 0.5 s to multiply a token's


def toy(step):
    return Toy(MODEL, TOKEN * sum(row.width for row in step.rows))


STEADY = Band(1e9, 1.1e9, True)


def race(write=(2.0,) * 40, score=None, cost=toy, device=HERE, band=STEADY, progress=1.0):
    """A text of len(write) tokens scored in a pass and written in as many, each of so many seconds, after a prompt."""
    n = len(write)
    prompt = Stamped(Step((Row(0, "prefill", 0, 3, ((3, 1, True),)),)), 9.0)
    wrote = [Stamped(Step((Row(0, "decode", 3 + i, 1, ((4 + i, 1, True),)),)), s) for i, s in enumerate(write)]
    told = Stamped(Step((Row(0, "verify", 3, n, tuple((4 + i, 1, True) for i in range(n))),)), 0.6 * n if score is None else score)
    view = SimpleNamespace(cost=cost, device=device, progress=lambda: progress)
    return SimpleNamespace(points={"score": [prompt, told], "write": [prompt, *wrote]}, view=view, band=band, note="")


PACED = (unit01.linear, unit01.floor, unit01.again, unit01.two_factors)


@pytest.mark.parametrize("judged", PACED)
def test_a_good_race_bears_out_what_is_claimed(judged):
    assert judged(race()).verdict == "holds"


@pytest.mark.parametrize("judged", PACED)
@pytest.mark.parametrize(
    "changes, why",
    [
        ({"progress": 0.4}, "cut short at 40%"),
        ({"band": None}, "not probed"),
        ({"band": Band(1e9, 2e9, False)}, "the roof moved between 1 and 2 GB/s"),
        ({"write": [1.0] * 30 + [9.0] * 10}, "the passes took between"),
    ],
)
def test_a_run_that_shows_nothing_is_not_judged(judged, changes, why):
    found = judged(race(**changes))
    assert found.verdict == "not yet measured" and why in found.figures and not found.numbers


def test_nothing_measured_is_not_judged():
    empty = race(progress=0.0)
    empty.points = {}
    assert all(judged(empty).verdict == "not yet measured" for judged in PACED)


@pytest.mark.parametrize(
    "write, verdict",
    [
        ([2.0] * 16, "holds"),
        ([2.0] * 15, "not yet measured"),
        ([2.0] * 20 + [2.98] * 20, "holds"),
        ([2.0] * 20 + [3.02] * 20, "not here"),
        ([3.02] * 20 + [2.0] * 20, "not here"),
        ([2.0 + 0.1 * i for i in range(40)], "not here"),  # a parabola
        ([2.0, 2.2, 1.9, 2.1] * 10, "holds"),  # noise
        ([40.0] + [2.0] * 39, "not here"),  # no line through all of it
        ([2.0] * 20 + [3.1, 1.0] * 9 + [3.1] * 2, "not here"),  # a line, but most passes take half as long again
    ],
)
def test_linear(write, verdict):
    assert unit01.linear(race(write)).verdict == verdict


def test_linear_counts_tokens_not_passes():
    """Passes of two tokens that take twice as long as passes of one still make a line in tokens."""
    shown = race([2.0] * 20 + [2.9] * 20)
    pairs = [Step((Row(0, "verify", 3, 2, ((9, 1, True), (10, 1, True), (11, 1, False))),))] * 20
    shown.points["write"][21:] = [Stamped(step, spent) for step, (_, spent) in zip(pairs, shown.points["write"][21:])]
    found = unit01.linear(shown)
    assert found.numbers["tokens"] == 60
    assert found.numbers["off"] == pytest.approx(max(abs(2.0 * 20 / 98 - 20 / 60), 0))


def test_linear_says_what_the_bytes_say():
    grows = lambda step: Toy(MODEL, TOKEN, others=1e7 * step.rows[0].context)
    first, second = (sum(MODEL + 1e7 * (3 + i) for i in half) for half in (range(20), range(20, 40)))
    assert unit01.linear(race(cost=grows)).numbers["bytes_grown"] == pytest.approx(second / first)


def test_floor():
    found = unit01.floor(race())
    # writing: 40 readings of 1 s whatever the arithmetic; scoring: 40 × 0.5 s of arithmetic above one reading of 1 s
    assert found.numbers == {
        "passes": 40,
        "predicted": 40.0,
        "floor": 40.0,
        "scoring_predicted": 20.0,
        "scoring_floor": 1.0,
        "measured": 80.0,
    }
    assert "takes 0% from 40 passes that write" in found.figures and "95% from 1 that scores" in found.figures


@pytest.mark.parametrize("flops, verdict", [(0.96e9, "holds"), (0.94e9, "not here"), (0.1e9, "not here")])
def test_arithmetic_that_binds_is_no_floor(flops, verdict):
    """At 0.96 GFLOP/s a token's arithmetic takes 1.04 s, and infinitely fast arithmetic 4 % from it."""
    assert unit01.floor(race([12.0] * 40, device=replace(HERE, flops=flops))).verdict == verdict


def test_a_floor_that_is_not_set_by_the_passes():
    reads_half = lambda step: Toy(MODEL if step.rows[0].width > 1 else MODEL / 2, TOKEN / 9)
    assert unit01.floor(race(cost=reads_half)).verdict == "not here"


@pytest.mark.parametrize("each, verdict", [(0.85, "holds"), (0.80, "not yet measured")])
def test_a_floor_that_was_undercut_judges_nothing(each, verdict):
    """Under the highest roof, 1.1 GB/s, a reading takes 0.909 s, and a tenth less than that is 0.818 s."""
    found = unit01.floor(race([each] * 40))
    assert found.verdict == verdict and ("run the first cell again" in found.figures) == (verdict != "holds")


@pytest.mark.parametrize("each, verdict", [(2.0, "holds"), (0.77, "holds"), (0.74, "not here")])
def test_again_at_no_more_than_memory_gives(each, verdict):
    """1 GB in less than 1 / 1.32 s is more than a fifth above the 1.1 GB/s of the roof."""
    found = unit01.again(race([each] * 40))
    assert found.verdict == verdict
    assert found.numbers["read"] == 40e9 and found.numbers["tokens"] == 40 and found.numbers["rate"] == pytest.approx(1e9 / each)


def test_again_is_once_for_each_token():
    once = lambda step: Toy(MODEL if step.rows[0].width > 1 else 0.9 * MODEL, TOKEN)
    assert unit01.again(race(cost=once)).verdict == "not here"
    shown = race()  # each pass writes two tokens: half as many readings as tokens
    two = Step((Row(0, "verify", 3, 2, ((4, 1, True), (5, 1, True))),))
    shown.points["write"][1:] = [Stamped(two, 2.0)] * 40
    assert unit01.again(shown).verdict == "not here"


@pytest.mark.parametrize(
    "write, score, verdict",
    [
        ([2.0] * 40, 40.0, "holds"),  # exactly twice as long
        ([1.9] * 40, 40.0, "not here"),  # a pass costs little more than its share of the arithmetic
        ([2.0] * 36 + [4.0] * 4, 24.0, "holds"),  # mean 2.2, median 2
        ([2.0] * 21 + [3.6] * 19, 24.0, "not here"),  # mean 2.76, median 2: the equation is off by more than a quarter
    ],
)
def test_two_factors(write, score, verdict):
    assert unit01.two_factors(race(write, score)).verdict == verdict


def test_two_factors_compares_the_same_arithmetic():
    more = lambda step: Toy(MODEL, TOKEN * (1 if step.rows[0].width > 1 else 2))
    assert unit01.two_factors(race(cost=more)).verdict == "not here"


AT, LONG = 4, 40


def texts(gap=0.02, before=0.0, after=0.5, changed=1.0):
    """log P of a text that was written, scored, and scored with token AT swapped."""
    scored = [-1.0 - 0.01 * i for i in range(LONG)]
    written = [p + gap * (-1) ** i for i, p in enumerate(scored)]
    moved = round(changed * (LONG - AT - 1))
    shift = [before] * AT + [20.0] + [after] * moved + [0.0] * (LONG - AT - 1 - moved)
    return written, scored, [p - s for p, s in zip(scored, shift)], AT


@pytest.mark.parametrize(
    "changes, verdict",
    [
        ({}, "holds"),
        ({"gap": 0.0}, "holds"),
        ({"gap": 0.099}, "holds"),
        ({"gap": 0.101}, "not here"),
        ({"before": 0.019}, "holds"),  # no more than rounding
        ({"before": 0.021}, "not here"),
        ({"after": 0.0}, "not here"),
        ({"after": 0.05}, "not here"),  # no more than rounding
        ({"changed": 0.55}, "holds"),
        ({"changed": 0.45}, "not here"),
        ({"gap": 0.0, "before": 1e-6}, "not here"),
    ],
)
def test_product(changes, verdict):
    assert unit01.product(*texts(**changes)).verdict == verdict


def test_product_says_its_sums():
    written, scored, swapped, at = texts()
    found = unit01.product(written, scored, swapped, at)
    assert found.numbers["written"] == pytest.approx(sum(written)) and found.numbers["scored"] == pytest.approx(sum(scored))
    assert (found.numbers["before"], found.numbers["after"]) == (0, LONG - AT - 1) and "0 of the 4 before it moved and 35 of the 35" in found.figures


@pytest.mark.parametrize("spoil", [lambda w, s, r: (w[:-1], s, r), lambda w, s, r: ([], [], []), lambda w, s, r: (w, [nan, *s[1:]], r)])
def test_product_wants_whole_texts(spoil):
    *three, at = texts()
    assert unit01.product(*spoil(*three), at).verdict == "not yet measured"


# 02: a decoder you can read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mlp, head, attention, scores, verdict",
    [(50, 20, 20, 1, "holds"), (30, 15, 45, 10, "holds"), (30, 15, 44, 11, "not here"), (30, 14, 46, 0, "not here"), (0, 0, 1, 0, "not here")],
)
def test_weights(mlp, head, attention, scores, verdict):
    taken = {name: (1, float(read), 1.0) for name, read in {"mlp": mlp, "head": head, "attention": attention, "scores": scores}.items()}
    assert unit02.weights(taken).verdict == verdict


def test_weights_of_a_real_shape():
    config = preset("smollm2-135m")
    found = unit02.weights(parts(config, 100, 2))
    mlp = config.n_layers * 3 * config.d_model * config.d_ff
    assert found.verdict == "holds"
    assert found.numbers["mlp"] == pytest.approx(mlp / config.n_params)
    assert found.numbers["head"] == pytest.approx(config.vocab_size * config.d_model / config.n_params)
    assert unit02.weights(parts(config, 8000, 2)).verdict == "not here"  # keys and values, by then


def drawn(law, probabilities, n=3200, seed=0, batch=20, planned=None):
    """A Draws view of n draws from `probabilities`, of which it is said that they follow `law`."""
    view = Draws(list(law), list(law), str, planned or n)
    tokens = np.random.default_rng(seed).choice(len(probabilities), size=n, p=probabilities)
    for at in range(0, n, batch):
        view.see("draws", Stamped(Step(tuple(Row(i, "decode", 3, 1, ((3, int(t), True),)) for i, t in enumerate(tokens[at : at + batch]))), 0.1))
    return SimpleNamespace(view=view, points={}, band=None, note="")


FLAT, SLOPE = [1 / 32] * 32, [2.0**-i for i in range(1, 20)] + [2.0**-19]


@pytest.mark.parametrize("law", [FLAT, SLOPE, [0.5, 0.5], [0.999, 0.001], [1 / 400] * 400], ids=["flat", "steep", "coin", "rare", "many"])
def test_draws_from_a_law_are_never_told_from_it(law):
    """At most one in a thousand runs may be; so of forty, hardly any."""
    verdicts = [unit02.law(drawn(law, law, n=6400, seed=seed, batch=200)).verdict for seed in range(40)]
    assert verdicts == ["holds"] * 40


def test_the_bound_is_exceeded_less_often_than_it_says():
    """10,000 runs of 1,000 draws: the total variation is beyond the bound in fewer than one in a thousand."""
    for law in (FLAT, SLOPE, [0.5, 0.5]):
        counts = np.random.default_rng(2).multinomial(1000, law, size=10_000) / 1000
        distances = 0.5 * np.abs(counts - law).sum(1)
        mean = Draws(law, law, str, 1).expected(1000)
        assert (distances > unit02.allowed(mean, 1000)).mean() < 1e-3


@pytest.mark.parametrize("off, verdict", [(0.30, "not here"), (0.15, "not here"), (0.0, "holds")])
def test_another_law_is_noticed(off, verdict):
    """Half of the tokens drawn a little more often: the total variation to the law levels off at `off`."""
    other = [1 / 32 + off / 16] * 16 + [1 / 32 - off / 16] * 16
    found = unit02.law(drawn(FLAT, other, n=6400))
    assert found.verdict == verdict and (found.numbers["distance"] == pytest.approx(off, abs=0.03) or not off)


def test_a_token_outside_of_the_law_is_noticed():
    assert unit02.law(drawn([*FLAT, 0.0], [*(0.85 * p for p in FLAT), 0.15], n=6400)).verdict == "not here"


def test_few_draws_or_none_are_not_judged():
    assert "3,200 of 4,000 draws" in unit02.law(drawn(FLAT, FLAT, planned=4000)).figures
    assert "can't tell" in unit02.law(drawn(FLAT, FLAT, n=100)).figures
    assert "one token" in unit02.law(drawn([1.0, 0.0], [1.0, 0.0])).figures
    empty = SimpleNamespace(view=Draws(FLAT, FLAT, str, 10))
    assert unit02.law(empty).verdict == "not yet measured"


def test_law_looks_at_a_sixteenth_of_the_draws_too():
    """The first 200 of 6,400 draws were always the same token, of a hundred: in the end hardly to be seen, but not then."""
    law = [0.01] * 100
    shown = drawn(law, law, n=12_600, planned=12_800)
    late = shown.view
    early = Draws(law, law, str, 12_800)
    for view, tokens in ((early, [0] * 500), (early, np.random.default_rng(1).choice(100, size=12_300))):
        view.see("draws", Stamped(Step(tuple(Row(i, "decode", 3, 1, ((3, int(t), True),)) for i, t in enumerate(tokens))), 0.1))
    assert late.distance() < 0.1 and early.distance() < unit02.allowed(early.expected(12_800), 12_800)
    early.distances.insert(1, (800, 0.63))
    assert unit02.law(SimpleNamespace(view=early)).verdict == "not here"
    early.distances[1] = (800, 1.5 / sqrt(800))
    assert unit02.law(SimpleNamespace(view=early)).verdict == "holds"


# 03: the cache -------------------------------------------------------------------------------------------------------

CONFIG = ModelConfig(vocab_size=100, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_head=16, d_ff=128)
PROMPT = 5


def price(step):
    return step_cost(CONFIG, step, 2)


def texts_of(n=60, without=lambda context: 1.0 + 0.1 * context, with_=lambda context: 1.0, cost=price, planned=None, chunks=0, prompt=PROMPT):
    """n tokens after a prompt, with and without a cache; a pass after `context` tokens takes so many seconds. The figure's own view has seen it."""
    lanes = {"with a cache": [], "without": [Stamped(Step((Row(0, "prefill", c, 1),)), 0.0) for c in range(chunks)]}
    for at in range(prompt, prompt + n):
        said = ((at, 1, True),)
        new = Row(0, "decode", at - 1, 1, said) if at > prompt else Row(0, "prefill", 0, prompt, said)
        lanes["with a cache"].append(Stamped(Step((new,)), with_(at)))
        lanes["without"].append(Stamped(Step((Row(0, "decode" if at > prompt else "prefill", 0, at, said),)), without(at)))
    view = WithAndWithout({lane: [None] * (planned or n) for lane in lanes}, cost, HERE)
    for lane, points in lanes.items():
        for stamped in points:
            view.see(lane, stamped)
    return SimpleNamespace(points=lanes, view=view, band=STEADY, note="")


def test_quadratic():
    found = unit03.quadratic(texts_of())
    assert found.verdict == "holds" and found.condition == ""
    powers = {name: value for name, value in found.numbers.items() if "products" in name or "attention" in name}
    want = {"without, products": 2, "without, attention": 3, "with a cache, products": 1, "with a cache, attention": 2}
    assert powers == pytest.approx(want, abs=0.1)
    assert found.numbers["without, seconds"] == pytest.approx(sum(1 + 0.1 * (PROMPT + i) for i in range(60)))


def test_the_powers_are_those_of_a_sum_over_long_texts():
    """A doubling of the whole text, added up pass by pass: the powers are those of the totals."""

    def total(n, cached, part):
        rows = [Row(0, "decode", at if cached else 0, 1 if cached else at + 1) for at in range(n)]
        flops = [step_cost(CONFIG, Step((row,)), 2).flops for row in rows]
        return sum(f["scores"] if part == "attention" else f["attention"] + f["mlp"] for f in flops)

    for lane, cached in (("without", False), ("with a cache", True)):
        for part, power in zip(("products", "attention"), unit03.POWERS[lane]):
            assert np.log2(total(800, cached, part) / total(400, cached, part)) == pytest.approx(power, abs=0.02)


@pytest.mark.parametrize(
    "without, with_, verdict",
    [
        (lambda c: 1.0 + 0.1 * c, lambda c: 1.0, "holds"),
        (lambda c: 5.0, lambda c: 5.0, "holds if"),  # arithmetic hidden behind one reading of the weights
        (lambda c: 1.0 if c < 35 else 1.29, lambda c: 1.0, "holds if"),
        (lambda c: 1.0 if c < 35 else 1.31, lambda c: 1.0, "holds"),
        (lambda c: 1.0 + 0.1 * c, lambda c: 1.0 + 0.1 * c, "holds if"),  # both grew: something else made them slower
    ],
)
def test_quadratic_in_seconds_where_arithmetic_shows(without, with_, verdict):
    found = unit03.quadratic(texts_of(without=without, with_=with_))
    assert found.verdict == verdict and bool(found.condition) == (verdict == "holds if")


def test_a_cache_that_saves_nothing_is_noticed():
    """Were every pass with a cache fed everything all the same, its powers would be those without."""
    shown = texts_of()
    shown.points["with a cache"] = shown.points["without"]
    assert unit03.quadratic(shown).verdict == "not here"


def test_powers_are_judged_within_a_quarter():
    def cost(power):
        def dearer(step):
            row, true = step.rows[0], price(step)
            return replace(true, flops={**true.flops, "mlp": float(row.width) ** power, "attention": 0.0}) if row.width > 1 else true

        return dearer

    assert unit03.quadratic(texts_of(cost=cost(1.2))).verdict == "holds"
    assert unit03.quadratic(texts_of(cost=cost(1.3))).verdict == "not here"


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"n": 12}, "too short"),
        ({"n": 60, "prompt": 200}, "too short"),
        ({"planned": 120}, "cut short at 50%"),
        ({"without": lambda c: 9.0 if c % 8 == 0 else 1.0}, "a tenth of the passes without a cache"),
        ({"with_": lambda c: 9.0 if c % 8 == 0 else 1.0}, "the passes took between"),
    ],
)
def test_quadratic_wants_enough(changes, why):
    found = unit03.quadratic(texts_of(**changes))
    assert found.verdict == "not yet measured" and why in found.figures


def test_quadratic_under_a_roof_that_moved_or_without_one():
    shown = texts_of()
    shown.band = Band(1e9, 2e9, False)
    assert "the roof moved" in unit03.quadratic(shown).figures
    shown.band = None
    assert "not probed" in unit03.quadratic(shown).figures
    empty = SimpleNamespace(points={}, view=WithAndWithout({"without": [None]}, price, HERE), band=None, note="")
    assert "cut short at 0%" in unit03.quadratic(empty).figures


def test_chunks_of_a_prompt_belong_to_its_first_token():
    shown = texts_of(chunks=2)
    tokens = unit03.written(shown, "without")
    assert len(tokens) == 60 and [t.position for t in tokens[:2]] == [PROMPT, PROMPT + 1]
    assert tokens[0].cost.weight_bytes == 3 * step_cost(CONFIG, shown.points["without"][0].step, 2).weight_bytes
