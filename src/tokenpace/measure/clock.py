"""A stream of Steps has no time in it. Here it gets some: from a real clock, or from the cost of a pass on a machine one does not have.

`summary` cannot tell which, so *measured beside predicted* is one line.
"""
from __future__ import annotations

import time
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


def predicted(steps: Iterable[Step], configs: dict[str, ModelConfig] | ModelConfig, device: Device, number: float = 2.0) -> Iterator[Stamped]:
    """The least seconds each pass can take on `device`: its largest ceiling. One config for each lane; `number`: bytes of a weight."""
    for step in steps:
        config = configs[step.to] if isinstance(configs, dict) else configs
        yield Stamped(step, step_cost(config, step, number).seconds(device) if any(row.width for row in step.rows) else 0.0)


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
    clock, ttft, tokens, first, finish, passes = 0.0, float("nan"), 0, 0, None, {True: 0, False: 0}
    last, started = float("nan"), False
    for step, seconds in stamped:
        clock += seconds
        for row in step.rows:
            if row.request != request or finish:
                continue
            branches = row.writes if row.parents is not None else [row.writes]
            kept = max((sum(keep for _, _, keep in writes) for writes in branches), default=0)
            started, finish = True, row.finish
            if kept and not tokens:
                ttft, first = clock, kept
            if kept:
                tokens, last = tokens + kept, clock
            passes[step.to == "target"] += bool(row.width and row.branch == 0)
    if not started:
        raise ValueError(f"no Step of this stream is about request {request}")
    return Summary(tokens, passes[True], passes[False], ttft, (last - ttft) / (tokens - first) if tokens > first else float("nan"), clock, finish)
