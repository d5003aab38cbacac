"""The simplest place for a row's cells: side by side, as many as it may ever need. What each holds is the cache's business, not the slab's."""

from __future__ import annotations

import torch
from torch import Tensor


class Slab:
    """rows × capacity cells. Growing (default): a pass looks at the cells in use. fixed: always at all of them, so that shapes and addresses never
    change, which graphs and compiled code need.
    """

    def __init__(self, rows: int, capacity: int, fixed: bool = False):
        if rows < 1 or capacity < 1:
            raise ValueError(f"a slab of {rows} rows × {capacity} cells holds nothing: both must be at least 1")
        self.rows, self.cells, self.fixed = rows, capacity, fixed
        self.slots = rows * (capacity + 1)  # the last cell of a row takes padding

    def cell(self, index: Tensor) -> Tensor:
        return index

    def slot(self, row: Tensor, cell: Tensor) -> Tensor:
        return row * (self.cells + 1) + cell

    def span(self, last: int) -> int:
        """How many cells one must look at to see every index below `last`."""
        return self.cells if self.fixed else min(last, self.cells)

    def reserve(self, row: int, first: int, last: int):
        if last > self.cells:
            raise ValueError(f"row {row}: tokens up to {last} do not fit into a cache of {self.cells} per row; make it larger or the text shorter")

    def trim(self, row: int, end: int):
        pass

    def view(self, x: Tensor, rows, end: int) -> Tensor:
        return x.view(self.rows, self.cells + 1, *x.shape[1:])[rows, :end]

    def copy(self, src: list[int], dst: list[int], cache):
        cells = torch.arange(self.span(max(cache.top[s] for s in src)))
        cache.move(self.slot(torch.tensor(src)[:, None], cells).flatten(), self.slot(torch.tensor(dst)[:, None], cells).flatten())
