"""Percent source → notebook: read back by nbformat (which did not write it), the same bytes twice, every rule broken once."""

import importlib.util
import json
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenpace import exercises

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("course_build", ROOT / "course" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

SOURCE = """# %% [markdown]
# # One token
#
# Why *not* more? It can't, see $p(x)$.

# %%
import math

print(math.pi)

# %% tags=["nbval-check-output"] editable=false
print(1)
print()
print("  two")
#> 1
#>
#>   two
# %%
# a comment stays
x = 1  # %% not a marker
"""


def book(source=SOURCE):
    return build.notebook(build.parse(source, "unit.py"))


def test_nbformat_reads_what_was_meant():
    read = nbformat.reads(build.dump(book()).decode(), as_version=4)
    nbformat.validate(read)
    assert [c.cell_type for c in read.cells] == ["markdown", "code", "code", "code"]
    assert read.cells[0].source == "# One token\n\nWhy *not* more? It can't, see $p(x)$."
    assert read.cells[1].source == "import math\n\nprint(math.pi)" and read.cells[1].outputs == [] and read.cells[1].execution_count is None
    assert read.cells[2].metadata == {"tags": ["nbval-check-output"], "editable": False}
    assert read.cells[2].outputs[0].text == "1\n\n  two\n" and read.cells[2].execution_count == 2
    assert read.cells[3].source == "# a comment stays\nx = 1  # %% not a marker"
    assert read.metadata.kernelspec.name == "python3"


def test_saving_it_with_nbformat_changes_no_byte():
    data = build.dump(book()).decode()
    assert nbformat.writes(nbformat.reads(data, as_version=4)) + "\n" == data


def test_ids_are_the_content():
    first, second = book(), book(SOURCE.replace("Why *not* more", "Why more"))
    changed = [a["id"] != b["id"] for a, b in zip(first["cells"], second["cells"])]
    assert changed == [True, False, False, False]


def test_equal_cells_get_different_ids_and_the_same_ones_every_time():
    twins = "# %%\nx = 1\n" * 3 + "# %% [markdown]\n# x = 1\n"
    ids = [c["id"] for c in book(twins)["cells"]]
    assert len(set(ids)) == 4 and ids == [c["id"] for c in book(twins)["cells"]]
    assert ids[:2] == [c["id"] for c in book("# %%\nx = 1\n" * 2)["cells"]]


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), max_size=30)


