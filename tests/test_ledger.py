"""A row of the ledger counts what is on the canvas at the end: not how often it was written, and in every branch."""

from functools import partial

import pytest
import torch

from tokenpace.cache import Cache, Slab
from tokenpace.config import ModelConfig
from tokenpace.decode import refine
from tokenpace.decode.beam import beam, parallel
from tokenpace.measure.clock import Stamped, summary
from tokenpace.measure.cost import Cost, Device, step_cost
from tokenpace.measure.energy import Metered
from tokenpace.measure.ledger import HEAD, Ledger, entry
from tokenpace.measure.roof import Band
from tokenpace.model.transformer import Transformer
from tokenpace.run import Request, Row, Step, canvas, run

CONFIG = ModelConfig(vocab_size=29, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_head=8, d_ff=24, context=64)
PROMPT = [3, 1, 4]


def fold(steps, seconds=0.5):
    return entry("x", [Stamped(step, seconds) for step in steps], lambda step: Cost(weight_bytes=10.0), Device("d", 100.0, 1e9), 0)


def steps_of(decoder, slots=1, **how):
    torch.manual_seed(0)
    lanes = {"target": (Transformer(CONFIG), Cache(CONFIG, Slab(slots, 48)))}
    return list(run(lanes, [Request(decoder, branches=slots, **how)], slots=slots))


def by_counting(steps, branches=1, told=0):
    """Tokens on the canvas of each branch, those that the prompt's passes told left out."""
    return sum(len(canvas(steps, (), branch=b)) - told for b in range(branches))


@pytest.mark.parametrize("limit", [1, 5, 8])
def test_refinement_counts_places_not_writes(limit):
    steps = steps_of(refine(PROMPT, 8, mask=28, block=4, steps=2), limit=limit)
    found = fold(steps)
    assert found.tokens == by_counting(steps) == limit == summary([Stamped(s, 1.0) for s in steps]).tokens
    assert found.measured == 0.5 * found.passes / limit


def test_what_a_stop_erases_is_not_counted():
    steps = steps_of(refine(PROMPT, 8, mask=28, steps=4), limit=8, stop=lambda token: True)
    assert fold(steps).tokens == by_counting(steps) < sum(kept for s in steps for r in s.rows for _, _, kept in r.writes)


@pytest.mark.parametrize("make", [lambda: parallel(PROMPT, 3, 6), lambda: beam(PROMPT, 3, 6)])
def test_every_branch_counts(make):
    steps = steps_of(make(), slots=3)
    found = fold(steps)
    assert found.tokens == by_counting(steps, branches=3, told=1) == 3 * (6 - 1)  # the prompt's pass told the first of each
    assert found.passes == 5 and found.tokens_per_pass == 3.0


def test_places_written_again_erased_and_dropped_with_their_branch():
    def row(*writes, **more):
        return Step((Row(0, "refine", 4, 2, writes, **more),))

    again = [row((4, 1, True), (5, 2, False)), row((4, 7, True), (5, 2, True)), row((6, 3, True)), row((6, None, True))]
    assert fold(again).tokens == 2
    forked = [row((4, 1, True)), row(((5, 1, True),), ((5, 2, True),), parents=(0, 0)), row(((6, 1, True),), parents=(1,))]
    assert fold(forked).tokens == 3
    prompt = Step((Row(0, "prefill", 0, 4, ((4, 9, True),)),))
    assert fold([prompt, row((5, 1, True))]).tokens == 1
    assert fold([prompt, row((4, 1, True))]).tokens == 1  # what a later pass decided is that pass's
    with pytest.raises(ValueError, match="kept no token"):
        fold([prompt, row((5, 1, True)), row((5, None, True))])


def test_unlike_passes_claim_no_share_of_the_bandwidth():
    """Without a cache each pass has one token more: at first reading decides, then arithmetic, and a mean of both says nothing of either."""
    config = ModelConfig(vocab_size=29, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_head=8, d_ff=24)
    price, band = partial(step_cost, config, number=2), Band(1e6, 1e6, True)

    def row(name, widths, device):
        steps = [Step((Row(0, "decode", 0 if name == "uncached" else i, w, ((i, 1, True),)),)) for i, w in enumerate(widths)]
        return entry(name, [Stamped(step, 0.5) for step in steps], price, device, 0, band), [price(step) for step in steps]

    mixed, reads = Device("d", bandwidth=1e6, flops=4e6), Device("d", bandwidth=1e6, flops=1e12)
    found, costs = row("uncached", range(4, 24), mixed)
    each = [max(c.bytes / 1e6, c.total_flops / 4e6) for c in costs]
    assert max(each) > 2 * min(each) and found.mbu is None
    assert found.why.startswith("no MBU: its passes are unlike (predicted ") and f"{1e3 * min(each):.3g} ms to {1e3 * max(each):.3g} ms" in found.why
    assert found.predicted == pytest.approx(sum(each) / 20) and found.pass_bytes == pytest.approx(sum(c.bytes for c in costs) / 20)
    for name, widths, device in (("autoregressive", [1] * 20, mixed), ("uncached", range(4, 24), reads), ("uncached", range(20, 24), mixed)):
        alike, costs = row(name, widths, device)
        assert not alike.why and alike.mbu[0] == pytest.approx(sum(c.bytes for c in costs) / (0.5 * len(costs)) / 1e6)


def test_joules_of_a_token_are_those_of_its_passes_or_not_readable():
    """The prompt's are not in it, as its seconds are not."""
    prompt = Step((Row(0, "prefill", 0, 3, ((3, 9, True),)),))
    each = [Step((Row(0, "decode", 3 + i, 1, ((4 + i, 1, True),)),)) for i in range(3)]
    fold = lambda run: entry("x", run, lambda step: Cost(weight_bytes=10.0), Device("d", 100.0, 1e9), 0)
    run = [Metered(prompt, 0.5, 100.0), *(Metered(step, 0.5, 2.0 + i) for i, step in enumerate(each))]
    assert fold(run).joules == 3.0 and fold(run).cells()[HEAD.index("joules/token")] == "3 J"
    for unread in ([*run[:-1], Stamped(each[-1], 0.5)], [Stamped(*one) for one in run]):
        assert fold(unread).joules is None and fold(unread).cells()[HEAD.index("joules/token")] == "not readable here"
        assert "not readable here" in str(Ledger([fold(unread)])) and "not readable here" in Ledger([fold(unread)])._repr_markdown_()
    assert fold([Stamped(*run[0]), *run[1:]]).joules == 3.0
