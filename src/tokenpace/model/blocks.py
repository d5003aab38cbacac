"""All blocks of a tiled model behind one call: a pass of a small model would spend a good part of its time on coming back to Python between them.

`layers.through` takes the hidden states through every layer and reads and fills the cache as it lies, if that is a plain slab and few tokens of
each row look at few others. Passes of another kind go from block to block, on the same tiles.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..cache.protocol import Cache, Pass, Raw
from ..cache.slab import Slab
from .products import TiledLinear, TiledMLP, inferring, loops, run
from .tiles import Tiles, memory
from .transformer import Attention, Block, Blocks

PAIRS = 16_384  # of a row's tokens in flight with its keys; for more, PyTorch's fused attention is the faster one


class TiledBlock(torch.nn.Module):
    """A block on tiles, its norms inside the products that follow them; one half after the other, through any cache and codec."""

    def __init__(self, plain: Block):
        super().__init__()
        self.attention, self.mlp, a = plain.attention, TiledMLP(plain.mlp, plain.mlp_norm), plain.attention
        a.qkv, a.out = TiledLinear(a.qkv, plain.attention_norm), TiledLinear(a.out)

    def forward(self, x: Tensor, *where) -> Tensor:
        x = x + self.attention(x, *where)
        return x + self.mlp(x)

    def vectors(self) -> list[Tensor | None]:
        """What `layers.through` wants of a layer beside its matrices."""
        a, m = self.attention, self.mlp
        q_norm, k_norm = (None if n is None else n.weight for n in (a.q_norm, a.k_norm))
        return [a.qkv.norm.weight, a.qkv.bias, q_norm, k_norm, m.norm.weight]

    def matrices(self) -> list[Tiles]:
        return [self.attention.qkv.tiles, self.attention.out.tiles, self.mlp.gate_up, self.mlp.down]

    def weights(self) -> tuple:
        """Both, as arrays; of each matrix all that stands in its tiles."""
        return (*map(memory, self.vectors()), *(m.arrays() for m in self.matrices()))

    def kind(self) -> tuple:
        """What must be alike in all layers that one loop goes through."""
        a, norms = self.attention, (self.attention.qkv.norm, self.attention.q_norm, self.attention.k_norm, self.mlp.norm)
        return a.heads, a.d_head, {n.eps for n in norms if n is not None}, [(w.shape, w.dtype) for w in flat(self.weights())]


def flat(weights: tuple) -> list:
    return [array for some in weights for array in (some if isinstance(some, tuple) else (some,))]


class TiledBlocks(Blocks):
    """All blocks: passes of few tokens a row through a slab as it lies one call of one loop. Other passes go from block to block.

    Between layers numbers are float32 whatever the weights are: hidden states are a few kilobytes of a pass, and rounding them after every layer
    changes more tokens than rounding the weights does (course/results/NOTES.md).

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
        self.weights = [block.weights() for block in self] if self.alike else []  # holds them, too: nothing freed is ever read
        self.begin = torch.tensor([[w.ctypes.data for w in flat(layer)] for layer in self.weights], dtype=torch.long).numpy()
        self.asked = [block.attention.qkv.tiles.numbers for block in self] if self.alike else []
        self.stood = [w.data_ptr() for w in self.asked]

    @property
    def in_one(self) -> bool:
        """Can one loop stand for them? Not if they are unlike, or if somebody wants to hear of each."""
        blocks = self._modules.values()
        if self.stood != [w.data_ptr() for w in self.asked]:
            self.look()
        return self.alike and len(blocks) == len(self.known) and all(a is b and not a._forward_hooks for a, b in zip(blocks, self.known))

    def forward(self, x: Tensor, flight: Pass, turns: tuple[Tensor, Tensor], biases: list[Tensor], exit_at: int | None = None) -> Tensor:
        x, biases = inferring(x).float(), [bias.float() for bias in biases]
        if not self.in_one or (slab := plain_slab(flight)) is None or not slab.fits(self[0].attention, len(self)):
            return super().forward(x, flight, turns, biases, exit_at)
        x, attention = x.clone(), self[0].attention
        cos, sin, into, bias = (memory(t) for t in (*turns, flight.into, biases[0]))
        layers = self.weights[0], self.begin[:exit_at], slab.first, slab.begin, attention.heads[0], attention.qkv.norm.eps
        run(loops().through, memory(x), *layers, cos, sin, into, flight.rectangles[0].rows.start, slab.stride, bias)
        return x


def look_again(blocks: TiledBlocks, _) -> None:
    blocks.look()


class PlainSlab:
    """Where a cache keeps its numbers, if those are plain numbers in a slab: what the attention loop understands."""

    def __init__(self, cache: Cache):
        parts = [[part for (part,) in layer] for layer in cache.layers]
        self.shapes, self.stride = {part.shape for layer in parts for part in layer}, cache.where.cells + 1
        self.first, self.begin = tuple(map(memory, parts[0])), torch.tensor([[part.data_ptr() for part in layer] for layer in parts]).numpy()

    def fits(self, attention: Attention, n_layers: int) -> bool:
        """Has the cache the heads and layers of this model?"""
        return len(self.begin) == n_layers and self.shapes == {(self.first[0].shape[0], attention.heads[1], attention.d_head)}


SLABS: WeakKeyDictionary[Cache, PlainSlab] = WeakKeyDictionary()  # a cache never moves


def pairs(flight: Pass) -> int:
    """How many (query, key) each row of the first rectangle has."""
    first = flight.rectangles[0]
    return first.queries.shape[1] * first.end


def plain_slab(flight: Pass) -> PlainSlab | None:
    """The slab of a pass that the attention loop understands: one rectangle of neighbouring rows, few pairs in each."""
    cache, shapes = flight.store, flight.rectangles
    if type(cache) is not Cache or len(shapes) != 1 or not isinstance(shapes[0].rows, slice) or pairs(flight) > PAIRS:
        return None
    if cache not in SLABS and type(cache.where) is Slab and type(cache.codec) is Raw and cache.dtype in (torch.float32, torch.bfloat16):
        SLABS[cache] = PlainSlab(cache)
    return SLABS.get(cache)
