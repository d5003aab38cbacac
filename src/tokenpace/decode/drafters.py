"""Who guesses? A drafter is a small conversation: drafter(tokens, room) may ask, and returns (draft, what it was drawn from)."""

import torch

from .protocol import Ask, Keep
from .sampling import GREEDY, Sampler


def ngram(k: int, n: int = 2):
    """Prompt lookup (Saxena 2023): whatever followed the last n tokens the last time they occurred. Free, and right where a text repeats."""

    def drafter(tokens, room):
        for i in range(len(tokens) - n - 1, -1, -1):
            if tokens[i : i + n] == tokens[-n:]:
                return tokens[i + n : i + n + min(k, room)], "one-hot"
        return [], "one-hot"
        yield  # a conversation that never asks

    return drafter


def small(k: int, sampler: Sampler = GREEDY, seed: int = 0, to: str = "draft", context: int | None = None):
    """A smaller model writes k tokens ahead in its own lane. A rejected token needs no word: the next ask starts over its place.

    context: how many tokens the small model can hold; where the text has outgrown it, nothing is drafted any more and decoding goes on plainly.
    """
    known = 0  # tokens whose keys the small model has

    def drafter(tokens, room):
        nonlocal known
        at = min(known, len(tokens) - 1)
        fresh, draft, q = tokens[at:], [], []
        left = room if context is None else min(room, context - len(tokens))
        for _ in range(min(k, left)):
            out = yield Ask("draft", fresh, at, len(fresh), to=to, sampler=sampler, seed=seed)
            yield Keep(len(fresh))
            at += len(fresh)
            fresh = out.tokens
            draft += fresh
            q.append(out.probs)
        known = at if draft else known
        return draft, torch.cat(q) if q else "one-hot"

    return drafter
