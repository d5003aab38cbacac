"""A stream of Steps has no time in it. Here it gets some: from a real clock, or from the cost of a pass on a machine one does not have.

`summary` cannot tell which, so *measured beside predicted* is one line.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..config import ModelConfig
from ..run import Step
from .cost import Device, step_cost


class Stamped(NamedTuple):
    step: Step
    seconds: float


def synchronise(device) -> Callable[[], None]:
    """What to call before a clock is read: queued work has been launched, not done."""
    import torch

    backend = {"cuda": torch.cuda, "mps": torch.mps}.get(torch.device(device).type)
    return backend.synchronize if backend else lambda: None


def timed(steps: Iterable[Step], sync: Callable[[], None] = lambda: None, now: Callable[[], float] = time.perf_counter) -> Iterator[Stamped]:
    """Real seconds of each pass. What the consumer does between two of them (drawing) is not counted.

    The first pass of a process is a warm-up (lazy initialisation, cold caches): give it away before, or read medians.
    """
    sync()
    start = now()
    for step in steps:
        sync()
        seconds = now() - start
        yield Stamped(step, seconds)
        sync()
        start = now()


def predicted(
    steps: Iterable[Step], configs: dict[str, ModelConfig] | ModelConfig, device: Device, number: float = 2.0, cache_number: float | None = None
) -> Iterator[Stamped]:
    """The least seconds each pass can take on `device`: its largest ceiling. One config for each lane.

    number: bytes of a weight · cache_number: of a cached number (default: the same)
    """
    for step in steps:
        config = configs[step.to] if isinstance(configs, dict) else configs
        yield Stamped(step, step_cost(config, step, number, cache_number).seconds(device) if any(row.width for row in step.rows) else 0.0)


@dataclass(frozen=True)
class Summary:
    """One request's run. Prompt and answer are kept apart: TTFT is the first token's time, TPOT the time of each after it."""

    tokens: int  # kept, prompt not counted
    passes: int  # of the target
    draft_passes: int
    ttft: float  # [s]
    tpot: float  # [s/token]; nan where there was one token
    seconds: float
    finish: str | None

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else float("nan")


def summary(stamped: Iterable[Stamped], request: int = 0) -> Summary:
    """Fold a stamped stream to what one request saw. Time goes on while others are served, so waiting counts."""
    clock, text, marks, passes, branches, finish = 0.0, {}, [(0, 0.0)], Counter(), 1, None
    for step, seconds in stamped:
        clock += seconds
        for row in (r for r in step.rows if r.request == request):
            passes[step.to] += row.branch == 0 and row.width > 0
            branches, finish = max(branches, len(row.each)), row.finish
            text.update({p: t for writes in row.each for p, t, kept in writes if kept})
        if (tokens := sum(t is not None for t in text.values())) > marks[-1][0]:
            marks.append((tokens, clock))
        if finish:
            break
    if not passes and not finish:
        raise ValueError(f"no Step of this stream is about request {request}")
    (first, ttft), (last, end) = marks[1] if marks[1:] else (0, math.nan), marks[-1]
    tpot = (end - ttft) / (last - first) if last > first > 0 else math.nan
    return Summary(
        branches * sum(t is not None for t in text.values()), passes["target"], passes.total() - passes["target"], ttft, tpot, clock, finish
    )
