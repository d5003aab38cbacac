"""The logic of an intervention: thresholds, rounds on a machine that is made up, and how often noise is believed."""

import random
import subprocess
import sys
from itertools import islice

import pytest
from scipy.stats import binom

from tokenpace.measure.intervention import (
    BOUND,
    CONDITIONS,
    NOT,
    PARTLY,
    SETTLE,
    TURNS,
    UNKNOWN,
    Point,
    Round,
    Taken,
    bound,
    interval,
    judged,
    read,
    save,
    slowdowns,
    thefts,
)


def test_it_needs_no_torch():
    code = "import sys, tokenpace.measure.intervention; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("roof", "memory", "compute", "word"),
    [
        (0.8, 0.8, 0.0, BOUND),
        (0.8, 0.65, 0.07, BOUND),
        (0.8, 2.0, 0.0, BOUND),
        (0.8, 0.63, 0.0, PARTLY),
        (0.8, 0.41, 0.0, PARTLY),
        (0.8, 0.39, 0.0, NOT),
        (0.8, -0.1, -0.1, NOT),
        (0.8, 0.7, 0.09, UNKNOWN),  # a core was missed
        (0.8, 0.1, 0.09, UNKNOWN),
        (0.14, 0.14, 0.0, UNKNOWN),  # nothing was stolen
        (0.0, 0.0, 0.0, UNKNOWN),
        (-0.2, 0.3, 0.0, UNKNOWN),
        (0.16, 0.16, 0.0, BOUND),
    ],
)
def test_what_three_slowdowns_say(roof, memory, compute, word):
    assert bound(roof, memory, compute) == word


# rounds on a machine that is made up -----------------------------------------------------------------------------------


class Machine:
    """Reads 40 GB/s and passes in 20 ms; a thief at work halves the one and makes the other half as long again."""

    def __init__(self):
        self.at_work, self.log = set(), []

    def thief(self, kind):
        machine = self

        class Fake:
            def go(self):
                machine.at_work.add(kind)

            def wait(self):
                machine.at_work.discard(kind)

        return Fake()

    @property
    def thieves(self):
        return {kind: self.thief(kind) for kind in ("memory", "compute")}

    def roof(self):
        self.log.append(("roof", *self.at_work))
        return 20e9 if "memory" in self.at_work else 40e9

    def passes(self):
        self.log.append(("pass", *self.at_work))
        return 0.03 if "memory" in self.at_work else 0.02

    def sleep(self, seconds):
        self.log.append(("sleep", *self.at_work))
        assert seconds == SETTLE


def measure(machine, rounds=2):
    return thefts(machine.passes, machine.roof, rounds, machine.thieves, machine.sleep)


def test_each_condition_of_a_round_is_measured_under_its_own_thief_and_every_second_round_backwards():
    machine = Machine()
    points = list(measure(machine, 3))
    assert [(p.round, p.condition) for p in points] == [
        *((0, c) for c in CONDITIONS),
        *((1, c) for c in reversed(CONDITIONS)),
        *((2, c) for c in CONDITIONS),
    ]
    assert all((p.roof, p.seconds) == ((20e9, 0.03) if p.condition == "memory" else (40e9, 0.02)) for p in points)
    each = 1 + 2 * TURNS
    under = [machine.log[i : i + each] for i in range(0, len(machine.log), each)]
    assert [[what[0] for what in one] for one in under] == [["sleep", *["roof", "pass"] * TURNS]] * 9
    assert [{what[1:] for what in one} for one in under] == [{() if p.condition == "free" else (p.condition,)} for p in points]


def test_a_point_has_the_medians_of_its_turns():
    reads, passes = iter([10e9, 40e9, 20e9, 30e9]), iter([0.04, 0.01, 0.03, 0.02])
    (point,) = islice(thefts(passes.__next__, reads.__next__, 1, {}, lambda _: None), 1)
    assert point == (0, "free", 25e9, 0.025)


