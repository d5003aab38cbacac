"""Narrow passes at the speed of memory: a transformation of a finished model, for one to a few tokens per pass on a CPU.

The transformer leaves its matrix products to PyTorch, whose CPU kernels read the weights of a single token's pass at a fifth to a half of what
memory gives. `tiled` moves the same weights into tiles of 64 rows (see `gemv`), where narrow passes read them at that speed; wide passes
multiply by the same tiles in PyTorch, so there is no second copy. What stands beside a product and would cost a launch of its own (a norm
before it, silu(gate) · up between two) is computed inside.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.protocol import Cache, Pass, Raw
from ..cache.slab import Slab
from .transformer import Attention, Block, Blocks, Linear, TiedHead, rms_norm, swiglu

NARROW = 8  # tokens; with more, PyTorch's product of many rows is the faster one


def tiled(model: nn.Module) -> nn.Module:
    """The same Transformer with its weights in tiles. It is changed in place; where that cannot be (`why_not` says why) it is left as it was.

    For inference only. Loops are compiled on first use, a few seconds, and kept on disk (NUMBA_CACHE_DIR says where, if it is set).

    >>> from tokenpace.config import ModelConfig
    >>> from tokenpace.model.transformer import Transformer
    >>> model, tokens = Transformer(ModelConfig(97, 32, 2, 4, 2, 8, 64)), torch.tensor([[5, 9, 2]])
    >>> with torch.no_grad():
    ...     plain = model(tokens)
    ...     torch.allclose(tiled(model)(tokens), plain, atol=1e-5)
    True
    """
    if why_not(model) is None:
        model.blocks, model.norm = TiledBlocks(model.blocks), TiledNorm(model.norm)
        if isinstance(model.head, TiedHead):
            model.embed, model.head = TiledEmbedding(model.embed), TiledTiedHead()
        else:
            model.head = TiledLinear(model.head)
    return model


def why_not(model: nn.Module) -> str | None:
    """Why `tiled` would leave this model as it is, in a sentence for `doctor`; None if it would not."""
    if find_spec("numba") is None:
        return "Numba is not installed, so narrow passes use PyTorch's matrix product: pip install numba"
    if any(isinstance(m, TiledMLP) for m in model.modules()):
        return "the model is tiled already"
    kinds = {(p.device.type, p.dtype) for p in model.parameters()}
    if len(kinds) > 1 or not kinds <= {("cpu", torch.float32), ("cpu", torch.bfloat16)}:
        found = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds)).replace("torch.", "")
        return f"the tiled kernels take float32 or bfloat16 weights on a CPU, all of one kind; these are {found}"
    products = [p for b in model.blocks for p in (b.attention.qkv, b.attention.out, b.mlp.gate_up, b.mlp.down)] + [model.head]
    strange = [type(p).__name__ for p in products if type(p) not in (Linear, TiedHead)]
    return f"the tiled kernels replace Linear, but this model has {strange[0]}: tile it before other transformations" if strange else None


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
    return SimpleNamespace(TILE=gemv.TILE, linear=gemv.linear, mlp=gemv.mlp, rms_norm=gemv.rms_norm, through=layers.through)


def run(loop, *args):
    """Call a loop with arrays, on as many threads as PyTorch uses. The loop holds the interpreter's lock, so other threads wait: no two overlap."""
    import numba

    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    loop(*args)


def array(x: Tensor | None):
    """The tensor's memory as a NumPy array, empty for None; NumPy has no bfloat16, so its bits go as uint16."""
    x = torch.empty(0) if x is None else x.detach()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


def tile(weight: Tensor) -> nn.Parameter:
    """[R, K] -> [R/64, K/2, 2, 64], both rounded up with zeros: `gemv`'s layout."""
    size = loops().TILE
    w, missing = weight.detach(), (0, -weight.shape[1] % 2, 0, -weight.shape[0] % size)
    w = F.pad(w, missing) if any(missing) else w  # which copies
    w = w.unflatten(0, (-1, size)).transpose(1, 2).contiguous()
    return nn.Parameter(w.unflatten(1, (-1, 2)), requires_grad=False)


def product(x: Tensor, tiles: Tensor) -> Tensor:
    """x [N, K] · Wᵀ for many tokens, on the tiles as they lie: [N, R], R rounded up to whole tiles.

    PyTorch takes a tile as one matrix [K, 64] of a batch. In pieces, so that what it returns, tile by tile, is still in cache when it is put in rows.
    """
    w = tiles.flatten(1, 2)
    x = F.pad(x, (0, w.shape[1] - x.shape[1]))
    y = x.new_empty(len(x), len(w), w.shape[2])
    for n in range(0, len(x), 256):
        some = x[n : n + 256]
        for t in range(0, len(w), 16):
            part = w[t : t + 16]
            y[n : n + 256, t : t + 16] = torch.bmm(some.expand(len(part), -1, -1), part).transpose(0, 1)
    return y.flatten(1)


