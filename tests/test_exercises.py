"""Exercises: every reference is accepted, every wrong answer gets its own message, and what a learner wrote runs in the real model."""

import contextlib
import inspect
import json
import linecache
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import tokenpace as tp
from tokenpace import answers, cells, exercises
from tokenpace.exercises import Busy, NotYet, examine, exercise

ROOT = Path(__file__).resolve().parents[1]
UNITS = sorted((ROOT / "course" / "units").glob("[0-9][0-9]_*.py"))
COURSE = exercises.exercises()


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENPACE_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("COURSE_STRICT", raising=False)


def notebook(text: str, **names) -> types.SimpleNamespace:
    """Run `text` as a cell of a notebook: with a source that can be found again. What it defines."""
    name = f"<cell {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"__name__": "__main__", "tp": tp, **names}
    exec(compile(text, name, "exec"), space)
    return types.SimpleNamespace(**space)


# the course's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.stem)
def test_a_unit_has_at_least_four_and_shows_all_it_has(unit):
    declared = [one for id, one in COURSE.items() if id.startswith(unit.stem[:2])]
    shown = re.findall(r'^# %% exercise="([^"]+)"', unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(declared) >= 4 and sorted(shown) == sorted(one.id for one in declared)
    assert (ROOT / "course" / "exercises" / unit.name).exists()
    assert len({one.difficulty for one in declared}) > 1, "they should grow"


@pytest.mark.parametrize("one", COURSE.values(), ids=lambda e: e.id)
def test_the_reference_is_accepted(one):
    verdict = examine(one, one.reference)
    assert verdict.state == "done", verdict


@pytest.mark.parametrize("one", COURSE.values(), ids=lambda e: e.id)
def test_every_wrong_answer_is_told_its_own(one):
    assert len({message for message, _ in one.mistakes}) >= 3
    for message, wrong in one.mistakes:
        verdict = examine(one, wrong)
        assert verdict.state == "wrong" and message in verdict.text, (message, str(verdict))


@pytest.mark.parametrize("one", COURSE.values(), ids=lambda e: e.id)
def test_what_is_said_of_it(one):
    assert 1 <= one.difficulty <= 5 and 1 <= one.minutes <= 30 and len(one.hints) == 2 and len(one.explanation) > 60
    assert one.task.strip()[-1] in ".?" and (one.trials or one.is_value)
    assert one.is_value or one.reference.__name__ == one.name, "a solution is called what the learner calls it"
    if one.target:
        assert one.target.split(":")[1] == one.name and callable(one.original)


@pytest.mark.parametrize("one", COURSE.values(), ids=lambda e: e.id)
def test_the_stub_is_not_attempted_and_the_solved_cell_is_right(one):
    assert examine(one, getattr(notebook(cells.stubbed(one)), one.name)).state == "open"
    done = notebook(cells.solved(one))
    assert examine(one, getattr(done, one.name)).state == "done"
    restored = cells.restored(one, cells.source(getattr(done, one.name), one.name))
    assert examine(one, restored).state == "done", "what is kept must stand on its own"


def test_targets_have_one_name_each():
    names = [one.name for one in COURSE.values() if one.target]
    assert len(names) == len(set(names))


# the system ------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch):
    """An exercise of this test's own, whose target is the real model's norm."""
    monkeypatch.setattr(exercises, "exercises", lambda unit="": dict(exercises._DECLARED))
    monkeypatch.setattr(exercises, "_DECLARED", {})
    one = exercise(
        "99.1",
        "rms_norm",
        task="Write it.",
        difficulty=2,
        minutes=5,
        hints=("a", "b"),
        explanation="Because.",
        target="tokenpace.model.transformer:rms_norm",
        needs="import torch",
    )

    @one.solution
    def rms_norm(x, weight, eps):
        """x [N, D] -> [N, D]"""
        return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)

    @one.trial("three tokens of eight numbers")
    def _(f):
        return f(torch.linspace(-2, 3, 24).view(3, 8), torch.linspace(0.5, 2, 8), 1e-5)

    @one.trial("bfloat16")
    def _(f):
        return f(torch.ones(1, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16), 1e-5)

    @one.mistake("You subtracted the mean.")
    def _(x, weight, eps):
        x = x - x.mean(-1, keepdim=True)
        return (x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)

    @one.mistake("You normalised in place.")
    def _(x, weight, eps):
        x.copy_(one.answer(x, weight, eps))
        return x

    return one


