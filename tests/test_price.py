"""What a token costs: money, seconds, joules and bytes of input and output tokens, with sums done by hand."""

from functools import partial

import pytest

from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Cost, Device, cost
from tokenpace.measure.energy import Metered
from tokenpace.measure.price import foretold, price, sides, times
from tokenpace.run import Row, Step


def test_an_hour_and_a_kilowatt_hour():
    assert price(3600, 0, 2.0, 9.0) == 2.0
    assert price(0, 1000 * 3600, 9.0, 0.25) == 0.25  # 1000 watts for an hour
    assert price(7200, 3.6e6, 1.5, 0.3) == pytest.approx(3.3)


def written(n, context=4, phase="decode"):
    return Step(tuple(Row(i, phase, context, 1, ((context + 1, 7, True),)) for i in range(n)))


def prompts(n, width=4):
    return Step(tuple(Row(i, "prefill", 0, width, ((width, 7, True),)) for i in range(n)))


RUN = [Stamped(prompts(2), 0.8), Stamped(written(2), 0.5), Stamped(written(2), 0.7), Stamped(written(2), 0.9)]


def test_seconds_of_a_token_are_the_median_pass_over_its_tokens():
    found = sides(RUN, rows=2)
    assert (found["input"].tokens, found["input"].seconds) == (8, 0.1)
    assert (found["output"].tokens, found["output"].seconds) == (6, 0.35)
    assert times(found) == pytest.approx(3.5) and found["output"].total == pytest.approx(2.1)


def test_a_pass_with_prompts_and_others_is_nobodys():
    both = Step((*prompts(1).rows, *written(1).rows))
    assert [side.tokens for side in sides([*RUN, Stamped(both, 9.0)], rows=2).values()] == [8, 6]


def test_only_passes_that_all_texts_share():
    assert sides([*RUN, Stamped(written(1), 9.0)], rows=2)["output"].tokens == 6
    ended = Step((*written(1).rows, Row(1, "decode", 0, 0, finish="cancelled")))
    assert sides([*RUN, Stamped(ended, 9.0)], rows=2)["output"].tokens == 6


def test_what_a_pass_rejected_is_no_output():
    verified = Stamped(Step((Row(0, "verify", 4, 3, ((5, 1, True), (6, 2, True), (7, 3, False))),)), 1.0)
    assert sides([verified])["output"].seconds == 0.5
    nothing = Stamped(Step((Row(0, "verify", 4, 3, ((5, 1, False),)),)), 1.0)
    assert sides([nothing])["output"].seconds is None and times(sides([nothing])) is None


def test_bytes_and_joules_of_a_token():
    moved = lambda step: Cost(weight_bytes=100.0 * sum(row.width for row in step.rows))
    run = [Metered(prompts(1), 0.8, 2.0), Metered(written(1), 0.5, 3.0), Metered(written(1), 0.7, 5.0)]
    found = sides(run, moved)
    assert found["input"].joules == 0.5 and found["output"].joules == 4.0 and times(found, "joules") == 8.0
    assert found["input"].moved == found["output"].moved == 100.0
    unread = sides([run[0], Stamped(*run[1]), run[2]], moved)
    assert unread["output"].joules is None and unread["input"].joules == 0.5 and times(unread, "joules") is None


CONFIG = ModelConfig(vocab_size=100, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_head=8, d_ff=64)


def test_foretold_is_what_the_roof_makes_of_both():
    """Where reading decides of writing, and multiplying of the prompt: all of it by hand, but for the parts that `cost` has tests of its own for."""
    here, one = Device("here", bandwidth=1e6, flops=1e7), partial(cost, CONFIG, number=2)
    prompt, context, batch = 100, 120, 4
    given = one([(0, prompt)] * batch).total_flops / 1e7 / (batch * prompt)
    kv = CONFIG.kv_numbers * 2
    wrote = (CONFIG.n_params * 2 + batch * (context + 1) * kv) / 1e6 / batch
    assert foretold(one, here, prompt, context, batch) == pytest.approx(wrote / given)
    assert foretold(one, here, prompt, context, batch, budget=100) == pytest.approx(wrote / (one([(0, prompt)]).total_flops / 1e7 / prompt))


def test_the_ratio_falls_with_the_batch_to_what_is_each_texts_own():
    here, one = Device("here", bandwidth=1e6, flops=1e7), partial(cost, CONFIG, number=2)
    found = [foretold(one, here, 100, 120, batch) for batch in (1, 2, 8, 64, 10_000)]
    assert found == sorted(found, reverse=True)
    own = 121 * CONFIG.kv_numbers * 2 / 1e6
    given = one([(0, 100)] * 5).total_flops / 1e7 / 500
    assert found[-1] == pytest.approx(own / given, rel=0.01) and found[-1] > 1
