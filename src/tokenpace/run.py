"""Decoders ask; here they are answered. Whatever all of them want of a model goes through it together, and every pass is reported as a Step.

One request and one slot is plain generation; many are continuous batching with chunked prefill (Yu et al. 2022, Orca; Agrawal et al. 2024,
Sarathi). There is no other loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import torch

from .decode.outcome import Outcome
from .decode.protocol import Ask, Keep
from .stop import Rule, Text


@dataclass(frozen=True)
class Row:
    """What one branch of a request got out of one pass."""

    request: int
    phase: str  # prefill | decode | draft | verify | refine
    context: int  # tokens it had in the cache
    width: int  # tokens it had in the pass
    writes: tuple = ()  # (position, token, kept); where `parents` is given, one such tuple for each branch from now on
    branch: int = 0
    parents: tuple | None = None
    finish: str | None = None  # stop | length | end | cancelled | error
    logprobs: tuple = ()  # of the writes, from raw logits, where the request wants them

    @property
    def each(self) -> tuple:
        """The writes of every branch."""
        return (self.writes,) if self.parents is None else self.writes or ((),) * len(self.parents)


@dataclass(frozen=True)
class Step:
    """One pass of one model: the event that everything else is a fold of."""

    rows: tuple[Row, ...]
    to: str = "target"
    shape: tuple[tuple[int, int, int], ...] = ()  # the rectangles (rows, tokens, keys) that were computed, padding included


@dataclass
class Request:
    """A decoder, and when its text ends."""

    decoder: Iterator
    limit: int | None = None  # new tokens
    stop: Rule | None = None  # told every new token: was it the last?
    branches: int = 1  # slots it may come to occupy; with several, its decoder ends it
    logprobs: bool = False
    cancelled: bool = False  # set it, and the request ends before the next pass
    error: Exception | None = None  # what ended it, if `finish` says error

    def __post_init__(self):
        if (self.limit is not None and self.limit < 1) or self.branches < 1:
            raise ValueError(f"a request for {self.limit} tokens in {self.branches} branches: both must be at least 1")


@dataclass(eq=False)
class Job:
    """A request while it runs. What it asked may take several passes: `sent` says how far it has come."""

    number: int
    request: Request
    text: Text
    slots: list[int] = field(default_factory=list)
    ask: Ask | None = None
    sent: int = 0
    branches: int = 1
    heard: set = field(default_factory=set)  # lanes that have answered it: the first time they did, its prompt went in
    held: dict = field(default_factory=dict)  # lane -> for each branch, the tokens whose keys are cached

    @property
    def left(self) -> int:
        return self.ask.width - self.sent

    idle: int = 0  # passes that went by without it
    home: dict = field(default_factory=dict)  # lane -> the lane whose cache it uses

    def chunk(self, room: int) -> int:
        """As many of the tokens asked about as fit into `room`, for every branch; what is read, or may have to go again, comes in one piece."""
        if self.left * self.branches <= room:
            return self.left
        return max(min(room // self.branches, min(self.ask.sure, self.ask.width - self.ask.read) - self.sent), 0)

    def history(self) -> list[list[int]]:
        return [tokens[: self.ask.at] for tokens in self.cached(self.ask.to)]

    def cached(self, lane: str) -> list[list[int]]:
        return self.held.setdefault(self.home.get(lane, lane), [[] for _ in range(self.branches)])

    def advance(self, lanes: Iterable[str]) -> Exception | None:
        """What does the decoder want next? No ask: nothing more, or it failed; then the error is returned."""
        self.ask, self.sent = None, 0
        try:
            ask = next(self.request.decoder, None)
            if ask is not None and not isinstance(ask, Ask):
                raise TypeError(f"a decoder yields an Ask, is sent what came of it and yields a Keep; this one yielded {ask!r} for an Ask")
            if ask is not None and ask.to not in lanes:
                raise ValueError(f"asked of the lane {ask.to!r}, but run was given only {', '.join(lanes)}")
        except Exception as error:
            return error
        self.ask = ask

    def fits(self):
        """Is this an Ask that the request may make now?"""
        ask = self.ask
        if len(ask.each) != self.branches:
            raise ValueError(f"tokens for {len(ask.each)} branches, but there are {self.branches}: a Keep with parents makes more")
        if ask.at > (known := len(self.cached(ask.to)[0])):
            raise ValueError(f"asked from position {ask.at} on, but only {known} tokens are cached before it")

    def check(self, keep):
        """What cannot be done to a cache is the decoder's fault, so it must be found before any cache is told."""
        if not isinstance(keep, Keep):
            raise TypeError(f"a decoder yields an Ask, is sent what came of it and yields a Keep; this one yielded {keep!r} for a Keep")
        stay = (0, keep.stay - 1) if isinstance(keep.stay, int) else keep.stay
        if any(not 0 <= i < self.ask.width for i in stay if keep.stay) or (stay is keep.stay and sorted(set(stay)) != [*stay]):
            raise ValueError(f"{keep.stay} were to be kept of the {self.ask.width} tokens asked about")
        if keep.parents is not None and (not 0 < len(keep.parents) <= len(self.slots) or any(not 0 <= p < self.branches for p in keep.parents)):
            raise ValueError(
                f"branches {keep.parents} wanted of the {self.branches} there are, with {len(self.slots)} slots: give the Request as many branches"
            )


