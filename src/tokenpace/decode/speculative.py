"""One token a pass is little when a pass over several tokens costs hardly more. So guess a few cheaply and have the model check them all at once."""

from .protocol import Ask, Keep
from .sampling import GREEDY, Sampler


def speculative(prompt: list[int], drafter, sampler: Sampler = GREEDY, seed: int = 0, limit: int = 10**9):
    """Guess and verify (Stern et al. 2018; Leviathan et al. 2023; Chen et al. 2023): the text follows the target's own law, whoever guesses.

    drafter(tokens, room) is a conversation too: it may ask passes of its own lane, and returns (draft, q): at most `room` tokens, and what they
    were drawn from, [K, V] or "one-hot". limit: new tokens wanted, so that nothing is drafted beyond.
    """
    tokens, fed, end = list(prompt), 0, len(prompt) + limit
    while True:
        draft, q = yield from drafter(tokens, max(end - len(tokens) - 1, 0))
        fresh, at = tokens[fed:], len(tokens)
        out = yield Ask("verify", fresh + draft, fed, len(fresh), len(draft) + 1, sampler=sampler, seed=seed, q=q)
        count, extra = out.verdict
        yield Keep(len(fresh) + count, (*((at + i, t, i < count) for i, t in enumerate(draft)), (at + count, extra, True)))
        fed, tokens = at + count, [*tokens, *draft[:count], extra]
