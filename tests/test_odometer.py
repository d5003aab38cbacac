"""The view that opens unit 00: what was written and what was read for it, added up by hand."""

from functools import partial

import pytest

from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import step_cost
from tokenpace.run import Row, Step
from tokenpace.show.live import watch
from tokenpace.show.odometer import Odometer, until

CONFIG = ModelConfig(vocab_size=100, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_head=8, d_ff=64)
WEIGHTS = 2 * CONFIG.n_params  # bytes: its embedding is also its head, so every pass reads all
PIECES = ["One", " two", " three", " and", " four"]


def answer(request, tokens, prompt=4):
    """A prompt's pass, and one for each token after the first."""
    for i, token in enumerate(tokens):
        at, phase, width = (prompt + i - 1, "decode", 1) if i else (0, "prefill", prompt)
        yield Stamped(Step((Row(request, phase, at, width, ((prompt + i, token, True),)),)), 0.25)


def seen(points, planned=2.0):
    view = Odometer(partial(step_cost, CONFIG, number=2), lambda ids: "".join(PIECES[i] for i in ids), ["a?", "b?"], planned, "a test")
    return view, watch(view, {"write": points})


def test_every_pass_reads_all_weights_the_prompts_too():
    assert CONFIG.tied
    view, shown = seen(answer(0, [0, 1, 2]))
    assert (view.passes, view.tokens, view.words, view.seconds) == (3, 3, 3, 0.75) and view.read == 3 * WEIGHTS
    assert shown.sentence == (
        f"3 tokens, 3 words, took 3 passes and 750 ms: 4 tokens a second. Each pass read {WEIGHTS / 1e3:.1f} kB of weights, "
        f"in all {3 * WEIGHTS / 1e3:.0f} kB: {WEIGHTS / 1e3:.1f} kB for each word. [a test]"
    )
    assert view.reading.get_text() == f"{3 * WEIGHTS / 1e3:.0f} kB" and f"3 passes × {WEIGHTS / 1e3:.1f} kB" in view.gloss.get_text()


def test_a_new_question_begins_a_new_page_and_nothing_is_lost():
    view, _ = seen([*answer(0, [0, 1, 2]), *answer(1, [3, 4], prompt=2)])
    assert view.writing.get_text() == "and four" and view.ax["text"].get_title(loc="left") == "b?"
    assert view.text(0) == "One two three" and (view.tokens, view.words) == (5, 5)


def test_what_was_taken_back_is_not_written():
    kept, not_kept = ((4, 0, True),), ((5, 1, False),)
    view, _ = seen([Stamped(Step((Row(0, "prefill", 0, 4, kept),)), 0.1), Stamped(Step((Row(0, "decode", 4, 1, not_kept),)), 0.1)])
    assert view.passes == 2 and view.tokens == 1 and view.text(0) == "One"


def test_progress_is_the_share_of_the_seconds_planned():
    assert seen(answer(0, [0, 1]), planned=2.0)[0].progress() == 0.25 and seen(answer(0, [0, 1]), planned=0.3)[0].progress() == 1.0


def test_nothing_written_is_said():
    assert seen([])[1].sentence == "Nothing is written yet."


@pytest.mark.parametrize(("seconds", "passes"), [(0.1, 1), (0.25, 1), (0.3, 2), (0.75, 3), (9, 3)])
def test_a_run_ends_with_its_seconds_and_is_closed(seconds, passes):
    run = answer(0, [0, 1, 2])
    assert len(list(until(run, seconds))) == passes
    assert next(run, None) is None, "what the run holds would still be held"
