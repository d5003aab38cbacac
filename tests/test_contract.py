"""Attention × cache × decoder × driver: whatever is combined, the text is the one that recomputing everything gives, token for token (fp32, CPU)."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from loud import ATTENTION, GQA, MASK, PROMPT, empty, finishes, lanes, loud, oracle, serve, text

from tokenpace.cache.protocol import Cache, NoCache
from tokenpace.cache.slab import Slab
from tokenpace.decode.autoregressive import autoregressive, uncached
from tokenpace.decode.beam import beam, parallel
from tokenpace.decode.drafters import ngram, small
from tokenpace.decode.protocol import Ask, Keep
from tokenpace.decode.refine import refine
from tokenpace.decode.sampling import Sampler
from tokenpace.decode.speculative import speculative
from tokenpace.run import Request, drafts_first, run
from tokenpace.stop import ends

N = 12
WARM = Sampler(temperature=0.8, top_k=20, top_p=0.95)


def tree(prompt, guess):
    """Greedy speculation over alternatives: guess(tokens) -> (nodes, the node before each, or -1). Not in the package: the protocol carries it."""
    tokens, fed = list(prompt), 0
    while True:
        nodes, parents = guess(tokens)
        fresh, n = tokens[fed:], len(tokens) - fed
        depth, see = [*range(n)], torch.ones(n + len(nodes), n + len(nodes), dtype=torch.bool).tril()
        for i, parent in enumerate(parents):
            see[n + i, n:] = see[n + parent, n:] if parent >= 0 else False
            see[n + i, n + i] = True
            depth.append(depth[n + parent] + 1 if parent >= 0 else n)
        out = yield Ask("verify", fresh + nodes, fed, n - 1, len(nodes) + 1, among=see, depths=depth)
        after, path = out.tokens, [-1]  # after[0] follows the text, after[1 + i] follows node i
        while right := [i for i, p in enumerate(parents) if p == path[-1] and nodes[i] == after[path[-1] + 1]]:
            path.append(right[0])
        new = [nodes[i] for i in path[1:]] + [after[path[-1] + 1]]
        yield Keep([*range(n), *(n + i for i in path[1:])], tuple((len(tokens) + i, t, True) for i, t in enumerate(new)))
        fed, tokens = len(tokens) + len(path) - 1, tokens + new


def guesses(want):
    """Alternatives of which one branch is right, in another place every time, or none is."""

    def guess(tokens):
        a, b, c = [*want[len(tokens) :], 1, 2, 3][:3]
        wrong = (a + 1) % 60
        return [([wrong, a, wrong, b, c], [-1, -1, 0, 1, 3]), ([a, wrong, b, wrong], [-1, 0, 0, 2]), ([wrong, wrong + 1], [-1, 0])][len(tokens) % 3]

    return guess


# name -> (kind of attention -> decoder for a prompt, the texts of its branches by recomputation, other lanes it needs)
DECODERS = {
    "autoregressive": (lambda kind, p: autoregressive(p), lambda o, p: [o.greedy(p, N)], {}),
    "sampled": (lambda kind, p: autoregressive(p, WARM, 7), lambda o, p: [o.sampled(p, N, WARM, 7)], {}),
    "uncached": (lambda kind, p: uncached(p), lambda o, p: [o.greedy(p, N)], {}),
    "draft-same": (lambda kind, p: speculative(p, small(3), limit=N), lambda o, p: [o.greedy(p, N)], {"noise": 0.0}),
    "draft-noisy": (lambda kind, p: speculative(p, small(3), limit=N), lambda o, p: [o.greedy(p, N)], {"noise": 0.02}),
    "ngram": (lambda kind, p: speculative(p, ngram(3), limit=N), lambda o, p: [o.greedy(p, N)], {}),
    "tree": (lambda kind, p: tree(p, guesses(oracle(kind).greedy(p, N))), lambda o, p: [o.greedy(p, N)], {}),
    "one-shot": (lambda kind, p: refine(p, N, MASK), lambda o, p: [o.refined(p, N, MASK, N, 1)], {}),
    "masked": (lambda kind, p: refine(p, N, MASK, steps=5), lambda o, p: [o.refined(p, N, MASK, N, 5)], {}),
    "blocks": (lambda kind, p: refine(p, N, MASK, block=5, steps=3), lambda o, p: [o.refined(p, N, MASK, 5, 3)], {}),
    "beam": (lambda kind, p: beam(p, 3, N), lambda o, p: o.beams(p, 3, N), {}),
    "parallel": (lambda kind, p: parallel(p, 3, N, WARM, 4), lambda o, p: [o.sampled(p, N, WARM, 4, b) for b in range(3)], {}),
}
BRANCHES = {"beam": 3, "parallel": 3}


def request(name: str, kind: str = "gqa", prompt=PROMPT, **more) -> Request:
    return Request(DECODERS[name][0](kind, prompt), N, branches=BRANCHES.get(name, 1), **more)


def right(name: str, kind: str = "gqa", prompt=PROMPT) -> list[list[int]]:
    return DECODERS[name][1](oracle(kind), prompt)


def lanes_for(name: str, kind: str, rows: int, fixed: bool) -> dict:
    others = DECODERS[name][2]
    return lanes(loud(kind), rows, fixed=fixed, **({"draft": loud(kind, noise=others["noise"])} if others else {}))


def texts(steps, prompt, number=0, branches=1):
    return [text(steps, prompt, number, b) for b in range(branches)]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("budget", [1, 3, 16, 512])
def test_matrix(kind, fixed, name, budget):
    branches = BRANCHES.get(name, 1)
    served = lanes_for(name, kind, branches, fixed)
    steps = serve(served, [request(name, kind)], slots=branches, budget=budget)
    assert texts(steps, PROMPT, 0, branches) == right(name, kind)
    assert finishes(steps) in ({0: "length"}, {0: "end"})


@pytest.mark.parametrize("kind", ATTENTION)
def test_no_cache(kind):
    steps = serve({"target": (loud(kind), NoCache())}, [Request(uncached(PROMPT), N)])
    assert text(steps) == oracle(kind).greedy(PROMPT, N)
    assert [s.rows[0].context for s in steps] == [0] * N and [s.rows[0].width for s in steps] == [len(PROMPT) + i for i in range(N)]


def test_no_cache_refuses_who_needs_one():
    asked = Request(autoregressive(PROMPT), N)
    steps = serve({"target": (loud(), NoCache())}, [asked])
    assert finishes(steps) == {0: "error"} and "use a cache" in str(asked.error) and text(steps) == oracle().greedy(PROMPT, 1)


# Many requests

PROMPTS = {
    "autoregressive": PROMPT,
    "sampled": PROMPT[:3],
    "uncached": PROMPT[2:9],
    "draft-noisy": PROMPT[:1] + PROMPT,
    "ngram": PROMPT[::-1],
    "tree": PROMPT[:4],
    "blocks": PROMPT[3:],
    "masked": PROMPT[:1],
    "beam": PROMPT[:6],
    "parallel": PROMPT[1:],
}


def last_come_first_served(jobs, budget):
    """Unfair, and two tokens at a time where that is possible."""
    job = jobs[-1]
    return job.ask.to, [(job, job.chunk(2) or job.left)]


def target_first(jobs, budget):
    """The other way round than the driver's own rule, everybody whole."""
    lane = max((j.ask.to for j in jobs), key=lambda to: to == "target")
    return lane, [(j, j.left) for j in jobs if j.ask.to == lane]


