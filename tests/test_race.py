"""The race of unit 01: numbers in the artists against sums done by hand."""

from itertools import accumulate

import pytest
from matplotlib import rcParams
from races import HERE, PRICE, PROMPT, SCORE, WRITE, Clock, N, P, by_hand, raced

from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device
from tokenpace.show import plots
from tokenpace.show.live import watch
from tokenpace.show.plots import present, printable
from tokenpace.show.race import Race
from tokenpace.show.tally import Tally, tally, times


def test_bars_are_the_seconds_after_the_prompt():
    view, shown = raced()
    assert [bar.get_width() for bar in view.bars] == [0.5, 2.5] and view.ratio == pytest.approx(5)
    assert (
        "Writing 4 tokens took 2.50 s in 4 passes; scoring 4 took 500 ms in 1: writing takes 5 times as long per token (no prediction)"
        in shown.sentence
    )
    assert [t.prefill for t in view.tallies.values()] == [7.0, 7.0]


def test_the_line_is_the_running_sum():
    view, _ = raced()
    x, y = view.line.get_data()
    assert list(x) == [1, 2, 3, 4] and list(y) == pytest.approx([0.25, 0.75, 1.5, 2.5])


def test_both_lanes_do_the_same_arithmetic():
    view, _ = raced()
    assert view.tallies["score"].flops == pytest.approx(view.tallies["write"].flops, rel=1e-12)


def test_the_odometer_is_passes_times_weights():
    view, _ = raced()
    assert view.tallies["write"].weight_bytes == N * by_hand() and view.tallies["score"].weight_bytes == by_hand()
    assert view.reading.get_text() == f"{N * by_hand() / 1e6:.2f} MB"
    assert "for each of 5 words" in view.gloss.get_text()


def test_predicted_is_bytes_over_the_roof():
    slow = Device("slow", bandwidth=1e6, flops=1e15)
    view, _ = raced(device=slow)
    kv = 2 * 2 * 32 * 2  # layers, keys and values, numbers, bytes
    passes = [(by_hand() + (P + i + 1) * kv) / 1e6 for i in range(N)]
    assert list(view.predicted.get_data()[1]) == pytest.approx(list(accumulate(passes)))
    assert view.expected.get_xdata()[1] == pytest.approx(sum(passes))


def test_the_floor_keeps_reading_however_fast_the_arithmetic():
    compute_bound = Device("slow to multiply", bandwidth=1e12, flops=1e6)
    view, _ = raced(device=compute_bound)
    floor, predicted = view.floor.get_data()[1], view.predicted.get_data()[1]
    assert floor[-1] == pytest.approx(sum(PRICE(s).bytes for s in WRITE) / 1e12) and predicted[-1] > 1000 * floor[-1]


def test_the_band_lies_between_the_roofs():
    view, shown = raced(roofs=[[1.0e6] * 3, [1.1e6] * 3], device=Device("here", 9e9, 1e15))
    assert [d.bandwidth for d in view.devices()] == [1.1e6, 1.0e6] and "No verdict" not in shown.sentence
    low, high = (sum(PRICE(s).bytes for s in WRITE) / b for b in (1.1e6, 1.0e6))
    assert f"Predicted from the roof: {plots.seconds(low)} to {plots.seconds(high)}" in shown.sentence


def test_no_verdict_under_a_roof_that_moved():
    _, shown = raced(roofs=[[1e9] * 3, [2e9] * 3])
    assert "No verdict: the roof moved between 1 and 2 GB/s" in shown.sentence and "Predicted" not in shown.sentence


def test_no_verdict_where_the_passes_took_unlike_times():
    lanes = {"score": [Stamped(SCORE, 0.5)], "write": [Stamped(step, took) for step, took in zip(WRITE, (0.1, 0.1, 0.1, 0.9))]}
    shown = watch(Race({"score": [SCORE], "write": WRITE}, PRICE, HERE, str), lanes, roof=lambda: [1e9] * 3)
    assert "No verdict: the passes took between 100 ms and 900 ms" in shown.sentence and "Predicted" not in shown.sentence


def cut_short(end):
    """A race whose writing ends after one pass, by its budget or by an interrupt."""
    clock = Clock()

    def writing():
        for step in WRITE:
            clock.t += 20
            yield Stamped(step, 0.25)
            if end == "interrupt":
                raise KeyboardInterrupt

    view = Race({"score": [SCORE], "write": WRITE}, PRICE, HERE, lambda ids: " ".join(map(str, ids)))
    return view, watch(view, {"score": [Stamped(SCORE, 0.5)], "write": writing()}, roof=lambda: [1e9] * 3, seconds=20, now=clock)


