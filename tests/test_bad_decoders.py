"""A decoder that asks the impossible ends its own request, with a sentence; whoever shares its passes does not notice."""

import math

import pytest
import torch
from loud import MASK, PROMPT, finishes, lanes, loud, oracle, serve, text

from tokenpace.decode import Ask, Keep, Sampler, autoregressive
from tokenpace.run import Request, drafts_first, run

SQUARE = torch.ones(3, 3, dtype=torch.bool)
ASKS = {
    "branches of unequal width": lambda: Ask("decode", [[1, 2], [3]], 0),
    "more branches than there are": lambda: Ask("decode", [[1], [2]], 0),
    "a negative position": lambda: Ask("decode", [1], -3),
    "half a position": lambda: Ask("decode", [1], 0.5),
    "a hole before it": lambda: Ask("decode", [1], 9),
    "half a token": lambda: Ask("decode", [1.5], 0),
    "a word": lambda: Ask("decode", ["x"], 0),
    "short depths": lambda: Ask("decode", [1, 2, 3], 0, depths=[0, 1]),
    "negative depths": lambda: Ask("decode", [1, 2], 0, depths=[0, -1]),
    "among as a list": lambda: Ask("decode", [1, 2], 0, among=[[1, 0], [1, 1]]),
    "among of floats": lambda: Ask("decode", [1, 2, 3], 0, among=SQUARE.float()),
    "among of another size": lambda: Ask("decode", [1, 2], 0, among=SQUARE),
    "no sampler": lambda: Ask("decode", [1], 0, sampler=None),
    "a seed of 70 bits": lambda: Ask("decode", [1], 0, seed=2**70),
    "a seed that is a word": lambda: Ask("decode", [1], 0, seed="x"),
    "a draft from nowhere": lambda: Ask("verify", [1, 2], 0, read=2, q="foo"),
    "a draft from a number": lambda: Ask("verify", [1, 2], 0, read=2, q=5),
    "forbidden ids below 0": lambda: Ask("decode", [1], 0, sampler=Sampler(forbid=((-200, 3, None),))),
    "bias on a word": lambda: Ask("decode", [1], 0, sampler=Sampler(bias={"x": 1.0})),
}
KEEPS = {
    "no branch left": lambda: Keep(1, (), ()),
    "the same token twice": lambda: Keep([0, 0]),
    "a path backwards": lambda: Keep([1, 0]),
    "more than was asked": lambda: Keep(9),
}


def beside(decoder):
    healthy = Request(autoregressive(PROMPT), 8)
    bad = Request(decoder)
    steps = serve(lanes(rows=2), [healthy, bad], slots=2)
    assert finishes(steps) == {0: "length", 1: "error"}
    assert text(steps) == oracle().greedy(PROMPT, 8)
    assert "\n" not in str(bad.error) and str(bad.error)
    return bad.error


@pytest.mark.parametrize("what", ASKS)
def test_a_bad_ask(what):
    def decoder():
        yield ASKS[what]()
        yield Keep(0)

    assert isinstance(beside(decoder()), (ValueError, TypeError))


@pytest.mark.parametrize("what", KEEPS)
def test_a_bad_keep(what):
    def decoder():
        yield Ask("decode", [1, 2], 0)
        yield KEEPS[what]()

    assert isinstance(beside(decoder()), ValueError)


def test_a_decoder_that_objects_to_being_closed():
    def stubborn():
        try:
            yield Ask("decode", [1], 0)
            raise RuntimeError("mine")
        finally:
            raise OSError("and this")

    beside(stubborn())


def test_what_a_pass_told_survives_an_ask_that_fails():
    def decoder():
        out = yield Ask("decode", PROMPT, 0)
        yield Keep(len(PROMPT), ((len(PROMPT), out.tokens[0], True),))
        raise RuntimeError("after the last token")

    request = Request(decoder(), 1)
    steps = serve(lanes(), [request])
    assert finishes(steps) == {0: "length"} and request.error is None
    assert text(steps) == oracle().greedy(PROMPT, 1)


@pytest.mark.parametrize("budget", [1, 7, 8])
def test_nobody_waits_for_ever(budget):
    """A piece larger than any budget, and a prompt that never comes before shorter ones, get their turn."""

    def wide():
        fed = 0
        while True:
            yield Ask("refine", [MASK] * 9, fed, read=9, among=torch.ones(9, 9, dtype=torch.bool))
            yield Keep(0)

    requests = [Request(wide()), Request(autoregressive(PROMPT)), *(Request(autoregressive([i])) for i in range(1, 9))]
    turns = {i: [] for i in range(len(requests))}
    for number, step in zip(range(90), run(lanes(rows=10), requests, slots=10, budget=budget)):
        for row in step.rows:
            turns[row.request].append(number)
    waits = [b - a for seen in turns.values() for a, b in zip([0, *seen], [*seen, 90])]
    assert max(waits) <= 50, "about PATIENCE passes for each of those who are also waiting"


@pytest.mark.parametrize(
    "plan", [lambda jobs: [], lambda jobs: [(jobs[0], 0)], lambda jobs: [(jobs[0], 99)], lambda jobs: [(jobs[0], 1), (jobs[0], 1)]]
)
def test_a_policy_that_plans_nonsense_is_told_so(plan):
    with pytest.raises(ValueError, match="the policy planned"):
        list(run(lanes(), [Request(autoregressive(PROMPT), 3)], policy=lambda jobs, budget: ("target", plan(jobs))))


def test_slots_and_rows_must_agree():
    with pytest.raises(ValueError, match="2 slots, but the cache of lane 'target' has 1 rows"):
        next(run(lanes(), [Request(autoregressive(PROMPT))], slots=2))


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"branches": 0}])
def test_a_request_for_nothing(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        Request(autoregressive(PROMPT), **wrong)


def test_keeping_more_than_was_staged():
    _, cache = lanes()["target"]
    cache.stage(torch.tensor([[0, 1, 2]]))
    with pytest.raises(ValueError, match="to be kept"):
        cache.keep([9])


def test_the_default_policy_still_prefers_what_is_nearly_through():
    model = loud()
    seen = []

    def policy(jobs, budget):
        seen.append(drafts_first(jobs, budget))
        return seen[-1]

    served = lanes(model, rows=2)
    list(run(served, [Request(autoregressive(PROMPT * 3), 2), Request(autoregressive([1]), 3)], slots=2, budget=8, policy=policy))
    assert [job.number for job, _ in seen[0][1]] == [1, 0]


def test_sampler_settings_that_are_no_numbers():
    for wrong in ({"temperature": "1"}, {"top_k": True}, {"min_p": None}):
        with pytest.raises(TypeError, match="must be a number"):
            Sampler(**wrong)
    with pytest.raises(ValueError, match="top_k is inf"):
        Sampler(top_k=math.inf)
