"""Several texts from one prompt: the branches of one conversation, which share what they have in common."""

import torch

from .protocol import Ask, Keep
from .sampling import DRAW, GREEDY, Sampler, draw, noise


def parallel(prompt: list[int], n: int, limit: int, sampler: Sampler = GREEDY, seed: int = 0):
    """n answers from one prefill. Branch b is what a request of its own would draw with (seed, branch b)."""
    at = len(prompt)
    out = yield Ask("decode", list(prompt), 0, at, sampler=sampler, seed=seed)
    u = noise(torch.tensor(seed), torch.arange(n), torch.tensor(at), DRAW)
    fresh = draw(out.probs.expand(n, -1), u.to(out.probs.device)).tolist()
    yield Keep(at, tuple(((at, t, True),) for t in fresh), parents=(0,) * n)
    for _ in range(limit - 1):
        out = yield Ask("decode", [[t] for t in fresh], at, 1, sampler=sampler, seed=seed)
        fresh, at = out.tokens, at + 1
        yield Keep(1, tuple(((at, t, True),) for t in fresh))


def beam(prompt: list[int], width: int, limit: int):
    """The `width` likeliest continuations, as far as keeping only so many at every token finds them. Their score is their log-probability."""
    score, at, ask = torch.zeros(1), 0, [list(prompt)]
    for _ in range(limit):
        out = yield Ask("decode", ask, at, len(ask[0]))
        total = score.to(out.logits.device)[:, None] + out.logits.float().log_softmax(-1)
        score, best = total.flatten().topk(min(width, total.numel()))
        parents, fresh = (best // total.shape[1]).tolist(), (best % total.shape[1]).tolist()
        at += len(ask[0])
        yield Keep(len(ask[0]), tuple(((at, t, True),) for t in fresh), tuple(parents))
        ask = [[t] for t in fresh]