RIGHT = (
    "def rms_norm(x, weight, eps):\n    y = x.float()\n    return (y / (y.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)"
)
CENTRED = (
    "def rms_norm(x, weight, eps):\n    x = x - x.mean(-1, keepdim=True)\n    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight"
)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("", "[ ] 99.1 not attempted: there is no rms_norm here; tp.stub('99.1') prints"),
        ("rms_norm = None", "[ ] 99.1 not attempted"),
        ("def rms_norm(x, weight, eps):\n    '''x [N, D] -> [N, D]'''\n    ...", "[ ] 99.1 not attempted"),
        (RIGHT, "[ok] 99.1 rms_norm: right (tried: three tokens of eight numbers; bfloat16)"),
        (CENTRED, "[x] 99.1 rms_norm: You subtracted the mean."),
        (CENTRED.replace("x = x -", "x -="), "[x] 99.1 rms_norm: You subtracted the mean."),
        (
            "def rms_norm(x, weight, eps):\n    x *= (x * x).mean(-1, keepdim=True).add(eps).rsqrt() * weight\n    return x",
            "You normalised in place.",
        ),
        ("def rms_norm(x, weight, eps):\n    return None", "gives None"),
        ("def rms_norm(x, weight, eps):\n    pass", "gives None"),
        ("def rms_norm(x, weight, eps):\n    return x * float('nan')", "NaN"),
        ("def rms_norm(x, weight, eps):\n    return x[0]", "shape [8], but [3, 8]"),
        ("def rms_norm(x, weight, eps):\n    return x.double()", "float64"),
        ("def rms_norm(x, weight, eps):\n    return x.tolist()", "a list"),
        ("def rms_norm(x, weight):\n    return x", "takes 2 positional arguments"),
        ("def rms_norm(x, weight, eps):\n    return y", "NameError in line 2 of the cell, 'return y'"),
        ("def rms_norm(x, weight, eps):\n    for i in range(10 ** 6): print('megabytes')\n    return 0 * x", "It printed: megabytes"),
        ("rms_norm = 3", "[x] 99.1 rms_norm is 3, but should be a function"),
        ("class rms_norm:\n    def __init__(self, *a): 1 / 0", "ZeroDivisionError"),
    ],
)
def test_check_says_what_is_wrong_and_raises_nothing(own, cell, says, capsys):
    notebook(cell + "\ntp.check('99.1')")
    out = capsys.readouterr().out
    assert says in out and len(out) < 900, out


ODD = [  # whatever a learner's name stands for: one message, no exception
    ("rms_norm = len", "takes exactly one argument"),
    ("import torch\nrms_norm = torch.rsqrt", "raises TypeError"),
    ("import torch\nrms_norm = torch.nn.functional.layer_norm", "[x]"),
    ("import torch\nrms_norm = torch.ones(3, 3)", "is tensor([[1., 1., 1.], [1., 1., 1.], [1., 1., 1.]]), but should be a function"),
    ("rms_norm = 10 ** 5000", "is a number, but should be a function"),
    ("class Odd:\n    def __repr__(self): raise RuntimeError\nrms_norm = Odd()", "is something of type Odd, but should be a function"),
    ("class Odd:\n    def __repr__(self): raise SystemExit\nrms_norm = Odd()", "is something of type Odd, but should be a function"),
    ("class rms_norm:\n    pass", "it is a class, but should be a function: it raises TypeError"),
    ("async def rms_norm(x, weight, eps):\n    return x", "a coroutine (`async def` makes one"),
    ("def rms_norm(x, weight, eps):\n    yield x", "a generator (a function with `yield`"),
    ("def rms_norm(x, weight, eps):\n    raise ValueError('half a character: \\ud800')", "half a character: ?"),
    ("import sys\ndef rms_norm(x, weight, eps):\n    sys.exit()", "raises SystemExit"),
    ("def rms_norm(x, weight, eps):\n    return rms_norm(x, weight, eps)", "raises RecursionError"),
    ("def rms_norm(x, weight, eps):\n    global said\n    said = 1\n    return [x] * 10 ** 6", "a list, but a tensor"),
]


