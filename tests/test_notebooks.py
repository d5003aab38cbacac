"""The notebooks as a learner runs them: all cells, in a kernel of their own; once measuring, once replaying, once with a wrong output."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NBVAL = ("-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "-q")
spec = importlib.util.spec_from_file_location("course_build", ROOT / "course" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


def nbval(*paths, mode: str, **environment):
    """As a command of its own and in its own folder: the rules for our tests (a clean kernel writes warnings) are not for notebooks."""
    command = [sys.executable, "-m", "pytest", *NBVAL, "--rootdir", str(paths[0].parent), "-c", os.devnull, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COURSE_MODE": mode} | environment, timeout=600)


@pytest.fixture(scope="module")
def model():
    """The real model, fetched if there is a network."""
    from tokenpace.weights.registry import fetch

    try:
        return fetch("smollm2-135m")
    except OSError as error:
        pytest.skip(f"the real model is not here and cannot be fetched: {error}")


def test_there_is_a_notebook_for_every_unit_of_the_course():
    assert [p.stem for p in NOTEBOOKS] == sorted(p.stem for p in (ROOT / "course" / "units").glob("*.py")) and NOTEBOOKS


@pytest.fixture(autouse=True)
def own_answers(tmp_path, monkeypatch):
    """A learner who has answered nothing yet."""
    monkeypatch.setenv("TOKENPACE_DATA", str(tmp_path / "answers"))


def copy_of(path: Path, folder: Path, solved=()) -> Path:
    """The unit's notebook with some exercises done."""
    made = folder / path.name
    made.write_bytes(build.build(ROOT / "course" / "units" / f"{path.stem}.py", solved))
    return made


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def check_cells(path: Path) -> list[int]:
    return [i for i, cell in enumerate(code_cells(path)) if cell.source.startswith("tp.check(")]


def dry(path: Path, tmp_path: Path, errors: bool = False, **environment) -> list:
    """Run all cells with no model, no network and nothing measured. The code cells, with what came out."""
    book = nbformat.read(path, as_version=4)
    nothing = {"COURSE_MODE": "dry", "TOKENPACE_CACHE": str(tmp_path / "models"), "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1", **environment}
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120, allow_errors=errors).execute(env=os.environ | nothing)
    assert not (tmp_path / "models").exists(), "a dry lesson fetched something"
    return [cell for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_solved_and_strict_with_the_real_model(path, model, tmp_path):
    done = nbval(copy_of(path, tmp_path, build.EVERY), mode="quick", COURSE_STRICT="1")
    assert done.returncode == 0 and f"{len(code_cells(path))} passed" in done.stdout, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_as_it_comes_with_no_model_at_all(path, tmp_path):
    done = nbval(path, mode="dry", TOKENPACE_CACHE=str(tmp_path / "models"), PIP_NO_INDEX="1", HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and f"{len(code_cells(path))} passed" in done.stdout, done.stdout[-5000:] + done.stderr[-2000:]
    assert len(check_cells(path)) >= 4 and not (tmp_path / "models").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_as_it_comes_strictness_stops_exactly_at_the_checks(path, tmp_path):
    cells = dry(path, tmp_path, errors=True, COURSE_STRICT="1")
    failed = {i: o.ename for i, cell in enumerate(cells) for o in cell.outputs if o.output_type == "error"}
    assert failed == dict.fromkeys(check_cells(path), "NotYet")


@pytest.mark.slow
@pytest.mark.parametrize("some", ["all", "every second", "none of those cells"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_run_all_dry_whatever_is_done(path, some, tmp_path):
    ids = [code_cells(path)[i].source.split('"')[1] for i in check_cells(path)]
    copied = copy_of(path, tmp_path, {"all": ids, "every second": ids[::2]}.get(some, ()))
    if some == "none of those cells":  # somebody deleted them
        book = nbformat.read(copied, as_version=4)
        book.cells = [cell for cell in book.cells if not (cell.cell_type == "code" and "exercise" in cell.metadata.get("tags", ()))]
        nbformat.write(book, copied)
    cells = dry(copied, tmp_path)
    printed = ["".join(o.get("text", "") for o in cell.outputs) for cell in cells if cell.source.startswith("tp.check(")]
    wanted = {"all": ids, "every second": ids[::2]}.get(some, ())
    assert [text.startswith("[ok]") for text in printed] == [id in wanted for id in ids]
    assert some != "none of those cells" or all("there is no" in text for text in printed)
    outputs = [output for cell in cells for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures and all(o.data["text/plain"] == o.metadata["image/png"]["alt"] for o in pictures)
    assert any("recorded on" in o.data["text/plain"] for o in pictures), "a figure that was replayed must say so"


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_run_all_survives_a_race_that_was_stopped_early(kept):
    """Before its prompt's pass, after it, and after one token: later cells say what is missing and raise nothing."""
    book = nbformat.read(ROOT / "notebooks" / "01_one_token_at_a_time.ipynb", as_version=4)
    (opened,) = (i for i, cell in enumerate(book.cells) if "lesson.start" in cell.source)
    book.cells.insert(opened + 1, nbformat.v4.new_code_cell(f'unit.recordings["write"] = list(unit.recordings["write"])[:{kept}]'))
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120).execute(env=os.environ | {"COURSE_MODE": "dry"})
    printed = "".join(output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "median pass of the first half   nothing written; run the race again" in printed
    assert ("nothing written, so there is no row" in printed) is (kept < 2)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_run_all_survives_prices_that_were_stopped_early(kept):
    """Of the power figure and of every batch only so many passes are there."""
    book = nbformat.read(ROOT / "notebooks" / "07_the_price_of_an_output_token.ipynb", as_version=4)
    (opened,) = (i for i, cell in enumerate(book.cells) if "lesson.start" in cell.source)
    cut = f"for name in set(unit.recordings) - {{'batch_1', 'watch'}}: unit.recordings[name] = list(unit.recordings[name])[:{kept}]"
    book.cells.insert(opened + 1, nbformat.v4.new_code_cell(cut))
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120).execute(env=os.environ | {"COURSE_MODE": "dry"})
    printed = "".join(output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "Claim 'price': not yet measured" in printed and "the run was cut short, so it adds no rows" in printed


@pytest.mark.parametrize(("stored", "passes"), [("#> 42", True), ("#> 43", False)])
def test_a_checked_cell_is_really_compared(stored, passes, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(build.dump(build.notebook(build.parse(f'# %% tags=["nbval-check-output"]\nprint(42)\n{stored}\n# %%\nprint(1)\n#> 2\n'))))
    done = nbval(path, mode="dry")
    assert (done.returncode == 0) is passes, done.stdout


def test_a_cell_that_fails_fails_the_notebook(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(build.dump(build.notebook(build.parse("# %%\n1 / 0\n"))))
    assert nbval(path, mode="dry").returncode == 1


def test_a_word_that_is_no_mode_is_refused():
    code = "from tokenpace.lesson import start; start('01')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"COURSE_MODE": "fast"})
    assert "COURSE_MODE is 'fast'" in done.stderr
