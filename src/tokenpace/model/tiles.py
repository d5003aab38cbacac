"""A matrix cut into tiles: the same numbers or codes, laid out so that the loops of `gemv` read them from the first byte to the last.

A matrix product reads row after row; a core wants 64 rows at once, one number of each beside the other. `formats` says what a tile holds.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..weights.codes import Codes, decoded

TILE = 64  # rows


def side_by_side(x: Tensor) -> Tensor:
    """[R, …] -> [R/64, …, 64], R rounded up with zeros."""
    x = F.pad(x, (*[0] * (2 * x.dim() - 1), -len(x) % TILE)) if len(x) % TILE else x  # which copies
    return x.unflatten(0, (-1, TILE)).movedim(1, -1).contiguous()


def row_by_row(x: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
    """The other way round: all rows, or some, [R, …]."""
    if isinstance(rows, slice):
        return x.movedim(-1, 1).flatten(0, 1)[rows]
    return x[rows // TILE, ..., rows % TILE]


def floats(weight: Tensor) -> Tensor:
    """[R, K] -> [R/64, K, 64], or for bfloat16 [R/64, K/2, 64, 2]: both columns of a pair side by side."""
    if weight.dtype != torch.bfloat16:
        return side_by_side(weight)
    pairs = F.pad(weight, (0, weight.shape[1] % 2)).contiguous().view(torch.int32)
    return side_by_side(pairs).unsqueeze(-1).view(torch.bfloat16)


def rows_of_floats(tiles: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
    """The other way round: all rows, or some, [R, K]."""
    if tiles.dtype != torch.bfloat16:
        return row_by_row(tiles, rows)
    return row_by_row(tiles.view(torch.int32).squeeze(-1), rows).contiguous().view(torch.bfloat16)


def coded(m: Codes) -> tuple[Tensor, ...]:
    """Codes, and what belongs to each of their groups: int8 [R/64, K, 64] or four bytes a word [R/64, G, 4, 64], then [R/64, G, 64] each."""
    codes = m.codes if m.bits == 8 else m.codes.contiguous().view(torch.int32).unflatten(1, (-1, 4))
    return tuple(map(side_by_side, (codes, *m.scales())))


def memory(x: Tensor | None) -> np.ndarray:
    """The tensor's memory as a NumPy array, empty for None; NumPy has no bfloat16, so its bits go as uint16."""
    x = torch.empty(0) if x is None else x.detach()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


class Tiles(nn.Module):
    """A matrix [R, K] in tiles, or several below each other, each from a tile of its own on: `rows` are theirs without what fills tiles up.

    matrices: floats, or Codes. `numbers` has what `floats` or `coded` makes of them, `scale` and `low` what stands beside codes, as its bits.
    """

    def __init__(self, *matrices: Tensor | Codes):
        super().__init__()
        self.rows, self.columns = sum(m.shape[0] for m in matrices), matrices[0].shape[1]
        parts = [coded(m) if isinstance(m, Codes) else (floats(m.detach()),) for m in matrices]
        joined = [p[0] if len(p) == 1 else torch.cat(p) for p in zip(*parts, strict=True)]
        for name, part in zip(("numbers", "scale", "low"), joined):
            self.register_parameter(name, nn.Parameter(part, requires_grad=False))

    def _apply(self, fn, recurse=True):
        """To another dtype: floats lie otherwise in it."""
        before = self.numbers.detach()
        super()._apply(fn, recurse)
        if self.numbers.dtype != before.dtype:
            self.numbers = nn.Parameter(floats(fn(rows_of_floats(before))), requires_grad=False)
        return self

    @property
    def height(self) -> int:
        """Rows, rounded up to whole tiles: as many numbers as a product with it gives."""
        return len(self.numbers) * TILE

    def stacked(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Some rows [n, K] as numbers, counted with what fills the tiles up; of codes in float32."""
        if self.numbers.is_floating_point():
            return rows_of_floats(self.numbers, rows)[:, : self.columns]
        codes, *scales = (row_by_row(part, rows).contiguous() for part in self._parameters.values())
        codes = codes.flatten(1).view(torch.uint8) if codes.dtype == torch.int32 else codes
        return decoded(codes, *scales)[:, : self.columns]

    def arrays(self) -> tuple[np.ndarray, ...]:
        """What the loops take: the same memory in the types of `formats`."""
        first, *scales = map(memory, self._parameters.values())
        if first.dtype == np.uint16:
            first = first.view(np.uint32)[..., 0]
        return (first.view(np.uint32) if first.dtype == np.int32 else first, *scales)
