"""The counted cost against torch's own counter, real tensors and loops; and time, with a clock that the test holds. CASES M1, M2, M4."""

from dataclasses import replace
from math import inf, isnan

import pytest
import torch
from loud import ATTENTION, GQA, MASK, PROMPT, lanes, loud
from oracles import sees
from torch.utils.flop_counter import FlopCounterMode

from tokenpace.cache.protocol import Cache, NoCache
from tokenpace.cache.slab import Slab
from tokenpace.config import preset
from tokenpace.decode.autoregressive import autoregressive, uncached
from tokenpace.decode.beam import parallel
from tokenpace.decode.drafters import ngram, small
from tokenpace.decode.refine import refine
from tokenpace.decode.sampling import Sampler
from tokenpace.decode.speculative import speculative
from tokenpace.measure.clock import Stamped, predicted, summary, synchronise, timed
from tokenpace.measure.cost import Cost, Device, cost, seen, step_cost
from tokenpace.model import attention
from tokenpace.run import Request, Row, Step, run
from tokenpace.stop import ends

CONFIGS = {**ATTENTION, "two-way": replace(GQA, causal=False), "two-way window": replace(GQA, causal=False, window=4, sinks=1)}


def counted(config, context: int, width: int, read: int, monkeypatch) -> float:
    """FLOP that torch counts in a real pass."""
    monkeypatch.setattr(attention, "attend", attention.attend_plainly)  # the counter knows products, not every fused kernel
    model, cache = loud(config), Cache(config, Slab(1, 64))
    if context:
        model(torch.zeros(1, context, dtype=torch.long), cache.stage(torch.arange(context)[None]))
        cache.keep([context])
    flight = cache.stage(torch.arange(context, context + width)[None])
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, width, dtype=torch.long), flight, torch.arange(width - read, width))
    return counter.get_total_flops()


# FLOP


@pytest.mark.parametrize("name", ["gqa", "mha", "mqa", "qwen", "two-way"])
@pytest.mark.parametrize("context, width, read", [(1, 1, 1), (20, 1, 1), (0, 9, 1), (7, 5, 5), (7, 5, 0)])
def test_flops_are_torchs(name, context, width, read, monkeypatch):
    """Projections, MLP and head: exactly. Scores: exactly where every key is seen, else the kernel also multiplies what the mask then hides."""
    config = CONFIGS[name]
    mine = cost(config, [(context, width)], read=read)
    hidden = width * (context + width) - seen(config, context, width)
    assert hidden == (width * (width - 1) / 2 if config.causal else 0)
    assert mine.total_flops + 4 * config.n_layers * config.n_heads * config.d_head * hidden == counted(config, context, width, read, monkeypatch)


def test_flops_by_part(monkeypatch):
    """Two FLOP for every weight of a matrix and token, a part at a time."""
    c, m = GQA, cost(GQA, [(0, 3), (5, 2)], read=4)
    assert m.flops["attention"] == 2 * 5 * c.n_layers * (c.d_model * (6 + 2 + 2) * 8 + 6 * 8 * c.d_model)
    assert m.flops["mlp"] == 2 * 5 * c.n_layers * 3 * c.d_model * c.d_ff
    assert m.flops["head"] == 2 * 4 * c.vocab_size * c.d_model
    assert m.flops["scores"] == 4 * c.n_layers * 6 * 8 * ((1 + 2 + 3) + (6 + 7))
    with FlopCounterMode(display=False) as counter:
        loud().blocks[0].mlp(torch.zeros(5, c.d_model))
    assert counter.get_total_flops() * c.n_layers == m.flops["mlp"]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("context, width", [(0, 1), (0, 12), (3, 1), (20, 1), (5, 9), (30, 4)])
def test_pairs_and_keys_are_those_of_the_mask(name, context, width):
    c = CONFIGS[name]
    flight, known = range(context, context + width), range(context)
    look = lambda q, k: sees(q, k, c.window, c.sinks, c.causal)
    assert seen(c, context, width) == sum(look(q, k) for q in flight for k in [*known, *flight])
    read = sum(any(look(q, k) for q in flight) for k in known)
    assert cost(c, [(context, width)], number=1.0).kv_read == read * c.kv_numbers


# Bytes