def test_nobody_steals_while_a_point_is_looked_at_or_after_the_last():
    machine = Machine()
    for _ in measure(machine):
        assert not machine.at_work
    assert not machine.at_work


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_thief_rests_when_a_measurement_fails(error):
    machine = Machine()

    def passes():
        if "memory" in machine.at_work:
            raise error
        return 0.02

    rounds = thefts(passes, machine.roof, 2, machine.thieves, machine.sleep)
    assert next(rounds).condition == "free"
    with pytest.raises(error):
        next(rounds)
    assert not machine.at_work


def test_a_round_is_compared_with_itself_and_only_if_it_is_whole():
    points = list(measure(Machine()))
    assert slowdowns(points) == [Round(1.0, 0.5, 0.0)] * 2 and slowdowns(points[:5]) == [Round(1.0, 0.5, 0.0)] and slowdowns(points[:2]) == []
    slow = [p._replace(roof=p.roof / 3, seconds=7 * p.seconds) for p in points[3:]]
    assert slowdowns([*slow, *points[:3]]) == [pytest.approx((1.0, 0.5, 0.0))] * 2


# how often noise is believed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 60))
def test_the_interval_is_that_of_the_sign_test(n):
    found = interval([3 * i for i in range(n, 0, -1)])
    k = found[0] // 3 if found else 0  # the k-th smallest; beyond it the median lies if fewer than k of n are below it
    assert not found or found == (3 * k, 3 * (n - k + 1))
    assert (k == 0 or 2 * binom.cdf(k - 1, n, 0.5) <= 0.05) and 2 * binom.cdf(k, n, 0.5) > 0.05


def test_no_interval_of_nothing():
    assert interval([]) is None


def simulated(share, roof=0.8, control=0.0, noise=0.05, rounds=20, seed=0):
    """Rounds of a machine on which every time is off by `noise`: seconds of passes and of reads under the three conditions."""
    draw = random.Random(seed)
    off = lambda: draw.lognormvariate(0, noise)
    points = []
    for i in range(rounds):
        slow = {"free": (0, 0), "memory": (roof, share * roof), "compute": (0, control)}
        points += [Point(i, c, 40e9 / (1 + r) * off(), 0.02 * (1 + s) * off()) for c, (r, s) in slow.items()]
    return slowdowns(points)


@pytest.mark.parametrize(("share", "word"), [(1.0, BOUND), (0.65, PARTLY), (0.3, NOT), (0.0, NOT)])
def test_what_is_clear_is_said_nine_times_of_ten(share, word):
    said = [judged(simulated(share, noise=0.03, seed=seed)).word for seed in range(100)]
    assert said.count(word) >= 90 and set(said) <= {word, UNKNOWN}


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
@pytest.mark.parametrize(("share", "wrong"), [(0.76, BOUND), (0.84, PARTLY), (0.54, NOT), (0.46, PARTLY)])
def test_what_lies_just_beside_a_threshold_is_hardly_ever_said_to_lie_beyond(share, wrong, noise):
    said = [judged(simulated(share, noise=noise, seed=seed)).word for seed in range(300)]
    assert said.count(wrong) <= 15


def test_a_control_that_hides_in_noise_is_no_control():
    said = {judged(simulated(0.95, control=0.12, noise=0.08, seed=seed)).word for seed in range(100)}
    assert BOUND not in said
    assert "core was missed" in judged(simulated(0.95, control=0.3, noise=0.01)).why


