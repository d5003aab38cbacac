"""Speculation changes the speed and not the law. Every text of three tokens over three is counted and held against exact enumeration.

Right rules have a total variation of 0; the slips known from real projects have 0.12 to 0.78 (CASES 1.4), which 20,000 draws cannot miss.
"""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from oracles import ALPHA, chi_square, invert, joint, law, uniform

from tokenpace.cache.protocol import Cache, NoCache
from tokenpace.cache.slab import Slab
from tokenpace.config import ModelConfig
from tokenpace.decode.autoregressive import autoregressive
from tokenpace.decode.beam import parallel
from tokenpace.decode.drafters import ngram, small
from tokenpace.decode.refine import at_random, confident, refine
from tokenpace.decode.sampling import ACCEPT, DRAW, RESIDUAL, Sampler, draw, noise, probs, verify
from tokenpace.decode.speculative import speculative
from tokenpace.run import Request, canvas, run

V, LENGTH, N = 3, 3, 20_000
PROMPT = (0,)


# Table models: logits that are a fixed, arbitrary function of the context

LONGEST = 8  # of a context, prompt included
WORDS = [[torch.randn(V**n, V, generator=torch.Generator().manual_seed(10 * which + n)) * 1.2 for n in range(LONGEST + 1)] for which in range(3)]


def number(context) -> int:
    """Which of the contexts of its length it is."""
    return sum(t * V**i for i, t in enumerate(context))


def logits(context: tuple[int, ...], which: int) -> list[float]:
    return WORDS[which][len(context)][number(context)].tolist()


class Table:
    """A forward that looks its logits up. What it knows of a text it reads from the cache, where it wrote the tokens' numbers as keys."""

    def __init__(self, which: int):
        self.words = WORDS[which]

    def __call__(self, tokens, flight, read):
        written = flight.pack(tokens)[:, None, None].expand(-1, 1, 2).float()
        known = zip(flight.rectangles, flight.write(0, (written, written)))
        code = torch.cat([self.codes(r, keys[..., 0, 0].long()).flatten() for r, (keys, _) in known])[flight.find(read)]
        end, out = flight.queries.flatten()[read], torch.empty(len(read), V)
        for n in end.unique().tolist():
            out[end == n] = self.words[n + 1][code[end == n]]
        return out

    def codes(self, r, text):
        """[b, t] the number of the context of each query: what the cache holds up to there."""
        seen = (r.keys[:, None, :] >= 0) & (r.keys[:, None, :] <= r.queries[:, :, None])
        return torch.where(seen, text[:, None, :] * V ** r.keys[:, None, :].clamp(min=0), 0).sum(-1)


TINY = ModelConfig(V, 2, 1, 1, 1, 2, 2)
TARGET, DRAFT = 1, 2


def served(rows: int, **others: int) -> dict:
    return {name: (Table(which), Cache(TINY, Slab(rows, 16))) for name, which in {"target": TARGET, **others}.items()}


def counted(decoders, others: dict, prompt=PROMPT, rows=500) -> Counter:
    """The texts of many requests, `rows` at a time."""
    steps = list(run(served(rows, **others), [Request(d, LENGTH) for d in decoders], rows, 10**9))
    texts = {i: {} for i in range(N)}
    for row in (row for step in steps for row in step.rows):
        texts[row.request] |= {p: t for p, t, kept in row.writes if kept}
    return Counter(tuple(t for _, t in sorted(text.items())) for text in texts.values())


def target_law(s: Sampler, prompt=PROMPT) -> dict:
    return joint(lambda text: law(logits((*prompt, *text), TARGET), s, (*prompt, *text)), LENGTH, V)


# Pairs of settings rather than each alone: faults sit between two that were never tested together
LAWS = {
    "as it is": Sampler(1.0),
    "cool top-k": Sampler(0.5, top_k=2),
    "hot top-p min-p": Sampler(2.0, top_p=0.8, min_p=0.2),
    "penalties": Sampler(1.0, repetition=1.8, frequency=0.5, presence=0.2),
}


