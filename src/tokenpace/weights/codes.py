"""Fewer bytes for the same weights: codes of 8 or 4 bits, and a scale for each group of them.

A decode step takes as long as its weights take to be read, and a weight needs no 16 bits to be useful. Each row of a matrix is cut into groups
of columns; a group keeps whole numbers of few bits, `codes`, what they have to be multiplied by and, if lopsided, what is added:
W = scale · code + low.

    Int8()      one group a row: 8.03 bits a weight where a row has 576, error up to scale/2 (Dettmers et al. 2022, LLM.int8(), section 2, absmax)
    Int4()      groups of 32, each from its own lowest to its own highest value: 5 bits a weight
    gguf        the blocks of a GGUF file as they are: Q8_0, Q4_0, Q4_1

What stands here is meant to be read: it multiplies by numbers made of the codes, which moves more bytes than it saves. `model.kernels.tiled` runs
the same codes as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = 16  # of a group of 32: column i and column i + 16 share a byte


def pack(codes: Tensor) -> Tensor:
    """Codes 0…15, uint8 [R, K], K a multiple of 32 -> two in a byte, [R, K/2]: column i of a group in the lower half, column i + 16 in the upper.

    >>> pack(torch.arange(32, dtype=torch.uint8)[None] % 16)[0, :3].tolist()
    [0, 17, 34]
    """
    lower, upper = codes.unflatten(1, (-1, 2, HALF)).unbind(2)
    return (lower | upper << 4).flatten(1)


def unpack(bytes_: Tensor) -> Tensor:
    """The other way round: [R, K/2] -> [R, K]."""
    pairs = bytes_.unflatten(1, (-1, HALF))
    return torch.stack([pairs & 15, pairs >> 4], 2).flatten(1)


def bits(x: Tensor) -> Tensor:
    """Floats as whole numbers of the same bits, so that no change of a model's dtype touches them. Bits stay as they are."""
    kinds = {torch.float16: torch.int16, torch.float32: torch.int32}
    return x.contiguous().view(kinds.get(x.dtype, x.dtype))


def number(x: Tensor) -> Tensor:
    """The floats of such bits, in fp32."""
    return x.view(torch.float16 if x.dtype == torch.int16 else torch.float32).float()


def decoded(codes: Tensor, scale: Tensor, low: Tensor | None = None) -> Tensor:
    """The numbers that codes stand for, fp32 [R, K]; each as in `Codes`, scales as bits."""
    whole, scale = (codes if codes.dtype == torch.int8 else unpack(codes)).float(), number(scale)[..., None]
    if codes.dtype == torch.uint8 and low is None:
        whole = whole - 8
    whole = whole.unflatten(1, (scale.shape[1], -1)) * scale
    return (whole if low is None else whole + number(low)[..., None]).flatten(1)


class Codes(nn.Module):
    """A matrix [R, columns] in 8 or 4 bits.

    codes: int8 [R, K], or 4 bits packed as by `pack`, uint8 [R, K/2]; K is `columns`, rounded up to whole groups. scale [R, G] and, for 4 bits that
    count from a lowest value, low [R, G], float32 or float16 (or the bits of such). 4 bits without `low` count around 8: W = scale · (code - 8).
    """

    def __init__(self, codes: Tensor, scale: Tensor, low: Tensor | None = None, columns: int | None = None):
        super().__init__()
        self.bits = 8 if codes.dtype == torch.int8 else 4
        self.columns = codes.shape[1] * 8 // self.bits if columns is None else columns
        self.register_buffer("codes", codes)
        self.register_buffer("scale_bits", bits(scale))
        self.register_buffer("low_bits", None if low is None else bits(low))

    def scales(self) -> list[Tensor]:
        """What is kept of each group, as bits: the scale and, if there is one, the lowest value."""
        return [self.scale_bits] if self.low_bits is None else [self.scale_bits, self.low_bits]

    def part(self, rows: slice | Tensor) -> Codes:
        """Some of its rows."""
        return Codes(self.codes[rows], *(s[rows] for s in self.scales()), columns=self.columns)

    @property
    def kind(self) -> tuple:
        """What two matrices have in common that can be put below each other."""
        return self.bits, self.columns, *((s.dtype, s.shape[1]) for s in self.scales())

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.columns

    @property
    def nbytes(self) -> int:
        """All that a pass has to read of it."""
        return sum(b.nbytes for b in self.buffers())

    def numbers(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix as numbers: computed in fp32, rounded once."""
        return decoded(self.codes, *self.scales())[:, : self.columns].to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, columns] · Wᵀ -> [N, R]."""
        if self.bits == 8 and self.scale_bits.shape[1] == 1:  # one scale a row can wait until the sum is there
            return F.linear(x, self.codes[:, : self.columns].to(x.dtype)) * number(self.scale_bits)[:, 0].to(x.dtype)
        return F.linear(x, self.numbers(dtype=x.dtype))


def below(parts: list[Codes]) -> Codes:
    """Matrices of one kind, one below the other."""
    return Codes(*(torch.cat(some) for some in zip(*([p.codes, *p.scales()] for p in parts))), columns=parts[0].columns)


def _refuse(weight: Tensor) -> None:
    if not torch.isfinite(weight).all():
        raise ValueError(
            f"a weight of shape {tuple(weight.shape)} holds NaN or infinity, which no code stands for: mend the checkpoint, or load it unquantised"
        )


@dataclass(frozen=True)
class Int8:
    """8 bits, one scale a row: the row's largest value is 127. `size`: bytes that a weight comes to, about.

    >>> w = torch.tensor([[0.0, 127.0, -63.5], [0.0, 0.0, 0.0]])
    >>> Int8()(w).numbers().tolist()
    [[0.0, 127.0, -64.0], [0.0, 0.0, 0.0]]
    """

    size = 1.01

    def __call__(self, weight: Tensor) -> Codes:
        _refuse(weight)
        w = weight.float()
        scale = w.abs().amax(1, keepdim=True) / 127
        codes = torch.where(scale > 0, w / scale, 0.0).round().clamp(-127, 127)  # a scale below the smallest normal number may divide to more
        return Codes(codes.to(torch.int8), scale)


@dataclass(frozen=True)
class Int4:
    """4 bits in groups of 32 columns, from the group's lowest value in 15 equal steps to its highest.

    The scale is rounded to fp16 before the codes are chosen, and the last group is filled up with zeros, which count for nothing.
    """

    size = 0.63

    def __call__(self, weight: Tensor) -> Codes:
        _refuse(weight)
        groups = F.pad(weight.float(), (0, -weight.shape[1] % 32)).unflatten(1, (-1, 32))
        limit = torch.finfo(torch.float16).max
        low, high = groups.amin(2).clamp(-limit, limit).half(), groups.amax(2)
        scale = ((high - low.float()) / 15).clamp(max=limit).half()
        step = scale.float()[..., None]
        codes = torch.where(step > 0, (groups - low.float()[..., None]) / step, 0.0).round().clamp(0, 15)
        return Codes(pack(codes.to(torch.uint8).flatten(1)), scale, low, weight.shape[1])


SCHEMES = {"int8": Int8(), "int4": Int4()}