@pytest.mark.parametrize("policy", [drafts_first, last_come_first_served, target_first])
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("slots, budget", [(3, 1), (3, 16), (6, 3), (6, 512), (14, 40)])
def test_any_mix_shares_passes(slots, budget, fixed, policy):
    served = lanes(rows=slots, fixed=fixed, draft=loud(noise=0.02))
    steps = serve(served, [request(name, prompt=p) for name, p in PROMPTS.items()], slots=slots, budget=budget, policy=policy)
    for i, (name, p) in enumerate(PROMPTS.items()):
        assert texts(steps, p, i, BRANCHES.get(name, 1)) == right(name, prompt=p), name
    if (slots, budget, policy) == (14, 40, drafts_first):
        assert max(len(s.rows) for s in steps) > 6  # otherwise nothing was shared


def test_one_slot_serves_one_after_the_other():
    names = [n for n in PROMPTS if n not in BRANCHES]
    steps = serve(lanes(draft=loud(noise=0.02)), [request(n, prompt=PROMPTS[n]) for n in names])
    assert [text(steps, PROMPTS[n], i) for i, n in enumerate(names)] == [right(n, prompt=PROMPTS[n])[0] for n in names]
    assert list(dict.fromkeys(r.request for s in steps for r in s.rows)) == [*range(len(names))]


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_order_and_copies_change_nothing(order):
    """CASES B1, B2: three rows of unlike length in any order, and one prompt three times."""
    prompts = [PROMPT[:3], PROMPT, PROMPT[:9]]
    steps = serve(lanes(rows=3), [Request(autoregressive(prompts[i]), N) for i in order], slots=3)
    assert [text(steps, prompts[i], n) for n, i in enumerate(order)] == [oracle().greedy(prompts[i], N) for i in order]
    same = serve(lanes(rows=3), [Request(autoregressive(PROMPT), N) for _ in range(3)], slots=3)
    assert [text(same, PROMPT, i) for i in range(3)] == [oracle().greedy(PROMPT, N)] * 3


