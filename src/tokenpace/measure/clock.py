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
    clock, marks, kept, branches, passes, draft_passes, finish = 0.0, [], {}, 1, 0, 0, None
    for step, seconds in stamped:
        mine = [row for row in step.rows if row.request == request]
        clock += seconds
        for row in mine:
            passes += bool(row.width and row.branch == 0 and step.to == "target")
            draft_passes += bool(row.width and row.branch == 0 and step.to != "target")
            branches, finish = len(row.parents) if row.parents is not None else branches, row.finish
            for writes in (row.writes if row.parents is not None else (row.writes,)) if row.writes else ():
                kept.update({p: t for p, t, keep in writes if keep})
        tokens = sum(t is not None for t in kept.values())
        if mine and tokens > (marks[-1][0] if marks else 0):
            marks.append((tokens, clock))
        if finish:
            break
    else:
        if not passes:
            raise ValueError(f"no Step of this stream is about request {request}")
    tokens, (first, ttft), (last, end) = sum(t is not None for t in kept.values()), *((marks[0], marks[-1]) if marks else ((0, float("nan")),) * 2)
    return Summary(tokens * branches, passes, draft_passes, ttft, (end - ttft) / (last - first) if last > first else float("nan"), clock, finish)
