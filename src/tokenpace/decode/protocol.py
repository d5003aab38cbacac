"""A decoder is a conversation. It asks for a pass over some tokens, is sent what came of it, and says what to keep:

    out = yield Ask("decode", tokens, at)
    yield Keep(len(tokens), writes)

It owns no model, cache, batch, clock or stopping rule, so one driver can run any mix of decoders side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .sampling import GREEDY, Sampler


@dataclass(frozen=True)
class Ask:
    """Tokens to be passed through a model, and what is wanted of it."""

    phase: str  # decode | draft | verify | refine
    tokens: list  # [T] token ids, or one such list for each branch
    at: int  # position of the first; what was cached from there on is replaced
    sure: int = 0  # leading tokens that stay whatever the logits say: these may come in chunks
    read: int = 1  # how many trailing tokens' logits are wanted
    to: str = "target"  # whom it is for: a draft model, or the target leaving early
    among: Tensor | None = None  # bool [T, T] which token of the ask sees which; default causal
    depths: list | None = None  # positions are at + depths (a tree); default 0, 1, 2, …
    sampler: Sampler = GREEDY
    seed: int = 0
    q: object = None  # to be verified: what the last read - 1 tokens were drafted from, [K, V] or "one-hot"

    def __post_init__(self):
        if not self.tokens or any(not t for t in self.each):
            raise ValueError("nothing to pass through the model: the prompt is empty; give at least one token (a BOS token, if the model has one)")
        if not 0 <= self.read <= self.width:
            raise ValueError(f"logits of {self.read} tokens wanted from a pass of {self.width}")
        for wrong in self.faults():
            raise ValueError(f"an Ask must have {wrong}")

    def faults(self) -> Iterator[str]:
        """What is wrong with it. Found here, where it is one decoder's fault, and not in a pass that others share."""
        t, whole = self.width, lambda *numbers: all(type(n) is int for n in numbers)
        if any(len(tokens) != t for tokens in self.each):
            yield f"as many tokens in each branch, not {[len(tokens) for tokens in self.each]}"
        if not all(whole(*tokens) for tokens in self.each):
            yield "whole numbers for tokens"
        if not whole(self.at, self.sure) or self.at < 0 or self.sure < 0:
            yield f"a position and a number of sure tokens of at least 0, not {self.at!r} and {self.sure!r}"
        if not whole(self.seed) or not -(2**63) <= self.seed < 2**63:
            yield f"a seed that is a whole number of 64 bits, not {self.seed!r}"
        if not isinstance(self.sampler, Sampler):
            yield f"a Sampler, not {self.sampler!r}"
        if self.depths is not None and (len(self.depths) != t or not whole(*self.depths) or min(self.depths) < 0):
            yield f"a depth of at least 0 for each of its {t} tokens, not {self.depths!r}"
        if self.among is not None and (not isinstance(self.among, Tensor) or self.among.shape != (t, t) or self.among.dtype != torch.bool):
            yield f"`among` as a bool tensor of {t} × {t}"
        drafted = isinstance(self.q, Tensor) and self.q.dim() == 2 and len(self.q) == self.read - 1
        if self.q is not None and not drafted and not (isinstance(self.q, str) and self.q == "one-hot"):
            yield f'`q` as "one-hot" or a tensor of {self.read - 1} distributions'

    @cached_property
    def branches(self) -> int:
        """How many, or 0: one, not wrapped in a list of branches."""
        return len(self.tokens) if isinstance(self.tokens[0], (list, tuple)) else 0

    @cached_property
    def each(self) -> list:
        return self.tokens if self.branches else [self.tokens]

    @cached_property
    def width(self) -> int:
        return len(self.each[0])

    def depth(self, i: int) -> int:
        return i if self.depths is None else self.depths[i]

    def about(self, i: int) -> int:
        """The position that the i-th logits read speak of: the next one; in refinement, where a token's own place is predicted, that one."""
        return self.at + self.depth(self.width - self.read + i) + (self.phase != "refine")


@dataclass(frozen=True)
class Keep:
    """What stays in the cache of the tokens asked about, and what that put on the canvas."""

    stay: int | list  # how many, or a path through them (indices)
    writes: tuple = ()  # (position, token, kept); token None: nothing there any more. One such tuple for each branch where there are several
    parents: tuple | None = None  # the branches from now on, as copies of those before: fork, reorder, drop