@pytest.mark.parametrize("name, k", [("as it is", 2), ("hot top-p min-p", 3), ("penalties", 2)])
def test_a_draft_model_changes_no_law(name, k):
    """Through the driver: drafts, rejections, caches and noise together. The model drafts by the same law, and for penalties by another."""
    s = LAWS[name]
    drafts = Sampler(1.7) if name == "penalties" else s
    found = counted((speculative([*PROMPT], small(k, drafts, i), s, i, LENGTH) for i in range(N)), {"draft": DRAFT})
    assert chi_square(found, target_law(s), N) > ALPHA


@pytest.mark.parametrize("name, drafter", [("cool top-k", "greedy model"), ("penalties", "lookup")])
def test_guesses_without_a_law(name, drafter):
    """CASES D1: what was not drawn but chosen has a one-hot q, and the text keeps its law."""
    s, prompt = LAWS[name], (0, 1, 2, 0, 1)
    found = counted(
        (speculative([*prompt], small(3) if drafter == "greedy model" else ngram(3, 1), s, i, LENGTH) for i in range(N)), {"draft": DRAFT}, prompt
    )
    assert chi_square(found, target_law(s, prompt), N) > ALPHA


def test_plain_sampling_and_branches():
    """The same law without speculation, and for each branch of parallel sampling."""
    s = LAWS["cool top-k"]
    assert chi_square(counted((autoregressive([*PROMPT], s, i) for i in range(N)), {}), target_law(s), N) > ALPHA
    n = N // 4
    steps = list(run(served(400), [Request(parallel([*PROMPT], 4, LENGTH, s, i), branches=4) for i in range(n)], 400, 10**9))
    texts = [[{} for _ in range(4)] for _ in range(n)]
    for row in (row for step in steps for row in step.rows if row.writes):
        for text, writes in zip(texts[row.request], row.each):
            text |= {p: t for p, t, _ in writes}
    texts = [[tuple(t for _, t in sorted(branch.items())) for branch in each] for each in texts]
    assert chi_square(Counter(branch for each in texts for branch in each), target_law(s), N) > ALPHA
    first = law(logits(PROMPT, TARGET), s, PROMPT)  # and branches are independent of each other
    pairs = Counter((a[0][0], a[1][0]) for a in texts)
    assert chi_square(pairs, {(a, b): first[a] * first[b] for a in range(V) for b in range(V)}, n) > ALPHA


def test_accepted_as_often_as_the_closed_form_says():
    """CASES D20: constant p = (.6, .3, .1), q = (.1, .2, .7), K = 3: α = Σ min(p, q) = .4, 1.624 tokens a round, .208 of the drafted kept."""
    p, q = torch.tensor([0.6, 0.3, 0.1]).log(), torch.tensor([0.1, 0.2, 0.7]).log()
    say = lambda row: lambda tokens, flight, read: row.expand(len(read), -1)
    s, limit = Sampler(1.0), 4000
    lanes = {"target": (say(p), Cache(TINY, Slab(1, limit + 2))), "draft": (say(q), NoRoomNeeded())}
    rounds = [step.rows[0].writes for step in run(lanes, [Request(speculative([0], small(3, s, 5), s, 5), limit)]) if step.to == "target"][:-1]
    tokens, kept = sum(sum(w[2] for w in writes) for writes in rounds), sum(sum(w[2] for w in writes[:-1]) for writes in rounds)
    assert tokens / len(rounds) == pytest.approx(1.624, abs=5 * 0.85 / len(rounds) ** 0.5)
    assert kept / sum(len(writes) - 1 for writes in rounds) == pytest.approx(0.208, abs=5 * 0.29 / len(rounds) ** 0.5)


class NoRoomNeeded(NoCache):
    """A table that says always the same needs nobody before it."""

    def reserve(self, row, first, last):
        pass


# verify alone

