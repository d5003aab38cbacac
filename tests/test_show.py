"""Live figures: numbers in the artists against sums done by hand, and a clock, a roof and a notebook that are made up."""

import base64
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import image, rcParams
from races import HERE, PRICE, PROMPT, WRITE, Clock, P, by_hand, raced

from tokenpace.measure.clock import Stamped, timed
from tokenpace.measure.cost import Device
from tokenpace.measure.ledger import Ledger, entry
from tokenpace.measure.roof import Band
from tokenpace.run import Row, Step
from tokenpace.show import ledgers, live, plots
from tokenpace.show.live import verdict, watch
from tokenpace.show.plots import present


class Count:
    """The smallest view: it counts."""

    size = (4, 3)

    def __init__(self, planned=10):
        self.planned, self.seen, self.drawn, self.judged = planned, [], [], "not asked"

    def see(self, lane, point):
        self.seen.append((lane, point))

    def axes(self, figure):
        self.text = figure.subplots().text(0.5, 0.5, "")

    def draw(self):
        self.drawn.append(len(self.seen))
        self.text.set_text(str(len(self.seen)))

    def judge(self, band):
        self.judged = band

    def sentence(self):
        return f"There are {len(self.seen)}."

    def progress(self):
        return len(self.seen) / self.planned


@pytest.fixture
def outputs(monkeypatch):
    """A notebook that keeps every output by the handle it went to."""
    kept = []

    def show(handle, data, about):
        handle = handle or f"output {len({h for h, _, _ in kept})}"
        kept.append((handle, data, about))
        return handle

    monkeypatch.setattr(live, "_in_notebook", lambda: True)
    monkeypatch.setattr(live, "_show", show)
    return kept


# the figure that fills ---------------------------------------------------------------------------------------------


def test_it_is_one_output_a_png_with_its_sentence_and_a_caption_that_keeps_up(outputs):
    clock = Clock()
    shown = watch(Count(), {"a": clock.stream(range(10), 0.3)}, now=clock)
    pictures = [(data, about) for handle, data, about in outputs if handle == "output 0"]
    captions = [data for handle, data, _ in outputs if handle != "output 0"]
    assert all(set(data) == {"image/png", "text/plain"} for data, _ in pictures) and len(pictures) == 12
    data, about = pictures[-1]
    assert data["text/plain"] == about["image/png"]["alt"] == shown.sentence == "There are 10."
    assert image.imread(io.BytesIO(base64.b64decode(data["image/png"]))).shape == (300, 400, 4)
    said = [data["text/html"].replace("&nbsp;", " ") for data in captions]
    assert said == [f'<p role="status"><em>{picture["text/plain"]}</em></p>' for picture, _ in pictures]
    assert all(re.search(r"\d (s|GB)\b", data["text/html"]) is None for data in captions), "a line may not break between a number and its unit"


def test_not_more_than_five_frames_a_second_and_the_last_one_always(outputs):
    clock, view = Clock(), Count(1000)
    watch(view, {"a": clock.stream(range(1000), 0.001)}, now=clock)
    assert view.drawn[0] == 0 and view.drawn[-1] == 1000
    assert len(view.drawn) == 1 + 5 + 1 and all(b - a >= 199 for a, b in zip(view.drawn[:-2], view.drawn[1:-1]))


def test_a_slow_drawing_takes_at_most_its_share(outputs):
    clock, view = Clock(), Count(1000)
    draw = view.draw

    def slow():
        clock.t += 0.5
        draw()

    view.draw = slow
    watch(view, {"a": clock.stream(range(1000), 0.01)}, now=clock)
    drawing = 0.5 * (len(view.drawn) - 2)
    assert 0 < drawing <= live.SHARE * (clock.t - 1.0) + 0.5


def test_drawing_is_not_in_the_seconds(outputs):
    clock = Clock()
    view = Count(10)
    draw = view.draw

    def slow():
        clock.t += 0.1
        draw()

    view.draw = slow
    shown = watch(view, {"a": timed(clock.stream(range(10), 0.3), now=clock)}, now=clock)
    assert len(view.drawn) > 4 and clock.t > 3.3 and [s.seconds for s in shown.points["a"]] == pytest.approx([0.3] * 10)


def test_live_false_draws_only_the_last(outputs):
    clock, view = Clock(), Count()
    watch(view, {"a": clock.stream(range(10), 0.3)}, live=False, now=clock)
    assert view.drawn == [10] and [h for h, _, _ in outputs] == ["output 0", "output 1"]


