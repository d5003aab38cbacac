"""Unit 01 as a learner has it: JupyterLab in a browser, with the real model. They run it, press, interrupt, do an exercise wrong and then right.

All tests share one browser page and one kernel, as the steps of a lesson do; each can also be run alone.
"""

import ast
import inspect
import io
import os
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from lab import Book, Server, alive, browser, sandbox
from PIL import Image

from tokenpace import exercises

ROOT = Path(__file__).resolve().parents[2]
UNIT = "01_one_token_at_a_time.ipynb"
RACE, BUTTON = "shown = race.race(", 'controls.button("Race again"'
DESK, PROJECTOR = {"width": 1440, "height": 900}, {"width": 1280, "height": 720}
LESSON = 240  # s for the whole unit at most: where others compute too, it takes several times as long as by itself
VERDICT = re.compile(r"Predicted from the roof: .+ measured is [\d.]+ times that\.|No verdict: ")

pytestmark = [pytest.mark.real, pytest.mark.slow]


def repository() -> dict[str, bytes]:
    """What a lesson could write into by mistake: the notebooks, the recorded runs, and the folder that all of it stands in."""
    found = (path for folder in ("notebooks", "course/results") for path in (ROOT / folder).rglob("*") if path.is_file())
    top = {path.name: b"" for path in ROOT.iterdir() if path.name not in (".pytest_cache", ".ruff_cache", ".hypothesis")}
    return top | {str(path.relative_to(ROOT)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A browser without a window."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as missing:
        pytest.skip(f"no browser test: {missing}; pip install playwright")
    if not (path := browser()):
        pytest.skip("no browser test: neither Chromium nor Chrome is installed (Debian: apt-get install chromium)")
    places = {name: str(tmp_path_factory.mktemp("browser")) for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=sandbox(), env=os.environ | places)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(chromium, tmp_path_factory):
    from tokenpace.weights.registry import fetch

    try:
        fetch("smollm2-135m")
    except OSError as error:
        pytest.skip(f"the real model is not here and cannot be fetched: {error}")
    before = repository()
    server = Server(tmp_path_factory.mktemp("lab"), ROOT / "notebooks", COURSE_MODE="quick")
    server.before = before
    yield server
    server.stop()


@pytest.fixture(scope="module")
def book(chromium, server):
    """Unit 01, all its cells run."""
    page = chromium.new_page(viewport=DESK)
    book = Book(page, server, UNIT)
    book.run_all(LESSON)
    yield book
    page.close()


@pytest.fixture(scope="module")
def shots(tmp_path_factory) -> Path:
    """Where pictures of the page are kept: TOKENPACE_SHOTS, to look at."""
    folder = Path(os.environ.get("TOKENPACE_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# running it ------------------------------------------------------------------------------------------------------


def test_all_cells_run_and_none_shows_an_error(book):
    assert book.errors() == []
    counts = [int(count) for count, cell in zip(book.counts(), book.source) if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "the cells ran once each, in their order"
    assert VERDICT.search(book.sentence(book.find(RACE)).inner_text())


def test_an_error_would_have_been_seen(book):
    for code, error in {"1 / 0": "ZeroDivisionError", "1 +": "SyntaxError"}.items():
        assert error in book.scratch(code)
        assert len(book.errors()) == 1 and error in book.errors()[0]
    said = book.scratch("import sys; print('a note', file=sys.stderr); print(6 * 7)")
    assert "42" in said and "a note" in said and book.errors() == []


# to look at ------------------------------------------------------------------------------------------------------

CONTRAST = """element => {
    const channels = color => color.match(/[\\d.]+/g).map(Number)
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
    let behind = element
    while (behind.parentElement && (channels(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement
    const [low, high] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor]
        .map(channels).map(light).sort((a, b) => a - b)
    return (high + 0.05) / (low + 0.05)
}"""  # WCAG 2.2 (2023), "contrast ratio"


def looked_at(book, path: Path) -> None:
    """Take a picture of the page where the race is, and hold it to what a figure must be on any page."""
    picture, sentence = book.picture(book.find(RACE)), book.sentence(book.find(RACE))
    picture.evaluate("picture => picture.scrollIntoView({block: 'start'})")
    book.page.screenshot(path=path)
    pixels = np.asarray(Image.open(io.BytesIO(picture.screenshot())).convert("RGB")).reshape(-1, 3).astype(int)
    share = lambda color: float((abs(pixels - color).max(1) < 12).mean())
    assert share((255, 255, 255)) > 0.5, "a figure stands on white, whatever the theme"
    assert share((0, 0x72, 0xB2)) > 0.001, "what was measured is there to be seen"
    box, panel = picture.bounding_box(), book.page.locator(".jp-NotebookPanel").bounding_box()
    assert panel["x"] <= box["x"] and box["x"] + box["width"] <= panel["x"] + panel["width"], "the figure is not cut off at the side"
    assert box["height"] + sentence.bounding_box()["height"] < panel["height"], "figure and sentence fit the page together"
    assert sentence.evaluate(CONTRAST) >= 4.5, "the sentence can be read"


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_the_figure_in_each_theme(theme, book, shots):
    book.menu("Settings", "Theme", f"JupyterLab {theme}")
    book.until(f"document.body.dataset.jpThemeLight === '{str(theme == 'Light').lower()}'")
    looked_at(book, shots / f"{theme.lower()}.png")


def test_the_figure_for_a_room(book, shots):
    book.page.set_viewport_size(PROJECTOR)
    book.menu("Settings", "Theme", "JupyterLab Light")
    book.scratch("from tokenpace.show.plots import present; present()")
    book.run(book.find(RACE))
    looked_at(book, shots / "projector.png")
    book.scratch("present(11)")
    book.page.set_viewport_size(DESK)


# the button ------------------------------------------------------------------------------------------------------


def lengthened(book) -> None:
    """Race over as long a text as in a full lesson, so that there is time to see it, and to interrupt, on a fast machine too."""
    book.scratch("given = (4 * given)[:257]")
    book.run(book.find(BUTTON))


SEEN = """([race, button]) => {
    const pictures = new Set(), sentences = new Set(), first = race.querySelector('.jp-RenderedImage img').src
    window.seen = new Promise((end, fail) => {
        let began = false
        setTimeout(() => fail(Error(began ? 'the button stayed grey' : 'the button never became grey')), 60000)
        const every = setInterval(() => {
            began ||= button.disabled
            if (began && !button.disabled) {
                clearInterval(every)
                end({pictures: pictures.size, sentences: [...sentences]})
            } else if (began) {
                const now = race.querySelector('.jp-RenderedImage img')?.src
                if (now && now !== first) pictures.add(now)
                sentences.add(race.querySelector('p[role=status]')?.innerText)
            }
        }, 20)
    })
}"""


def test_a_button_measures_into_the_figure_while_one_looks(book):
    lengthened(book)
    race, press = book.cell(book.find(RACE)), book.cell(book.find(BUTTON)).get_by_role("button", name="Race again")
    press.scroll_into_view_if_needed()
    book.page.evaluate(SEEN, [race.element_handle(), press.element_handle()])
    press.click()
    seen = book.page.evaluate("window.seen")
    assert seen["pictures"] >= 3, "the figure has to fill while it is measured, not only at its end"
    assert any(re.search(r"\(\d+% measured, about \d+\ss left\)", said or "") for said in seen["sentences"]), seen["sentences"]
    book.until(
        "([number]) => !/measur(ing|ed, about)/.test(document.querySelectorAll('.jp-Cell')[number].querySelector('p[role=status]')?.innerText)",
        book.find(RACE),
    )
    last = book.sentence(book.find(RACE)).inner_text()
    assert VERDICT.search(last), last
    assert "Error" not in book.says(book.find(BUTTON))


# an interrupt ----------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_what_was_measured_and_the_notebook_goes_on(book):
    race = book.find(RACE)
    lengthened(book)
    before = book.start(race)
    says = "([number]) => document.querySelectorAll('.jp-Cell')[number].querySelector('p[role=status]')?.innerText"
    book.until(f"([number]) => /Writing .*\\d+% measured, about/.test(({says})([number]))", race)
    book.interrupt()
    book.end(race, before)
    book.until(f"([number]) => /Interrupted: /.test(({says})([number]))", race)
    told = book.sentence(race).inner_text()
    kept, share = map(int, re.search(r"Interrupted: (\d+) points? kept, (\d+)% of the plan\.", told).groups())
    assert kept >= 1 and share < 100 and "No verdict" in told
    assert book.errors() == []
    assert book.scratch("print(sum(map(len, shown.points.values())))") == str(kept), "what the sentence counts is what later cells get"
    book.run(book.find(BUTTON))
    assert book.cell(book.find(BUTTON)).get_by_role("button", name="Race again").is_enabled() and book.errors() == []


# an exercise -----------------------------------------------------------------------------------------------------


def as_written(one, answer) -> str:
    """What a learner would type who gives this wrong answer."""
    text = textwrap.dedent(inspect.getsource(answer)).splitlines()
    start = ast.parse("\n".join(text)).body[0].lineno - 1  # below the decorators
    text[start] = text[start].replace(f"def {answer.__name__}(", f"def {one.name}(", 1)
    return "\n".join([one.needs, *text[start:]]).strip()


def test_an_exercise_is_done_wrong_and_then_right(book, server):
    one = exercises.find("01.1")
    check = book.find('tp.check("01.1"')
    stub = check - 1
    assert book.says(check).startswith("[ ] 01.1 not attempted")
    for message, answer in one.mistakes[:2]:
        book.write(stub, as_written(one, answer))
        book.run(stub)
        assert book.run(check) == f"[x] 01.1 {one.name}: {message}"
    book.write(stub, exercises.solved(one))
    book.run(stub)
    assert book.run(check).startswith("[ok] 01.1 ")
    assert book.errors() == []
    assert '"01.1"' in (server.folder / "answers" / "answers.jsonl").read_text(), "what was done is kept in the learner's own folder"


# and nothing is left ---------------------------------------------------------------------------------------------


def test_nothing_stays_behind(book, server):
    family = server.processes()
    assert any("ipykernel" in " ".join(one.cmdline()) for one in family), "there is a kernel, so there is something to end"
    assert server.stop() == [], "the server ends its kernels by itself"
    assert not [one for one in family if alive(one)]
    after = repository()
    assert {name for name in after | server.before if after.get(name) != server.before.get(name)} == set()