@pytest.mark.parametrize(("cell", "says"), ODD)
def test_whatever_the_name_stands_for_there_is_one_message(own, cell, says, capsys):
    notebook(cell + "\ntp.check('99.1')\npart = tp.learner_or_reference('99.1')")
    out = capsys.readouterr().out
    assert says in out and len(out) < 900, out
    out.encode()


STYLES = {  # right answers that are no plain `def`
    "lambda": "rms_norm = lambda x, weight, eps: right(x, weight, eps)",
    "partial": "import functools\ndef with_more(more, x, weight, eps):\n    return right(x, weight, eps)\nrms_norm = functools.partial(with_more, 1)",
    "decorated": "import torch\n@torch.no_grad()\ndef rms_norm(x, weight, eps):\n    return right(x, weight, eps)",
    "its own decorator": "import functools\ndef fixed(f):\n    @functools.wraps(f)\n    def inner(x, weight, eps):\n"
    "        return right(x, weight, eps)\n    return inner\n@fixed\ndef rms_norm(x, weight, eps):\n    return 0",
    "star": "def rms_norm(*arguments):\n    return right(*arguments)",
    "keywords": "def rms_norm(x, w=None, e=0.0, *, more=1, **rest):\n    return right(x, w, e)",
    "an object": "class Norm:\n    def __call__(self, x, weight, eps):\n        return right(x, weight, eps)\nrms_norm = Norm()",
    "a constant": "E: int = 1\nif E:\n    TIMES = E\nTIMES *= 1\ndef rms_norm(x, weight, eps):\n    return right(x, weight, eps) * TIMES",
    "an attribute": "def rms_norm(x, weight, eps):\n    return right(x, weight, eps) * rms_norm.times\nrms_norm.times = 1",
    "a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Norm:\n    times: int = 1\n"
    "    def __call__(self, x, weight, eps):\n        return right(x, weight, eps) * self.times\nrms_norm = Norm()",
}


@pytest.mark.parametrize("cell", STYLES.values(), ids=STYLES)
def test_a_right_answer_in_any_style_is_right_and_kept(own, cell, capsys):
    right = RIGHT.replace("rms_norm", "right") + "\n"
    cell = ("" if "__future__" in cell else right) + cell + ("\n" + right if "__future__" in cell else "")
    notebook(cell + "\nraise_if_run = None\nif tp.check('99.1'): 1 / 0\nprint('noise')")
    assert "[ok]" in capsys.readouterr().out
    kept = answers.read()["exercises"]["99.1"]["source"]
    assert "noise" not in kept and "raise_if_run" not in kept and "tp.check" not in kept
    assert notebook("part = tp.learner_or_reference('99.1')").part is not own.answer
    assert capsys.readouterr().out == "99.1 rms_norm: yours, as it was when it was last right\n"


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(1000)\n",
        "while True:\n    try:\n        len('')\n    except: pass\n",
        "print('x' * 10 ** 7)\n",
        "raise SystemExit\n",
        "1 / 0\n",
        "not Python",
        "import torch\ntorch.set_default_dtype(torch.float64)\n",
        "other = 1\n",
        "",
        "rms_norm = None\n",
    ],
)
def test_what_was_kept_may_do_anything_when_it_is_made_anew(own, text, monkeypatch, capsys):
    monkeypatch.setattr(exercises.attempt, "__defaults__", (0.3,))
    answers.keep("exercises", "99.1", {"done": True, "state": "done", "source": text})
    part = notebook("part = tp.learner_or_reference('99.1')").part
    assert part is own.answer and torch.get_default_dtype() is torch.float32
    assert capsys.readouterr().out == "99.1 rms_norm: the reference, for what you wrote in its unit does not run here by itself\n"