def test_run_again_draws_where_it_stands(outputs):
    clock = Clock()
    first = watch(Count(), {"a": clock.stream(range(3), 0.3)}, now=clock)
    watch(Count(), {"a": clock.stream(range(3), 0.3)}, now=clock, screen=first.screen)
    assert {h for h, _, _ in outputs} == {"output 0", "output 1"} and len(first.figure.axes) == 1
    captions = [data["text/html"] for _, data, _ in outputs if "text/html" in data]
    assert captions.count('<p role="status"><em>measuring …</em></p>') == 2, "the last run's caption under the new picture"


def test_an_interrupt_keeps_the_points_and_closes_the_run(outputs):
    clock, closed = Clock(), []

    def stream():
        try:
            yield from range(3)
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    view = Count()
    shown = watch(view, {"a": stream(), "b": range(5)}, roof=lambda: [1e9], now=clock)
    assert shown.points == {"a": [0, 1, 2], "b": []} and closed == [True] and view.drawn[-1] == 3
    assert shown.sentence == "There are 3. Interrupted: 3 points kept, 30% of the plan." and shown.band is None and view.judged is None


def test_an_interrupt_of_the_first_probe_leaves_a_figure_too(outputs):
    def roof():
        raise KeyboardInterrupt

    shown = watch(Count(), {"a": range(3)}, roof=roof)
    assert shown.points == {"a": []} and "Interrupted: 0 points kept" in shown.sentence and shown.band is None