@pytest.mark.parametrize("name", ["gqa", "qwen", "mqa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_bytes_are_the_tensors(name, dtype):
    """Every weight once, however many rows share the pass; of an embedding that is not the head too, only the rows looked up."""
    c, state = CONFIGS[name], loud(CONFIGS[name]).state_dict()
    whole = sum(w.to(dtype).nbytes for w in state.values())
    embedding = state["embed.weight"].to(dtype)
    for rows in ([(0, 1)], [(9, 1)] * 8, [(0, 20)]):
        tokens = sum(n for _, n in rows)
        unread = 0 if c.tied else embedding.nbytes - embedding[0].nbytes * tokens
        assert cost(c, rows, number=dtype.itemsize).weight_bytes == whole - unread


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cache_bytes_are_the_caches(dtype):
    of_a_token = Cache(GQA, Slab(1, 9), dtype=dtype).bytes / 10
    m = cost(GQA, [(20, 1), (7, 3)], number=4.0, cache_number=dtype.itemsize)
    assert m.kv_written == 4 * of_a_token and m.kv_read == 27 * of_a_token
    assert cost(GQA, [(20, 1)], number=2.0).kv_read == 20 * 2 * GQA.kv_numbers  # by default stored like the weights


def test_known_numbers():
    """SmolLM2-135M in bf16: 269 MB a token, 23 kB of cache for each."""
    m = cost(preset("smollm2-135m"), [(0, 1)])
    assert m.weight_bytes == pytest.approx(269.03e6, rel=1e-4) and m.kv_written == 23_040
    assert m.total_flops == pytest.approx(2 * 134.5e6, rel=1e-3) and m.intensity == pytest.approx(1, rel=1e-2)


def test_ceilings():
    m = Cost({"mlp": 6e9, "head": 2e9}, 1e9, 0.5e9, 0.5e9)
    assert (m.total_flops, m.bytes, m.intensity) == (8e9, 2e9, 4)
    assert m.ceilings(Device("d", 1e9, 1e9, 0.5)) == {"launch": 0.5, "bandwidth": 2, "compute": 8}
    assert [m.seconds(d) for d in (Device("c", 1e9, 1e9), Device("b", 1e9, 1e12), Device("l", 1e12, 1e12, 3.0))] == [8, 2, 3]
    assert (m + Cost({"mlp": 1e9, "scores": 1}, 1, 2, 3)) == Cost({"mlp": 7e9, "head": 2e9, "scores": 1}, 1e9 + 1, 0.5e9 + 2, 0.5e9 + 3)


# Steps


def spied(model, reads: list):
    def forward(tokens, flight, read):
        reads.append((int((flight.queries >= 0).sum()), len(read)))
        return model(tokens, flight, read)

    return forward


@pytest.mark.parametrize(
    "name, budget", [("draft", 512), *((n, b) for n in ("autoregressive", "ngram", "blocks", "masked", "parallel") for b in (4, 512))]
)
def test_a_step_costs_what_its_pass_did(name, budget):
    """Tokens multiplied and logits read, as a spy on the forward saw them."""
    decoder = {
        "autoregressive": lambda: autoregressive(PROMPT),
        "draft": lambda: speculative(PROMPT, small(3)),
        "ngram": lambda: speculative(PROMPT, ngram(3)),
        "blocks": lambda: refine(PROMPT, 12, MASK, block=4, steps=3),
        "masked": lambda: refine(PROMPT, 12, MASK, steps=5),
        "parallel": lambda: parallel(PROMPT, 3, 5, Sampler(1.0)),
    }[name]()
    served, reads = lanes(rows=3, draft=loud(noise=0.02)), []
    served = {lane: (spied(model, reads), cache) for lane, (model, cache) in served.items()}
    run_ = run(served, [Request(decoder, branches=3)], slots=3, budget=budget)
    for step, _ in zip(run_, range(12)):
        tokens, read = reads[-1]
        m = step_cost(GQA, step)
        assert m.flops["head"] == 2 * GQA.vocab_size * GQA.d_model * read
        assert m.kv_written == tokens * GQA.kv_numbers * 2
    run_.close()


# Time


class Hand:
    """A clock that moves only when it is told to, and remembers who looked."""

    def __init__(self):
        self.time, self.events = 0.0, []

    def __call__(self):
        self.events.append("look")
        return self.time

    def sync(self):
        self.events.append("sync")


def steps_of(clock, seconds, row=lambda i: Row(0, "decode", 10 + i, 1, ((11 + i, i, True),))):
    for i, s in enumerate(seconds):
        clock.time += s
        yield Step((row(i),))


def test_m1_the_device_is_waited_for_before_the_clock_is_read():
    clock = Hand()
    list(timed(steps_of(clock, [1, 1]), clock.sync, clock))
    assert clock.events == ["sync", "look"] * 5 or all(b == "look" for a, b in zip(clock.events, clock.events[1:]) if a == "sync")
    assert all(clock.events[i - 1] == "sync" for i, e in enumerate(clock.events) if e == "look")


def test_work_that_was_only_queued_is_counted():
    """A device that has launched, not done: the pass takes 0.1 s to launch and 2 s to do."""
    clock, queued = Hand(), []

    def launched():
        for _ in range(3):
            clock.time += 0.1
            queued.append(2.0)
            yield Step(())

    def sync():
        while queued:
            clock.time += queued.pop()

    assert [s.seconds for s in timed(launched(), sync, clock)] == pytest.approx([2.1] * 3)


def test_drawing_is_not_counted():
    clock, got = Hand(), []
    for stamped in timed(steps_of(clock, [1, 2, 3]), clock.sync, clock):
        got.append(stamped.seconds)
        clock.time += 100  # what the consumer does between two passes
    assert got == [1, 2, 3]


def test_m2_a_slow_first_pass_is_the_first_tokens():
    """TPOT is about the tokens after the first: a warm-up of 100 s does not reach it."""
    clock = Hand()
    s = summary(timed(steps_of(clock, [100, 1, 1, 1]), clock.sync, clock))
    assert (s.ttft, s.tpot, s.tokens, s.passes, s.seconds) == (100, 1, 4, 4, 103) and s.tokens_per_pass == 1


def test_m4_only_kept_tokens_are_counted():
    """A prompt of 100 in two chunks, an end after 3 of 64 tokens, rejected guesses: 3 tokens, prompt and answer apart."""
    steps = [
        Step((Row(0, "prefill", 0, 64),)),
        Step((Row(0, "prefill", 64, 36, ((100, 5, True),)),)),
        Step((Row(0, "draft", 100, 1),), "draft"),
        Step((Row(0, "verify", 100, 3, ((101, 6, True), (102, 9, False), (102, 2, True)), finish="stop"),)),
        Step((Row(1, "decode", 0, 1, ((1, 1, True),)),)),
    ]
    s = summary([Stamped(step, 1.0) for step in steps])
    assert (s.tokens, s.passes, s.draft_passes, s.ttft, s.tpot, s.seconds, s.finish) == (3, 3, 1, 2.0, 1.0, 4.0, "stop")
    assert s.tokens_per_pass == 1


def test_waiting_for_others_counts():
    rows = [(1,), (1,), (0, 1), (0,)]
    steps = [Step(tuple(Row(r, "decode", i, 1, ((i, i, True),)) for r in each)) for i, each in enumerate(rows)]
    s = summary([Stamped(step, 1.0) for step in steps])
    assert (s.tokens, s.passes, s.ttft, s.tpot) == (2, 2, 3.0, 1.0)


def test_a_real_runs_summary():
    for decoder, passes in ((autoregressive(PROMPT), 6), (speculative(PROMPT, small(2), limit=6), 2), (refine(PROMPT, 6, MASK, steps=2), 3)):
        s = summary(Stamped(step, 1.0) for step in run(lanes(draft=loud()), [Request(decoder, 6)]))
        assert (s.tokens, s.passes) == (6, passes) and s.finish in ("length", "end")
    s = summary(Stamped(step, 1.0) for step in run(lanes(rows=3), [Request(parallel(PROMPT, 3, 5, Sampler(1.0)), branches=3)], 3))
    assert (s.tokens, s.passes) == (15, 5)


def test_one_token_has_no_time_after_it():
    s = summary([Stamped(Step((Row(0, "prefill", 0, 3, ((3, 1, True),), finish="length"),)), 1.0)])
    assert s.tokens == 1 and s.ttft == 1 and isnan(s.tpot)


def test_nothing_said_about_a_request():
    with pytest.raises(ValueError, match="request 7"):
        summary([Stamped(Step((Row(0, "decode", 0, 1),)), 1.0)], 7)


def test_an_answer_that_ends_at_once():
    steps = [Stamped(s, 1.0) for s in run(lanes(), [Request(autoregressive(PROMPT), 9, ends(range(61)))])]
    s = summary(steps)
    assert (s.tokens, s.passes, s.finish) == (1, 1, "stop")


def test_predicted_is_the_largest_ceiling_of_each_lane():
    big, little = preset("llama-3.2-1b"), preset("smollm2-135m")
    steps = [
        Step((Row(0, "draft", 50, 1),), "draft"),
        Step((Row(0, "verify", 50, 4, ((51, 1, True), (52, 1, True), (53, 2, True), (54, 1, True))),)),
        Step((Row(0, "decode", 0, 0, finish="cancelled"),)),
    ]
    device = Device("d", 1e11, 1e13, 1e-4)
    got = [s for _, s in predicted(steps, {"target": big, "draft": little}, device)]
    want = [cost(little, [(50, 1)]).bytes / 1e11, cost(big, [(50, 4)]).bytes / 1e11, 0.0]
    assert got == pytest.approx(want)
    few = [s for _, s in predicted(steps[1:2], big, device, 0.625, 2.0)]  # weights of 4 bits, a cache of 16
    assert few == pytest.approx([cost(big, [(50, 4)], 0.625, 2.0).bytes / 1e11]) and few != pytest.approx([cost(big, [(50, 4)], 0.625).bytes / 1e11])
    assert [s for _, s in predicted(steps[1:2], big, Device("slow", inf, 1e9))] == pytest.approx([cost(big, [(50, 4)], read=4).total_flops / 1e9])


def test_measured_and_predicted_are_read_alike():
    steps = list(run(lanes(), [Request(uncached(PROMPT), 4)]))
    a, b = summary(timed(iter(steps))), summary(predicted(steps, GQA, Device("d", 1e9, 1e9)))
    assert (a.tokens, a.passes, a.finish) == (b.tokens, b.passes, b.finish) == (4, 4, "length")


def test_no_cache_reads_no_cache():
    [step, *_] = run({"target": (loud(), NoCache())}, [Request(uncached(PROMPT), 2)])
    assert step_cost(GQA, step).kv_read == 0


def test_synchronise_needs_no_device_on_a_cpu(device):
    assert synchronise(device)() is None
