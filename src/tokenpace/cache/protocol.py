"""A model needs to know where its tokens are and what lies before them. A cache is told three things, and that is all of it:

    stage   these tokens are in flight, here       (capacity is checked before anything is written)
    write   this is what one layer made of them    (tensor indexing only; back come all keys and values)
    keep    so many of them stay

Token i of a row in flight has index (first position + i), and an index has one cell: staging it again replaces it.
So rollback, redrafting, trees and refining a block are one idea, "stage again from there"; what was rejected is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PIECE = 512  # queries of one row whose mask is made at once: bounds the memory of a long prompt


@dataclass
class Rectangle:
    """Rows of like width, side by side: what attention computes at once. A pass of ragged rows is a few of these, so little is padding."""

    rows: slice | Tensor  # which rows of the cache
    end: int  # and how many of their cells
    queries: Tensor  # [b, t] positions; -1 is padding
    keys: Tensor  # [b, S] positions; -1: nothing is there
    among: Tensor | None = None  # [b, t, T] which token in flight sees which; None: as their positions say
    columns: Tensor | None = None  # [b, T] where the row's tokens in flight are among the keys (padding: S, one past the end)


@dataclass
class Pass:
    """Where the tokens in flight are and what they may look at. Data only: a kernel or a graph may read it instead of calling write.

    The model sees its tokens as [N]: rectangle after rectangle, row after row.
    """

    queries: Tensor  # [B, T] positions; -1 is padding
    rectangles: tuple[Rectangle, ...]
    order: Tensor | None = None  # [N] which of the [B, T] each token is; None: as they stand
    into: Tensor | None = None  # [N] slots of the store
    store: Cache | NoCache | None = None

    def write(self, layer: int, tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Store what a layer made of the tokens in flight, each [N, G, D]. Back comes, for each rectangle, all there is, each [b, S, G, D]."""
        return self.store.write(layer, tensors, self)

    def pack(self, x: Tensor) -> Tensor:
        """[B, T] -> [N]"""
        return x.flatten() if self.order is None else x.flatten()[self.order]

    def find(self, flat: Tensor) -> Tensor:
        """Indices into the flat [B, T] -> indices into [N]."""
        if self.order is None:
            return flat
        place = torch.empty(self.queries.numel(), dtype=torch.long, device=flat.device)
        place[self.order] = torch.arange(len(self.order), device=flat.device)
        return place[flat]


def widths(positions: Tensor) -> list[int]:
    """How many tokens each row has. Padding has position -1 and comes after them: anything else would leave a hole inside a row."""
    real = positions >= 0
    if positions.shape[1] > 1 and bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise ValueError("padding (position -1) must follow a row's tokens, not precede them: shift the row to the left")
    return real.sum(1).tolist()


def alike(width: list[int]) -> list[list[int]]:
    """Rows grouped so that none is padded to more than twice its width; rows without a token are in no group."""
    groups: dict[int, list[int]] = {}
    for row, n in enumerate(width):
        if n:
            groups.setdefault((n - 1).bit_length(), []).append(row)
    return [groups[k] for k in sorted(groups)]


def cut(width: list[int]) -> list[tuple[list[int], int, int]]:
    """(rows, from, to) of each rectangle: rows alike, at most PIECE tokens of each."""
    return [(rows, a, min(a + PIECE, top)) for rows in alike(width) for top in [max(width[r] for r in rows)] for a in range(0, top, PIECE)]