def test_an_error_in_every_trial_is_told_and_not_taken_for_a_mistake_that_fails_too(own, capsys):
    @own.mistake("You forgot what eps is for.")
    def _(x, weight, eps):
        raise TypeError

    notebook("def rms_norm(x, weight):\n    return x\ntp.check('99.1')")
    assert "takes 2 positional arguments" in capsys.readouterr().out


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("true", True), ("yes", True), ("0", False), ("", False)])
def test_what_counts_as_strict(own, monkeypatch, value, strict):
    monkeypatch.setenv("COURSE_STRICT", value)
    with pytest.raises(NotYet) if strict else contextlib.nullcontext():
        notebook("tp.check('99.1')")


@pytest.mark.parametrize("unit", ["0", "1", "*", "[0-9]", "77", "013", "../00", "00_", " "])
def test_a_unit_is_named_by_its_number_or_its_file(unit):
    with pytest.raises(ValueError, match="no exercises for unit"):
        exercises.exercises(unit)
    first = next(iter(COURSE)).split(".")[0]
    path = next(exercises.HOME.glob(f"{first}_*.py"))
    assert list(exercises.exercises(path.stem)) == list(exercises.exercises(first)) != []


def test_a_loop_that_never_ends(own, monkeypatch, capsys):
    monkeypatch.setattr(exercises.attempt, "__defaults__", (0.3,))
    notebook("def rms_norm(x, weight, eps):\n    while True: pass\ntp.check('99.1')\nafter = 1")
    assert "[x] 99.1 rms_norm: it did not end within" in capsys.readouterr().out


def test_an_interrupt_of_a_check_passes_and_leaves_everything_as_it_was(own):
    out = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        notebook("def rms_norm(x, weight, eps):\n    raise KeyboardInterrupt\ntp.check('99.1')")
    assert sys.stdout is out and answers.read()["exercises"] == {}


