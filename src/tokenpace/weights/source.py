"""Weights as a file keeps them, and the one place where they become weights as the model wants them.

Checkpoints differ in names and in grain (three projections where the model has one `qkv`), never in meaning. A `Source` says what a file
holds and which of its tensors each of ours is made of; `check` compares the two by shape before a byte is read, `tensors` reads and fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

import torch

from ..config import ModelConfig

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Names:
    """How a format calls things: `block` is the prefix of layer {}, `parts` has our stem -> the stems it is fused from, rows one below the other."""

    block: str
    parts: dict[str, tuple[str, ...]]
    ignored: tuple[str, ...] = ()  # endings of tensors that repeat what the config says

    def of(self, ours: str) -> list[str]:
        """
        >>> Names("layer{}.", {"mlp.gate_up": ("gate", "up")}).of("blocks.7.mlp.gate_up.weight")
        ['layer7.gate.weight', 'layer7.up.weight']
        """
        stem, kind = ours.rsplit(".", 1)
        prefix = ""
        if stem.startswith("blocks."):
            _, layer, stem = stem.split(".", 2)
            prefix = self.block.format(layer)
        return [f"{prefix}{part}.{kind}" for part in self.parts[stem]]


def _rows(config: ModelConfig, ours: str, shape: Shape) -> list[int]:
    """How many rows of our tensor come from each of its parts."""
    if ".qkv." in ours:
        kv = config.n_kv_heads * config.d_head
        return [config.n_heads * config.d_head, kv, kv]
    return [config.d_ff] * 2 if ".gate_up." in ours else [shape[0]]


@dataclass(frozen=True)
class Source:
    """A model on disk, described but not yet read.

    `shapes` has every tensor of the file by the file's own names; `read(name)` gives one, in any float dtype, its heads in this package's order.
    """

    where: str
    config: ModelConfig
    names: Names
    shapes: dict[str, Shape]
    read: Callable[[str], torch.Tensor]
    tokenizer: Callable[[], object | None] = lambda: None
    card: dict = field(default_factory=dict)

    def pieces(self) -> Iterator[tuple[str, str, int, Shape]]:
        """(our name, the file's name, first row within ours, shape expected of the piece)."""
        for ours, shape in self.config.tensors.items():
            first = 0
            for theirs, rows in zip(self.names.of(ours), _rows(self.config, ours, shape), strict=True):
                yield ours, theirs, first, (rows, *shape[1:])
                first += rows

    def check(self) -> None:
        """A ValueError that lists every tensor which is missing, unexpected or of the wrong shape. Reads no weights."""
        if self.config.n_layers > len(self.shapes):  # before a damaged number makes a list of billions of names
            raise ValueError(f"{self.where}: the config speaks of {self.config.n_layers:,} layers, but there are only {len(self.shapes)} tensors")
        wanted = {theirs: shape for _, theirs, _, shape in self.pieces()}
        wrong = [f"{n} is {self.shapes[n]} instead of {shape}" for n, shape in wanted.items() if n in self.shapes and self.shapes[n] != shape]
        problems = {
            "missing": [n for n in wanted if n not in self.shapes],
            "unexpected": [n for n in self.shapes if n not in wanted and not n.endswith(self.names.ignored)],
            "of the wrong shape": wrong,
        }
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems.items() if names)
        if listed:
            raise ValueError(f"{self.where}: the tensors do not fit the config; {listed}")

    def tensors(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """Our names -> weights in `dtype` on `device`. Each piece is copied to its place and let go, so nothing is held twice."""
        self.check()
        made = {ours: torch.empty(shape, dtype=dtype, device=device) for ours, shape in self.config.tensors.items()}
        for ours, theirs, first, (rows, *_) in self.pieces():
            made[ours][first : first + rows].copy_(self.read(theirs))
        return made


def random_tensors(config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights that mean nothing but keep activations at a sane size, made as fast as memory is written.

    Matrices get the variance 1/columns, so that every layer keeps the scale of what enters it; norms are ones, biases zeros. Drawing billions of
    normal numbers takes a minute, so four million are drawn and laid out again and again; their count is prime, so no two rows come out equal.
    """
    pool = torch.randn(4_194_301, generator=torch.Generator().manual_seed(seed)).to(device=device, dtype=dtype)
    made = {}
    for name, shape in config.tensors.items():
        if len(shape) == 1:
            made[name] = torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype, device=device)
            continue
        flat, scaled = torch.empty(prod(shape), dtype=dtype, device=device), pool * shape[-1] ** -0.5
        for start in range(0, len(flat), len(pool)):
            flat[start : start + len(pool)] = scaled[: len(flat) - start]
        made[name] = flat.view(shape)
    return made
