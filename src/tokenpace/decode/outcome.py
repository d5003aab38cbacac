"""What came of a pass, for all its asks at once. Each decoder gets a view, and whatever it looks at is computed for everybody at the first look.

Nothing is copied to the host before somebody looks, and then once for all rows.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from .protocol import Ask
from .sampling import ACCEPT, DRAW, RESIDUAL, adjusted, best, draw, noise, probs, verify


class Outcome:
    """Logits [N, V] of the asks of one pass, and everything that can be made of them.

    histories: for each ask and branch, the tokens cached before its first one (only those with penalties need it).
    """

    def __init__(self, logits: Tensor, asks: list[Ask], histories: list[list[list[int]]]):
        self.logits, self.asks, self.histories = logits, asks, histories
        self.spans, at = [], 0
        for a in asks:
            self.spans.append((at, at + a.read * max(a.branches, 1)))
            at = self.spans[-1][1]
        self.rows = [(a, b, i) for a in asks for b in range(max(a.branches, 1)) for i in range(a.read)]
        self.device = logits.device

    def views(self) -> list[Out]:
        return [Out(self, n, lo, hi) for n, (lo, hi) in enumerate(self.spans)]

    @cached_property
    def adjusted(self) -> Tensor:
        samplers = [a.sampler for a, _, _ in self.rows]
        return adjusted(self.logits, samplers, [a.about(i) for a, _, i in self.rows], self.counts() if any(s.penal for s in samplers) else None)

    @cached_property
    def probs(self) -> Tensor:
        return probs(self.adjusted, [a.sampler for a, _, _ in self.rows])

    def counts(self) -> Tensor:
        """[N, V] how often each token stands before the one to be drawn, in the cache or in flight."""
        before, ahead, groups, row = [], [], [], 0
        for a, past in zip(self.asks, self.histories):
            cut = a.width - a.read + 1
            for tokens, known in zip(a.each if a.read else (), past):
                group = len(set(groups))
                if a.sampler.penal:
                    before += [(group, t) for t in (*known, *tokens[:cut])]
                    ahead += [(row + i, t) for i in range(1, a.read) for t in tokens[cut : cut + i]]
                groups += [group] * a.read
                row += a.read
        total = torch.zeros(groups[-1] + 1, self.logits.shape[1], device=self.device)
        total = self.add(total, before)[torch.tensor(groups, device=self.device)]
        return self.add(total, ahead)

    def add(self, total: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
        if not pairs:
            return total
        rows, tokens = torch.tensor(pairs, device=self.device).unbind(1)
        return total.index_put((rows, tokens), torch.ones((), device=self.device), accumulate=True)

    @cached_property
    def place(self) -> tuple[Tensor, Tensor, Tensor]:
        """seed, branch and position of every row: what its noise depends on. On the host: these are known before the pass."""
        return tuple(torch.tensor([(a.seed, b, a.about(i)) for a, b, i in self.rows], dtype=torch.long).view(-1, 3).unbind(1))

    @cached_property
    def likeliest(self) -> Tensor:
        return best(self.adjusted)

    @cached_property
    def drawn(self) -> Tensor:
        if all(a.sampler.greedy for a in self.asks):
            return self.likeliest
        return draw(self.probs, noise(*self.place, DRAW).to(self.device, self.probs.dtype))

    @cached_property
    def spoilt(self) -> Tensor:
        """[N] 0: sound, 1: NaN or infinite, 2: nothing is left to be drawn."""
        top = self.adjusted.gather(1, self.likeliest[:, None])[:, 0]
        return torch.where(top == -torch.inf, 2, (~top.isfinite()).long())

    @cached_property
    def tokens(self) -> list[tuple[int, int]]:
        """(token, is its row spoilt?), one copy to the host."""
        return torch.stack([self.drawn, self.spoilt], 1).tolist()

    @cached_property
    def confidence(self) -> list[float]:
        """How likely the model held the drawn token, whatever the temperature: of a greedy choice too."""
        return self.adjusted.softmax(-1).gather(1, self.drawn[:, None])[:, 0].tolist()

    @cached_property
    def verdicts(self) -> list[tuple[int, int, int]]:
        """(accepted, token, is any row spoilt?) for every ask, as far as it has a draft."""
        k, n, v = max(a.read for a in self.asks) - 1, len(self.asks), self.logits.shape[1]
        take = torch.tensor([[min(lo + i, hi - 1) for i in range(k + 1)] for lo, hi in self.spans])
        drafts = [(i, a.tokens[a.width - a.read + 1 :], a.q) for i, a in enumerate(self.asks) if a.q is not None]
        draft = torch.full((n, k), -1)
        q = torch.zeros(n, k, v, device=self.device)
        cells = [(i, j, t, isinstance(given, str)) for i, d, given in drafts for j, t in enumerate(d)]
        if cells:
            row, column, token, hot = torch.tensor(cells).unbind(1)
            draft[row, column] = token
            sure, dense = hot.bool().to(self.device), [given for _, d, given in drafts if not isinstance(given, str) and len(d)]
            row, column, token = row.to(self.device), column.to(self.device), token.to(self.device)
            q[row[sure], column[sure], token[sure]] = 1.0
            if dense:
                q[row[~sure], column[~sure]] = torch.cat(dense).to(self.device)
        seed, branch, position = (x[take] for x in self.place)
        u, last = noise(seed[:, :k], branch[:, :k], position[:, :k], ACCEPT), noise(seed, branch, position, RESIDUAL)
        take = take.to(self.device)
        count, token = verify(self.probs[take], q, draft.to(self.device), u.to(self.device, q.dtype), last.to(self.device, q.dtype))
        return torch.stack([count, token, self.spoilt[take].amax(1)], 1).tolist()

    def logprobs(self, wanted: list[tuple[int, int]]) -> list[float]:
        """log-softmax of the raw logits, at (row, token): what the model itself said, before any setting."""
        rows, tokens = torch.tensor(wanted, device=self.device).unbind(1)
        those, row = rows.unique(return_inverse=True)  # many tokens of one row need it once
        x = self.logits[those].float()
        return (x[row, tokens] - x.logsumexp(-1)[row]).tolist()


class Out:
    """One ask's view of an Outcome."""

    def __init__(self, outcome: Outcome, number: int, lo: int, hi: int):
        self.outcome, self.number, self.lo, self.hi = outcome, number, lo, hi

    def sound(self, spoilt):
        worst, where = max(spoilt, default=0), f"about position {self.outcome.asks[self.number].about(0)}"
        if worst == 2:
            raise ValueError(f"the sampler forbids every token {where}: allow at least one")
        if worst == 1:
            raise FloatingPointError(f"the logits {where} are NaN or infinite: the model's weights or an overflow are at fault")

    @property
    def logits(self) -> Tensor:
        """[read × branches, V], raw."""
        self.sound(bad for _, bad in self.outcome.tokens[self.lo : self.hi])
        return self.outcome.logits[self.lo : self.hi]

    @property
    def probs(self) -> Tensor:
        """[read × branches, V] what is drawn from."""
        self.sound(bad for _, bad in self.outcome.tokens[self.lo : self.hi])
        return self.outcome.probs[self.lo : self.hi]

    @property
    def tokens(self) -> list[int]:
        """[read × branches] drawn."""
        mine = self.outcome.tokens[self.lo : self.hi]
        self.sound(bad for _, bad in mine)
        return [token for token, _ in mine]

    @property
    def confidence(self) -> list[float]:
        return self.outcome.confidence[self.lo : self.hi]

    @property
    def verdict(self) -> tuple[int, int]:
        """(how many drafted tokens are accepted, the token after them)."""
        count, token, bad = self.outcome.verdicts[self.number]
        self.sound([bad])
        return count, token
