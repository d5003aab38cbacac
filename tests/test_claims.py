"""The claims of the course: none without unit and judge, no unit without claims; a verdict is kept and shown for the machine that gave it."""

import ast
import json
import sys
from math import isfinite
from pathlib import Path

import pytest

from tokenpace import claims as shown_claims
from tokenpace.claims import Finding, judge, table, unit00, unit01, unit02, unit03, unit07
from tokenpace.claims.verdict import judged

MODULE = sys.modules["tokenpace.claims"]  # the name in the package is the function
UNITS = {path.name[:2]: path for path in sorted((Path(__file__).parents[1] / "course" / "units").glob("[0-9][0-9]_*.py"))}

# The course's table, typed once more: what each row says in short, its units, the claims that it became.
ROWS = [
    ("probability is a product of conditionals", "01", "product"),
    ("latency is linear; a floor set by the passes", "01", "linear floor"),
    ("parameters are loaded again for every token", "01", "again"),
    ("low parallelism and memory traffic", "01", "two-factors"),
    ("thousands of cores idle", "04", "idle"),
    ("bandwidth sets tokens/s at batch 1 (thief)", "00 04", "bandwidth"),
    ("the higher the bandwidth the more tokens/s (device table)", "04", "devices"),
    ("compute-bound at large batch", "04 08", "batch"),
    ("the cache hierarchy decides for small models", "04", "small"),
    ("without a cache quadratic", "03", "quadratic"),
    ("KV memory grows, long context pays", "05", "long-context"),
    ("fewer bytes are faster", "06", "fewer-bytes"),
    ("output tokens cost more", "07", "price"),
    ("unequal lengths; grouping amortises", "08 09", "grouping"),
    ("unpredictable completion times", "10", "deadlines"),
    ("stateful sessions", "11", "sessions"),
    ("prompt caching", "11", "prompt-caching"),
    ("windows, compression, truncation", "12", "forgetting"),
    ("parallel samples are nearly free", "13", "samples"),
    ("rejection sampling is exact", "14", "exact"),
    ("speculation pays and can lose", "15", "speculation"),
    ("easy tokens need fewer layers", "16 17", "depth"),
    ("all-at-once loses dependencies", "18 19", "dependencies"),
    ("splicing autoregression and diffusion", "20", "splice"),
    ("bandwidth, compute and communication", "21", "chips"),
    # what the units claim beside the table
    ("reads fall out of the caches", "00", "hierarchy"),
    ("bytes of a pass are weights", "02", "weights"),
    ("draws follow the law", "02", "law"),
]


# the table -----------------------------------------------------------------------------------------------------------


def test_every_row_of_the_course_is_a_claim_and_no_claim_is_homeless():
    known = table()
    assert sorted(known) == sorted(name for _, _, names in ROWS for name in names.split())
    for _, units, names in ROWS:
        assert all(known[name].units == tuple(units.split()) for name in names.split())


@pytest.mark.parametrize(
    "lines, wrong",
    [
        ('name = "a"\ntext = "b"\ncall = "c:d"', "a.* has no units"),
        ('name = "a"\ntext = "b"\ncall = "c:d"\nunits = []', "has no units"),
        ('name = "a"\ntext = "b"\nunits = ["01"]', "has no call"),
        ('text = "b"\nunits = ["01"]\ncall = "c:d"', "without name.* has no name"),
        ('name = "a"\nunits = ["01"]', "has no text and no call"),
        ('name = "a"\ntext = "b"\nunits = ["01"]\ncall = "c.d"', "must be module:function"),
        ('name = "a"\ntext = "b"\nunits = ["01"]\ncall = "c:d"\nunit = "01"', "has unit, which no claim has"),
    ],
)
def test_a_claim_without_a_home_is_refused(tmp_path, lines, wrong):
    path = tmp_path / "claims.toml"
    path.write_text(f"[[claim]]\n{lines}\n")
    with pytest.raises(ValueError, match=wrong):
        table(path)


