"""The plainest decoder: every pass tells one token, and the next pass cannot begin before that one is known."""

from .protocol import Ask, Keep
from .sampling import GREEDY, Sampler


def autoregressive(prompt: list[int], sampler: Sampler = GREEDY, seed: int = 0):
    """Feed what is new, draw one token, keep it all."""
    fresh, at = list(prompt), 0
    while True:
        out = yield Ask("decode", fresh, at, sure=len(fresh), sampler=sampler, seed=seed)
        at += len(fresh)
        yield Keep(len(fresh), ((at, out.tokens[0], True),))
        fresh = out.tokens


def uncached(prompt: list[int], sampler: Sampler = GREEDY, seed: int = 0):
    """The same text with nothing ever kept, every pass over everything: what a cache saves is measured against this."""
    tokens = list(prompt)
    while True:
        out = yield Ask("decode", tokens, 0, sampler=sampler, seed=seed)
        yield Keep(0, ((len(tokens), out.tokens[0], True),))
        tokens = tokens + out.tokens
