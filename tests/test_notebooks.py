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


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_run_all_quick_with_the_real_model(path, model):
    done = nbval(path, mode="quick")
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(path, as_version=4).cells)
    assert done.returncode == 0 and f"{cells} passed" in done.stdout, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_run_all_dry_with_no_model_at_all(path, tmp_path):
    book = nbformat.read(path, as_version=4)
    environment = {"COURSE_MODE": "dry", "TOKENPACE_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120).execute(env=os.environ | environment)
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures and all(o.data["text/plain"] == o.metadata["image/png"]["alt"] for o in pictures)
    assert any("recorded on" in o.data["text/plain"] for o in pictures), "a figure that was replayed must say so"
    assert not list(tmp_path.iterdir()), "a dry lesson fetched something"


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
    code = "from tokenpace.show.lesson import start; start('01')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"COURSE_MODE": "fast"})
    assert "COURSE_MODE is 'fast'" in done.stderr
