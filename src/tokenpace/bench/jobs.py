"""What is measured: jobs, each a prompt and passes of one shape after it, and the suites made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..measure.cost import Cost, cost


@dataclass(frozen=True)
class Job:
    """`rows` copies of a prompt of so many tokens, then `passes` of `width` tokens a row, greedy, whatever they say.

    The passes count, and not the prompt's own; where there are none, the prompt's own does.
    """

    name: str
    prompt: int = 16
    rows: int = 1
    width: int = 1
    passes: int = 24
    computed: bool = True  # the prompt; else its keys and values stay zeros, which are read as fast as any

    def counted(self, passes: Sequence[float]) -> Sequence[float]:
        """Those that count."""
        return passes[1:] if self.passes else passes[:1]

    @property
    def tokens(self) -> int:
        """Of one pass that counts."""
        return self.rows * (self.width if self.passes else self.prompt)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, tokens of each in a pass that counts, and what lies before them in the middle of those passes."""
        return (self.rows, self.width, self.prompt + self.width * self.passes // 2) if self.passes else (self.rows, self.prompt, 0)

    def cost(self, config, number: float, cache_number: float) -> Cost:
        """Of one pass that counts, in the middle of them."""
        rows, width, context = self.shape
        return cost(config, [(context, width)] * rows, number, cache_number, read=rows * self.width)


@dataclass(frozen=True)
class Suite:
    """Jobs on one model. Lanes are engine and weights; see `engines`. `tries`: how often everything takes its turn."""

    model: str
    jobs: tuple[Job, ...]
    lanes: tuple[str, ...]
    tries: int = 5


OURS = ("plain 32 bit", "tiled 32 bit", "plain 16 bit", "tiled 16 bit", "tiled 8 bit", "tiled 4 bit")
PEERS = ("transformers 32 bit", "transformers 16 bit", "llama.cpp 16 bit", "llama.cpp 8 bit", "llama.cpp 4 bit")
FAST = ("tiled 16 bit", "tiled 8 bit", "tiled 4 bit")
SMALL = "smollm2-135m"

# passes of many shapes, as far as their caches fit into a laptop and their seconds into a few minutes
GRID = [(b, t, s) for s in (32, 512, 1500, 4000) for b in (1, 3, 8, 16, 32) for t in (1, 2, 4, 8, 16) if b * s <= 70_000 and b * t * s <= 300_000]
SHAPES = tuple(Job(f"{b} × {t} at {s}", s, b, t, passes=4, computed=False) for b, t, s in GRID)

SUITES = {
    "decode": Suite(SMALL, (Job("decode", passes=128),), (*OURS, *PEERS), tries=7),
    "prefill": Suite(SMALL, tuple(Job(f"prompt of {n}", n, passes=0) for n in (128, 512)), ("tiled 32 bit", *FAST, *PEERS), 3),
    "verify": Suite(SMALL, tuple(Job(f"width {t}", 64, width=t, passes=12) for t in (1, 2, 4, 8, 16)), ("tiled 32 bit", *FAST, *PEERS[1:3]), 3),
    "batch": Suite(SMALL, tuple(Job(f"rows {n}", rows=n, passes=16) for n in (1, 4, 16, 32, 64)), (*FAST, "transformers 16 bit"), 3),
    "context": Suite(
        SMALL, tuple(Job(f"context {n}", n, passes=8) for n in (512, 2048, 8100)), ("tiled 16 bit", "tiled 4 bit", "llama.cpp 4 bit"), 3
    ),
    "steps": Suite(SMALL, SHAPES, ("tiled 16 bit",), 1),
    "large": Suite("shape:tinyllama-1.1b", (Job("decode", passes=16), Job("width 8", width=8, passes=8)), FAST, 3),
    "shape": Suite("shape:15m", (Job("decode", passes=16), Job("width 4", width=4, passes=4)), ("plain 32 bit", "tiled 32 bit", "tiled 8 bit"), 2),
}