@pytest.mark.parametrize("partners", [(), (None,), (1, 2), (42,)])
def test_a_seed_is_its_own(partners):
    """CASES B8: the same tokens alone, beside greedy requests, beside other seeds, beside the same seed."""
    others = [Request(autoregressive(PROMPT[:5], *(() if s is None else (Sampler(1.0), s))), N) for s in partners]
    steps = serve(lanes(rows=3), [*others, Request(autoregressive(PROMPT, Sampler(1.0), 42), N)], slots=3, budget=5)
    assert text(steps, PROMPT, len(others)) == oracle().sampled(PROMPT, N, Sampler(1.0), 42)


@pytest.mark.parametrize(
    "penalty", [Sampler(repetition=1.3), Sampler(frequency=0.4, presence=0.3), Sampler(0.8, repetition=1.2), Sampler(1.5, frequency=2.0)]
)
def test_penalties_see_only_their_own_row(penalty):
    """CASES B5: padding has token id 0, which here is a common token of the partner."""
    long = [0, 0, 4, 0, 7, 0, 0, 1, 0, 2, 0, 0]
    steps = serve(lanes(rows=2), [Request(autoregressive(p, penalty, 3), N) for p in (PROMPT[:2], long)], slots=2, budget=5)
    assert [text(steps, p, i) for i, p in enumerate((PROMPT[:2], long))] == [oracle().sampled(p, N, penalty, 3) for p in (PROMPT[:2], long)]


# Counting


class Spy:
    """A forward that remembers what it was asked."""

    def __init__(self, model):
        self.model, self.config, self.calls = model, model.config, []

    def __call__(self, tokens, flight, read):
        self.calls.append((tokens, flight.queries, len(read)))
        return self.model(tokens, flight, read)


def test_forward_calls_and_what_they_held():
    spy = Spy(loud())
    served = {"target": (spy, Cache(GQA, Slab(1, 64)))}
    steps = serve(served, [Request(autoregressive(PROMPT), 5)], budget=4)
    assert len(spy.calls) == len(steps) == 3 + 4
    assert [q[q >= 0].tolist() for _, q, _ in spy.calls] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11], [12], [13], [14]]  # CASES A4
    assert [read for _, _, read in spy.calls] == [0, 0, 1, 1, 1, 1, 1]
    assert [r.phase for s in steps for r in s.rows] == ["prefill"] * 3 + ["decode"] * 4
    assert [(r.context, r.width) for s in steps for r in s.rows] == [(0, 4), (4, 4), (8, 3), (11, 1), (12, 1), (13, 1), (14, 1)]


