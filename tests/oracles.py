"""What is right, computed another way: loops instead of tensors, fp64 instead of fp32, everything anew instead of a cache.

Nothing here imports anything under test. A config is only looked at, as a bag of numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

import torch
from scipy.stats import chi2

ALPHA = 1e-6  # how often a right program may fail a test of chance
MARGIN = 2e-5  # closer than this, which token is likeliest depends on the order of additions: take another prompt or seed


# Attention


def sees(query: int, key: int, window: int | None = None, sinks: int = 0, causal: bool = True) -> bool:
    """May the token at position `query` look at the one at `key`?"""
    if causal and key > query:
        return False
    return window is None or abs(query - key) < window or key < sinks


@lru_cache(maxsize=4096)
def mask(n: int, window: int | None, sinks: int, causal: bool) -> torch.Tensor:
    """Bool [n, n], written out pair by pair."""
    return torch.tensor([[sees(q, k, window, sinks, causal) for k in range(n)] for q in range(n)], dtype=torch.bool).view(n, n)


def wavelengths(config) -> list[float]:
    """Positions that each pair of numbers takes to turn once; stretched as the Llama 3 paper's code describes, in closed form."""
    d, out = config.d_head, []
    for i in range(d // 2):
        length = 2 * math.pi * config.rope_theta ** (2 * i / d)
        s = config.rope_scaling
        if s is not None:
            low, high = s.original_context / s.low_freq_factor, s.original_context / s.high_freq_factor
            if length > low:
                length *= s.factor
            elif length > high:
                smooth = (s.original_context / length - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
                length = 1 / ((1 - smooth) / (s.factor * length) + smooth / length)
        out.append(length)
    return out


def rotate(x: torch.Tensor, positions: list[int], lengths: list[float]) -> torch.Tensor:
    """x [T, D], pair (i, i + D/2) of token t turned by 2π · position / wavelength."""
    out, half = x.clone(), x.shape[1] // 2
    for t, p in enumerate(positions):
        for i in range(half):
            a = 2 * math.pi * p / lengths[i]
            x1, x2 = float(x[t, i]), float(x[t, i + half])
            out[t, i], out[t, i + half] = x1 * math.cos(a) - x2 * math.sin(a), x2 * math.cos(a) + x1 * math.sin(a)
    return out


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


class Plain:
    """The model once more, from its weights alone: fp64, one head at a time, no cache, no batch.

    absolute [P, d_model]: added to the embedding of a token at position p, so that even a shift of all positions is noticed.
    """

    def __init__(self, weights: dict[str, torch.Tensor], config, absolute: torch.Tensor | None = None):
        self.w, self.c = {name: w.detach().double().cpu() for name, w in weights.items()}, config
        self.lengths, self.absolute, self.turned = wavelengths(config), absolute, {}

    def turns(self, positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        for p in positions:
            if p not in self.turned:
                e = rotate(
                    torch.eye(self.c.d_head).double(), [p] * self.c.d_head, self.lengths
                )  # rotation is linear: what it does to each unit vector
                self.turned[p] = e
        return torch.stack([self.turned[p] for p in positions])

    def logits(
        self, tokens: list[int], positions: list[int] | None = None, seen: torch.Tensor | None = None, layers: int | None = None
    ) -> torch.Tensor:
        """[T, V]; seen [T, T] says which token looks at which (default: by position)."""
        c, w, n = self.c, self.w, len(tokens)
        positions = list(range(n)) if positions is None else positions
        seen = mask(n, c.window, c.sinks, c.causal) if seen is None else seen
        x = w["embed.weight"][tokens]
        if self.absolute is not None:
            x = x + self.absolute[positions].double()
        turns, d, h, g = self.turns(positions), c.d_head, c.n_heads, c.n_kv_heads
        for i in range(c.n_layers if layers is None else layers):
            at = f"blocks.{i}."
            y = rms(x, w[at + "attention_norm.weight"], c.norm_eps)
            y = y @ w[at + "attention.qkv.weight"].T + w.get(at + "attention.qkv.bias", 0)
            found = []
            for head in range(h):
                mine = head * d, (h + head // (h // g)) * d, (h + g + head // (h // g)) * d
                q, k, v = (y[:, a : a + d] for a in mine)
                if c.qk_norm:
                    q, k = rms(q, w[at + "attention.q_norm.weight"], c.norm_eps), rms(k, w[at + "attention.k_norm.weight"], c.norm_eps)
                q, k = (torch.einsum("td,tde->te", z, turns) for z in (q, k))
                scores = (q @ k.T / math.sqrt(d)).masked_fill(~seen, -math.inf)
                found.append(scores.softmax(-1) @ v)
            x = x + torch.cat(found, -1) @ w[at + "attention.out.weight"].T
            y = rms(x, w[at + "mlp_norm.weight"], c.norm_eps) @ w[at + "mlp.gate_up.weight"].T
            gate, up = y[:, : c.d_ff], y[:, c.d_ff :]
            x = x + (gate / (1 + (-gate).exp()) * up) @ w[at + "mlp.down.weight"].T
        return rms(x, w["norm.weight"], c.norm_eps) @ w.get("head.weight", w["embed.weight"]).T


# Sampling


def uniform(seed: int, branch: int, position: int, purpose: int) -> float:
    """The project's noise in unbounded integers: two rounds of splitmix64's finaliser over a mix of the four."""
    word = (1 << 64) - 1
    x = (seed * -7046029254386353131 + branch * 6364136223846793005) & word
    for salt in (position * -4417276706812531889 + purpose * 1609587929392839161, 0x5851F42D):
        x = (x + salt) & word
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & word
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & word
        x ^= x >> 31
    return ((x >> 11) + 0.5) / 2**53


def law(logits, s, history=(), position: int = 0) -> list[float]:
    """The distribution that the settings `s` make of a list of logits, one rule after the other, each as its words say it."""
    x = [float(v) for v in logits]
    for i in range(len(x)):
        n = list(history).count(i)
        if n:
            x[i] = x[i] / s.repetition if x[i] > 0 else x[i] * s.repetition
            x[i] -= s.presence + s.frequency * n
    for i, b in dict(s.bias).items():
        x[i] += b
    for first, stop, until in s.forbid:
        for i in range(first, min(stop, len(x))):
            if until is None or position < until:
                x[i] = -math.inf
    if s.temperature < 1e-4 or s.top_k == 1:
        best = x.index(max(x))
        return [float(i == best) for i in range(len(x))]
    top = max(x)
    p = [math.exp((v - top) / s.temperature) for v in x]
    p = [v / sum(p) for v in p]
    order = sorted(range(len(p)), key=lambda i: -p[i])
    kept = order[: s.top_k or len(order)]
    if s.top_p < 1:
        share, mass, nucleus = sum(p[i] for i in kept), 0.0, []
        for i in kept:
            nucleus.append(i)
            mass += p[i] / share
            if mass >= s.top_p:
                break
        kept = nucleus
    kept = [i for i in kept if p[i] >= s.min_p * p[order[0]]]
    share = sum(p[i] for i in kept)
    return [p[i] / share if i in kept else 0.0 for i in range(len(p))]


def invert(p: list[float], u: float) -> int:
    """The first token at which the distribution function reaches u."""
    mass = 0.0
    for i, share in enumerate(p):
        mass += share
        if share > 0 and mass >= u:
            return i
    return max(i for i, share in enumerate(p) if share > 0)


# Whole texts


class Oracle:
    """Texts by recomputation: after every token the whole model over the whole text again."""

    def __init__(self, plain: Plain):
        self.plain, self.known = plain, {}

    def last(self, tokens: list[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self.known:
            self.known[key] = self.plain.logits(list(tokens))[-1]
        return self.known[key]

    def greedy(self, prompt: list[int], n: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(n):
            best, second = self.last(tokens).topk(2).values.tolist()
            assert best - second > MARGIN, "a near tie: nobody can say which token is right"
            tokens.append(int(self.last(tokens).argmax()))
        return tokens

    def sampled(self, prompt: list[int], n: int, s, seed: int = 0, branch: int = 0) -> list[int]:
        tokens = list(prompt)
        for _ in range(n):
            p = law(self.last(tokens).tolist(), s, tokens, len(tokens))
            tokens.append(invert(p, uniform(seed, branch, len(tokens), 0)))
        return tokens

    def beams(self, prompt: list[int], width: int, n: int) -> list[list[int]]:
        beams = [(0.0, list(prompt))]
        for _ in range(n):
            longer = [(score + p, [*tokens, i]) for score, tokens in beams for i, p in enumerate(self.last(tokens).log_softmax(-1).tolist())]
            beams = sorted(longer, key=lambda b: -b[0])[:width]
        return [tokens for _, tokens in beams]

    def refined(self, prompt: list[int], length: int, unknown: int, block: int, steps: int) -> list[int]:
        """Blocks from left to right; in each, every pass as many of the likeliest guesses stay. The prompt is causal, a block sees itself."""
        text, group = list(prompt), list(range(-len(prompt), 0))
        for at in range(0, length, block):
            x = [unknown] * min(block, length - at)
            for left in range(min(steps, len(x)), 0, -1):
                groups = group + [at] * len(x)
                seen = torch.tensor([[k <= q or a == b for k, b in enumerate(groups)] for q, a in enumerate(groups)])
                seen &= mask(len(groups), self.plain.c.window, self.plain.c.sinks, causal=False)
                logits = self.plain.logits(text + x, seen=seen)[len(text) :]
                logits[:, unknown] = -math.inf
                p, guess = logits.softmax(-1).max(-1)
                todo = sorted((i for i, t in enumerate(x) if t == unknown), key=lambda i: -float(p[i]))
                for i in todo[: math.ceil(len(todo) / left)]:
                    x[i] = int(guess[i])
            text, group = text + x, group + [at] * len(x)
        return text


# Chance


def chi_square(counts: dict, expected: dict, n: int) -> float:
    """Pearson's p-value of `counts` against probabilities `expected`; what cannot happen must not have happened."""
    impossible = {cell for cell in counts if expected.get(cell, 0) == 0}
    assert not impossible, f"drawn, although of probability 0: {sorted(impossible)[:5]}"
    cells = [cell for cell, p in expected.items() if p > 0]
    if len(cells) == 1:
        return 1.0
    statistic = sum((counts.get(cell, 0) - n * expected[cell]) ** 2 / (n * expected[cell]) for cell in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def joint(table, length: int, vocabulary: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of `length` tokens, by enumeration. table(context) -> a probability for each token."""
    return {text: math.prod(table(text[:i])[t] for i, t in enumerate(text)) for text in product(range(vocabulary), repeat=length)}
