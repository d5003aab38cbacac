"""What one pass has to move and multiply, counted from shapes alone: bytes, FLOP, and with them the least time a device can take.

Nothing here needs torch or the device: a laptop can ask about a GPU that it does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ..config import ModelConfig


@dataclass(frozen=True)
class Device:
    """A machine in three numbers, one for each ceiling (Williams et al. 2009, roofline; the launch floor added)."""

    name: str
    bandwidth: float  # bytes per second read from memory
    flops: float  # FLOP per second of matrix products, in the dtype meant
    launch: float = 0.0  # seconds that a pass takes even if it moves and multiplies nothing


@dataclass(frozen=True)
class Cost:
    """flops and bytes of a pass, by part. Weights are read once a pass, however many rows share it; keys and values once for each row."""

    flops: dict[str, float] = field(default_factory=dict)
    weight_bytes: float = 0.0
    kv_read: float = 0.0
    kv_written: float = 0.0

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_read + self.kv_written

    @property
    def total_flops(self) -> float:
        return sum(self.flops.values())

    @property
    def intensity(self) -> float:
        """FLOP per byte; left of the device's ridge (flops / bandwidth) memory decides."""
        return self.total_flops / self.bytes

    def ceilings(self, device: Device) -> dict[str, float]:
        """Seconds that each ceiling alone would allow; the largest binds."""
        return {"launch": device.launch, "bandwidth": self.bytes / device.bandwidth, "compute": self.total_flops / device.flops}

    def seconds(self, device: Device) -> float:
        return max(self.ceilings(device).values())

    def __add__(self, other: Cost) -> Cost:
        flops = {k: self.flops.get(k, 0) + other.flops.get(k, 0) for k in self.flops | other.flops}
        return Cost(flops, self.weight_bytes + other.weight_bytes, self.kv_read + other.kv_read, self.kv_written + other.kv_written)


def part_of(name: str) -> str:
    """Which part of the model a tensor belongs to: attention, mlp, head, embed or norm."""
    if "norm" in name:
        return "norm"
    return next(p for p in ("attention", "mlp", "head", "embed") if p in name)


def read_bytes(config: ModelConfig, tokens: int, number: float) -> float:
    """Bytes of weights a pass over `tokens` tokens reads: every matrix once, and of an embedding that is not also the head only the tokens' rows."""
    looked_up = 0 if config.tied else config.vocab_size * config.d_model - tokens * config.d_model
    return (config.n_params - looked_up) * number


def cost(config: ModelConfig, rows: list[tuple[int, int]], number: float = 2.0, cache_number: float | None = None, read: int | None = None) -> Cost:
    """What a pass costs whose rows have (context, width): tokens already cached, tokens in flight.

    number: bytes of a stored weight (4 fp32, 2 bf16, 0.625 Q4_1) · cache_number: of a cached number (default: the same)
    read: how many tokens' logits are wanted (default: one a row)
    """
    cache_number = number if cache_number is None else cache_number
    tokens, multiplied = sum(width for _, width in rows), {"attention": 0, "mlp": 0}
    for name, shape in config.tensors.items():
        if name.startswith("blocks.") and len(shape) == 2:
            multiplied[part_of(name)] += 2 * prod(shape) * tokens
    pairs = sum(seen(config, context, width) for context, width in rows)
    known = sum(min(context, config.window - 1 + config.sinks) if config.window else context for context, _ in rows)
    kv = config.kv_numbers * cache_number
    flops = {
        "attention": multiplied["attention"],
        "scores": 4 * config.n_layers * config.n_heads * config.d_head * pairs,  # q·k and weights·v
        "mlp": multiplied["mlp"],
        "head": 2 * config.vocab_size * config.d_model * (len(rows) if read is None else read),
    }
    return Cost(flops, read_bytes(config, tokens, number), known * kv, tokens * kv)


def seen(config: ModelConfig, context: int, width: int) -> float:
    """How many (query, key) pairs a row's tokens make: each sees what is cached and what comes before it in flight."""
    if config.window is None:
        return width * context + (width * (width + 1) / 2 if config.causal else width * width)
    pairs = 0
    for position in range(context, context + width):
        hidden = max(position + 1 - config.window, 0)  # too far back, of which sinks are seen all the same
        ahead = 0 if config.causal else min(config.window - 1, context + width - 1 - position)
        pairs += position + 1 - hidden + min(config.sinks, hidden) + ahead
    return pairs


def step_cost(config: ModelConfig, step, number: float = 2.0, cache_number: float | None = None) -> Cost:
    """The cost of a Step's pass: of what its rows needed, whatever padding was computed beside it."""
    rows = [row for row in step.rows if row.width]
    return cost(config, [(row.context, row.width) for row in rows], number, cache_number, sum(map(wanted, rows)))


def wanted(row) -> int:
    """Of how many tokens a row's logits were read, as far as its writes tell: a chunk of a prompt and a block being cached read none."""
    if row.phase == "refine":
        return row.width if row.writes else 0
    if row.phase == "verify":
        return len(row.writes) or row.width  # every guess and the token after them; a plan has no writes yet
    return 1 if row.phase != "prefill" or row.parents else len(row.writes)