def test_an_interrupt_of_the_last_probe_keeps_the_points_too(outputs):
    def roof(calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return [1e9]

    shown = watch(Count(), {"a": range(3)}, roof=roof)
    assert shown.points["a"] == [0, 1, 2] and "Interrupted: 3 points kept" in shown.sentence and shown.band is None


def test_interrupting_a_real_kernel_leaves_a_figure():
    """The stop button of JupyterLab, while a lane is being measured."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    try:
        client.execute_interactive(
            f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_show import Count, watch",
            timeout=60,
            output_hook=lambda m: None,
        )
        told = []

        def hook(message):
            if message["msg_type"] in ("display_data", "update_display_data") and "text/plain" in message["content"]["data"]:
                told.append(message["content"]["data"]["text/plain"])
                if len(told) == 3:
                    manager.interrupt_kernel()

        slow = "shown = watch(Count(1000), {'a': (time.sleep(0.1) or i for i in range(1000))}, seconds=50)"
        reply = client.execute_interactive(slow, timeout=60, output_hook=hook)
        assert reply["content"]["status"] == "ok" and "Interrupted: " in told[-1] and "points kept" in told[-1]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_an_interrupt_while_drawing_keeps_the_point_it_was_drawn_for(outputs):
    clock, view = Clock(), Count()
    draw, calls = view.draw, []

    def interrupted():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        draw()

    view.draw = interrupted
    shown = watch(view, {"a": clock.stream(range(10), 0.3)}, now=clock)
    assert shown.points["a"] == [0, 1] and "2 points kept" in shown.note


def test_the_budget_ends_the_run_not_the_figure(outputs):
    clock, closed = Clock(), []

    def stream():
        try:
            yield from clock.stream(range(100), 1.0)
        finally:
            closed.append(True)

    shown = watch(Count(100), {"a": stream()}, seconds=4, now=clock)
    assert shown.points["a"] == [0, 1, 2, 3] and closed == [True]
    assert shown.sentence == "There are 4. Stopped by its budget of 4 s: 4 points kept, 4% of the plan."
    told = [data["text/plain"] for _, data, _ in outputs if "text/plain" in data]
    assert "There are 1. (1% measured, about 3 s left)" in told


def test_a_slow_lane_leaves_the_next_one_its_share():
    clock = Clock()
    shown = watch(Count(100), {"slow": clock.stream(range(9), 30.0), "next": clock.stream(range(100), 1.0)}, seconds=20, now=clock)
    assert {lane: len(points) for lane, points in shown.points.items()} == {"slow": 1, "next": 10} and "Stopped by its budget of 20 s" in shown.note


def test_what_a_lane_leaves_is_the_next_ones():
    clock = Clock()
    shown = watch(Count(100), {"fast": clock.stream(range(2), 1.0), "next": clock.stream(range(100), 1.0)}, seconds=20, now=clock)
    assert len(shown.points["next"]) == 18


def test_a_lane_cut_off_after_its_last_point_is_no_early_end():
    clock = Clock()
    shown = watch(Count(3), {"slow": clock.stream(range(1), 30.0), "next": clock.stream(range(2), 1.0)}, seconds=20, now=clock)
    assert shown.note == "" and shown.sentence == "There are 3."


def test_time_left_is_what_the_progress_says_where_that_is_less_than_the_budget(outputs):
    clock = Clock()
    watch(Count(10), {"a": clock.stream(range(10), 1.0)}, seconds=100, now=clock)
    told = [data["text/plain"] for _, data, _ in outputs if "text/plain" in data]
    assert "There are 4. (40% measured, about 6 s left)" in told


def test_an_error_in_a_run_is_raised_after_closing_it(outputs):
    def stream():
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        watch(Count(), {"a": stream()})


def test_outside_a_notebook_the_sentence_is_printed_and_the_figure_returned(capsys, tmp_path):
    shown = watch(Count(), {"a": range(2)})
    assert capsys.readouterr().out == "There are 2.\n" and repr(shown) == "There are 2."
    shown.save(tmp_path / "a.png")
    assert image.imread(tmp_path / "a.png").shape == (300, 400, 4) and len(shown.figure.axes) == 1


def test_a_real_kernel_gets_one_picture(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    lines = "from tokenpace.show.live import watch\nfrom test_show import Count\nshown = watch(Count(3), {'a': range(3)})"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{lines}")])
    nbclient.NotebookClient(book, kernel_name="python3", timeout=60).execute()
    first, second = book.cells[0].outputs
    assert first.data["text/plain"] == "There are 3." == first.metadata["image/png"]["alt"] and first.data["image/png"]
    assert "There are 3." in second.data["text/html"]


# the roof ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after, steady", [(1.0e9, True), (1.2e9, True), (1.21e9, False), (0.8e9, False), (0.85e9, True)])
def test_a_roof_that_moved_by_more_than_a_fifth_gives_no_verdict(outputs, after, steady):
    view, roofs = Count(), iter([[1e9] * 3, [after] * 3])
    shown = watch(view, {"a": range(2)}, roof=lambda: next(roofs))
    assert view.judged is shown.band and shown.band.steady is steady
    assert (
        verdict(shown.band, "As predicted.") == "As predicted."
        if steady
        else verdict(shown.band, "As predicted.").startswith("No verdict: the roof moved")
    )
    assert shown.roof == {"before": (1e9,) * 3, "after": (after,) * 3}


@pytest.mark.parametrize("slow, judged", [(1, True), (3, False)])
def test_passes_of_unlike_times_give_no_verdict(slow, judged):
    """One hiccup among twenty is forgiven, a busy core is not."""
    said = verdict(Band(1e9, 1e9, steady=True), "As predicted.", [0.01] * (20 - slow) + [0.05] * slow)
    why = "the passes took between 10.0 ms and 50.0 ms"
    assert said == ("As predicted." if judged else f"No verdict: {why}, so another program was busy; run it again.")


# type, colours, imports --------------------------------------------------------------------------------------------


def texts(figure):
    from matplotlib.text import Text

    return [t for t in figure.findobj(Text) if t.get_text().strip()]


@pytest.mark.parametrize("size", [11, 18])
def test_all_type_is_ten_points_or_more(size):
    before = rcParams["font.size"]
    try:
        present(size)
        _view, shown = raced(guess=3)
        assert min(t.get_fontsize() for t in texts(shown.figure)) >= size - 1 >= 10
    finally:
        rcParams["font.size"] = before


@pytest.mark.parametrize("size", [11, 16])
def test_nothing_is_cut_and_the_legend_covers_no_label(size):
    before = rcParams["font.size"]
    try:
        present(size)
        _view, shown = raced(guess=3, elsewhere=(Device("NVIDIA H100 SXM", 1e12, 1e15),))
        plane = watch(ledgers.Plane(Ledger([row()])), {})
        for figure in (shown.figure, plane.figure):
            width, height = figure.bbox.size
            boxes = {text.get_text(): text.get_window_extent() for ax in figure.axes for text in ax.texts if text.get_text()}
            cut = [t for t, b in boxes.items() if min(b.x0, b.y0) < -1 or b.x1 > width + 1 or b.y1 > height + 1]
            assert boxes and not cut
        (ax,) = plane.figure.axes
        legend = ax.get_legend().get_window_extent()
        assert not [text.get_text() for text in texts(ax) if text not in ax.get_legend().get_texts() and legend.overlaps(text.get_window_extent())]
    finally:
        rcParams["font.size"] = before


@pytest.mark.parametrize("size", [9, 33])
def test_type_nobody_can_read_is_refused(size):
    with pytest.raises(ValueError, match="10 to 32 points"):
        present(size)


def test_every_kind_of_line_differs_in_colour_and_in_marker():
    looks = [plots.MEASURED, plots.PREDICTED, plots.RECORDED, plots.ELSEWHERE, plots.RIVAL, plots.GUESS]
    assert len({look.color for look in looks}) == len({look.marker for look in looks}) == len(looks)


def test_the_ground_is_white():
    _, shown = raced()
    assert shown.figure.get_facecolor() == (1, 1, 1, 1) and all(ax.get_facecolor() == (1, 1, 1, 1) for ax in shown.figure.axes)


def test_nothing_outside_show_draws():
    names = "tokenpace, tokenpace.generate, tokenpace.measure.ledger, tokenpace.measure.probe, tokenpace.show"
    code = f"import sys, {names}\nprint([m for m in ('matplotlib', 'ipywidgets', 'IPython') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_show_never_uses_pyplot():
    names = ", ".join(f"tokenpace.show.{p.stem}" for p in Path(plots.__file__).parent.glob("[a-z]*.py"))
    code = f"import sys, {names}\nprint('matplotlib.pyplot' in sys.modules, 'ipywidgets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False False"


# controls ----------------------------------------------------------------------------------------------------------


def test_the_button_calls_and_says_what_went_wrong():
    controls, calls = pytest.importorskip("tokenpace.show.controls"), []
    box = controls.button("Run", lambda *a, **k: calls.append((a, k)), 1, b=2)
    press, message = box.children
    press.click()
    assert calls == [((1,), {"b": 2})] and message.value == "done" and not press.disabled
    bad = controls.button("Run", lambda: 1 / 0)
    bad.children[0].click()
    assert "ZeroDivisionError" in bad.children[1].value and not bad.children[0].disabled


# the ledger --------------------------------------------------------------------------------------------------------

STILL = Band(0.9e6, 1e6, steady=True)


def row(name="autoregressive", cache=0, band=STILL, steps=WRITE, each=0.5, **more):
    return entry(name, [Stamped(PROMPT, 9.0), *(Stamped(s, each) for s in steps)], PRICE, Device("here", 1e6, 1e15), cache, band, **more)


def test_a_row_holds_what_the_steps_say():
    e = row(exact=True)
    moved = sum(PRICE(s).bytes for s in WRITE)
    assert (e.passes, e.tokens, e.tokens_per_pass, e.measured, e.pass_bytes) == (4, 4, 1.0, 0.5, moved / 4)
    assert e.predicted == pytest.approx(moved / 1e6 / 4) and e.mbu == pytest.approx((moved / 2 / 1e6, moved / 2 / 0.9e6))


def test_the_prediction_stands_under_the_roof_of_the_run():
    fast = row(band=Band(1.9e6, 2e6, steady=True))
    assert fast.predicted == pytest.approx(row().predicted / 2) and row(band=None).predicted == row().predicted


def test_tokens_per_pass_divide_the_cost():
    two = [Step((Row(0, "verify", P, 3, ((P + 1, 1, True), (P + 2, 2, True), (P + 3, 3, False))),))]
    drafts = [Step((Row(0, "draft", P, 1),), to="draft")]
    e = row("speculative", steps=drafts + two)
    assert (e.passes, e.tokens) == (1, 2) and e.measured == 0.5 and e.pass_seconds == 1.0


@pytest.mark.parametrize(
    "more, why",
    [
        ({"cache": by_hand() / 3.9}, "less than 4 times"),
        ({"band": None}, "not probed"),
        ({"band": Band(1e9, 2e9, False)}, "moved between 1 and 2 GB/s"),
    ],
)
def test_no_mbu_where_it_would_mean_nothing(more, why):
    e = row(**more)
    assert e.mbu is None and why in e.why and why in str(Ledger([e])) and "–" in e.cells()


def test_mbu_is_given_at_exactly_four_caches():
    assert row(cache=by_hand() / 4).mbu is not None


def test_a_run_without_tokens_has_no_pace():
    with pytest.raises(ValueError, match="kept no token"):
        entry("x", [Stamped(PROMPT, 1.0)], PRICE, HERE, 0)


def test_the_ledger_keeps_the_newest_run_of_a_name_and_prints_a_table():
    ledger = Ledger().add(row()).add(row("uncached", each=1.0)).add(row(each=0.25))
    assert [(e.name, e.measured) for e in ledger.entries] == [("uncached", 1.0), ("autoregressive", 0.25)]
    lines = str(ledger).splitlines()
    assert lines[0].split()[:2] == ["decoder", "passes"] and len({len(line) for line in lines[1:3]}) == 1
    assert ledger._repr_markdown_().count("\n| ") == 3


def test_the_plane_puts_each_decoder_at_its_tokens_and_its_cost():
    view = ledgers.Plane(Ledger([row(), row("uncached", each=1.0)]))
    shown = watch(view, {})
    assert [(d.get_xdata()[0], d.get_ydata()[0]) for d in view.dots] == [(1.0, 0.5), (1.0, 1.0)]
    assert "autoregressive keeps 1 a pass of 500 ms" in shown.sentence
    watch(ledgers.Plane(Ledger()), {})
