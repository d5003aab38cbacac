"""The parts of a transformer on tiles: modules that stand for Linear, the feed-forward half, the embedding, the norm and the head.

PyTorch's CPU product reads the weights of a single token's pass at a fifth to a half of what memory gives, and knows no codes. These hand the
tiles to the loops of `gemv`. What stands beside a product and would cost a launch of its own (a norm before it, silu(gate) · up between two) is
computed inside it.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..weights.codes import Codes
from .quantize import QuantisedEmbedding, QuantisedLinear
from .tiles import Tiles, memory
from .transformer import Linear


@cache
def loops():
    """The compiled loops; imported late, because Numba takes a while and is optional.

    Where both use the same OpenMP, starting Numba's threads would also set PyTorch's number of them (measured on Linux), so that is put back.
    """
    import numba

    from . import gemv, layers

    threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(threads)
    return SimpleNamespace(linear=gemv.linear, mlp=gemv.mlp, rms_norm=gemv.rms_norm, through=layers.through)


def run(loop, *args):
    """Call a loop with arrays, on as many threads as PyTorch uses. The loop holds the interpreter's lock, so other threads wait: no two overlap."""
    import numba

    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    loop(*args)


def inferring(x: Tensor) -> Tensor:
    """x, of which no gradient is wanted, in one piece: a loop would not pass one on."""
    if x.requires_grad:
        raise RuntimeError("a tiled model only infers: train the model before tiled(model), or call it under torch.no_grad()")
    return x.contiguous()


def matrix(plain: Linear | QuantisedLinear) -> Tensor | Codes:
    return plain.matrix if isinstance(plain, QuantisedLinear) else plain.weight


def multiply(x: Tensor, tiles: Tiles, norm: nn.Module | None = None, bias: Tensor | None = None) -> Tensor:
    """norm(x [N, K]) · Wᵀ + bias -> [N, rows]."""
    y, (weight, eps) = x.new_empty(len(x), tiles.height), (norm.weight, norm.eps) if norm else (None, 0.0)
    run(loops().linear, memory(inferring(x)), memory(weight), eps, tiles.arrays(), memory(bias), memory(y))
    return y[:, : tiles.rows]


class TiledLinear(nn.Module):
    """Linear, and the norm before it if there is one."""

    def __init__(self, plain: Linear | QuantisedLinear, norm: nn.Module | None = None):
        super().__init__()
        self.norm, self.tiles, bias = norm, Tiles(matrix(plain)), plain.bias
        filled = self.tiles.height - self.tiles.rows  # of the last tile
        self.bias = None if bias is None else nn.Parameter(F.pad(bias.detach(), (0, filled)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.tiles, self.norm, self.bias)


class TiledMLP(nn.Module):
    """The feed-forward half of a block, norm included: one call, in which gate and up are never written out."""

    def __init__(self, plain: nn.Module, norm: nn.Module):
        super().__init__()
        both = matrix(plain.gate_up)
        half = both.shape[0] // 2
        parts = [both.part(rows) if isinstance(both, Codes) else both[rows] for rows in (slice(half), slice(half, None))]
        self.norm, self.gate_up, self.down = norm, Tiles(*parts), Tiles(matrix(plain.down))  # each part begins with a tile of its own

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_empty(len(x), self.down.height)
        run(loops().mlp, memory(inferring(x)), memory(self.norm.weight), self.norm.eps, self.gate_up.arrays(), self.down.arrays(), memory(y))
        return y[:, : self.down.rows]


class TiledNorm(nn.Module):
    """RMSNorm in one loop."""

    def __init__(self, plain: nn.Module):
        super().__init__()
        self.weight, self.eps = plain.weight, plain.eps

    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        run(loops().rms_norm, memory(inferring(x)), memory(self.weight), self.eps, memory(y))
        return y


class TiledEmbedding(nn.Module):
    """The embedding, reading its rows out of the tiles that the head multiplies by. Codes become float32."""

    def __init__(self, plain: nn.Embedding | QuantisedEmbedding):
        super().__init__()
        self.tiles = Tiles(plain.matrix if isinstance(plain, QuantisedEmbedding) else plain.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        low, high = (int(t) for t in tokens.aminmax()) if tokens.numel() else (0, 0)
        if low < 0 or high >= self.tiles.rows:  # the last tile may have room for ids that do not exist
            raise IndexError(f"token ids go from 0 to {self.tiles.rows - 1}, but there is {low if low < 0 else high}")
        return self.tiles.stacked(tokens.flatten()).unflatten(0, tokens.shape)


class TiledTiedHead(nn.Module):
    """TiedHead on the embedding's tiles."""

    def forward(self, x: Tensor, embed: TiledEmbedding) -> Tensor:
        return multiply(x, embed.tiles)