def check(ask: Ask, vocabulary: int):
    """Token ids and distributions that are not of this vocabulary would be an IndexError for everybody in the pass."""
    ids = [*chain.from_iterable(ask.each), *(token for token, _ in ask.sampler.bias)]
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise ValueError(f"token {max(ids) if max(ids) >= vocabulary else min(ids)} is not in the model's vocabulary of {vocabulary}")
    if ask.q is not None and not isinstance(ask.q, str) and tuple(ask.q.shape) != (ask.read - 1, vocabulary):
        raise ValueError(
            f"a draft of {ask.read - 1} tokens came with probabilities {[*ask.q.shape]}, but the vocabulary has {vocabulary}: both must share one"
        )


PATIENCE = 4  # passes that somebody may be passed over
Plan = list[tuple[Job, int]]
Policy = Callable[[list[Job], int], tuple[str, Plan]]


def drafts_first(jobs: list[Job], budget: int) -> tuple[str, Plan]:
    """Which model is asked next, and how many tokens each job may have: small models before the target, so that all drafts are verified together;
    what is nearly through before long prompts, so that nobody who is being read waits for somebody who is being prepared; but nobody waits for ever.
    """
    lane = min((j.ask.to for j in jobs), key=lambda to: to == "target")
    mine, plan, room = sorted((j for j in jobs if j.ask.to == lane), key=lambda j: (-(j.idle // PATIENCE), j.left)), [], budget
    for job in mine:
        n = job.chunk(room)
        if n or (not plan and job.idle >= PATIENCE):  # a piece that cannot be cut, larger than any budget, gets a pass of its own
            plan.append((job, n or job.left))
            room -= (n or job.left) * job.branches
    return lane, plan or [(mine[0], mine[0].left)]


def close(decoder):
    """A decoder that objects to being closed has nobody left to tell."""
    with suppress(Exception):
        decoder.close()


class Driver:
    """One run. `lanes` says who answers to which name: a forward and the cache it uses; two lanes may share a cache (an early exit does)."""

    def __init__(self, lanes: dict, requests: Iterable[Request], slots: int, budget: int, policy: Policy):
        if slots < 1 or budget < 1:
            raise ValueError(f"{slots} slots and a budget of {budget} tokens per pass: both must be at least 1")
        self.lanes, self.slots, self.budget, self.policy = lanes, slots, budget, policy
        self.caches = list({id(cache): cache for _, cache in lanes.values()}.values())
        self.waiting = deque(Job(i, r, Text(r.limit, r.stop)) for i, r in enumerate(requests))
        self.jobs, self.free = [], list(range(slots))
        home = {lane: next(to for to, (_, other) in lanes.items() if other is cache) for lane, (_, cache) in lanes.items()}
        for lane, (_, cache) in lanes.items():
            if getattr(cache, "rows", slots) != slots:
                raise ValueError(f"{slots} slots, but the cache of lane {lane!r} has {cache.rows} rows: both must be the same number")
        for job in self.waiting:
            job.home = home
            if job.request.branches > slots:
                raise ValueError(f"request {job.number} may need {job.request.branches} slots for its branches, but there are {slots}")

    def steps(self) -> Iterator[Step]:
        try:
            while self.waiting or self.jobs:
                over = [*self.cancelled(), *self.admit()]
                if over:
                    yield Step(tuple(over))
                elif self.jobs:
                    yield self.one_pass()
        finally:
            for job in [*self.jobs]:
                self.release(job)
            for job in self.waiting:
                close(job.request.decoder)

    def cancelled(self) -> list[Row]:
        """Whoever no longer wants an answer leaves before the next pass."""
        for job in [j for j in self.waiting if j.request.cancelled]:
            self.waiting.remove(job)
            self.jobs.append(job)
        return [self.end(j, "cancelled") for j in [*self.jobs] if j.request.cancelled]

    def admit(self) -> list[Row]:
        """Whoever waits gets free slots, in order of arrival."""
        over = []
        while self.waiting and len(self.free) >= self.waiting[0].request.branches:
            job = self.waiting.popleft()
            job.slots = [self.free.pop(0) for _ in range(job.request.branches)]
            self.jobs.append(job)
            if failed := job.advance(self.lanes):  # a decoder that fails ends its own request and nobody else's
                over.append(self.end(job, "error", failed))
            elif job.ask is None:
                over.append(self.end(job, "end"))
        return over

    def release(self, job: Job):
        close(job.request.decoder)
        for slot in job.slots:
            for cache in self.caches:
                cache.release(slot)
        self.free = sorted([*self.free, *job.slots])
        self.jobs.remove(job)

    def end(self, job: Job, why: str, error: Exception | None = None) -> Row:
        job.request.error = error
        self.release(job)
        return Row(job.number, job.ask.phase if job.ask else "decode", 0, 0, finish=why)

    def one_pass(self) -> Step:
        lane, plan = self.policy(self.jobs, self.budget)
        planned = {job.number for job, _ in plan}
        if not plan or len(planned) < len(plan) or any(job not in self.jobs or job.ask.to != lane or not 0 < n <= job.left for job, n in plan):
            raise ValueError(
                f"the policy planned {[(j.number, n) for j, n in plan]} for lane {lane!r}: jobs of that lane, each once, with some tokens"
            )
        for job in self.jobs:
            job.idle = 0 if job.number in planned else job.idle + (job.ask.to == lane)
        forward, cache = self.lanes[lane]
        refused = self.refuse(plan, cache)
        if refused:
            return Step(tuple(refused), lane)
        tokens, flight = self.stage(plan, cache)
        done = [(job, n) for job, n in plan if n == job.left]
        width = tokens.shape[1]
        read = [job.slots[b] * width + n - job.ask.read + i for job, n in done for b in range(job.branches) for i in range(job.ask.read)]
        logits = forward(tokens.to(flight.queries.device), flight, torch.tensor(read, dtype=torch.long).to(flight.queries.device))
        asks = [job.ask for job, _ in done]
        outcome = Outcome(logits, asks, [job.history() if job.ask.sampler.penal else [[]] * job.branches for job, _ in done])
        outs = dict(zip((job.number for job, _ in done), outcome.views()))
        shape = tuple((*r.queries.shape, r.keys.shape[1]) for r in flight.rectangles)
        return Step(tuple(self.settle(plan, outs, lane, cache)), lane, shape)

    def refuse(self, plan: Plan, cache) -> list[Row]:
        """What cannot be asked of this lane ends its own request, before anything is written."""
        vocabulary, rows = getattr(cache, "vocab_size", None), []
        for job, n in plan:
            try:
                job.fits()
                if vocabulary:
                    check(job.ask, vocabulary)
                for slot in job.slots[: job.branches]:
                    cache.reserve(slot, job.ask.at, job.ask.at + job.ask.width)
            except ValueError as error:
                rows.append(self.end(job, "error", error))
        return rows

    def stage(self, plan: Plan, cache):
        """Tokens [slots, width] and the Pass that says where they are. Lists first, then one tensor of each: nothing is done row by row."""
        width, some = max(n for _, n in plan), any(job.ask.among is not None for job, _ in plan)
        tokens, positions = [[0] * width for _ in range(self.slots)], [[-1] * width for _ in range(self.slots)]
        blocks: dict[int, list] = {}
        for job, n in plan:
            a, lo = job.ask, job.sent
            for slot, branch in zip(job.slots, a.each):
                tokens[slot][:n] = branch[lo : lo + n]
                positions[slot][:n] = range(a.at + lo, a.at + lo + n) if a.depths is None else [a.at + d for d in a.depths[lo : lo + n]]
                if a.among is not None:
                    blocks.setdefault(n, []).append((slot, a.among[lo : lo + n, lo : lo + n]))
        among = torch.ones(self.slots, width, width, dtype=torch.bool).tril() if some else None
        for n, found in blocks.items():
            among[[slot for slot, _ in found], :n, :n] = torch.stack([block for _, block in found])
        return torch.tensor(tokens), cache.stage(torch.tensor(positions), among)

    def settle(self, plan: Plan, outs: dict, lane: str, cache) -> list[Row]:
        """Tell every decoder what came of its ask and do in the cache what it says."""
        rows, stays, forks, over = [], {}, [], []
        for job, n in plan:
            ask, lo, slots, before = job.ask, job.sent, job.slots, job.branches
            whole, first = n == job.left, lane not in job.heard
            if not whole:  # a chunk of what was asked: it stays, and nobody needs to know
                keep, why, logprobs, job.sent = Keep(lo + n), None, (), lo + n
            else:
                keep, why, logprobs = self.hear(job, outs[job.number])
                job.heard.add(lane)
            stay = [i - lo for i in (range(keep.stay) if isinstance(keep.stay, int) else keep.stay) if i >= lo]
            for tokens, fresh in zip(job.cached(lane), ask.each):
                tokens[ask.at + lo :] = [fresh[lo + i] for i in stay]
            stays |= dict.fromkeys(slots[:before], stay)
            if keep.parents is not None:
                forks.append(([slots[p] for p in keep.parents], slots[: len(keep.parents)], slots[len(keep.parents) : before]))
                job.branches = len(keep.parents)
                job.held = {to: [[*held[p]] for p in keep.parents] for to, held in job.held.items()}
            prompt = ask.phase in ("decode", "verify") and (not whole or (first and ask.at == 0))
            phase = "prefill" if prompt else ask.phase
            rows += self.rows(job, phase, ask.at + lo, n, before, keep, why, logprobs)
            over += [job] if why else []
        straight = all(stay == list(range(len(stay))) for stay in stays.values())
        counts = [len(stays.get(slot, ())) for slot in range(self.slots)]
        longest = max(counts, default=0)
        cache.keep(counts, None if straight else torch.tensor([[*stays.get(s, ()), *[0] * (longest - counts[s])] for s in range(self.slots)]))
        for src, dst, gone in forks:
            for each in self.caches:
                each.copy(src, dst)
                for slot in gone:
                    each.release(slot)
        for job in over:
            self.release(job)
        return rows

    def hear(self, job: Job, out) -> tuple[Keep, str | None, tuple]:
        """The decoder's answer, cut where the text ends, and its next ask. -> (Keep, why it ends here or None, log-probabilities)"""
        ask = job.ask
        try:
            keep = job.request.decoder.send(out)
            job.check(keep)
            failed = job.advance(self.lanes)
            why, writes = None, keep.writes
            if job.request.branches == 1:
                settled = job.ask.at if job.ask and job.ask.phase == "refine" and ask.phase == "refine" else None
                writes, why = job.text.take(writes, settled)
            logprobs = self.logprobs(ask, out, writes) if job.request.logprobs and job.request.branches == 1 else ()
            if failed and not why:  # what this pass told is kept all the same
                why, job.request.error = "error", failed
            return Keep(keep.stay, writes, keep.parents), why or (None if job.ask else "end"), logprobs
        except Exception as error:  # a decoder that fails ends its own request and nobody else's
            job.request.error = error
            return Keep(0), "error", ()

    @staticmethod
    def logprobs(ask: Ask, out, writes: tuple) -> tuple:
        rows = {ask.about(i): out.lo + i for i in range(ask.read)}
        wanted = [(rows[p], t) for p, t, _ in writes if p in rows and t is not None]
        found = iter(out.outcome.logprobs(wanted) if wanted else ())
        return tuple(next(found) if p in rows and t is not None else None for p, t, _ in writes)

    @staticmethod
    def rows(job: Job, phase: str, context: int, width: int, before: int, keep: Keep, why: str | None, logprobs: tuple) -> list[Row]:
        """One Row for each branch that was in the pass; what they wrote, and how they forked, stands in the last."""
        several = keep.parents is not None or before > 1
        parents = keep.parents or (tuple(range(before)) if several and keep.writes else None)
        last = dict(writes=keep.writes, parents=parents, finish=why, logprobs=logprobs)
        return [Row(job.number, phase, context, width, branch=b, **(last if b == before - 1 else {})) for b in range(before)]


def run(lanes: dict, requests: Iterable[Request], slots: int = 1, budget: int = 512, policy: Policy = drafts_first) -> Iterator[Step]:
    """Serve `requests` with the models in `lanes` {"target": (forward, cache), …}, and yield a Step for every pass.

    slots: rows of the caches, so branches that can run at once · budget: tokens a pass may have · policy: who is asked next, with how many tokens.
    Closing the iterator, or an interrupt, frees everything. A request that fails ends with finish="error" and its error; the others go on.
    """
    return Driver(lanes, requests, slots, budget, policy).steps()


def canvas(steps: Iterable[Step], prompt: Iterable[int] = (), request: int = 0, branch: int = 0) -> list[int]:
    """Fold Steps to the text that one branch of a request wrote: the prompt, and what was kept, wherever and in whatever order it was written."""
    texts = [dict(enumerate(prompt))]
    for row in (row for step in steps for row in step.rows if row.request == request):
        if row.parents is not None:
            texts = [dict(texts[p]) for p in row.parents]
        for text, writes in zip(texts, row.each):
            text.update({p: t for p, t, kept in writes if kept})
    return [t for _, t in sorted(texts[branch].items()) if t is not None]
