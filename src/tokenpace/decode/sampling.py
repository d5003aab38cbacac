"""Logits become distributions, distributions become tokens: for all rows of a pass together, each with its own settings and its own seed.

Greedy is not a case of its own: its distribution has all its mass on one token. So everything proven for distributions holds for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

COLD = 1e-4  # a temperature below is greedy: the quotient would overflow before it changed a token
NUCLEUS = 64  # a nucleus is looked for among this many tokens first; sorting a whole vocabulary is dear, and few rows are so flat that they need it
BLOCK = 64  # argmax is not vectorised, max is: so the best block first, then the best token in it
DRAW, ACCEPT, RESIDUAL = 0, 1, 2  # what a uniform number is for


@dataclass(frozen=True)
class Sampler:
    """What distribution to draw from: penalties → bias → forbidden ids → temperature → top-k → top-p → min-p, in this order.

    Penalties look at every token before the one to be drawn, prompt included. `bias` may be given as a dict.
    `forbid` holds (first, stop, until): ids first … stop - 1 are not drawn at positions below `until` (None: never).

    >>> Sampler(temperature=0.8, top_p=0.95)
    Sampler(temperature=0.8, top_k=0, top_p=0.95, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, bias=(), forbid=())
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # the smallest set of likeliest tokens with at least this mass (Holtzman et al. 2020)
    min_p: float = 0.0  # no token under this share of the likeliest one's probability
    repetition: float = 1.0  # divides positive and multiplies negative logits of tokens already there, once (Keskar et al. 2019)
    presence: float = 0.0  # subtracted once from the logit of a token already there
    frequency: float = 0.0  # subtracted for every time it is there
    bias: tuple = ()  # (id, added to its logit)
    forbid: tuple = ()

    def __post_init__(self):
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, Real):
                raise TypeError(f"Sampler: {name} is {value!r}, but must be a number")
        object.__setattr__(self, "bias", tuple(dict(self.bias).items()))
        whole = lambda *numbers: all(type(n) is int and n >= 0 for n in numbers)
        ranges = {
            "temperature": (0 <= self.temperature < float("inf"), "at least 0 (0 is greedy)"),
            "top_k": (self.top_k >= 0 and self.top_k % 1 == 0, "a whole number, 0 for all"),
            "top_p": (0 < self.top_p <= 1, "over 0 and at most 1 (1 keeps all tokens, a tiny one only the likeliest)"),
            "min_p": (0 <= self.min_p <= 1, "between 0 and 1"),
            "repetition": (0 < self.repetition < float("inf"), "over 0 (1 is none)"),
            "presence": (abs(self.presence) < float("inf"), "a finite number (0 is none)"),
            "frequency": (abs(self.frequency) < float("inf"), "a finite number (0 is none)"),
            "bias": (all(whole(t) and b < float("inf") for t, b in self.bias), "token ids with finite numbers, or -inf to bar a token"),
            "forbid": (
                all(whole(first, stop) and (until is None or whole(until)) for first, stop, until in self.forbid),
                "triples (first id, one past the last, position until which or None)",
            ),
        }
        for name, (right, rule) in ranges.items():
            if not right:
                raise ValueError(f"Sampler: {name} is {getattr(self, name)}, but must be {rule}")

    @property
    def plain(self) -> bool:
        """Are the logits looked at as they are?"""
        return not self.penal and not self.bias and not self.forbid

    @property
    def penal(self) -> bool:
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @property
    def greedy(self) -> bool:
        return self.temperature < COLD or self.top_k == 1


GREEDY = Sampler()


def noise(seed: Tensor, branch: Tensor, position: Tensor, purpose: int) -> Tensor:
    """Uniform numbers in (0, 1), float64, that depend on these four and on nothing else: not on the batch, the history, the device or the rank.

    Int64 tensors that broadcast. Two rounds of splitmix64 (Steele, Lea and Flood 2014, Fast Splittable Pseudorandom Number Generators).
    """
    x = seed * -7046029254386353131 + branch * 6364136223846793005
    for salt in (position * -4417276706812531889 + purpose * 1609587929392839161, 0x5851F42D):
        x = x + salt
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
            x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor  # >> is arithmetic, so mask what it drags in
    return (((x >> 11) & ((1 << 53) - 1)).double() + 0.5) / (1 << 53)


def adjusted(logits: Tensor, samplers: list[Sampler], positions: list[int], counts: Tensor | None = None) -> Tensor:
    """Logits [N, V] in fp32 after penalties, bias and forbidden ids. counts [N, V]: how often each token stands before the one to be drawn."""
    x = logits.float()
    if all(s.plain for s in samplers):
        return x
    column = lambda name: torch.tensor([getattr(s, name) for s in samplers], dtype=torch.float, device=x.device)[:, None]
    if counts is not None:
        there, r = counts > 0, column("repetition")
        x = torch.where(there, torch.where(x > 0, x / r, x * r), x) - column("presence") * there - column("frequency") * counts
    bias = [(n, token, b) for n, s in enumerate(samplers) for token, b in s.bias]
    if bias:
        rows, tokens, values = zip(*bias)
        x = x.index_put(
            (torch.tensor(rows, device=x.device), torch.tensor(tokens, device=x.device)),
            torch.tensor(values, dtype=torch.float, device=x.device),
            accumulate=True,
        )
    barred = [
        (n, i)
        for n, (s, at) in enumerate(zip(samplers, positions))
        for a, b, until in s.forbid
        if until is None or at < until
        for i in range(a, min(b, x.shape[1]))
    ]
    if barred:
        rows, tokens = torch.tensor(barred, device=x.device).unbind(1)
        x = x.index_put((rows, tokens), torch.tensor(-torch.inf, device=x.device))
    return x


