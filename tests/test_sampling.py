"""Every setting against enumeration in plain numbers, the order in which they act, their edges, and noise. CASES 1.3."""

import math
import random
from dataclasses import replace

import pytest
import torch
from loud import GQA, PROMPT, finishes, loud, serve, text
from oracles import ALPHA, chi_square, invert, law, uniform
from scipy.stats import chi2, kstest

from tokenpace.cache.protocol import Cache
from tokenpace.cache.slab import Slab
from tokenpace.decode.autoregressive import autoregressive
from tokenpace.decode.beam import beam
from tokenpace.decode.drafters import ngram
from tokenpace.decode.outcome import Outcome
from tokenpace.decode.protocol import Ask
from tokenpace.decode.sampling import ACCEPT, DRAW, GREEDY, RESIDUAL, Sampler, adjusted, best, draw, noise, probs, verify
from tokenpace.decode.speculative import speculative
from tokenpace.run import Request

EPS = 1 - 2**-53  # the largest uniform number there is


def distribution(logits, s: Sampler, history=(), position: int = 0) -> torch.Tensor:
    """One row's distribution, by the code under test."""
    x = torch.as_tensor([logits], dtype=torch.float)
    counts = torch.tensor([[float(list(history).count(i)) for i in range(x.shape[1])]])
    return probs(adjusted(x, [s], [position], counts if s.penal else None), [s])[0]


def logits_of(p) -> list[float]:
    return [math.log(x) if x else -math.inf for x in p]


def support(p: torch.Tensor) -> set[int]:
    return set(p.nonzero().flatten().tolist())


# Each setting, and all together

