"""A clock tells what a pass took, not where in it. Here every part of the model has a stopwatch of its own.

A watch runs while its part does, and stands while a part inside that one does; so the watches' sum is the pass, and nothing counts twice.
Reading them takes time, too. It is charged to the part around the one that was read, and shows as the difference to a pass without watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn

from ..model.transformer import Block
from .clock import Stamped
from .cost import part_of

# In the order in which a pass goes through them. "scores": attention without its two products, that is rotation, cache and look-up;
# "rest": what the model does between its parts (which token sees which, angles, sums); "outside": the sampler, and the driver around the model.
PARTS = ("embed", "norm", "attention", "scores", "mlp", "head", "rest", "outside")


def part(name: str) -> str | None:
    """Which part's watch runs while the module of this name does; None: it has none, and the part around it goes on.

    >>> [part(name) for name in ("", "blocks.3", "blocks.3.attention", "blocks.3.attention.qkv", "blocks.3.mlp_norm", "head")]
    ['rest', None, 'scores', 'attention', 'norm', 'head']
    """
    last = name.rpartition(".")[2]
    if not name or last == "attention":
        return "scores" if name else "rest"
    return None if last == "blocks" or last.isdigit() else part_of(name)


def by_part(
    model: nn.Module,
    stamped: Iterable[Stamped],
    sync: Callable[[], None] = lambda: None,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[Stamped, dict[str, float]]]:
    """A stamped run, and with each of its passes the seconds that each of PARTS took of it.

    `model` is the one that the run goes through; its watches are on only while a pass runs, so that another run may go on in between.
    `sync` waits for queued work (`clock.synchronise`); on a GPU that takes the overlap between parts away, so there the sum says more than a pass.

    Raises ValueError for a tiled model, which computes several parts in one call.

    >>> from tokenpace import load, prepare
    >>> lm = load("shape:15m", dtype="float32")
    >>> (prefill, _), (step, seconds) = by_part(lm.model, prepare(lm, [1, 2, 3], max_new_tokens=2).timed())
    >>> list(seconds) == list(PARTS), abs(sum(seconds.values()) - step.seconds) < 1e-9
    (True, True)
    """
    if not all(isinstance(block, Block) for block in model.blocks):
        raise ValueError("a tiled model computes several parts in one call, so their times cannot be told apart: give the plain model")
    stamped = iter(stamped)
    while True:
        with _watches(model, sync, now) as taken:
            one = next(stamped, None)
        if one is None:
            return
        yield one, taken | {"outside": one.seconds - sum(taken.values())}


@contextmanager
def _watches(model: nn.Module, sync: Callable[[], None], now: Callable[[], float]) -> Iterator[dict[str, float]]:
    """While this is open, the seconds that each part but "outside" has taken since."""
    taken, running, hooks = dict.fromkeys(PARTS[:-1], 0.0), [], []

    def start(module, given):
        sync()
        running.append([now(), 0.0])  # when it began, and what the parts inside it took

    def stop(name, module, given, came):
        sync()
        began, inside = running.pop()
        took = now() - began
        taken[name] += took - inside
        if running:
            running[-1][1] += took

    for name, module in model.named_modules():
        if watch := part(name):
            hooks += [module.register_forward_pre_hook(start), module.register_forward_hook(partial(stop, watch))]
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()