def test_strict_raises_for_everything_but_done(own, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_STRICT", "1")
    for cell in ("", "rms_norm = None", CENTRED):
        with pytest.raises(NotYet, match="99.1"):
            notebook(cell + "\ntp.check('99.1')")
    notebook(RIGHT + "\ntp.check('99.1')")
    assert "[ok]" in capsys.readouterr().out


def test_a_busy_machine_is_no_mistake(own, capsys):
    @own.trial("with a clock")
    def _(f):
        raise Busy("the roof moved from 20 to 40 GB/s")

    notebook(RIGHT + "\ntp.check('99.1')")
    assert capsys.readouterr().out.startswith("[?] 99.1 inconclusive: machine busy (the roof moved from 20 to 40 GB/s)")


def test_an_unknown_exercise():
    with pytest.raises(ValueError, match="no exercise '01.99'; did you mean"):
        tp.check("01.99")


def test_what_is_kept(own, capsys):
    notebook(CENTRED + "\ntp.check('99.1')")
    notebook(RIGHT + "\ntp.check('99.1')")
    notebook(RIGHT + "\ntp.check('99.1')")
    kept = answers.read()["exercises"]["99.1"]
    assert kept["done"] and kept["tries"] == 2 and kept["source"] == RIGHT == tp.mine("99.1")
    notebook(CENTRED + "\ntp.check('99.1')")
    kept = answers.read()["exercises"]["99.1"]
    assert kept["done"] and kept["state"] == "wrong" and kept["source"] == RIGHT and kept["latest"] == CENTRED
    capsys.readouterr()
    notebook("rms_norm = None\ntp.check('99.1')")
    assert "It was done before: print(tp.mine('99.1'))" in capsys.readouterr().out


def test_learner_or_reference(own, capsys):
    take = "\npart = tp.learner_or_reference('99.1')"
    assert notebook(take).part is own.answer and "yours is not done yet" in capsys.readouterr().out
    assert notebook(CENTRED + take).part is own.answer and "yours is not right yet" in capsys.readouterr().out
    here = notebook(RIGHT + take)
    assert here.part is here.rms_norm and capsys.readouterr().out == "99.1 rms_norm: yours\n"
    notebook(RIGHT + "\ntp.check('99.1')")
    capsys.readouterr()
    other = notebook(take).part
    assert other is not own.answer and "yours, as it was when it was last right" in capsys.readouterr().out
    assert torch.equal(other(torch.ones(1, 4), torch.ones(4), 0.0), torch.ones(1, 4))


def test_what_leans_on_its_notebook_is_left_there(own, capsys):
    cell = "def rms_norm(x, weight, eps):\n    return helper(x, weight, eps)\ntp.check('99.1')"
    notebook(cell, helper=own.answer)
    assert answers.read()["exercises"]["99.1"]["done"]
    capsys.readouterr()
    assert notebook("part = tp.learner_or_reference('99.1')").part is own.answer
    assert "does not run here by itself" in capsys.readouterr().out


def test_using_runs_the_real_model_on_it_and_puts_everything_back():
    from tokenpace.model import transformer

    lm, before = tp.load("shape:15m", dtype="float32"), transformer.rms_norm
    plain = tp.generate(lm, [1, 2, 3], max_new_tokens=4).tokens
    c = lm.config
    with tp.using(rms_norm=lambda x, weight, eps: before(x, weight, eps)) as used:
        assert tp.generate(lm, [1, 2, 3], max_new_tokens=4).tokens == plain
        assert used.calls["rms_norm"] == 4 * (2 * c.n_layers + 1) and f"rms_norm {used.calls['rms_norm']} times" in str(used)
        with tp.using(rms_norm=lambda x, weight, eps: x):
            assert tp.generate(lm, [1, 2, 3], max_new_tokens=4).tokens != plain
        assert tp.generate(lm, [1, 2, 3], max_new_tokens=4).tokens == plain
    assert transformer.rms_norm is before
    with pytest.raises(ZeroDivisionError), tp.using(rms_norm=lambda x, weight, eps: 1 / 0):
        tp.generate(lm, [1, 2, 3], max_new_tokens=4)
    assert transformer.rms_norm is before and tp.generate(lm, [1, 2, 3], max_new_tokens=4).tokens == plain


@pytest.mark.parametrize("one", [e for e in COURSE.values() if e.target], ids=lambda e: e.id)
def test_every_module_that_holds_a_target_gets_the_replacement(one):
    """`from x import target` in a module would otherwise keep the original there."""
    holders = lambda thing: {m.__name__ for m in list(sys.modules.values()) if m and m.__name__.startswith("tokenpace") and thing in _values(m)}
    before, original = holders(one.original), one.original
    with tp.using(**{one.name: one.reference}):
        assert not holders(original) and before
    assert holders(original) == before


def _values(module) -> list:
    class Same:  # `in` by identity: a tensor has no truth
        def __init__(self, of):
            self.of = [id(x) for x in of]

        def __contains__(self, x):
            return id(x) in self.of

    return Same(vars(module).values())


def test_using_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="nothing that can be replaced is called 'rms_nrom'; did you mean rms_norm"), tp.using(rms_nrom=len):
        pass
    with pytest.raises(TypeError, match="rms_norm is 3, which cannot be called"), tp.using(rms_norm=3):
        pass