def few(x: Tensor) -> bool:
    """Is this a narrow pass?"""
    if x.requires_grad:
        raise RuntimeError("a tiled model only infers: train the model before tiled(model), or call it under torch.no_grad()")
    return 0 < len(x) <= NARROW


def multiply(x: Tensor, tiles: Tensor, norm: nn.Module | None = None, bias: Tensor | None = None) -> Tensor:
    """norm(x [N, K]) · Wᵀ + bias -> [N, R], R rounded up to whole tiles, for few tokens."""
    y, (weight, eps) = x.new_empty(len(x), tiles.shape[0] * tiles.shape[3]), (norm.weight, norm.eps) if norm else (None, 0.0)
    run(loops().linear, array(x.contiguous()), array(weight), eps, array(tiles), array(bias), array(y))
    return y


class TiledLinear(nn.Module):
    """Linear, and the norm before it if there is one."""

    def __init__(self, plain: Linear, norm: nn.Module | None = None):
        super().__init__()
        self.rows, self.norm, self.weight = plain.out_features, norm, tile(plain.weight)
        filled = len(self.weight) * self.weight.shape[3] - self.rows  # of the last tile
        self.bias = None if plain.bias is None else nn.Parameter(F.pad(plain.bias.detach(), (0, filled)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if few(x):
            return multiply(x, self.weight, self.norm, self.bias)[:, : self.rows]
        y = product(x if self.norm is None else self.norm(x), self.weight)
        return (y if self.bias is None else y + self.bias)[:, : self.rows]


class TiledMLP(nn.Module):
    """The feed-forward half of a block, norm included: on narrow passes one call, in which gate and up are never written out."""

    def __init__(self, plain: nn.Module, norm: nn.Module):
        super().__init__()
        gate, up = plain.gate_up.weight.chunk(2)
        self.norm, self.rows, self.down = norm, plain.down.out_features, tile(plain.down.weight)
        self.gate_up = nn.Parameter(torch.stack([tile(gate), tile(up)]), requires_grad=False)  # so that a tile of each belongs together

    def forward(self, x: Tensor) -> Tensor:
        if few(x):
            y = x.new_empty(len(x), self.down.shape[0] * self.down.shape[3])
            run(loops().mlp, array(x.contiguous()), array(self.norm.weight), self.norm.eps, array(self.gate_up), array(self.down), array(y))
        else:
            h = swiglu(product(self.norm(x), self.gate_up.flatten(0, 1)))
            y = product(h[:, : 2 * self.down.shape[1]], self.down)
        return y[:, : self.rows]


class TiledBlock(nn.Module):
    """A block on tiles, its norms inside the products that follow them; one half after the other, through any cache and codec."""

    def __init__(self, plain: Block):
        super().__init__()
        self.attention, self.mlp, a = plain.attention, TiledMLP(plain.mlp, plain.mlp_norm), plain.attention
        a.qkv, a.out = TiledLinear(a.qkv, plain.attention_norm), TiledLinear(a.out)

    def forward(self, x: Tensor, *where) -> Tensor:
        x = x + self.attention(x, *where)
        return x + self.mlp(x)

    def weights(self) -> list[Tensor]:
        """What `layers.through` wants of a layer; where there is none, an empty one."""
        a, m, none = self.attention, self.mlp, torch.empty(0)
        q_norm, k_norm = (none if n is None else n.weight for n in (a.q_norm, a.k_norm))
        bias = none if a.qkv.bias is None else a.qkv.bias
        return [a.qkv.norm.weight, a.qkv.weight, bias, q_norm, k_norm, a.out.weight, none, m.norm.weight, m.gate_up, m.down]

    def kind(self) -> tuple:
        """What must be alike in all layers that one loop goes through."""
        a, norms = self.attention, (self.attention.qkv.norm, self.attention.q_norm, self.attention.k_norm, self.mlp.norm)
        return a.heads, a.d_head, {n.eps for n in norms if n is not None}, [(w.shape, w.dtype) for w in self.weights()]


class TiledBlocks(Blocks):
    """All blocks: on narrow passes through a slab as it lies one call of one loop. Other passes go from block to block.

    The loop is told where in memory the weights of each layer begin. To ask all tensors in every pass could be felt, so they are asked once, and one
    of each layer is asked each time whether it is still where it was.
    """

    def __init__(self, blocks):
        super().__init__(block if isinstance(block, TiledBlock) else TiledBlock(block) for block in blocks)
        self.register_load_state_dict_post_hook(look_again)
        self.look()

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("known", "weights", "begin", "asked", "stood")}

    def __setstate__(self, state):  # of a copy, or of one that comes from another process
        super().__setstate__(state)
        self.look()

    def look(self) -> None:
        """Find the weights, again after they may have been exchanged for others."""
        self.known, kinds = list(self._modules.values()), [block.kind() for block in self if isinstance(block, TiledBlock)]
        self.alike = 0 < len(kinds) == len(self.known) and all(kind == kinds[0] for kind in kinds) and len(kinds[0][2]) == 1
        self.weights = [[array(w) for w in block.weights()] for block in self] if self.alike else []  # holds them, too: nothing freed is ever read
        self.begin = torch.tensor([[w.ctypes.data for w in layer] for layer in self.weights], dtype=torch.long).numpy()
        self.asked = [block.attention.qkv.weight for block in self] if self.alike else []
        self.stood = [w.data_ptr() for w in self.asked]

    @property
    def in_one(self) -> bool:
        """Can one loop stand for them? Not if they are unlike, or if somebody wants to hear of each."""
        blocks = self._modules.values()
        if self.stood != [w.data_ptr() for w in self.asked]:
            self.look()
        return self.alike and len(blocks) == len(self.known) and all(a is b and not a._forward_hooks for a, b in zip(blocks, self.known))

    def forward(self, x: Tensor, flight: Pass, turns: tuple[Tensor, Tensor], biases: list[Tensor], exit_at: int | None = None) -> Tensor:
        if not few(x) or not self.in_one or (slab := plain_slab(flight)) is None or not slab.fits(self[0].attention, len(self)):
            return super().forward(x, flight, turns, biases, exit_at)
        x, attention = x.clone(memory_format=torch.contiguous_format), self[0].attention
        cos, sin, into, bias = (array(t) for t in (*turns, flight.into, biases[0]))
        layers = tuple(self.weights[0]), self.begin[:exit_at], slab.first, slab.begin, attention.heads[0], attention.qkv.norm.eps
        run(loops().through, array(x), *layers, cos, sin, into, flight.rectangles[0].rows.start, slab.stride, bias)
        return x


def look_again(blocks: TiledBlocks, _) -> None:
    blocks.look()


class TiledNorm(nn.Module):
    """RMSNorm in one loop."""

    def __init__(self, plain: nn.Module):
        super().__init__()
        self.weight, self.eps = plain.weight, plain.eps

    def forward(self, x: Tensor) -> Tensor:
        if not few(x):
            return rms_norm(x, self.weight, self.eps)
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        loops().rms_norm(array(x.contiguous()), array(self.weight), self.eps, array(y))
        return y


class PlainSlab:
    """Where a cache keeps its numbers, if those are plain numbers in a slab: what the attention loop understands."""

    def __init__(self, cache: Cache):
        parts = [[part for (part,) in layer] for layer in cache.layers]
        self.shapes, self.stride = {part.shape for layer in parts for part in layer}, cache.where.cells + 1
        self.first, self.begin = tuple(map(array, parts[0])), torch.tensor([[part.data_ptr() for part in layer] for layer in parts]).numpy()

    def fits(self, attention: Attention, n_layers: int) -> bool:
        """Has the cache the heads and layers of this model?"""
        return len(self.begin) == n_layers and self.shapes == {(self.first[0].shape[0], attention.heads[1], attention.d_head)}


SLABS: WeakKeyDictionary[Cache, PlainSlab] = WeakKeyDictionary()  # a cache never moves


def plain_slab(flight: Pass) -> PlainSlab | None:
    """The slab of a pass that the attention loop understands: one rectangle of neighbouring rows."""
    cache = flight.store
    if type(cache) is not Cache or len(flight.rectangles) > 1 or not isinstance(flight.rectangles[0].rows, slice):
        return None
    if cache not in SLABS and type(cache.where) is Slab and type(cache.codec) is Raw and cache.dtype in (torch.float32, torch.bfloat16):
        SLABS[cache] = PlainSlab(cache)
    return SLABS.get(cache)


class TiledEmbedding(nn.Module):
    """nn.Embedding, reading its rows out of the tiles that the head multiplies by."""

    def __init__(self, plain: nn.Embedding):
        super().__init__()
        self.rows, self.columns, self.weight = plain.num_embeddings, plain.embedding_dim, tile(plain.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        some, size = tokens.numel() <= NARROW, self.weight.shape[3]
        ids = tokens.flatten().tolist() if some else [int(t) for t in tokens.aminmax()]
        low, high = min(ids, default=0), max(ids, default=0)
        if low < 0 or high >= self.rows:  # the last tile may have room for ids that do not exist
            raise IndexError(f"token ids go from 0 to {self.rows - 1}, but there is {low if low < 0 else high}")
        if ids and some:  # views, and one copy
            return torch.stack([self.weight[i // size, :, :, i % size].flatten()[: self.columns] for i in ids]).unflatten(0, tokens.shape)
        return self.weight[tokens // size, :, :, tokens % size].flatten(-2)[..., : self.columns]


class TiledTiedHead(nn.Module):
    """TiedHead on the embedding's tiles."""

    def forward(self, x: Tensor, embed: TiledEmbedding) -> Tensor:
        return (multiply(x, embed.weight) if few(x) else product(x, embed.weight))[:, : embed.rows]