def test_rows_have_positions_of_their_own():
    """CASES B1."""
    spy = Spy(loud())
    serve({"target": (spy, Cache(GQA, Slab(2, 64)))}, [Request(autoregressive(p), 3) for p in (PROMPT[:3], PROMPT[:9])], slots=2)
    of = lambda row: [q[row][q[row] >= 0].tolist() for _, q, _ in spy.calls]
    assert of(0) == [[0, 1, 2], [3], [4]] and of(1) == [[*range(9)], [9], [10]]


@pytest.mark.parametrize("name, passes", [("one-shot", 2), ("masked", 1 + 5), ("blocks", 1 + 3 + 1 + 3 + 1 + 2)])
def test_refinement_takes_as_many_passes_as_it_says(name, passes):
    """One for the prompt, `steps` for each block (no more than it has places), one more to write a block for the next. CASES G5, G9."""
    steps = serve(lanes(), [request(name)])
    assert len(steps) == passes and len(text(steps)) == len(PROMPT) + N and MASK not in text(steps)


@pytest.mark.parametrize("prompt", [[], PROMPT[:5], PROMPT[:8]], ids=len)
def test_blocks_need_not_divide_anything(prompt):
    """CASES G5, G6."""
    steps = serve(lanes(), [Request(refine(prompt, 10, MASK, block=4, steps=2))])
    assert text(steps, prompt) == oracle().refined(prompt, 10, MASK, 4, 2)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_perfect_drafter_is_always_right(k):
    """CASES D9, A14: a wrong draft cache would leave the text right, but not the acceptance."""
    limit = 40
    served = lanes(capacity=64, draft=loud())
    tops, steps = [], []
    for step in run(served, [Request(speculative(PROMPT, small(k), limit=limit), limit)]):
        steps.append(step)
        tops.append((step.to, served["draft"][1].top[0], len(text(steps))))
    assert text(steps) == oracle().greedy(PROMPT, limit)
    verified = [s.rows[0] for s in steps if s.to == "target"]
    assert all(kept for row in verified for _, _, kept in row.writes)
    assert len(verified) == -(-limit // (k + 1)) and empty(served)
    drafts = [top - known for to, top, known in tops if to == "draft"]
    assert drafts == [
        i for rounds in range(len(verified)) for i in range(min(k, limit - rounds * (k + 1) - 1))
    ]  # its cache ends before the newest token


def test_drafts_do_not_depend_on_their_cache():
    """The draft model with its cache guesses what it would guess anew."""
    draft = oracle_of_draft()

    def anew(tokens, room):
        return draft.greedy(tokens, min(3, room))[len(tokens) :], "one-hot"
        yield

    rounds = lambda drafter: [
        s.rows[0].writes for s in serve(lanes(draft=loud(noise=0.02)), [Request(speculative(PROMPT, drafter, limit=30), 30)]) if s.to == "target"
    ]
    assert rounds(anew) == rounds(small(3))
    assert {kept for writes in rounds(small(3)) for _, _, kept in writes} == {True, False}  # or it has shown nothing


def oracle_of_draft():
    from oracles import Oracle, Plain

    model = loud(noise=0.02)
    return Oracle(Plain(dict(model.state_dict()), model.config))


def test_cached_work_grows_with_the_text_and_not_with_its_square():
    """CASES A16."""
    prompt = (PROMPT * 19)[:200]
    steps = serve(lanes(capacity=256), [Request(speculative(prompt, ngram(3), limit=20), 20)])
    assert text(steps, prompt) == oracle().greedy(prompt, 20)
    assert steps[0].rows[0].width <= 203 and all(s.rows[0].width <= 5 for s in steps[1:])


def test_tokens_computed_beside_padding():
    """A pass of ragged rows pads no row to more than twice its width."""
    lengths = [1, 2, 3, 5, 9, 11]
    steps = serve(lanes(rows=6), [Request(autoregressive(PROMPT[:n]), 2) for n in lengths], slots=6)
    assert sum(b * t for b, t, _ in steps[0].shape) <= 2 * sum(lengths)
    assert steps[1].shape == ((6, 1, 12),)


# Drafts


def always(draft):
    """A drafter that only ever says this."""

    def drafter(tokens, room):
        return draft[:room], "one-hot"
        yield

    return drafter


def test_a_wrong_draft_of_one_is_refused():
    """CASES D5."""
    want = oracle().greedy(PROMPT, N)

    def wrong(tokens, room):
        return [(t + 1) % 60 for t in want[len(tokens) : len(tokens) + 1]][:room], "one-hot"
        yield

    steps = serve(lanes(), [Request(speculative(PROMPT, wrong, limit=N), N)])
    assert text(steps) == want and len(steps) == N
    assert [w[2] for s in steps for w in s.rows[0].writes] == [False, True] * (N - 1) + [True]  # nothing is drafted beyond the limit


def test_lookup_stays_under_the_limit():
    """CASES D7."""
    steps = serve(lanes(), [Request(speculative([5, 9, 2] * 5, ngram(3), limit=2), 2)])
    assert len(text(steps, [])) == 2 and finishes(steps) == {0: "length"}
    assert all(len(s.rows[0].writes) <= 2 for s in steps)


def test_lookup_runs_without_an_end():
    """CASES D8."""
    steps = serve(lanes(), [Request(speculative([5, 9, 2] * 5, ngram(3)), 20)])
    assert text(steps, [5, 9, 2] * 5) == oracle().greedy([5, 9, 2] * 5, 20)


def test_a_drafted_end_ends_nothing():
    """CASES D17: only what the target keeps is the text."""
    want = oracle().greedy(PROMPT, N)
    eos = next(t for t in range(60) if t not in want[len(PROMPT) :])
    steps = serve(lanes(), [Request(speculative(PROMPT, always([eos, eos]), limit=N), N, ends([eos]))])
    assert text(steps) == want and finishes(steps) == {0: "length"}


@pytest.mark.parametrize("k", [2, 8])
@pytest.mark.parametrize("penalty", [Sampler(repetition=1.5), Sampler(frequency=0.7), Sampler(presence=1.0, repetition=1.2)])
@pytest.mark.parametrize("drafter", ["same", "noisy", "ngram"])
def test_penalties_are_the_same_with_speculation(penalty, drafter, k):
    """CASES D10."""
    served = lanes(draft=loud(noise=0.02 if drafter == "noisy" else 0.0))
    steps = serve(served, [Request(speculative(PROMPT, ngram(k) if drafter == "ngram" else small(k, penalty), penalty, limit=20), 20)])
    assert text(steps) == oracle().sampled(PROMPT, 20, penalty)
    if drafter == "same":
        assert all(w[2] for s in steps if s.to == "target" for w in s.rows[0].writes)


@pytest.mark.parametrize("least", [0, 1, 6, 7])
def test_no_end_before_the_least_number_of_tokens(least):
    """CASES D11: an end that is always likeliest is drawn first as token least + 1, in whatever round that falls."""
    eos = 17
    law = Sampler(bias=((eos, 1e4),), forbid=((eos, eos + 1, len(PROMPT) + least),))
    for decoder in (
        autoregressive(PROMPT, law),
        speculative(PROMPT, small(4, law), law, limit=N),
        speculative(PROMPT, always([eos] * 4), law, limit=N),
    ):
        steps = serve(lanes(draft=loud()), [Request(decoder, N, ends([eos]))])
        assert text(steps)[len(PROMPT) :].index(eos) == least and len(text(steps)) == len(PROMPT) + least + 1
        assert finishes(steps) == {0: "stop"}


def test_a_draft_model_with_less_room_drafts_no_more():
    """CASES F3."""
    served = {"target": (loud(), Cache(GQA, Slab(1, 128))), "draft": (loud(), Cache(GQA, Slab(1, 32)))}
    steps = serve(served, [Request(speculative(PROMPT, small(3, context=32), limit=60), 60)])
    assert text(steps) == oracle().greedy(PROMPT, 60) and finishes(steps) == {0: "length"}
    assert any(s.to == "draft" for s in steps) and [s.to for s in steps[-20:]] == ["target"] * 20


def test_logprobs_are_the_models_own():
    """CASES C12: of raw logits, whatever filter draws, with speculation and without."""
    s = Sampler(0.7, top_p=0.5, repetition=1.3)
    want = oracle().sampled(PROMPT, N, s, 5)
    raw = [float(oracle().last(want[:i]).log_softmax(-1)[want[i]]) for i in range(len(PROMPT), len(want))]
    steps = serve(lanes(), [Request(autoregressive(PROMPT, s, 5), N, logprobs=True)])
    assert text(steps) == want and [p for step in steps for p in step.rows[0].logprobs] == pytest.approx(raw, abs=1e-4)
    greedy = oracle().greedy(PROMPT, N)
    steps = serve(lanes(draft=loud(noise=0.02)), [Request(speculative(PROMPT, small(3), limit=N), N, logprobs=True)])
    got = {w[0]: p for step in steps for row in step.rows for w, p in zip(row.writes, row.logprobs) if w[2]}
    assert [*got] == [*range(len(PROMPT), len(greedy))]
    assert [*got.values()] == pytest.approx([float(oracle().last(greedy[:i]).log_softmax(-1)[greedy[i]]) for i in got], abs=1e-4)


# Ends


@pytest.mark.parametrize("name", ["autoregressive", "draft-same", "draft-noisy", "ngram", "tree", "uncached"])
@pytest.mark.parametrize("n", range(1, 8))
def test_a_stop_or_a_limit_may_lie_inside_a_block(name, n):
    want = oracle().greedy(PROMPT, N)
    new = want[len(PROMPT) :]
    last = new[n - 1]
    by_stop = len(PROMPT) + new.index(last) + 1
    served = lanes_for(name, "gqa", 1, False)
    steps = serve(served, [request(name, stop=ends([59, last]))])
    assert text(steps) == want[:by_stop] and finishes(steps) == {0: "stop"}
    limited = request(name)
    limited.limit = n
    steps = serve(served, [limited])
    assert text(steps) == want[: len(PROMPT) + n] and finishes(steps) == {0: "length"}


@pytest.mark.parametrize("name", ["one-shot", "masked", "blocks"])
@pytest.mark.parametrize("n", range(1, N + 1))
def test_a_stop_or_a_limit_in_a_text_that_is_not_written_from_the_left(name, n):
    """CASES G11: wherever the first place revealed lies, the text begins at its beginning, and nothing stays behind its end."""
    prompt = PROMPT[:4] if name == "blocks" else PROMPT[3:]  # of these the first place is not among the first revealed
    [want] = right(name, prompt=prompt)
    new = want[len(prompt) :]
    by_stop = len(prompt) + new.index(new[n - 1]) + 1
    steps = serve(lanes(), [request(name, prompt=prompt, stop=ends([59, new[n - 1]]))])
    assert text(steps, prompt) == want[:by_stop] and finishes(steps) == {0: "stop"}
    limited = request(name, prompt=prompt)
    limited.limit = n
    steps = serve(lanes(), [limited])
    assert text(steps, prompt) == want[: len(prompt) + n] and finishes(steps) == {0: "length"}


def failing(after: int):
    """Goes well for a while."""
    decoder = autoregressive(PROMPT)
    for i in range(after):
        out = yield next(decoder)
        yield decoder.send(out)
    raise RuntimeError("mine")


def misbehaving(answer):
    yield Ask("decode", list(PROMPT), 0)
    yield answer


def too_long():
    out = yield Ask("decode", PROMPT * 10, 0)
    yield Keep(0, ((110, out.tokens[0], True),))


BROKEN = {
    "raises at once": (lambda: failing(0), RuntimeError, "mine"),
    "raises later": (lambda: failing(3), RuntimeError, "mine"),
    "no Keep": (lambda: misbehaving(None), TypeError, "Keep"),
    "no Ask": (lambda: (x for x in ["tokens"]), TypeError, "Ask"),
    "keeps more than it asked": (lambda: misbehaving(Keep(99)), ValueError, "kept"),
    "keeps what it did not ask": (lambda: misbehaving(Keep([0, 44])), ValueError, "kept"),
    "forks without slots": (lambda: beam(PROMPT, 3, N), ValueError, "branches"),
    "overflows": (too_long, ValueError, "do not fit"),
    "empty prompt": (lambda: autoregressive([]), ValueError, "empty"),
    "unknown lane": (lambda: speculative(PROMPT, small(3, to="nobody")), ValueError, "nobody"),
    "token too large": (lambda: autoregressive([5, 61]), ValueError, "61 is not in the model's vocabulary of 61"),
    "token below 0": (lambda: autoregressive([5, -1]), ValueError, "-1 is not in"),
    "bias on an unknown token": (lambda: autoregressive(PROMPT, Sampler(bias=((61, 1.0),))), ValueError, "61"),
    "forbids everything": (lambda: autoregressive(PROMPT, Sampler(forbid=((0, 61, None),))), ValueError, "forbid"),
    "q of another vocabulary": (lambda: speculative(PROMPT, wide_q()), ValueError, "vocabulary"),
}


def wide_q():
    """CASES D18: a draft model with eight tokens more."""

    def drafter(tokens, room):
        return [3], torch.full((1, 69), 1 / 69)
        yield

    return drafter


@pytest.mark.parametrize("how", BROKEN)
def test_who_fails_fails_alone(how):
    make, kind, words = BROKEN[how]
    bad = Request(make(), N)
    requests = [
        Request(autoregressive(PROMPT[:4], WARM, 2), N),
        bad,
        Request(speculative(PROMPT, small(2), limit=N), N),
        Request(autoregressive(PROMPT[:7]), N),
    ]
    steps = serve(lanes(rows=3, capacity=40, draft=loud(noise=0.02)), requests, slots=3)
    assert finishes(steps) == {0: "length", 1: "error", 2: "length", 3: "length"}
    assert isinstance(bad.error, kind) and words in str(bad.error)
    assert text(steps, PROMPT[:4]) == oracle().sampled(PROMPT[:4], N, WARM, 2)
    assert text(steps, PROMPT, 2) == oracle().greedy(PROMPT, N) and text(steps, PROMPT[:7], 3) == oracle().greedy(PROMPT[:7], N)
    assert [r.error for r in requests if r is not bad] == [None] * 3


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_cancelling(after, branches):
    leaves = Request(parallel(PROMPT, 3, N, WARM) if branches == 3 else speculative(PROMPT, small(2), limit=N), N, branches=branches)
    waits = Request(autoregressive(PROMPT), N)
    served, steps = lanes(rows=branches + 1, draft=loud()), []
    for i, step in enumerate(run(served, [leaves, Request(autoregressive(PROMPT[:5]), N), waits], slots=branches + 1)):
        steps.append(step)
        leaves.cancelled = leaves.cancelled or i == after
        waits.cancelled = waits.cancelled or i == after
    assert finishes(steps) == {0: "cancelled", 1: "length", 2: "cancelled"} and empty(served)
    assert text(steps, PROMPT[:5], 1) == oracle().greedy(PROMPT[:5], N)
    assert sum(any(r.request == 0 and r.width for r in s.rows) for s in steps) == after + 1


@pytest.mark.parametrize("after", [1, 2, 5])
def test_closing_frees_everything(after):
    closed = []

    def watched(decoder, name):
        try:
            yield from decoder
        finally:
            closed.append(name)

    served = lanes(rows=2, draft=loud(noise=0.02))
    steps = run(
        served,
        [Request(watched(autoregressive(PROMPT), 0)), Request(watched(speculative(PROMPT, small(3)), 1)), Request(watched(uncached(PROMPT), 2))],
        slots=2,
    )
    for _ in range(after):
        next(steps)
    assert not empty(served)
    steps.close()
    assert empty(served) and {0, 1} <= {*closed}


def test_a_forward_that_fails_frees_everything():
    def forward(tokens, flight, read):
        raise MemoryError("no room for the activations")

    served = {"target": (forward, Cache(GQA, Slab(2, 40)))}
    with pytest.raises(MemoryError, match="activations"):
        list(run(served, [Request(autoregressive(PROMPT)), Request(autoregressive(PROMPT))], slots=2))
    assert empty(served)


def test_pruned_branches_leave_no_trace():
    """Three branches, of which the last goes on alone, and then as two: every one holds what its own text holds, and slots fall empty at once."""

    def pruning():
        out = yield Ask("decode", list(PROMPT), 0)
        yield Keep(len(PROMPT), ((),) * 3, (0, 0, 0))
        yield Ask("decode", [[7], [8], [9]], 11)
        yield Keep(1, tuple(((11, t, True),) for t in (7, 8, 9)))
        yield Ask("decode", [[1], [2], [3]], 12)
        yield Keep(1, (((12, 3, True),),), (2,))
        for at in (13, 14):
            out = yield Ask("decode", [[at]], at)
            yield Keep(1, (((at, at, True), (at + 1, out.tokens[0], True)),), (0,))
        out = yield Ask("decode", [[5]], 15)
        yield Keep(1, (((15, 5, True), (16, out.tokens[0], True)),) * 2, (0, 0))

    served, tops = lanes(rows=3), []
    steps = []
    for step in run(served, [Request(pruning(), branches=3)], slots=3):
        steps.append(step)
        tops.append([*served["target"][1].top])
    assert tops[:-1] == [[11, 11, 11], [12, 12, 12], [13, 0, 0], [14, 0, 0], [15, 0, 0]] and empty(served)
    want = [*PROMPT, 9, 3, 13, 14, 5]
    assert text(steps) == text(steps, PROMPT, 0, 1) == [*want, int(oracle().last(want).argmax())]


def test_lanes_may_share_a_cache():
    """CASES D16: leaving early after any layer changes the speed and nothing else."""
    model, want = loud(), oracle().greedy(PROMPT, N)
    for layers in (1, 2):
        cache = Cache(GQA, Slab(2, 64))
        served = {"target": (model, cache), "exit": (lambda t, f, r, n=layers: model(t, f, r, exit_at=n), cache)}
        steps = serve(served, [Request(speculative(PROMPT, small(3, to="exit"), limit=N), N), Request(autoregressive(PROMPT[:3]), N)], slots=2)
        assert text(steps) == want and text(steps, PROMPT[:3], 1) == oracle().greedy(PROMPT[:3], N)
        if layers == 2:
            assert all(w[2] for s in steps if s.to == "target" for r in s.rows if r.request == 0 for w in r.writes)


@pytest.mark.parametrize("setting", [dict(slots=0), dict(budget=0), dict(slots=-1)])
def test_bad_settings(setting):
    with pytest.raises(ValueError, match="at least 1"):
        run(lanes(), [Request(autoregressive(PROMPT))], **setting)


def test_more_branches_than_slots():
    with pytest.raises(ValueError, match="request 0 may need 3 slots"):
        run(lanes(rows=2), [Request(beam(PROMPT, 3, N), branches=3)], slots=2)


def test_slots_must_be_the_caches_rows():
    with pytest.raises(ValueError, match="rows"):
        list(run(lanes(rows=2), [Request(autoregressive(PROMPT))], slots=3))


@pytest.mark.parametrize("numbers", [dict(steps=0), dict(length=0), dict(block=0)])
def test_bad_refinement(numbers):
    with pytest.raises(ValueError, match="at least 1"):
        next(refine(PROMPT, **{"length": 4, "mask": MASK, **numbers}))


def test_every_token_is_written_once():
    """Kept writes of plain, speculative and parallel decoding: each position once, without a hole."""
    steps = serve(lanes(rows=5, draft=loud(noise=0.02)), [request("autoregressive"), request("draft-noisy"), request("parallel")], slots=5)
    for i, branches in enumerate((1, 1, 3)):
        kept = Counter(w[0] for s in steps for r in s.rows if r.request == i for writes in r.each for w in writes if w[2])
        assert kept == {len(PROMPT) + n: branches for n in range(N)}