def best(logits: Tensor) -> Tensor:
    """argmax of [N, V] over V, with the same tie rule: the first."""
    if logits.shape[-1] % BLOCK:
        return logits.argmax(-1)
    blocks = logits.unflatten(-1, (-1, BLOCK))
    block = blocks.amax(-1).argmax(-1)
    return block * BLOCK + blocks[torch.arange(len(logits), device=logits.device), block].argmax(-1)


def one_hot(logits: Tensor) -> Tensor:
    return torch.zeros_like(logits).scatter_(-1, best(logits)[:, None], 1.0)


def probs(logits: Tensor, samplers: list[Sampler]) -> Tensor:
    """Adjusted logits [N, V] -> distributions [N, V], one sampler for each row. A row's result does not depend on the others."""
    cold = [s.greedy for s in samplers]
    if all(cold):
        return one_hot(logits)
    column = lambda values: torch.tensor(values, dtype=torch.float, device=logits.device)[:, None]
    w = (logits * column([1.0 if s.greedy else 1 / s.temperature for s in samplers])).softmax(-1)
    k, p = [s.top_k or w.shape[1] for s in samplers], [s.top_p for s in samplers]
    narrow = [n for n, s in enumerate(samplers) if not s.greedy and (s.top_k or s.top_p < 1)]
    if len(narrow) == len(w):
        w = truncated(w, k, p)
    elif narrow:
        w[narrow] = truncated(w[narrow], [k[n] for n in narrow], [p[n] for n in narrow])
    if any(s.min_p for s in samplers):
        least = column([s.min_p for s in samplers])
        kept = torch.where(w < least * w.amax(-1, keepdim=True), 0.0, w)
        w = torch.where(least > 0, kept / kept.sum(-1, keepdim=True), w)  # rows that want none stay as they are, to the last bit
    if any(cold):
        rows = torch.tensor([n for n, c in enumerate(cold) if c], device=w.device)
        w[rows] = one_hot(logits[rows])
    return w


def truncated(w: Tensor, top_k: list[int], top_p: list[float], size: int = NUCLEUS) -> Tensor:
    """Of each row of w [N, V] only the k likeliest, of these only the fewest whose share reaches p (the one that crosses p is in), summing to 1.

    They are looked for among the `size` likeliest; rows that need more are done again with more.
    """
    v, device = w.shape[1], w.device
    size = min(max(size, *(k for k in top_k if k < v), 0), v)
    k, p = torch.tensor(top_k, device=device)[:, None], torch.tensor(top_p, device=device)[:, None]
    top, token = w.topk(size)
    top = torch.where(torch.arange(size, device=device) < k, top, 0.0)
    mass = top.cumsum(-1)
    within = (mass - top < p * torch.where(k < v, mass[:, -1:], 1.0)) | (p == 1)  # sums round: without a nucleus the tail must not be lost
    share = torch.where(within, top, 0.0)
    out = torch.zeros_like(w).scatter_(-1, token, share / share.sum(-1, keepdim=True))
    flat = [n for n, more in enumerate((share[:, -1] > 0).tolist()) if more and size < min(v, top_k[n])]
    if flat:
        out[flat] = truncated(w[flat], [top_k[n] for n in flat], [top_p[n] for n in flat], 16 * size)
    return out


def draw(p: Tensor, u: Tensor) -> Tensor:
    """p [N, V], u [N] in (0, 1) -> tokens [N], by inverting the distribution function. Never a token of probability 0."""
    mass = p.cumsum(-1)
    return torch.searchsorted(mass, (u.to(p.dtype)[:, None] * mass[:, -1:]).clamp(min=torch.finfo(p.dtype).tiny))[:, 0].clamp(max=p.shape[-1] - 1)


def verify(p: Tensor, q: Tensor, draft: Tensor, u: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Accept a prefix of each draft, then draw one token more, so that what comes out is distributed as p (Leviathan et al. 2023, algorithm 1).

    p [N, K+1, V] target, q [N, K, V] what was drafted from, draft [N, K] (-1: no more), u [N, K] and last [N, K+1] uniforms
    -> accepted [N], token [N]
    """
    n, k = draft.shape
    chance = lambda d: d[:, :k].gather(2, draft.clamp(min=0)[..., None])[..., 0]
    right = (u * chance(q) <= chance(p)) & (chance(p) > 0) & (draft >= 0)  # "<=": a number just under 1 is 1 in fp32, and q = p is never refused
    count, row = right.int().cumprod(1).sum(1), torch.arange(n, device=p.device)
    target, nothing = p[row, count], torch.zeros_like(p[:, :1])
    refused = torch.cat([draft >= 0, draft.new_zeros(n, 1, dtype=torch.bool)], 1)[row, count]
    rest = (target - torch.cat([q, nothing], 1)[row, count]).clamp(min=0)  # what p has beyond q, once q's token was refused
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, target)  # q = p but for rounding
    return count, draw(torch.where(refused[:, None], rest, target), last[row, count])