PAIRS = {
    "ordinary": lambda k: (torch.randn(k + 1, V).softmax(-1), torch.randn(k, V).softmax(-1)),
    "equal": lambda k: (lambda p: (p, p[:k]))(torch.randn(k + 1, V).softmax(-1)),
    "disjoint": lambda k: (torch.tensor([[0.5, 0.5, 0.0]]).expand(k + 1, -1), torch.tensor([[0.0, 0.0, 1.0]]).expand(k, -1)),
    "one-hot": lambda k: (torch.randn(k + 1, V).softmax(-1), torch.eye(V)[torch.arange(k) % V]),
    "zeros in q": lambda k: (torch.randn(k + 1, V).softmax(-1), torch.tensor([[0.3, 0.0, 0.7]]).expand(k, -1)),
    "zeros in p": lambda k: (torch.tensor([[0.0, 0.4, 0.6]]).expand(k + 1, -1), torch.randn(k, V).softmax(-1)),
    "filtered": lambda k: tuple(probs(torch.randn(n, V), [s] * n) for n, s in ((k + 1, Sampler(0.7, top_k=2)), (k, Sampler(1.5, top_p=0.6)))),
    "nearly greedy": lambda k: (torch.tensor([[0.98, 0.01, 0.01]]).expand(k + 1, -1), torch.tensor([[0.01, 0.01, 0.98]]).expand(k, -1)),
}


def drawn(p: torch.Tensor, q: torch.Tensor, n: int = N, cut: slice = slice(0, 0)) -> list[tuple[int, ...]]:
    """n texts of one round each, continued from p by plain draws to K + 1 tokens; rows in `cut` have no draft."""
    k, row = len(q), torch.arange(n)
    draft = torch.stack([draw(q[i].expand(n, V), noise(row, torch.tensor(0), torch.tensor(i), DRAW)) for i in range(k)], 1)
    draft[cut] = -1
    u, last = (
        torch.stack([noise(row, torch.tensor(0), torch.tensor(i), purpose) for i in range(m)], 1) for purpose, m in ((ACCEPT, k), (RESIDUAL, k + 1))
    )
    count, token = verify(p.expand(n, -1, -1), q.expand(n, -1, -1), draft, u, last)
    assert int(count.min()) >= 0 and int(count.max()) <= k and not bool((count[cut] > 0).any())
    texts = [(*d[:c], t) for d, c, t in zip(draft.tolist(), count.tolist(), token.tolist())]
    return [text + tuple(invert(p[i].tolist(), uniform(n + j, 0, i, 3)) for i in range(len(text), k + 1)) for j, text in enumerate(texts)]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_verify_follows_the_target(pair, k):
    torch.manual_seed(k)
    p, q = PAIRS[pair](k)
    found = drawn(p, q)
    assert chi_square(Counter(found), joint(lambda text: p[len(text)].tolist(), k + 1, V), N) > ALPHA
    if pair == "equal":  # nothing is ever refused
        assert verify(p[None], q[None], q.argmax(-1)[None], torch.full((1, k), 1 - 1e-9), torch.full((1, k + 1), 0.5))[0].item() == k


def test_rows_with_and_without_a_draft():
    torch.manual_seed(0)
    p, q = PAIRS["ordinary"](2)
    want = joint(lambda text: p[len(text)].tolist(), 3, V)
    found = drawn(p, q, 2 * N, slice(N, None))
    assert chi_square(Counter(found[:N]), want, N) > ALPHA and chi_square(Counter(found[N:]), want, N) > ALPHA


# What the test itself is worth: each slip of a real project must fail it


def slip(rule):
    """A round by a wrong rule, for K = 1: rule(p, q, draft, u, last) -> the text's first token."""

    def texts(p, q):
        for j in range(N):
            d = invert(q, uniform(j, 0, 0, 0))
            yield rule(p, q, d, uniform(j, 0, 0, 1), uniform(j, 0, 0, 2))

    return texts


def normal(x):
    return [v / sum(x) for v in x]