@given(st.lists(st.tuples(st.booleans(), st.lists(TEXT, max_size=4)), min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(cells):
    source = ""
    for prose, lines in cells:
        source += "# %% [markdown]\n" + "".join(f"# {line}\n" for line in lines) if prose else "# %%\n" + "".join(f"y = {line!r}\n" for line in lines)
    parsed = build.parse(source)
    assert [c["kind"] for c in parsed] == ["markdown" if prose else "code" for prose, _ in cells]
    for cell, (prose, lines) in zip(parsed, cells):
        assert cell["source"] == ("\n".join(lines) if prose else "\n".join(f"y = {line!r}" for line in lines)).strip("\n")
    read = nbformat.reads(build.dump(build.notebook(parsed)).decode(), as_version=4)
    assert [c.source for c in read.cells] == [c["source"] for c in parsed]


@pytest.mark.parametrize(
    "source, says",
    [
        ("x = 1\n", "unit.py:1: code before the first cell"),
        ("", "no cell in it"),
        ("# %% tags=[oops]\n", "unit.py:1: cannot read 'tags=\\[oops\\]'"),
        ("# %% markdown\n", "cannot read 'markdown'"),
        ("# %% [markdown]\nx = 1\n", "not a comment: 'x = 1'"),
    ],
)
def test_bad_source(source, says):
    with pytest.raises(ValueError, match=says):
        build.parse(source, "unit.py")


def code(source, tags=(), **more):
    return {"cell_type": "code", "id": "c1", "metadata": {"tags": list(tags)}, "source": source, "outputs": [], "execution_count": None} | more


OUT = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
VIEW = [{"output_type": "display_data", "data": {"application/vnd.jupyter.widget-view+json": {}}, "metadata": {}}]
LONG = "\n".join(f"x{i} = {i}" for i in range(13))


@pytest.mark.parametrize(
    "cell, says",
    [
        (code("%matplotlib inline"), "magic"),
        (code("x = 1\n!ls"), "magic"),
        (code("print?"), "magic"),
        (code("get_ipython().system('ls')"), "magic"),
        (code("x ="), "not Python"),
        (code("def f(): pass"), "defines f"),
        (code("if True:\n    class A: pass"), "defines A"),
        (code(LONG), "13 lines"),
        (code("1", ["nbval-check-output"]), "no output and count"),
        (code("1", ["nbval-check-output"], outputs=OUT), "no output and count"),
        (code("1", ["nbval-check-output"], execution_count=1), "no output and count"),
        (code("1/0", ["raises-exception"]), "asserts none"),
        (code("w", outputs=VIEW), "widget is saved"),
        ({"cell_type": "markdown", "id": "m1", "metadata": {}, "source": "The pass takes 12 ms."}, "typed into prose, '12 ms'"),
        ({"cell_type": "markdown", "id": "m1", "metadata": {}, "source": "It is 2.5× faster and reads 538 MB."}, "typed into prose, '2.5×'"),
    ],
)
def test_each_rule_is_enforced(cell, says):
    broken = build.problems({"cells": [cell], "metadata": {"kernelspec": {"name": "python3"}}})
    assert any(says in what and cell["id"] in what for what in broken), broken


@pytest.mark.parametrize(
    "cell",
    [
        code("def f(x):\n    ...\n" + LONG, ["exercise"]),
        code("x = 'a%b' % 3\nwhat = '?'"),
        code("print(1)", ["nbval-check-output"], outputs=OUT, execution_count=1),
        code("1/0", ["raises-exception", "nbval-check-output"], outputs=OUT, execution_count=1),
        {
            "cell_type": "markdown",
            "id": "m1",
            "metadata": {},
            "source": "Unit 01, two bars, 8 minutes, Pope et al. 2022, eq. 3, a `12 ms` quoted, 4 tokens.",
        },
    ],
)
def test_what_is_allowed(cell):
    assert build.problems({"cells": [cell], "metadata": {"kernelspec": {"name": "python3"}}}) == []


def test_rules_of_the_whole_book():
    assert build.problems({"cells": [], "metadata": {"kernelspec": {"name": "ir"}}}) == ["the kernelspec is not python3"]
    assert build.problems({"cells": [], "metadata": {"kernelspec": {"name": "python3"}, "widgets": {"x": 1}}}) == ["widget state is saved in it"]
    twice = [code("def f(): ...", ["exercise"]), code("def f(): ...", ["exercise"])]
    assert any("stubs f a second time" in what for what in build.problems({"cells": twice, "metadata": {"kernelspec": {"name": "python3"}}}))


EXERCISE = next(iter(exercises.exercises()))


@pytest.mark.parametrize(("solved", "state"), [((), "[ ]"), (build.EVERY, "[ok]"), ({EXERCISE}, "[ok]"), ({"another"}, "[ ]")])
def test_an_exercise_is_one_line(solved, state):
    one = exercises.find(EXERCISE)
    cells = build.expanded(build.parse(f'# %%\nx = 1\n\n# %% exercise="{EXERCISE}"\n\n# %%\ny = 2\n'), solved)
    first, text, written, checked, last = cells
    assert (first["source"], last["source"]) == ("x = 1", "y = 2")
    assert one.task in text["source"] and text["source"].count("<details>") == 3 and all(hint in text["source"] for hint in one.hints)
    assert written["metadata"]["tags"] == ["exercise"] and f"{one.name}(" in written["source"]
    assert checked["source"] == f'tp.check("{EXERCISE}")' and checked["output"][0].startswith(f"{state} {EXERCISE}")
    assert build.problems(build.notebook(cells)) == []


def test_an_exercise_with_something_in_it_or_of_no_name():
    with pytest.raises(ValueError, match=f"the cell of exercise {EXERCISE} must be empty"):
        build.expanded(build.parse(f'# %% exercise="{EXERCISE}"\nx = 1\n'))
    with pytest.raises(ValueError, match="no exercise '1'"):
        build.expanded(build.parse('# %% exercise="1"\n'))


def test_solved_copies_go_elsewhere(course, tmp_path):
    assert build.main(["--solved", str(tmp_path / "solved")], course) == 0
    assert [p.name for p in (tmp_path / "solved").iterdir()] == ["01_a.ipynb"] and not (course.parent / "notebooks").exists()


@pytest.fixture
def course(tmp_path):
    (tmp_path / "course" / "units").mkdir(parents=True)
    (tmp_path / "course" / "units" / "01_a.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "course"


def test_build_check_and_rebuild(course, capsys):
    made = course.parent / "notebooks" / "01_a.ipynb"
    assert build.main(["--check"], course) == 1 and not made.exists()
    assert build.main([], course) == 0
    first = made.read_bytes()
    assert build.main(["--check"], course) == 0
    made.unlink()
    assert build.main([], course) == 0 and made.read_bytes() == first
    made.write_bytes(first.replace(b"One token", b"Two tokens"))
    assert build.main(["--check"], course) == 1 and "01_a.ipynb" in capsys.readouterr().err
    assert build.main([], course) == 0 and made.read_bytes() == first
    (course.parent / "notebooks" / "02_gone.ipynb").write_text("{}")
    assert build.main(["--check"], course) == 1 and build.main([], course) == 0
    assert [p.name for p in made.parent.iterdir()] == ["01_a.ipynb"]


def test_a_broken_unit_writes_nothing(course, capsys):
    (course / "units" / "02_b.py").write_text("# %%\n%magic\n")
    assert build.main([], course) == 2
    assert "02_b.py" in capsys.readouterr().err and not (course.parent / "notebooks").exists()


def test_the_notebooks_are_what_the_units_build():
    assert build.main(["--check"]) == 0


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_every_notebook_keeps_the_rules(path):
    assert build.problems(json.loads(path.read_text(encoding="utf-8"))) == []
