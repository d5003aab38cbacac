"""The figure of the thieves: points made up, and a small model with real thieves, interrupted, refused, replayed."""

import random
import re
from types import SimpleNamespace

import psutil
import pytest
import torch

from tokenpace.load import fast, load
from tokenpace.measure import machine, thief
from tokenpace.measure.intervention import BOUND, CONDITIONS, NOT, UNKNOWN, Point, read, save
from tokenpace.measure.roof import Band
from tokenpace.run import Row, Step
from tokenpace.show import theft
from tokenpace.show.live import watch
from tokenpace.show.theft import Theft, slower, steal

STEADY, MOVED = {"roof": lambda: [40e9]}, {"roof": iter([[40e9], [60e9]]).__next__}


def points(slow, rounds=8, free=0.02, seed=0):
    """Rounds in which the roof takes 1.8 times as long beside a thief of memory, and a pass `slow` times; each a little off, in any order."""
    draw = random.Random(seed)
    times = {"free": (1, 1), "memory": (1.8, slow), "compute": (1, 1)}
    off = lambda: draw.uniform(0.99, 1.01)
    found = [Point(i, c, 40e9 / times[c][0] * off(), free * times[c][1] * off()) for i in range(rounds) for c in times]
    return draw.sample(found, len(found))


def seen(lanes, rounds=8, **how):
    view = Theft(tuple(lanes), rounds, "a test, 1 thread")
    return view, watch(view, lanes, **how)


# the view ------------------------------------------------------------------------------------------------------------


def test_both_victims_have_their_verdict_in_the_sentence_and_over_their_panel():
    view, shown = seen({"tiled": points(1.76), "eager": points(1.2, free=0.05)}, **STEADY)
    assert {lane: v.word for lane, v in view.verdicts.items()} == {"tiled": BOUND, "eager": NOT}
    tiled, eager = re.findall(r"\((\d\.\d\d) to (\d\.\d\d), 8 rounds\): (.*?)\.", shown.sentence)
    assert tiled[2] == BOUND and eager[2] == NOT and float(tiled[0]) <= view.verdicts["tiled"].share <= float(tiled[1])
    assert "Tiled kernels: a pass takes 20" in shown.sentence and "with a thief of bandwidth 35." in shown.sentence
    assert shown.sentence.endswith("[a test, 1 thread]")
    titles = [panel["above"].get_title(loc="left") for panel in view.panels.values()]
    assert titles == [f"Tiled kernels: {BOUND}", f"PyTorch's own kernels: {NOT}"]


def test_what_is_drawn_is_what_was_measured_in_the_order_of_the_rounds():
    some = points(1.5, rounds=3)
    view, _ = seen({"tiled": some}, rounds=3)
    panel = view.panels["tiled"]
    for condition in CONDITIONS:
        mine = sorted(p for p in some if p.condition == condition)
        assert [list(data) for data in panel["seconds"][condition].get_data()] == [[1, 2, 3], [p.seconds for p in mine]]
        assert [list(data) for data in panel["roofs"][condition].get_data()] == [[1, 2, 3], [p.roof for p in mine]]
    free, robbed = (sorted(p for p in some if p.condition == c) for c in ("free", "memory"))
    follows = [a.seconds * a.roof / b.roof for a, b in zip(free, robbed)]
    assert list(panel["seconds"]["followed"].get_ydata()) == pytest.approx(follows)


def test_the_same_multiple_of_a_free_pass_is_equally_high_in_both_panels():
    view, _ = seen({"tiled": points(1.76), "eager": points(1.2, free=0.05)})
    heights = {lane: panel["above"].get_ylim()[1] / (0.02 if lane == "tiled" else 0.05) for lane, panel in view.panels.items()}
    assert heights["tiled"] == pytest.approx(heights["eager"], rel=0.02)


def test_a_thief_that_stole_nothing_has_no_share():
    view, shown = seen({"tiled": [p._replace(roof=40e9 + 1e6 * i) for i, p in enumerate(points(1.76))]}, **STEADY)
    assert "Reading memory slowed by 0%: inconclusive: the thief of memory slowed reading by 0% only" in shown.sentence
    assert "inf" not in shown.sentence and " of it" not in view.panels["tiled"]["note"].get_text()