RULES = {
    "right": lambda p, q, d, u, w: d if u * q[d] <= p[d] else invert(normal([max(a - b, 0) for a, b in zip(p, q)]), w),
    "residual is p": lambda p, q, d, u, w: d if u * q[d] <= p[d] else invert(p, w),
    "residual is |p - q|": lambda p, q, d, u, w: d if u * q[d] <= p[d] else invert(normal([abs(a - b) for a, b in zip(p, q)]), w),
    "ratio upside down": lambda p, q, d, u, w: d if u * p[d] <= q[d] else invert(normal([max(a - b, 0) for a, b in zip(p, q)]), w),
    "drawn twice": lambda p, q, d, u, w: d if d == invert(p, u) else invert(p, w),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_test_can_fail(rule):
    p, q = [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]
    value = chi_square(Counter(slip(RULES[rule])(p, q)), dict(enumerate(p)), N)
    assert (value > ALPHA) == (rule == "right")


# Refinement: with exact conditionals the order alone decides what is sampled

JOINT = torch.rand(V, V, V, generator=torch.Generator().manual_seed(4)).pow(3)
JOINT = JOINT / JOINT.sum()
UNKNOWN = V


def conditional(known: tuple[int, ...], place: int) -> list[float]:
    """log p of each token at `place`, given what is known of the others: JOINT summed over what is not."""
    p = [0.0] * V
    for text, share in cells(JOINT).items():
        if all(t in (UNKNOWN, text[i]) or i == place for i, t in enumerate(known)):
            p[text[place]] += share
    return [math.log(x / sum(p)) for x in p] + [5.0]  # the unknown token itself is always likeliest, and must never be drawn


def cells(p: torch.Tensor) -> dict:
    return {text: float(p[text]) for text in product(range(V), repeat=3)}


EXACT = torch.tensor([[conditional(known, place) for place in range(3)] for known in product(range(V + 1), repeat=3)])


def denoiser(tokens, flight, read):
    """Exact conditionals of JOINT for each place."""
    row, place = read // 3, read % 3
    return EXACT[(tokens[row] * torch.tensor([(V + 1) ** 2, V + 1, 1])).sum(1), place]


def refined(steps: int, pick, n: int = N) -> Counter:
    rows, s = 500, Sampler(1.0)
    lanes = {"target": (denoiser, Cache(ModelConfig(V + 1, 2, 1, 1, 1, 2, 2), Slab(rows, 8)))}
    requests = [Request(refine([], 3, UNKNOWN, steps=steps, sampler=s, seed=i, pick=pick)) for i in range(n)]
    texts = {i: {} for i in range(n)}
    for row in (row for step in run(lanes, requests, rows, 10**9) for row in step.rows):
        texts[row.request] |= {p: t for p, t, _ in row.writes}
    return Counter(tuple(t for _, t in sorted(text.items())) for text in texts.values())


def test_one_place_a_pass_in_random_order_samples_the_joint_law():
    """CASES G10; and by confidence it does not."""
    assert chi_square(refined(3, at_random), cells(JOINT), N) > ALPHA
    assert chi_square(refined(3, confident, N // 4), cells(JOINT), N // 4) < ALPHA


def test_one_pass_samples_the_product_of_the_marginals():
    marginals = [JOINT.sum([j for j in range(3) if j != i]) for i in range(3)]
    independent = torch.einsum("a,b,c->abc", *marginals)
    found = refined(1, at_random)
    assert chi_square(found, cells(independent), N) > ALPHA and chi_square(found, cells(JOINT), N) < ALPHA


def test_the_order_is_random_and_evenly_so():
    orders = Counter(tuple(at_random([4, 5, 6], [0, 0, 0], seed)) for seed in range(N))
    assert len(orders) == 6 and chi_square(orders, dict.fromkeys(orders, 1 / 6), N) > ALPHA


def test_canvas_reads_what_was_counted():
    """The counting above folds Steps itself, for speed: it is the same as canvas."""
    s = Sampler(1.0)
    steps = list(run(served(2, draft=DRAFT), [Request(speculative([0], small(2, s, i), s, i, LENGTH), LENGTH) for i in range(5)], 2))
    for i in range(5):
        mine = {p: t for step in steps for row in step.rows if row.request == i for p, t, kept in row.writes if kept}
        assert [0, *(t for _, t in sorted(mine.items()))] == canvas(steps, [0], i)