def pick(rows: list[int]) -> slice | Tensor:
    """An index for these rows: a view where they lie side by side, else a copy."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else torch.tensor(rows)


class NoCache:
    """Nothing is kept: the keys of a pass are its own tokens."""

    def stage(self, positions: Tensor, among: Tensor | None = None) -> Pass:
        b, t = positions.shape
        pieces = cut(widths(positions))
        rectangles = tuple(
            Rectangle(
                at,
                t,
                positions[at, lo:hi],
                positions[at],
                None if among is None else among[at, lo:hi],
                torch.arange(t, device=positions.device).expand(len(rows), t),
            )
            for rows, lo, hi in pieces
            for at in [pick(rows)]
        )
        return Pass(positions, rectangles, order_of(pieces, b, t, positions.device), store=self)

    def write(self, layer: int, tensors: tuple[Tensor, ...], flight: Pass) -> list[tuple[Tensor, ...]]:
        if flight.order is not None:  # spread the packed tokens over [B, T] again
            tensors = tuple(x.new_zeros(flight.queries.numel(), *x.shape[1:]).index_copy_(0, flight.order, x) for x in tensors)
        whole = [x.unflatten(0, tuple(flight.queries.shape)) for x in tensors]
        return [tuple(x[r.rows] for x in whole) for r in flight.rectangles]

    def reserve(self, row: int, first: int, last: int):
        if first > 0:
            raise ValueError(f"row {row}: tokens from position {first} on need those before them, and nothing is cached: use a cache, or ask for all")

    def keep(self, counts, path=None):
        pass

    def copy(self, src, dst):
        pass

    def release(self, row: int):
        pass


def order_of(pieces: list[tuple[list[int], int, int]], b: int, t: int, device) -> Tensor | None:
    """[N] flat indices into [b, t] in the order of the rectangles; None where that is how they stand."""
    if len(pieces) == 1 and pieces[0][1:] == (0, t) and len(pieces[0][0]) == b:
        return None
    return torch.cat(
        [(torch.tensor(rows)[:, None] * t + torch.arange(lo, hi)).flatten() for rows, lo, hi in pieces] or [torch.zeros(0, dtype=torch.long)]
    ).to(device)


class Raw:
    """How a number is stored: as it is. Another codec has the same three methods."""

    def make(self, slots: int, shape: tuple[int, int], dtype, device) -> tuple[Tensor, ...]:
        return (torch.zeros(slots, *shape, dtype=dtype, device=device),)

    def put(self, parts: tuple[Tensor, ...], into: Tensor, x: Tensor):
        parts[0].index_copy_(0, into, x.to(parts[0].dtype))

    def get(self, parts: tuple[Tensor, ...], view) -> Tensor:
        return view(parts[0])


class Cache:
    """Where the cells lie (`where`: a Slab, …) and how numbers are stored in them (`codec`: Raw, …), joined. Every cache is one of these.

    Positions, widths and tops are known to the host, so staging and keeping wait for no device.
    """

    def __init__(self, config, where, codec=None, dtype=torch.float32, device="cpu"):
        self.where, self.codec, self.rows, self.causal, self.device = where, codec or Raw(), where.rows, config.causal, torch.device(device)
        self.dtype = dtype
        self.layers = [[self.codec.make(where.slots, s, dtype, device) for s in config.kv_shapes(i)] for i in range(config.n_layers)]
        self.table = torch.full((where.rows, where.cells + 1), -1, device=device)  # the position each cell holds; padding falls into the last
        self.vocab_size = config.vocab_size
        self.top = [0] * where.rows  # one more than the highest index cached

    @property
    def bytes(self) -> int:
        """What the cache has allocated."""
        return sum(p.nbytes for layer in self.layers for parts in layer for p in parts)

    def stage(self, positions: Tensor, among: Tensor | None = None) -> Pass:
        """positions [B, T], on the host, with -1 for padding; among [B, T, T] rules on the tokens in flight (a tree, a block), default causal."""
        if positions.shape[0] != self.rows:
            raise ValueError(f"{positions.shape[0]} rows staged in a cache of {self.rows}: a row that has nothing to say is all padding (-1)")
        width, first = widths(positions), positions[:, 0].tolist()
        for row, (at, n) in enumerate(zip(first, width)):
            self.reserve(row, at, at + n)
        real, t = positions >= 0, positions.shape[1]
        cell = torch.where(real, self.where.cell(positions[:, :1] + torch.arange(t)), self.where.cells)
        row = torch.arange(self.rows)[:, None]
        self.first, self.width, self.cell, self.row = first, width, cell, row
        queries = positions.to(self.device, non_blocking=True)
        self.table[row.to(self.device), cell.to(self.device, non_blocking=True)] = queries
        self.top = [max(top, at + n) if n else top for top, at, n in zip(self.top, first, width)]
        pieces = [(list(range(self.rows)), 0, t)] if self.where.fixed else cut(width)
        order = order_of(pieces, self.rows, t, "cpu")
        slots = self.where.slot(row, cell).flatten()
        into = (slots if order is None else slots[order]).to(self.device, non_blocking=True)
        rectangles = tuple(self.rectangle(rows, lo, hi, queries, among) for rows, lo, hi in pieces)
        return Pass(queries, rectangles, None if order is None else order.to(self.device, non_blocking=True), into, self)

    def reserve(self, row: int, first: int, last: int):
        """Room for the indices from `first` to below `last`, or a ValueError."""
        if last > max(first, 0):
            self.where.reserve(row, first, last)

    def rectangle(self, rows, lo, hi, queries, among) -> Rectangle:
        at = pick(rows)
        causal = self.causal and among is None  # then nothing after a row's last query can be seen
        end = self.where.span(max(self.first[r] + hi if causal else self.top[r] for r in rows))
        columns = torch.where(self.cell < self.where.cells, self.cell, end)[at].to(self.device) if among is not None else None
        return Rectangle(at, end, queries[at, lo:hi], self.table[at, :end], None if among is None else among[at, lo:hi].to(self.device), columns)

    def write(self, layer: int, tensors: tuple[Tensor, ...], flight: Pass) -> list[tuple[Tensor, ...]]:
        stored = self.layers[layer]
        for parts, x in zip(stored, tensors):
            self.codec.put(parts, flight.into, x)
        return [tuple(self.codec.get(parts, lambda x, r=r: self.where.view(x, r.rows, r.end)) for parts in stored) for r in flight.rectangles]

    def keep(self, counts, path: Tensor | None = None):
        """Of row b's tokens in flight the first counts[b] stay, or the first counts[b] of path[b] (a way through a tree); the rest is gone."""
        counts, t = [int(n) for n in counts], self.cell.shape[1]
        if any(not 0 <= k <= n for k, n in zip(counts, self.width)):
            raise ValueError(f"{counts} tokens were to be kept of {self.width} in flight")
        if path is not None:
            self.follow(counts, path)
        if any(k < n for k, n in zip(counts, self.width)):
            gone = torch.where(torch.arange(t) >= torch.tensor(counts)[:, None], self.cell, self.where.cells)
            self.table[self.row.to(self.device), gone.to(self.device)] = -1
        for row, (at, n, k) in enumerate(zip(self.first, self.width, counts)):
            if n and self.top[row] == at + n:
                self.top[row] = at + k
                self.where.trim(row, at + k)

    def follow(self, counts: list[int], path: Tensor):
        """Move the tokens of a path to where it begins: after that they are a prefix like any other."""
        some = torch.arange(path.shape[1]) < torch.tensor(counts)[:, None]
        first = torch.tensor(self.first)[:, None]
        src = torch.where(some, self.where.cell(first + path), self.where.cells)
        dst = torch.where(some, self.where.cell(first + torch.arange(path.shape[1])), self.where.cells)
        self.move(self.where.slot(self.row, src).flatten(), self.where.slot(self.row, dst).flatten())
        row, src, dst = self.row.to(self.device), src.to(self.device), dst.to(self.device)
        self.table[row, dst] = self.table[row, src]

    def move(self, src: Tensor, dst: Tensor):
        src, dst = src.to(self.device), dst.to(self.device)
        for layer in self.layers:
            for parts in layer:
                for p in parts:
                    p[dst] = p[src]

    def copy(self, src: list[int], dst: list[int]):
        """Row dst[i] becomes what row src[i] was: forks and beams."""
        self.where.copy(src, dst, self)
        self.table[dst] = self.table[src]
        for d, top in zip(dst, [self.top[s] for s in src]):
            self.top[d] = top

    def held(self, row: int, top: int) -> Tensor:
        """The slots of a row's cells that can hold anything."""
        return self.where.slot(torch.tensor([[row]]), torch.arange(self.where.span(top))[None]).flatten().to(self.device)

    def save(self, row: int):
        """Everything the row holds, to be given to `load`."""
        slots = self.held(row, self.top[row])
        return [[[p[slots] for p in parts] for parts in layer] for layer in self.layers], self.table[row].clone(), self.top[row]

    def load(self, row: int, saved):
        layers, positions, top = saved
        self.where.reserve(row, 0, top)
        self.table[row], self.top[row], slots = positions, top, self.held(row, top)
        for mine, theirs in zip(self.layers, layers):
            for parts, kept in zip(mine, theirs):
                for p, x in zip(parts, kept):
                    p[slots] = x

    def release(self, row: int):
        """The row is empty, as if it had never been used."""
        self.where.trim(row, 0)
        self.table[row] = -1
        self.top[row] = 0
