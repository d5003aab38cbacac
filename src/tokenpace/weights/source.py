"""Weights as a file keeps them, and the one place where they become weights as the model wants them.

Checkpoints differ in names and in grain (three projections where the model has one `qkv`), never in meaning. A `Source` says what a file
holds and which of its tensors each of ours is made of; `check` compares the two by shape before a byte is read, `tensors` reads and fuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import ClassVar

import torch

from ..config import ModelConfig
from .codes import Codes, below

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

    `shapes` has every tensor of the file by the file's own names; `read(name)` gives one, in any float dtype, its heads in this package's order, and
    `stored(name)` one whose blocks run as they are. `sizes` has the bytes of those.
    """

    where: str
    config: ModelConfig
    names: Names
    shapes: dict[str, Shape]
    read: Callable[[str], torch.Tensor]
    tokenizer: Callable[[], object | None] = lambda: None
    card: dict = field(default_factory=dict)
    stored: Callable[[str], Codes | None] = lambda name: None
    sizes: dict[str, int] = field(default_factory=dict)

    def parts(self, ours: str) -> list[tuple[str, int]]:
        """The file's names of what our tensor is made of, and how many rows of it each gives."""
        return list(zip(self.names.of(ours), _rows(self.config, ours, self.config.tensors[ours]), strict=True))

    def pieces(self) -> dict[str, Shape]:
        """The file's names of all that is wanted of it, and the shapes expected."""
        return {theirs: (rows, *shape[1:]) for ours, shape in self.config.tensors.items() for theirs, rows in self.parts(ours)}

    def check(self) -> None:
        """A ValueError that lists every tensor which is missing, unexpected or of the wrong shape. Reads no weights."""
        if self.config.n_layers > len(self.shapes):  # before a damaged number makes a list of billions of names
            raise ValueError(f"{self.where}: the config speaks of {self.config.n_layers:,} layers, but there are only {len(self.shapes)} tensors")
        wanted = self.pieces()
        wrong = [f"{n} is {self.shapes[n]} instead of {shape}" for n, shape in wanted.items() if n in self.shapes and self.shapes[n] != shape]
        problems = {
            "missing": [n for n in wanted if n not in self.shapes],
            "unexpected": [n for n in self.shapes if n not in wanted and not n.endswith(self.names.ignored)],
            "of the wrong shape": wrong,
        }
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems.items() if names)
        if listed:
            raise ValueError(f"{self.where}: the tensors do not fit the config; {listed}")

    def tensor(self, ours: str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> torch.Tensor:
        """One of our weights. Each piece is copied to its place and let go, so nothing is held twice."""
        made, first = torch.empty(self.config.tensors[ours], dtype=dtype, device=device), 0
        for theirs, rows in self.parts(ours):
            made[first : first + rows].copy_(self.read(theirs))
            first += rows
        return made

    def tensors(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """Our names -> weights in `dtype` on `device`."""
        self.check()
        return {ours: self.tensor(ours, dtype, device) for ours in self.config.tensors}

    def blocks(self, ours: str) -> Codes | None:
        """A matrix as the blocks that the file keeps, if those run as they are and all its pieces have the same kind."""
        found = [self.stored(theirs) for theirs, _ in self.parts(ours)]
        return below(found) if None not in found and len({codes.kind for codes in found}) == 1 else None


@lru_cache(maxsize=1)
def _pool(seed: int) -> torch.Tensor:
    return torch.randn(4_194_301, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Random:
    """A Source of weights that mean nothing but keep activations at a sane size, made as fast as memory is written.

    Matrices get the variance 1/columns, so that every layer keeps the scale of what enters it; norms are ones, biases zeros. Drawing billions of
    normal numbers takes a minute, so four million are drawn and laid out again and again; their count is prime, so no two rows come out equal.
    """

    config: ModelConfig
    card: dict = field(default_factory=dict)
    seed: int = 0
    sizes: ClassVar[dict[str, int]] = {}  # nothing is stored

    def tokenizer(self) -> None:
        return None

    def tensor(self, ours: str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> torch.Tensor:
        shape = self.config.tensors[ours]
        if len(shape) == 1:
            return torch.full(shape, 0.0 if ours.endswith("bias") else 1.0, dtype=dtype, device=device)
        flat = torch.empty(prod(shape), dtype=dtype, device=device)
        pool = (_pool(self.seed)[: len(flat)] * shape[-1] ** -0.5).to(device=device, dtype=dtype)
        for start in range(0, len(flat), len(pool)):
            flat[start : start + len(pool)] = pool[: len(flat) - start]
        return flat.view(shape)