def test_a_name_is_taken_once(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\nname = "a"\ntext = "b"\nunits = ["01"]\ncall = "c:d"\n' * 2)
    with pytest.raises(ValueError, match="claim 2 .a.: the name is taken"):
        table(path)


def measured_in(source: str) -> set[str]:
    """The claims that a unit's code asks about: unit.claim("name", …)."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "unit.claim"]
    return {call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)}


def unmeasured(unit: str, source: str) -> set[str]:
    """What a unit owes: claims that it doesn't measure. A unit without claims is refused."""
    mine = {claim.name for claim in table().values() if unit in claim.units}
    assert mine, f"unit {unit} has no claim: add one to course/claims.toml"
    return mine - measured_in(source)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_measures_its_claims(unit):
    assert not unmeasured(unit, UNITS[unit].read_text(encoding="utf-8"))


@pytest.mark.parametrize("unit", UNITS)
def test_the_claims_of_a_unit_have_their_judges(unit):
    assert all(callable(claim.function()) for claim in table().values() if unit in claim.units)


def test_a_unit_without_claims_is_refused_and_a_comment_measures_nothing():
    with pytest.raises(AssertionError, match="unit 99 has no claim"):
        unmeasured("99", "")
    assert unmeasured("03", '# unit.claim("quadratic", shown)') == {"quadratic"}
    assert unmeasured("03", 'if True:\n    unit.claim("quadratic", shown)') == set()


def test_every_judge_has_a_claim():
    """A function that no claim calls is no judge."""
    called = {claim.call for claim in table().values()}
    for module in (unit00, unit01, unit02, unit03, unit07):
        judges = [f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__ and "Judgement" in str(f.__annotations__)]
        assert judges and all(f"{module.__name__}:{f.__name__}" in called for f in judges)


# judging, keeping, showing -------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENPACE_DATA", str(tmp_path))
    monkeypatch.setattr(MODULE, "device_name", lambda device="cpu": "a laptop" if device == "cpu" else "its GPU")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return tmp_path


def of(name: str, found=None):
    """A claim's row as `tp.claims()` shows it now."""
    return next((mine, others) for claim, mine, others in (found or shown_claims()).rows if claim.name == name)


TAKEN = {"scores": (2, 1.0, 1.0), "mlp": (3, 60.0, 1.0), "head": (1, 20.0, 1.0), "attention": (4, 19.0, 1.0)}


def test_a_finding_is_kept_and_shown_for_its_machine(data):
    found = judge("weights", TAKEN, machine="a laptop", dtype="bfloat16")
    assert isinstance(found, Finding) and found.verdict == "holds" and of("weights")[0] == found
    text = str(shown_claims())
    assert "02      weights: holds" in text and "99.0% are weights" in text and f"[a laptop, bfloat16, {found.when[:10]}]" in text
    assert f"{len(table())} claims on a laptop: holds 1, holds if … 0, not here 0" in text
    assert found.figures in shown_claims()._repr_markdown_()


def test_the_machine_is_this_one_unless_it_is_said(data):
    assert judge("weights", TAKEN).machine == "a laptop" and of("weights")[0].machine == "a laptop"


def test_a_verdict_of_another_machine_is_not_this_ones(data):
    judge("weights", TAKEN, machine="a server")
    mine, others = of("weights")
    assert mine is None and [f.machine for f in others] == ["a server"]
    assert "weights: not yet measured (" in str(shown_claims()) and "Elsewhere: holds. " in str(shown_claims()).replace("\n        ", " ")
    bad = {**TAKEN, "scores": (2, 100.0, 1.0)}
    judge("weights", bad, machine="a laptop")
    mine, others = of("weights")
    assert mine.verdict == "not here" and [f.verdict for f in others] == ["holds"]


def test_a_gpu_of_this_machine_is_this_machine(data, monkeypatch):
    judge("weights", TAKEN, machine="its GPU")
    assert of("weights")[0] is None
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert of("weights")[0].machine == "its GPU" and "claims on a laptop and its GPU:" in str(shown_claims())


def test_a_recording_is_not_from_here(data):
    found = judge("weights", TAKEN, machine="a laptop", dtype="bfloat16", recorded=True)
    assert found.where == "recorded on a laptop, bfloat16" and found.verdict == "holds"
    assert of("weights") == (None, ()) and not list(data.iterdir())


def test_a_new_verdict_takes_the_old_ones_place_but_a_run_without_one_does_not(data):
    short = [0.0] * 4
    long = [-1.0] * 20
    other = [-1.0] * 5 + [-2.0] * 15
    assert judge("product", short, short, short, 2).verdict == "not yet measured"
    assert "4 tokens were written" in of("product")[0].figures  # better than nothing: it says what is missing
    assert judge("product", long, long, other, 4).verdict == "holds" and of("product")[0].verdict == "holds"
    assert judge("product", short, short, short, 2).verdict == "not yet measured" and of("product")[0].verdict == "holds"
    assert judge("product", long, long, long, 4).verdict == "not here" and of("product")[0].verdict == "not here"


def test_a_condition_is_part_of_the_verdict(data, monkeypatch):
    monkeypatch.setattr(unit01, "linear", lambda yes: judged(yes, "It was measured."))
    found = judge("linear", True)
    assert found.verdict == "holds if" and found.says == f"holds if {table()['linear'].holds_if}"
    assert "linear: holds if the text is so short" in str(shown_claims()) and "holds if … 1," in str(shown_claims())
    assert judge("linear", False).says == "not here"


def test_an_entry_that_is_no_finding_is_passed_over(data):
    found = judge("weights", TAKEN)
    with open(data / "answers.jsonl", "a") as file:
        for value in (
            {"verdict": "holds"},
            {**vars(found), "verdict": "true"},
            {**vars(found), "when": 3},
            {**vars(found), "more": 1},
            {**vars(found), "claim": "nobody's"},
        ):
            file.write(json.dumps({"kind": "claims", "name": str(value), "value": value}) + "\n")
    assert of("weights")[0] == found and "nobody" not in str(shown_claims())


def test_what_cannot_be_judged_is_said_in_a_sentence(data):
    with pytest.raises(ValueError, match="no claim 'linea' in course/claims.toml; did you mean linear"):
        judge("linea")
    if "21" not in UNITS:
        with pytest.raises(NotImplementedError, match="claim 'chips' of unit 21: .*unit21:chips is not written yet"):
            judge("chips")
        assert "chips: not yet measured (unit 21 is not there yet)" in str(shown_claims())


# the real recordings -------------------------------------------------------------------------------------------------


def test_the_recorded_race_of_unit_01_is_borne_out(monkeypatch, data):
    """The dry unit: every claim of unit 01 on what was measured, through the real figure."""
    monkeypatch.setenv("COURSE_MODE", "dry")
    from tokenpace import lesson
    from tokenpace.show.race import race as run

    unit = lesson.start("01")
    runs = {name: [step for step, _ in unit.run(name, "")] for name in ("first", "told", "swapped")}
    given = [token for step in runs["first"] for row in step.rows for _, token, _ in row.writes]
    logs = {name: [p for step in steps for row in step.rows for p in row.logprobs] for name, steps in runs.items()}
    shown = run(unit, "", given, live=False)
    measured = dict.fromkeys(("linear", "floor", "again", "two-factors"), (shown,))
    measured["product"] = (logs["first"], logs["told"], logs["swapped"], 4)
    for name, what in measured.items():
        found = judge(name, *what, machine=unit.machine["name"], dtype=unit.dtype, recorded=True)
        assert found.verdict in ("holds", "holds if"), found
        assert all(map(isfinite, found.numbers.values()))
    assert not list(data.iterdir())


def test_the_recorded_price_of_unit_07_is_borne_out(monkeypatch, data):
    monkeypatch.setenv("COURSE_MODE", "dry")
    from tokenpace import lesson
    from tokenpace.show.price import prices

    unit = lesson.start("07")
    found = judge("price", prices(unit, "", live=False), machine=unit.machine["name"], dtype=unit.dtype, recorded=True)
    assert found.verdict in ("holds", "holds if") and all(map(isfinite, found.numbers.values())), found
    assert unit.counter.readable or "joules are not readable here" in found.condition