SETTINGS = {
    "warm": dict(temperature=0.7),
    "hot": dict(temperature=2.0),
    "top-k": dict(temperature=1.0, top_k=3),
    "top-k of 1": dict(temperature=1.0, top_k=1),
    "top-k beyond all": dict(temperature=1.0, top_k=99),
    "top-p": dict(temperature=1.0, top_p=0.6),
    "tiny top-p": dict(temperature=1.0, top_p=1e-8),
    "min-p": dict(temperature=1.0, min_p=0.2),
    "min-p of 1": dict(temperature=1.3, min_p=1.0),
    "repetition": dict(temperature=1.0, repetition=1.7),
    "repetition under 1": dict(temperature=1.0, repetition=0.6),
    "presence": dict(temperature=1.0, presence=0.9),
    "frequency": dict(temperature=1.0, frequency=0.4),
    "negative penalties": dict(temperature=1.0, frequency=-0.4, presence=-0.2),
    "bias": dict(temperature=1.0, bias=((0, 2.0), (3, -1.5), (5, -math.inf))),
    "forbid": dict(temperature=1.0, forbid=((0, 2, None), (4, 99, 10), (3, 4, 5))),
    "greedy": dict(),
    "greedy, penal": dict(repetition=3.0, frequency=0.3),
    "greedy, forbidden": dict(forbid=((0, 7, None),)),
    "top-k and top-p": dict(temperature=0.9, top_k=4, top_p=0.7),
    "all": dict(
        temperature=0.8,
        top_k=6,
        top_p=0.9,
        min_p=0.05,
        repetition=1.3,
        presence=0.2,
        frequency=0.1,
        bias=((1, 1.0), (2, 0.5)),
        forbid=((6, 7, None),),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(5))
def test_each_setting_is_what_its_words_say(name, seed):
    dice, s = random.Random(seed), Sampler(**SETTINGS[name])
    logits = [dice.gauss(0, 2) for _ in range(9)]
    history = [dice.randrange(9) for _ in range(dice.randrange(9))]
    got, want = distribution(logits, s, history, 7), law(logits, s, history, 7)
    assert support(got) == {i for i, p in enumerate(want) if p}
    assert got.tolist() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("size", [5, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("flat", [0.0, 0.01, 3.0])
@pytest.mark.parametrize(
    "setting", [dict(top_p=0.9), dict(top_p=0.9999), dict(top_k=1500), dict(top_k=1024, top_p=0.5), dict(top_k=2, top_p=0.4)], ids=str
)
def test_large_vocabularies_and_flat_distributions(size, flat, setting):
    """A nucleus is looked for among a thousand tokens first: what does not fit there must be found too."""
    generator = torch.Generator().manual_seed(3)
    logits = flat * torch.randn(size, generator=generator) + torch.linspace(0, 1e-3, size)  # no ties
    s = Sampler(temperature=1.0, **setting)
    got, want = distribution(logits.tolist(), s), law(logits.tolist(), s)
    assert abs(len(support(got)) - sum(p > 0 for p in want)) <= (
        1 if size < 1500 or flat == 3 else 3
    )  # fp32 sums of a flat nucleus may cross p a token earlier
    assert got.tolist() == pytest.approx(want, abs=1e-5)


def test_the_order_of_operations():
    """Each pair of neighbours, on logits where the other order gives another support or other numbers."""
    p = logits_of([0.5, 0.3, 0.15, 0.05])
    assert support(distribution(p, Sampler(1.0, repetition=3.0, bias=((0, 3.0),)), [0])) == {0, 1, 2, 3}
    # penalty, then bias: log .5 · 3 + 3; the other way round (log .5 + 3) / 3
    got = distribution(p, Sampler(1.0, repetition=3.0, bias=((0, 3.0),)), [0])
    assert float(got[0] / got[1]) == pytest.approx(math.exp(3 * math.log(0.5) + 3) / 0.3, rel=1e-5)
    # bias, then forbidden: no bias brings it back
    assert support(distribution(p, Sampler(1.0, bias=((0, 99.0),), forbid=((0, 1, None),)))) == {1, 2, 3}
    # forbidden, then top-k: what is forbidden takes no place among the k
    assert support(distribution(p, Sampler(1.0, top_k=2, forbid=((0, 1, None),)))) == {1, 2}
    # penalty, then temperature: frequency is subtracted from the logit, not from the quotient
    got = distribution(p, Sampler(0.5, frequency=1.0), [0])
    assert float(got[0] / got[1]) == pytest.approx((0.5 / 0.3 / math.e) ** 2, rel=1e-5)
    # temperature, then top-p: at T = 2 the shares are .41, .32, .23, .13 of the roots
    assert support(distribution(p, Sampler(2.0, top_p=0.5))) == {0, 1} and support(distribution(p, Sampler(1.0, top_p=0.5))) == {0}
    # top-k, then top-p: of two tokens the first has 5/8
    assert support(distribution(p, Sampler(1.0, top_k=2, top_p=0.6))) == {0} and support(distribution(p, Sampler(1.0, top_p=0.6))) == {0, 1}
    # top-p, then min-p: relative to the likeliest
    assert support(distribution(p, Sampler(1.0, top_p=0.9, min_p=0.4))) == {0, 1}


def test_mixed_samplers_are_each_alone():
    """Nothing that a row asks for changes another row, to the last bit."""
    generator = torch.Generator().manual_seed(0)
    every = [Sampler(**s) for s in SETTINGS.values()]
    x = 3 * torch.randn(len(every), 2000, generator=generator)
    counts = torch.randint(0, 3, x.shape, generator=generator).float()
    at = [7] * len(every)
    together = probs(adjusted(x, every, at, counts), every)
    backwards = probs(adjusted(x.flip(0), every[::-1], at, counts.flip(0)), every[::-1]).flip(0)
    for i, s in enumerate(every):
        alone = probs(adjusted(x[i : i + 1], [s], [7], counts[i : i + 1]), [s])[0]
        assert torch.equal(together[i], alone) and torch.equal(backwards[i], alone)


def test_filters_leave_the_logits_as_they_were():
    """CASES C12: log-probabilities are read from them afterwards."""
    x = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    every = [GREEDY, Sampler(0.7, top_p=0.5), Sampler(1.0, top_k=3, bias=((1, 5.0),)), Sampler(1.0, repetition=2.0, forbid=((0, 9, None),))]
    probs(adjusted(x, every, [0] * 4, torch.ones(4, 50)), every)
    assert torch.equal(x, before)


# The rows of CASES 1.3


@pytest.mark.parametrize(
    "p, top_p, kept",
    [([0.5, 0.3, 0.15, 0.05], 0.6, {0, 1}), ([0.4, 0.3, 0.2, 0.1], 0.8, {0, 1, 2}), ([0.25] * 4, 0.5, 2), ([0.05, 0.15, 0.3, 0.5], 0.6, {2, 3})],
)
def test_c1_the_token_that_crosses_is_in(p, top_p, kept):
    got = distribution(logits_of(p), Sampler(1.0, top_p=top_p))
    assert (len(support(got)) if isinstance(kept, int) else support(got)) == kept
    assert float(got.sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_c2_extreme_top_p(dtype):
    x = torch.randn(1, 200, generator=torch.Generator().manual_seed(2)).to(dtype)
    s = Sampler(1.0, top_p=1e-8)
    assert probs(adjusted(x, [s], [0]), [s])[0].tolist() == [float(i == int(x.argmax())) for i in range(200)]
    whole = Sampler(1.0, top_p=1.0)
    torch.testing.assert_close(probs(adjusted(x, [whole], [0]), [whole]), x.float().softmax(-1))


def test_c3_penalties_never_favour():
    x = adjusted(torch.tensor([[2.0, -2.0, 1.0]]), [Sampler(repetition=2.0)], [0], torch.tensor([[1.0, 1.0, 0.0]]))
    assert x.tolist() == [[1.0, -4.0, 1.0]]


def test_c4_once_for_a_token_and_the_prompt_counts():
    x = lambda s, n: adjusted(torch.tensor([[3.0, 1.0]]), [s], [0], torch.tensor([[float(n), 0.0]]))[0, 0].item()
    assert [x(Sampler(repetition=2.0), n) for n in (0, 1, 3)] == [3.0, 1.5, 1.5]
    assert [x(Sampler(presence=1.0), n) for n in (0, 1, 3)] == [3.0, 2.0, 2.0]
    assert [x(Sampler(frequency=0.5), n) for n in (0, 1, 3)] == [3.0, 2.5, 1.5]
    counts = Outcome(torch.zeros(3, 10), [Ask("verify", [4, 5, 4], 2, read=3, sampler=Sampler(frequency=1.0))], [[[4, 9]]]).counts()
    assert counts.tolist() == [[float([4, 9, 4, 5, 4][: 3 + i].count(t)) for t in range(10)] for i in range(3)]  # before each, the prompt included


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("s", [Sampler(t) for t in (0.0, 1e-8, 1e-5)] + [Sampler(1.0, top_k=1), Sampler(1e-3)], ids=str)
def test_c5_cold_is_greedy(s, dtype):
    x = torch.tensor([[3.0, 40.0, 40.0, -50000.0], [-40.0, -30.0, -20.0, -10.0]]).to(dtype)
    p = probs(adjusted(x, [s] * 2, [0, 0]), [s] * 2)
    assert not p.isnan().any() and p[1].tolist() == [0, 0, 0, 1]
    if s.greedy:
        assert p[0].tolist() == [0, 1, 0, 0]  # of a tie the first, like argmax


@pytest.mark.parametrize("u", [2**-54, 1e-30, 0.3, 0.5, 1 - 2**-25, EPS])
def test_c6_no_number_draws_what_has_no_probability(u):
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert draw(p, torch.tensor([u], dtype=torch.double)).item() == (1 if u <= 0.5 else 3)
    p = distribution([0.0, -math.inf, 1.0, -math.inf], Sampler(1.0))[None]
    assert not p.isnan().any() and draw(p, torch.tensor([u], dtype=torch.double)).item() in (0, 2)
    hot = torch.zeros(1, 9).index_fill_(1, torch.tensor(4), 1.0)
    assert draw(hot, torch.tensor([u], dtype=torch.double)).item() == 4


def test_c6_draws_nothing_at_zero():
    """Not even a number that noise never gives."""
    assert draw(torch.tensor([[0.0, 0.5, 0.5]]), torch.tensor([0.0])).item() == 1


@pytest.mark.parametrize("u", [2**-54, 0.5, 1 - 2**-25, EPS])
def test_c6_no_number_makes_verify_draw_it(u):
    """Also where the uniform number becomes 1 in fp32, and where nothing is left of p beyond q."""
    p = torch.tensor([[[0.0, 0.5, 0.5, 0.0]] * 2])
    for q in (p[:, :1], torch.tensor([[[0.5, 0.0, 0.0, 0.5]]]), torch.tensor([[[0.0, 0.5 + 1e-8, 0.5, 0.0]]])):
        for token in support(q[0, 0]):
            count, extra = verify(p, q, torch.tensor([[token]]), torch.tensor([[u]]), torch.tensor([[u, u]]))
            assert int(extra) in (1, 2) and (int(count) == 0 or token in (1, 2))


@pytest.mark.parametrize("size", [64, 61, 640, 1])
def test_the_likeliest_is_the_first_of_the_likeliest(size):
    """Also where it is looked for block by block, and where many are equal."""
    x = torch.randint(0, 7, (200, size), generator=torch.Generator().manual_seed(size)).float()
    assert best(x).tolist() == [row.index(max(row)) for row in x.tolist()]
    assert probs(x, [GREEDY] * 200).argmax(-1).tolist() == best(x).tolist()
    assert best(torch.full((1, size), -math.inf).index_fill_(1, torch.tensor([size - 1]), 0.0)).item() == size - 1


def test_c6_rare_tokens_are_not_biased():
    """A token of probability 1e-6 is drawn for exactly its share of the numbers."""
    p = torch.tensor([[1 - 3e-6, 1e-6, 1e-6, 1e-6]]).double()
    u = torch.tensor([1 - 2.5e-6, 1 - 1.5e-6, 1 - 0.5e-6], dtype=torch.double)
    assert draw(p.expand(3, -1), u).tolist() == [1, 2, 3]


def test_c7_filters_of_low_logits():
    x = [-50.0, -60.0, -55.0, -1000.0]
    assert support(distribution(x, Sampler(1.0, top_k=2))) == {0, 2}
    assert (
        distribution(x, Sampler(1.0, top_k=0)).tolist()
        == distribution(x, Sampler(1.0, top_k=4 + 9)).tolist()
        == distribution(x, Sampler(1.0)).tolist()
    )


@pytest.mark.parametrize(
    "decoder",
    [lambda: autoregressive(PROMPT), lambda: autoregressive(PROMPT, Sampler(1.0)), lambda: speculative(PROMPT, ngram(3)), lambda: beam(PROMPT, 2, 4)],
    ids=["greedy", "warm", "speculative", "beam"],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_c8_nan_is_named(decoder, bad):
    """One row is spoilt; its partner goes on."""

    def forward(tokens, flight, read):
        logits = loud()(tokens, flight, read)
        return torch.where((flight.find(read) < flight.queries.numel())[:, None] & (tokens.flatten()[read] != 4)[:, None], bad, logits)

    spoilt = Request(decoder(), 4, branches=2)
    well = Request(autoregressive([4], Sampler(forbid=((0, 4, None), (5, 61, None)))), 3)
    steps = serve({"target": (forward, Cache(GQA, Slab(3, 40)))}, [spoilt, well], slots=3)
    assert finishes(steps) == {0: "error", 1: "length"} and isinstance(spoilt.error, FloatingPointError) and "NaN" in str(spoilt.error)
    assert text(steps, [4], 1) == [4] * 4


def test_c9_rows_beyond_the_vocabulary():
    """50,304 rows in the head, 50,257 tokens: the rest is never drawn, however high its logits."""
    s = Sampler(1.0, forbid=((50_257, 50_304, None),))
    x = torch.zeros(1, 50_304)
    x[:, 50_257:] = 50.0
    p = probs(adjusted(x, [s], [0]), [s])
    assert float(p[:, 50_257:].sum()) == 0 and draw(p, torch.tensor([EPS])).item() == 50_256
    greedy = replace(s, temperature=0.0)
    assert probs(adjusted(x, [greedy], [0]), [greedy]).argmax().item() == 0


def constant(logits):
    """A model that says the same about everything."""
    row = torch.tensor(logits)
    return lambda tokens, flight, read: row.expand(len(read), -1)


def scores(prompts, width=3, limit=4):
    """What each request's beams come to, as a forward sees them."""
    p = [0.5, 0.3, 0.2]
    served = {"target": (constant(logits_of(p)), Cache(replace(GQA, vocab_size=3), Slab(width * len(prompts), 64)))}
    steps = serve(served, [Request(beam(prompt, width, limit), branches=width) for prompt in prompts], slots=width * len(prompts))
    texts = [[text(steps, prompt, i, b)[len(prompt) :] for b in range(width)] for i, prompt in enumerate(prompts)]
    return [[math.prod(p[t] for t in branch) for branch in each] for each in texts]


def test_c13_beams_score_the_answer_only():
    """Independent of the prompt's length and of who shares the batch: the best texts, best first."""
    best = sorted(
        (
            0.5**a * 0.3**b * 0.2**c
            for a in range(5)
            for b in range(5)
            for c in range(5)
            if a + b + c == 4
            for _ in range(math.comb(4, a) * math.comb(4 - a, b))
        ),
        reverse=True,
    )
    alone = scores([[1]])
    assert alone == scores([[0, 1, 2] * 7]) == scores([[1], [2, 2, 0]])[:1]
    assert alone[0] == pytest.approx(best[:3])


# Noise


def test_noise_is_what_it_was():
    """Golden numbers: a seed that was noted down must give the same text for ever."""
    got = [
        float(noise(*map(torch.tensor, place), purpose))
        for *place, purpose in [(0, 0, 0, 0), (42, 0, 11, DRAW), (42, 3, 11, ACCEPT), (-7, 0, 100_000, RESIDUAL), (2**63 - 1, 1, 1, 3)]
    ]
    assert got == GOLDEN


GOLDEN = [0.39146590518647156, 0.5585893777655913, 0.5828331748934779, 0.21425620832650955, 0.4351966043411111]


def test_noise_is_the_written_out_hash():
    dice = random.Random(0)
    places = [(dice.randrange(-(2**63), 2**63), dice.randrange(64), dice.randrange(200_000), dice.randrange(4)) for _ in range(500)]
    for purpose in range(4):
        mine = [p[:3] for p in places if p[3] == purpose]
        assert noise(*torch.tensor(mine).unbind(1), purpose).tolist() == [uniform(*p, purpose) for p in mine]


def grid(**ranges):
    """Noise over a grid of places, one axis each for seed, branch, position and purpose."""
    axes = [range(*ranges.get(name, (1,))) for name in ("seed", "branch", "position", "purpose")]
    s, b, p = (torch.tensor([*a]) for a in axes[:3])
    return torch.stack([noise(s[:, None, None], b[None, :, None], p[None, None, :], w) for w in axes[3]], -1)


@pytest.mark.parametrize(
    "ranges",
    [
        dict(seed=(20_000,)),
        dict(position=(20_000,)),
        dict(branch=(20_000,)),
        dict(seed=(-70, 70), branch=(8,), position=(30,), purpose=(4,)),
        dict(seed=(10**12, 10**12 + 20_000)),
    ],
    ids=str,
)
def test_noise_is_uniform(ranges):
    u = grid(**ranges).flatten()
    assert float(u.min()) > 0 and float(u.max()) < 1 and len(u.unique()) == len(u)
    counts = torch.histc(u, 64, 0, 1)
    assert chi2.sf(float(((counts - len(u) / 64) ** 2 / (len(u) / 64)).sum()), 63) > ALPHA
    assert kstest(u.numpy(), "uniform").pvalue > ALPHA


@pytest.mark.parametrize("axis", range(4))
def test_neighbours_are_independent(axis):
    """Along seed, branch, position and purpose: pairs of neighbours fill the square evenly."""
    u = grid(seed=(30,), branch=(12,), position=(40,), purpose=(4,))
    a, b = u.narrow(axis, 0, u.shape[axis] - 1).flatten(), u.narrow(axis, 1, u.shape[axis] - 1).flatten()
    counts = torch.bincount((a * 8).long() * 8 + (b * 8).long(), minlength=64).double()
    assert chi2.sf(float(((counts - len(a) / 64) ** 2 / (len(a) / 64)).sum()), 63) > ALPHA
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / len(a) ** 0.5


def test_no_two_places_share_their_noise():
    """Seed 1 at position 2 is not seed 2 at position 1, nor branch 1 of seed 0, nor another purpose."""
    u = grid(seed=(-20, 20), branch=(10,), position=(50,), purpose=(4,))
    assert len(u.flatten().unique()) == u.numel()


def test_each_purpose_and_place_reaches_the_tokens():
    """What verify accepts by, what it draws by, and what plain decoding draws by are three numbers, each at the position of its token."""
    x = torch.zeros(3, 7)
    s, seed, at = Sampler(1.0), 9, 20
    q = torch.full((2, 7), 1 / 7)
    ask = Ask("verify", [1, 2, 3], at, read=3, sampler=s, seed=seed, q=q)
    plain = Outcome(x, [replace(ask, q=None)], [[[]]])
    assert [t for t, _ in plain.tokens] == [invert([1 / 7] * 7, uniform(seed, 0, at + 1 + i, 0)) for i in range(3)]
    for seed in range(30):  # p is half of q on what was drafted: accepted if the number is under a half
        x = torch.tensor(logits_of([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])).repeat(3, 1)
        q = torch.tensor([0.2, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0]).repeat(2, 1)
        [(count, token, _)] = Outcome(x, [replace(ask, q=q, seed=seed)], [[[]]]).verdicts
        right = [uniform(seed, 0, at + 1 + i, 1) < 0.5 for i in range(2)]
        want = 0 if not right[0] else 1 if not right[1] else 2
        rest = [0.5, 0, 0, 0, 0, 0.25, 0.25] if want < 2 else [0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
        assert (count, token) == (want, invert(rest, uniform(seed, 0, at + 1 + want, 2)))


def test_draws_follow_the_distribution(device):
    n, s = 20_000, Sampler(0.9, top_k=5)
    logits = [0.3, -1.0, 2.0, 1.1, 0.0, -0.4, 0.9]
    p = probs(adjusted(torch.tensor([logits], device=device), [s], [0]), [s])
    u = noise(torch.arange(n), torch.tensor(0), torch.tensor(5), DRAW)
    found = torch.bincount(draw(p.expand(n, -1), u.to(device, p.dtype)).cpu(), minlength=7).tolist()
    want = law(logits, s)
    assert chi_square({i: c for i, c in enumerate(found) if c}, dict(enumerate(want)), n) > ALPHA


# Bad input


@pytest.mark.parametrize(
    "setting, words",
    [
        (dict(temperature=-0.1), "temperature is -0.1"),
        (dict(temperature=math.nan), "temperature is nan"),
        (dict(temperature=math.inf), "temperature is inf"),
        (dict(top_k=-1), "top_k is -1"),
        (dict(top_k=2.5), "top_k is 2.5"),
        (dict(top_p=0.0), "top_p is 0.0"),
        (dict(top_p=1.01), "top_p is 1.01"),
        (dict(top_p=math.nan), "top_p is nan"),
        (dict(min_p=-0.1), "min_p is -0.1"),
        (dict(min_p=1.1), "min_p is 1.1"),
        (dict(repetition=0.0), "repetition is 0.0"),
        (dict(repetition=-1.0), "repetition is -1.0"),
        (dict(repetition=math.inf), "repetition is inf"),
        (dict(presence=math.nan), "presence is nan"),
        (dict(frequency=math.inf), "frequency is inf"),
        (dict(bias=((3, math.nan),)), "bias"),
        (dict(bias=((3, math.inf),)), "bias"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing(setting, words):
    with pytest.raises(ValueError, match=f"Sampler: {words}"):
        Sampler(**setting)


def test_a_bias_may_be_a_dict_and_samplers_are_values():
    a, b = Sampler(bias={3: 1.0, 5: -2.0}), Sampler(bias=((3, 1.0), (5, -2.0)))
    assert a == b and hash(a) == hash(b)


@pytest.mark.parametrize("tokens, read", [([], 1), ([[], []], 1), ([[1], []], 1), ([1, 2], 3), ([1], -1)])
def test_asks_that_mean_nothing(tokens, read):
    with pytest.raises(ValueError):
        Ask("decode", tokens, 0, read=read)