@pytest.mark.parametrize("end", ["budget", "interrupt"])
def test_a_race_cut_short_says_so_at_its_bar_and_judges_nothing(end):
    view, shown = cut_short(end)
    assert [label.get_text().strip() for label in view.times] == ["500 ms", "250 ms (1 of 4)"]
    assert "No verdict: the run was cut short" in shown.sentence and "Predicted" not in shown.sentence
    ratio = view.ax["ratio"].get_tightbbox()
    assert all(label.get_window_extent().x1 < ratio.x0 for label in view.times)


def test_a_race_whose_last_probe_was_interrupted_judges_nothing():
    assert "No verdict: the roof was not probed" in raced()[1].sentence


def test_the_prediction_does_not_move_with_the_roof():
    still, _ = raced(device=Device("here", 1e6, 1e15))
    view, _ = raced(roofs=[[2.0e6] * 3, [2.2e6] * 3], device=Device("here", 1e6, 1e15))
    assert list(view.expected.get_xdata()) == list(still.expected.get_xdata())
    assert list(view.predicted.get_data()[1]) == list(still.predicted.get_data()[1])
    (_, written) = view.spans.get_segments()
    moved = sum(PRICE(step).bytes for step in WRITE)
    assert written[:, 0].tolist() == pytest.approx([moved / 2.2e6, moved / 2.0e6])


def test_the_guess_is_shown_and_its_absence_too():
    assert raced()[0].figures[0].get_text() == "no prediction"
    view, shown = raced(guess=8)
    assert list(view.dots[0].get_xdata()) == [8] and "you said 8" in shown.sentence


def test_a_device_that_is_not_here_is_labelled_predicted_and_a_recording_recorded():
    lanes = {"score": [Stamped(SCORE, 1.0)], "write": [Stamped(s, 3.0) for s in WRITE]}
    view, _ = raced(elsewhere=(Device("Big GPU", 1e12, 1e15),), recorded={"Old GPU": lanes})
    labels = [t.get_text() for t in view.ax["ratio"].get_yticklabels()]
    assert labels[-2:] == ["Old GPU\nrecorded", "Big GPU\npredicted"] and list(view.dots[3].get_xdata()) == [12.0]


def test_the_text_grows_with_what_is_kept():
    view, _ = raced(prompt=False)
    assert view.text == "k l m n" and view.writing.get_text() == "k l m n"


def test_nothing_measured_is_said():
    view, _ = raced()
    fresh = Race(view.plan, view.cost, HERE, str)
    shown = watch(fresh, {"score": [], "write": []})
    assert shown.sentence == "Nothing is measured yet." and fresh.progress() == 0


def test_odd_texts_draw_without_a_warning():
    view, _ = raced(words=["$x^2$", "日本", "🙂", "a\x00b", "_", "\\frac", "\t", "é", "ok", "ok", "$x^2$", "日本", "🙂", "a\x00b"])
    assert "日" not in view.writing.get_text() and "$x^2$" in view.writing.get_text()
    assert printable("é□🙂\n") == "é□□\n"


@pytest.mark.parametrize(("size", "highest"), [(11, 560), (16, 620)])
def test_the_race_and_its_caption_fit_a_screen_of_720_lines(size, highest):
    before = rcParams["font.size"]
    try:
        present(size)
        assert raced()[1].figure.bbox.height <= highest
    finally:
        rcParams["font.size"] = before


# the tally ---------------------------------------------------------------------------------------------------------


def test_a_tally_is_the_sum_of_its_passes_and_the_prompt_stands_apart():
    whole = tally([Stamped(PROMPT, 7.0), *(Stamped(step, 0.25) for step in WRITE)], PRICE)
    assert (whole.prefill, whole.passes, whole.tokens, whole.seconds, whole.pace) == (7.0, [0.25] * N, N, 0.25 * N, 0.25)
    assert whole.weight_bytes == N * by_hand() and whole.flops == sum(PRICE(step).total_flops for step in WRITE)


def test_two_tallies_compare_by_the_token_and_only_when_both_have_one():
    slow, fast = Tally(passes=[1.0, 3.0], tokens=2), Tally(passes=[2.0], tokens=8)
    assert times(slow, fast) == 8.0 and times(fast, slow) == 1 / 8
    assert times(slow, Tally()) is None and times(Tally(), fast) is None and Tally(prefill=9.0).pace is None


def test_a_frame_asks_for_no_pass_to_be_priced_again():
    calls = []
    plan = {"score": [SCORE], "write": WRITE}
    view = Race(plan, lambda step: calls.append(step) or PRICE(step), HERE, lambda ids: "", where="a test")
    watch(view, {})
    before = len(calls)
    view.draw()
    assert len(calls) == before