def test_no_verdict_under_a_roof_that_moved_or_of_a_run_that_was_cut_short():
    view, shown = seen({"tiled": points(1.76)}, **MOVED)
    assert view.verdicts["tiled"].word == UNKNOWN and "roof before and after" in shown.sentence and BOUND not in shown.sentence
    view = Theft(("tiled",), 8)
    for point in points(1.76):
        view.see("tiled", point)
    assert BOUND in view.sentence()  # so far
    view.judge(None)
    assert view.verdicts["tiled"].word == UNKNOWN and BOUND not in view.sentence()
    view.judge(Band(40e9, 41e9, True))
    assert BOUND in view.sentence()


@pytest.mark.parametrize("n", range(25))
def test_it_draws_and_says_what_there_is_so_far(n):
    view, shown = seen({"tiled": points(1.76)[:n], "eager": points(1.76)[: n // 2]}, **STEADY)
    assert view.progress() == (n + n // 2) / 48 and shown.sentence
    assert ("Nothing is measured yet." in shown.sentence) is (n == 0)
    assert "nan" not in shown.sentence and "nan" not in "".join(panel["note"].get_text() for panel in view.panels.values())


# a small model and real thieves --------------------------------------------------------------------------------------


@pytest.fixture
def unit(monkeypatch):
    """A lesson on random weights. Thieves read little, and may share a core, for no time is looked at here."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(theft, "cores", lambda: 2)
    monkeypatch.setattr(theft, "physical_cores", lambda: 2)
    monkeypatch.setitem(thief.BUFFERS, "memory", lambda: 32 << 20)
    monkeypatch.setattr("tokenpace.measure.probe.large", lambda device="cpu": 32 << 20)
    lm = load("shape:15m", device="cpu", dtype="float32")
    here = {"lm": lm, "plain": lm, "config": lm.config, "dtype": "float32", "machine": {"name": "a test"}}
    return SimpleNamespace(unit="99", mode="quick", size=lambda quick, full: 2, theft=None, **here)


def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def test_stealing_measures_every_victim_and_leaves_nothing_behind(unit):
    pytest.importorskip("numba")
    torch.set_num_threads(2)
    try:
        unit.lm = fast(load("shape:15m", device="cpu", dtype="float32"))
        shown = steal(unit, budget=100)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert {lane: sorted((p.round, p.condition) for p in got) for lane, got in shown.points.items()} == {
        lane: sorted((i, c) for i in range(2) for c in CONDITIONS) for lane in ("tiled", "eager")
    }
    assert not children() and shown.band and "2 complete rounds cannot tell" in shown.sentence
    assert "[a test, 1 thread beside 1 of a thief, float32, 15M parameters]" in shown.sentence
    assert unit.theft.lanes == shown.points and unit.theft.roof == shown.roof


def test_without_tiled_kernels_there_is_one_victim(unit):
    assert list(steal(unit, rounds=1, budget=100).points) == ["eager"]


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_interrupt_keeps_what_was_measured(unit, monkeypatch, after):
    def thefts(*arguments):
        for i, point in enumerate(real(*arguments)):
            if i == after:
                raise KeyboardInterrupt
            yield point

    real = theft.thefts
    monkeypatch.setattr(theft, "thefts", thefts)
    shown = steal(unit, budget=100)
    assert f"Interrupted: {after} point{'s' * (after != 1)} kept" in shown.sentence and len(shown.points["eager"]) == after
    assert not children() and unit.theft.lanes == shown.points and shown.view.verdicts["eager"].word == UNKNOWN


def test_the_budget_is_obeyed(unit):
    shown = steal(unit, rounds=10_000, budget=0.05)
    assert "Stopped by its budget" in shown.sentence and len(shown.points["eager"]) < 100 and not children()


def test_a_victim_that_fails_leaves_no_thief(unit, monkeypatch):
    monkeypatch.setattr(theft, "decode_seconds", lambda lm: (1 / 0 for _ in range(1)))
    with pytest.raises(ZeroDivisionError):
        steal(unit)
    assert not children()


def one_core(unit, monkeypatch):
    for module in (machine, theft):
        monkeypatch.setattr(module, "cores", lambda: 1)
    monkeypatch.setattr(theft, "physical_cores", lambda: 1)
    return "it needs a core of its own"


def no_process(unit, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    return "no process can be started"


def on_a_gpu(unit, monkeypatch):
    unit.lm = SimpleNamespace(device=torch.device("cuda"), card={})
    return "this model runs on cuda"


@pytest.mark.parametrize("refusal", [one_core, no_process, on_a_gpu])
def test_where_there_can_be_no_thief_a_sentence_says_so(unit, monkeypatch, capsys, refusal):
    why = refusal(unit, monkeypatch)
    shown = steal(unit)
    assert why in shown.sentence and capsys.readouterr().out == f"{shown.sentence}\n" and "\n" not in shown.sentence
    assert not shown.points and not shown.figure.axes and unit.theft is None
    assert {v.word for v in shown.view.verdicts.values()} == {UNKNOWN}


# replayed ------------------------------------------------------------------------------------------------------------


def test_what_was_recorded_is_replayed_with_the_same_words(unit, tmp_path):
    measured = steal(unit, budget=100)
    save(tmp_path / "a.jsonl", unit.theft)
    dry = SimpleNamespace(unit="99", mode="dry", size=lambda quick, full: 5, theft=read(tmp_path / "a.jsonl"))
    shown = steal(dry)
    assert shown.points == measured.points and shown.band == measured.band
    assert shown.sentence == measured.sentence.replace("[", "[recorded on ")


def test_a_dry_lesson_without_a_recording_says_how_to_make_one():
    dry = SimpleNamespace(unit="99", mode="dry", size=lambda quick, full: 5, theft=None)
    with pytest.raises(FileNotFoundError, match="unit 99 has no recorded theft.*course/record.py 99"):
        steal(dry)


# the text that slows -------------------------------------------------------------------------------------------------


class Words:
    """A lesson that writes, and says whether somebody was stealing at each step."""

    mode, lm = "quick", SimpleNamespace(device=torch.device("cpu"))

    def __init__(self):
        self.thieves, self.stolen, self.closed = set(), [], False

    def run(self, name, prompt, max_new_tokens, min_new_tokens):
        assert (name, prompt, min_new_tokens) == ("slower", "Once", max_new_tokens)
        try:
            for i in range(max_new_tokens):
                self.stolen.append(bool(self.thieves))
                yield Step((Row(0, "decode", i, 1),)), 0.1
        finally:
            self.closed = True


@pytest.fixture
def words(monkeypatch):
    found = Words()

    class Fake:
        def __init__(self, kind, cores):
            self.kind = kind

        def __enter__(self):
            self.go()
            return self

        def __exit__(self, *_):
            self.wait()

        def go(self):
            found.thieves.add(self.kind)

        def wait(self):
            found.thieves.discard(self.kind)

    monkeypatch.setattr(theft, "thief", Fake)
    return found


def test_the_thief_begins_half_way(words):
    assert len(list(slower(words, "Once", tokens=6))) == 6
    assert words.stolen == [False] * 3 + [True] * 3 and not words.thieves and words.closed


def test_a_text_that_is_left_early_leaves_no_thief(words):
    before = torch.get_num_threads()
    steps = slower(words, "Once", tokens=6)
    for _ in range(5):
        next(steps)
    assert words.thieves == {"memory"}
    steps.close()
    assert not words.thieves and torch.get_num_threads() == before


def test_a_dry_text_or_one_beside_no_thief_is_written_all_the_same(words, monkeypatch, capsys):
    words.mode = "dry"
    assert len(list(slower(words, "Once", "compute", 4))) == 4 and not any(words.stolen)
    words.mode = "quick"
    words.lm = SimpleNamespace(device=torch.device("cuda"))
    assert len(list(slower(words, "Once", "compute", 4))) == 4 and not any(words.stolen)
    assert "this model runs on cuda" in capsys.readouterr().out
