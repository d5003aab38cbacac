"""Nothing says that text must be written from left to right. Here all places of a block are guessed at once, the best guesses stay, and the rest is
guessed again: one loop for one-shot decoding, mask-predict, masked diffusion and block diffusion.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .protocol import Ask, Keep
from .sampling import GREEDY, Sampler, noise

ORDER = 3  # the purpose of the noise that orders a random reveal


def evenly(masked: int, steps: int) -> int:
    """How many of the masked places are revealed now, `steps` passes being left, this one included: as many each time, and all by the last."""
    return -(-masked // steps)


def confident(places: list[int], confidence: list[float], seed: int) -> list[int]:
    """The places most certain first (Ghazvininejad et al. 2019, mask-predict; Nie et al. 2025, LLaDA). Not a sample of the model's law."""
    return sorted(places, key=lambda i: -confidence[i])


def at_random(places: list[int], confidence: list[float], seed: int) -> list[int]:
    """In random order (Sahoo et al. 2024, MDLM): with exact conditionals and one place a pass, the text is a sample of the joint law."""
    order = noise(torch.tensor(seed), torch.tensor(0), torch.tensor(places), ORDER).tolist()
    return [place for _, place in sorted(zip(order, places))]


def refine(prompt, length, mask, block=None, steps=1, sampler: Sampler = GREEDY, seed=0, pick=confident, schedule=evenly, after=(), reuse=False):
    """Fill `length` places after the prompt, block by block, each in `steps` passes and one more that writes it to the cache for the next.

    mask: the id of a place not yet known, never drawn · block = length (default) is masked diffusion; steps = 1 is one-shot
    after: the text behind the gap, for a bidirectional model; the canvas is then staged whole, and what is cached beside an open block is stale:
    approximate · reuse: keep the keys of an open block and replace them pass by pass; approximate too (Wu et al. 2025, Fast-dLLM)
    """
    if (block is not None and block < 1) or steps < 1 or length < 1:
        raise ValueError(f"refinement needs a length, blocks and steps of at least 1, not {length}, {block} and {steps}")
    sampler = unmasked(sampler, mask)
    start, end = len(prompt), len(prompt) + length
    if after:
        canvas = [*prompt, *[mask] * length, *after]
        yield Ask("refine", canvas, 0, read=0, among=everything(len(canvas)))
        yield Keep(len(canvas))
    elif prompt:
        yield Ask("decode", list(prompt), 0, len(prompt), read=0)
        yield Keep(len(prompt))
    for at in range(start, end, block or length):
        x = [mask] * min(block or length, end - at)
        for left in range(min(steps, len(x)), 0, -1):
            out = yield Ask("refine", list(x), at, read=len(x), among=everything(len(x)), sampler=sampler, seed=seed)
            drawn, masked = out.tokens, [i for i, t in enumerate(x) if t == mask]
            chosen = pick(masked, out.confidence, seed + at)[: schedule(len(masked), left)]
            for i in chosen:
                x[i] = drawn[i]
            yield Keep(len(x) if reuse or after else 0, tuple((at + i, x[i], True) for i in chosen))
        if after or at + len(x) < end:  # nobody looks at the last block's keys again
            yield Ask("refine", list(x), at, read=0, among=everything(len(x)))
            yield Keep(len(x))


def everything(n: int) -> torch.Tensor:
    """Each of n tokens in flight sees them all."""
    return torch.ones(n, n, dtype=torch.bool)


def unmasked(sampler: Sampler, mask: int) -> Sampler:
    """The same, never drawing the mask."""
    return replace(sampler, forbid=(*sampler.forbid, (mask, mask + 1, None)))