def test_why_there_is_no_verdict():
    clear = simulated(0.95, noise=0.01)
    assert judged(clear).word == BOUND and not judged(clear).why
    assert "roof before and after" in judged(clear, steady=False).why
    assert judged(clear[:5]).why == "5 complete rounds cannot tell noise from effect" and judged(clear[:1]).why.startswith("1 complete round ")
    assert judged(clear[:6]).word == BOUND
    assert judged([]).word == UNKNOWN and judged([]).rounds == 0
    assert "next to nothing was stolen" in judged(simulated(0.9, roof=0.05, noise=0.001)).why
    assert "next to nothing was stolen" in judged(simulated(0.9, roof=0.03, noise=0.05)).why  # in some rounds, the roof rose
    assert judged(simulated(0.8, noise=0.05)).why.startswith("it is bound at least in part, but the rounds differ too much")
    assert judged(simulated(0.5, noise=0.05)).why.startswith("it is not wholly bound, but the rounds differ too much")
    assert judged(simulated(0.65, noise=0.4)).why.startswith("the rounds differ too much")
    anywhere = judged(simulated(0.95, control=0.06, noise=0.08))
    assert anywhere.word == UNKNOWN and "lies anywhere between" in anywhere.why


def test_a_verdict_has_the_medians():
    rounds = [Round(0.5 + i / 100, 0.45 + i / 50, i / 1000) for i in range(9)]
    v = judged(rounds)
    assert (v.roof, v.memory, v.compute) == pytest.approx((0.54, 0.53, 0.004))
    assert v.share == pytest.approx(0.53 / 0.54) and v.rounds == 9
    assert (v.low, v.high) == pytest.approx((0.47 / 0.51, 0.59 / 0.57))  # the second and the eighth of nine


def test_the_share_lies_in_its_interval():
    for seed in range(200):
        v = judged(simulated(0.6, noise=0.3, rounds=7, seed=seed))
        assert v.roof <= 0 or v.low <= v.share <= v.high


def test_a_round_whose_roof_did_not_fall_has_any_share():
    odd = Round(-0.01, 0.76, 0.0)
    assert judged([Round(0.8, 0.76, 0.0)] * 20 + [odd] * 2).word == BOUND
    assert judged([Round(0.8, 0.76, 0.0)] * 12 + [odd] * 8).word == UNKNOWN


# kept as a file ------------------------------------------------------------------------------------------------------

TAKEN = Taken({"name": "a test"}, {"rounds": 2}, {"tiled": list(measure(Machine())), "eager": []}, {"before": (40e9, 41e9), "after": (42e9,)})


def test_what_is_saved_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    save(path, TAKEN)
    again = read(path)
    assert (again.machine, again.about, again.roof, again.lanes["tiled"]) == (TAKEN.machine, TAKEN.about, TAKEN.roof, TAKEN.lanes["tiled"])
    assert list(again.lanes) == ["tiled", "eager"]
    save(path, TAKEN)
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_nothing_half_written(tmp_path):
    path = tmp_path / "a.jsonl"
    save(path, TAKEN)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save(path, Taken({}, {"what": object()}, {}, {}))
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("line", "new"),
    [
        (1, "{}"),
        (1, '{"tokenpace":"trace","version":1}'),
        (1, "[]"),
        (3, "no JSON"),
        (3, "[1]"),
        (3, '{"lane":"tiled","round":0,"condition":"free","roof":1.0}'),
        (3, '{"lane":"tiled","round":0,"condition":"time","roof":1.0,"seconds":1.0}'),
        (3, '{"lane":"tiled","round":0,"condition":"free","roof":1.0,"seconds":NaN}'),
        (3, '{"lane":"tiled","round":0,"condition":"free","roof":0.0,"seconds":1.0}'),
        (3, '{"lane":"tiled","round":0,"condition":"free","roof":"1","seconds":1.0}'),
        (3, '{"lane":"other","round":0,"condition":"free","roof":1.0,"seconds":1.0}'),
        (8, '{"lane":"tiled","round":1,"condition":"free","roof":1.0,"seconds":1.0}'),
        (8, '{"roof":{"before":["fast"]}}'),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, line, new):
    path = tmp_path / "a.jsonl"
    save(path, TAKEN)
    lines = path.read_text().splitlines()
    lines[line - 1] = new
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=f"a.jsonl line {line}: not a saved theft"):
        read(path)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00"])
def test_what_is_no_text_is_refused_too(tmp_path, data):
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not a saved theft"):
        read(path)