def test_a_part_that_was_not_called_is_said():
    with tp.using(rms_norm=len) as used:
        pass
    assert "nothing here needs rms_norm: do the tiled kernels run in its place?" in str(used)
    with tp.using(bound=lambda roof, memory, compute: "inconclusive") as used:
        pass
    assert str(used) == "called: bound 0 times"


def test_what_is_not_python_yet_is_not_judged_by_what_was_written_before(capsys):
    right = "def generate(forward, prompt, n): ..."
    space = {"In": ["", right, "tp.check('01.1')", "def generate(forward, prompt, n)\n    return 1", "x = 1"], "tp": tp, "generate": len}
    exec("tp.check('01.1')", space)
    assert capsys.readouterr().out.startswith("[x] 01.1 generate: what you wrote last is not Python yet (line 1 of its cell: expected ':')")
    space["In"].append(right)
    exec("tp.check('01.1')", space)
    assert "not Python" not in capsys.readouterr().out


def test_a_class_is_counted_by_its_methods():
    class Mine(tp.Slab):
        def span(self, last):
            return super().span(last)

    if "Slab" not in {e.name for e in COURSE.values() if e.target}:
        pytest.skip("no exercise has the slab for a target")
    lm = tp.load("shape:15m", dtype="float32")
    with tp.using(Slab=Mine) as used:
        tp.generate(lm, [1, 2, 3], max_new_tokens=2)
    assert used.calls["Slab"] >= 2


def test_solution_stub_and_value(own, capsys):
    tp.solution("99.1")
    out = capsys.readouterr().out
    assert out.startswith("import torch\n\n\ndef rms_norm(x, weight, eps):") and "Because." in out and "tokenpace.model.transformer:rms_norm" in out
    tp.stub("99.1")
    assert capsys.readouterr().out == 'import torch\n\n\ndef rms_norm(x, weight, eps):\n    """x [N, D] -> [N, D]"""\n    ...\n'
    value = exercise("99.2", "size", task="How many?", difficulty=1, minutes=1, hints=("a", "b"), explanation="Because.")
    value.solution(12)
    value.mistake("Those are bits.")(96)
    for cell, says in {"size = None": "[ ]", "size = 96": "Those are bits.", "size = 12.0": "[ok]", "size = '12'": "a string"}.items():
        notebook(cell + "\ntp.check('99.2')")
        assert says in capsys.readouterr().out


def test_signatures_lose_their_annotations_and_keep_their_defaults(own):
    one = exercise("99.3", "autoregressive", task=".", difficulty=1, minutes=1, hints=("", ""), explanation="", needs="from tokenpace import Ask")
    one.solution(inspect.unwrap(tp.autoregressive))
    assert "def autoregressive(prompt, sampler=GREEDY, seed=0):" in cells.stubbed(one)
    assert "yield Ask(" in cells.solved(one) and ": list" not in cells.solved(one)


def test_the_table_on_the_command_line(tmp_path):
    env = {"TOKENPACE_DATA": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii", "HOME": str(tmp_path)}
    run = lambda *a: subprocess.run([sys.executable, "-m", "tokenpace", *a], capture_output=True, text=True, env=env)
    first = next(iter(COURSE))
    unit = first[:2]
    done = run("check", unit)
    assert done.returncode == 0 and f"[ ]  {first}" in done.stdout and done.stdout.isascii()
    value = {"state": "wrong", "done": True, "tries": 3, "source": "def f(): pass", "latest": ""}
    (tmp_path / "answers.jsonl").write_text(json.dumps({"kind": "exercises", "name": first, "value": value}) + "\n")
    assert f"[ok] {first}" in run("check").stdout and "1 of" in run("check").stdout
    reset = run("reset", first)
    assert reset.returncode == 0 and "def f(): pass" in reset.stdout, "what is forgotten is shown once more"
    assert f"[ ]  {first}" in run("check", unit).stdout
    assert run("check", "77").returncode == 2 and "no exercises for unit '77'" in run("check", "77").stderr
    assert run("reset", "1.9.9").returncode == 2
