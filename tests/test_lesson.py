"""What a unit stands on beside its runs: predictions, the ledger of all units, samples, the words about time."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from tokenpace import answers, exercises, lesson
from tokenpace.measure.counters import Counter, nothing
from tokenpace.measure.energy import joules
from tokenpace.measure.ledger import Entry
from tokenpace.measure.roof import Sample, Task

READ = Task("read", 64, "float32", 1, "numba read", 64.0)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENPACE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COURSE_MODE", "dry")


@pytest.fixture
def unit():
    return lesson.start("01")


@pytest.fixture
def measured(unit):
    unit.mode = "quick"
    return unit


@pytest.mark.parametrize(("value", "number"), [(3, 3.0), (0.5, 0.5), ("7", 7.0), (-2, -2.0)])
def test_a_prediction_is_kept_before_anything_is_measured(unit, value, number, capsys):
    assert unit.predict("ratio", value) == number and f"{number:g}" in capsys.readouterr().out
    assert answers.read()["predictions"]["01.ratio"]["value"] == number
    assert unit.predict("ratio", None) == number, "it holds, when the notebook is opened again"
    assert unit.predict("other", None) is None


def test_a_prediction_that_is_changed_is_said_to_be(unit, capsys):
    unit.predict("ratio", 3)
    assert "kept before anything is measured: 3" in capsys.readouterr().out
    unit.predict("ratio", 5)
    assert "your prediction, changed from 3 to 5" in capsys.readouterr().out and unit.predict("ratio", None) == 5


class Odd:
    def __float__(self):
        raise RuntimeError

    __repr__ = __float__


ODD = [pytest.param(10**5000, id="5000 digits"), Odd(), torch.ones(2), np.ones(2), torch.ones(1, device="meta"), "x" * 10**6, "\ud800", lambda: 3]


@pytest.mark.parametrize("value", ["many", "3x", [3], {}, True, math.nan, math.inf, "inf", "3,5", 1j, object(), 10**400, *ODD])
def test_what_is_no_number_is_no_prediction(unit, value, capsys):
    assert unit.predict("ratio", value) is None
    assert "is no number, so it counts as no prediction" in capsys.readouterr().out and answers.read()["predictions"] == {}


@pytest.mark.parametrize("value", [None, ...])
def test_unanswered(unit, value, capsys):
    assert unit.predict("ratio", value) is None and "no prediction yet" in capsys.readouterr().out


def row(name: str, pace: float = 0.02) -> Entry:
    return Entry(name, 10, 20, 1e6, 2e6, 0.01, pace, (0.4, 0.5), "", True, "here")


def test_the_ledger_grows_from_unit_to_unit(measured):
    assert [e.name for e in measured.ledger(row("autoregressive")).entries] == ["autoregressive"]
    again = measured.ledger(row("uncached"), row("autoregressive", 0.03))
    assert {e.name: e.measured for e in again.entries} == {"autoregressive": 0.03, "uncached": 0.02}
    assert again.entries[-1].mbu == (0.4, 0.5) and sorted(map(str, measured.ledger().entries)) == sorted(map(str, again.entries))
    measured.machine = {**measured.machine, "name": "another"}
    assert measured.ledger().entries == [], "a row belongs to the machine that it was measured on"


def test_a_row_of_another_version_is_passed_over(measured):
    for i, strange in enumerate([{"zz": 1}, {}, {"mbu": None}, vars(row("a")) | {"zz": 1}]):
        answers.keep("ledger", f"a{i}", {"machine": measured.machine["name"], "row": strange})
    assert [e.name for e in measured.ledger(row("b")).entries] == ["b"]


@pytest.mark.parametrize(("word", "mode"), [("", "full"), ("quick", "quick")])
def test_a_mode_that_is_empty_is_none(monkeypatch, word, mode):
    monkeypatch.setenv("COURSE_MODE", word)
    assert lesson.mode() == mode


@pytest.mark.parametrize("word", ["Dry", "quik", "full ", "1"])
def test_a_mode_that_there_is_not(monkeypatch, word):
    monkeypatch.setenv("COURSE_MODE", word)
    with pytest.raises(ValueError, match="COURSE_MODE is"):
        lesson.mode()


def test_a_dry_ledger_keeps_nothing(unit):
    assert [e.name for e in unit.ledger(row("autoregressive")).entries] == ["autoregressive"]
    assert answers.read()["ledger"] == {} and unit.ledger().entries == []


def test_samples_are_kept_while_they_come_and_replayed_dry(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(lesson, "RESULTS", tmp_path)
    points = [Sample(READ, 0.1), Sample(READ, 0.2)]
    assert list(measured.sample("probe", lambda: {"probe": iter(points)})["probe"]) == points
    measured.runs, measured.theft = {}, None
    (path,) = lesson.record(measured, {}, tmp_path)
    assert path.name == "01_probe.samples.jsonl"
    measured.mode = "dry"
    assert measured.sample("probe", lambda: 1 / 0) == {"probe": points}


class Counts(Counter):
    """Three joules more whenever it is looked at."""

    taken = 0.0

    def joules(self):
        self.taken += 3.0
        return self.taken


@pytest.mark.parametrize("meter", [Counts("a script", 1e9), nothing("a fuse is blown")], ids=["readable", "not readable"])
def test_joules_are_kept_with_a_run_and_replayed_dry(unit, tmp_path, monkeypatch, meter):
    lm, unit.mode = unit.plain, "quick"
    unit.lm = lm
    monkeypatch.setattr(lesson, "counter", lambda device: meter)
    monkeypatch.setattr(lesson, "idle", lambda counter: 2.5 if counter.readable else None)
    known = {"counter": {"name": meter.name, "step": meter.step, "why": meter.why}, "idle": unit.idle}
    first = [joules(one) for one in unit.run("some", [1, 2, 3], max_new_tokens=3)]
    assert first == ([3.0] * 3 if meter.readable else [None] * 3)
    unit.decode = lambda ids: "x"
    lesson.record(unit, {"before": (1e9,), "after": (1e9,)}, tmp_path)
    monkeypatch.setattr(lesson, "RESULTS", tmp_path)
    monkeypatch.setattr(lesson, "counter", lambda device: 1 / 0)
    dry = lesson.start("01")
    assert [joules(one) for one in dry.run("some", "")] == first
    assert dry.counter == Counter(**known["counter"]) and dry.idle == known["idle"]


def test_a_recording_from_before_there_were_counters(unit):
    assert not unit.counter.readable and unit.idle is None
    assert lesson.metering(unit), "it was looked at"
    assert lesson.metering(lesson.start("01")) == {}


def test_a_claim_is_judged_with_where_it_was_measured(unit, monkeypatch, capsys):
    heard = []
    import tokenpace.claims  # noqa: F401

    monkeypatch.setattr(sys.modules["tokenpace.claims"], "judge", lambda name, *measured, **about: heard.append((name, measured, about)) or "holds")
    unit.claim("linear", 1, 2)
    assert heard == [("linear", (1, 2), {"machine": unit.machine["name"], "dtype": unit.dtype, "recorded": True})]
    assert capsys.readouterr().out == "holds\n"


def test_the_small_model_of_a_dry_lesson_takes_the_bytes_of_a_text(unit):
    import tokenpace as tp

    assert unit.plain is unit.plain
    out = tp.generate(unit.plain, unit.encode("Gravity"), max_new_tokens=2)
    assert len(out.tokens) == 2 and unit.encode("é") == [0xC3, 0xA9]


def test_how_long_it_takes(unit, capsys):
    assert lesson.estimate("01") in repr(unit)
    unit.opened -= 25 * 60
    unit.end()
    out = capsys.readouterr().out
    assert "was open for 25 minutes" in out and lesson.estimate("01") in out and "0 of" in out
    answers.keep("exercises", next(iter(exercises.exercises("01"))), {"done": True})
    unit.end()
    assert "1 of" in capsys.readouterr().out


def test_an_estimate_grows_with_text_and_tasks(tmp_path, monkeypatch):
    minutes = lambda text: int(text.split()[1])
    before = minutes(lesson.estimate("01"))
    (tmp_path / "units").mkdir()
    (source,) = (lesson.COURSE / "units").glob("01_*.py")
    (tmp_path / "units" / source.name).write_text(source.read_text(encoding="utf-8") + "# " + "word " * 1500, encoding="utf-8")
    monkeypatch.setattr(lesson, "COURSE", tmp_path)
    assert minutes(lesson.estimate("01")) in (before + 10, before + 15) and lesson.estimate("77") == "some minutes"


def test_a_recording_is_json(unit):
    for path in lesson.RESULTS.glob("0*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            json.loads(line)
