"""How weights lie in a tile, and for each such format the one loop that multiplies it: bytes come from memory once and leave a core as sums.

A decode step moves every weight's bytes, so half the bytes is half the time, if the core can make numbers of them as fast as they come.
`weights` is a tuple of arrays whose types say which format it is; t counts tiles of 64 rows, always the last dimension.

    float32          (tiles [t, K, 64],)
    bfloat16         (tiles uint32 [t, K/2, 64],)                      two columns in one word, the first in its lower half
    8 bits           (codes int8 [t, K, 64], scale [t, G, 64])         W = scale · code; a group is K/G columns, scale float32 or float16
    4 bits           (codes uint32 [t, G, 4, 64], scale, low)          W = scale · code + low; 32 columns a group, scale and low float16
    4 bits around 0  (codes uint32 [t, G, 4, 64], scale)               W = scale · (code - 8)

Four bits lie as in a block of llama.cpp's Q4_0 and Q4_1: byte i of a group has column i in its lower half and column i + 16 in its upper one.
`weights.codes` has the same formats in three readable lines; tests hold them equal.
"""

from __future__ import annotations

import numpy as np
from numba import prange, types
from numba.extending import overload

from .jit import F32, OPTIONS, jit
from .lanes import AT_ONCE, field, none_of, ones, plus, plus_pair, plus_scaled, rows, words

GROUP = 32  # columns of a 4-bit group
FEW = 16  # tokens: waking the other threads costs as much as a few rows
LOWER, UPPER = 0x43000000, 0x45000000  # the float32 128 and 2048: a code set into their last bits gives 128 + code, 2048 + code


def kind(weights) -> str:
    """The format's name, from the Numba types of its arrays."""
    first = weights[0]
    if first.dtype == types.float32:
        return "float32"
    if first.dtype == types.int8:
        return "8 bits"
    return "bfloat16" if first.ndim == 3 else "4 bits" if len(weights) == 3 else "4 bits around 0"


def product(sums, weights, t, x, groups, n):
    """sums + x · Wᵀ of tile t, for tokens n and after. x from `room`, groups from `of_groups`."""


@overload(product, jit_options=OPTIONS)
def _product(sums, weights, t, x, groups, n):
    def float32(sums, weights, t, x, groups, n):
        tile = weights[0][t]
        for k in range(tile.shape[0]):
            sums = plus(sums, rows(tile[k]), x, n, k)
        return sums

    def bfloat16(sums, weights, t, x, groups, n):
        tile = weights[0][t]
        for q in range(tile.shape[0]):
            sums = plus_pair(sums, words(tile[q]), x, n, q)
        return sums

    def eight(sums, weights, t, x, groups, n):
        tile, scale = weights[0][t], weights[1][t]
        size = tile.shape[0] // scale.shape[0]
        for g in range(scale.shape[0]):
            part = none_of(sums)
            for k in range(g * size, g * size + size):
                part = plus(part, rows(tile[k]), x, n, k)
            sums = plus_scaled(sums, rows(scale[g]), part)
        return sums

    def around_zero(sums, weights, t, x, groups, n):
        tile, scale = weights[0][t], weights[1][t]
        for g in range(scale.shape[0]):
            sums = plus_scaled(sums, rows(scale[g]), four_bits(none_of(sums), tile[g], x, groups, n, g))
        return sums

    def four(sums, weights, t, x, groups, n):
        tile, scale, low = weights[0][t], weights[1][t], weights[2][t]
        for g in range(scale.shape[0]):
            sums = plus_scaled(sums, rows(scale[g]), four_bits(none_of(sums), tile[g], x, groups, n, g))
            sums = plus(sums, rows(low[g]), groups[1], n, g)
        return sums

    formats = {"float32": float32, "bfloat16": bfloat16, "8 bits": eight, "4 bits": four, "4 bits around 0": around_zero}
    return formats[kind(weights)]


@jit(forceinline=True)
def four_bits(part, codes, x, groups, n, g):
    """part + x · code over the columns of group g. What each code was set into is taken off beforehand, by groups[0]: a code needs no conversion."""
    part = plus(part, ones(), groups[0], n, g)
    for i in range(4):
        word, k = words(codes[i]), g * 32 + i * 4
        part = plus(part, field(word, 16, 0x000F0000, LOWER), x, n, k)
        part = plus(part, field(word, 8, 0x000F0000, LOWER), x, n, k + 1)
        part = plus(part, field(word, 0, 0x000F0000, LOWER), x, n, k + 2)
        part = plus(part, field(word, -8, 0x000F0000, LOWER), x, n, k + 3)
        part = plus(part, field(word, 8, 0x0000F000, UPPER), x, n, k + 16)
        part = plus(part, field(word, 0, 0x0000F000, UPPER), x, n, k + 17)
        part = plus(part, field(word, -8, 0x0000F000, UPPER), x, n, k + 18)
        part = plus(part, field(word, -16, 0x0000F000, UPPER), x, n, k + 19)
    return part


@jit(forceinline=True)
def padded(tokens):
    """Tokens, rounded up so that the last AT_ONCE of them can be taken together; one stays alone."""
    return tokens if tokens == 1 else (tokens + AT_ONCE - 1) // AT_ONCE * AT_ONCE


def room(tokens, weights):
    """Zeros [tokens, K] for what these weights are multiplied with: float32, or bfloat16 as uint16 beside weights in pairs (see `seen`)."""


@overload(room, jit_options=OPTIONS)
def _room(tokens, weights):
    def alone(tokens, weights):
        return np.zeros((padded(tokens), weights[0].shape[1]), np.float32)

    def pairs(tokens, weights):
        return np.zeros((padded(tokens), weights[0].shape[1] * 2), np.uint16)

    def four(tokens, weights):
        return np.zeros((padded(tokens), weights[0].shape[1] * GROUP), np.float32)

    return {"bfloat16": pairs, "float32": alone, "8 bits": alone}.get(kind(weights), four)


def seen(x):
    """What `room` gave, filled, as `product` takes it."""


@overload(seen, jit_options=OPTIONS)
def _seen(x):
    return (lambda x: x.view(np.uint32)) if x.dtype == types.uint16 else (lambda x: x)


@jit(forceinline=True)
def sums_of_groups(x, zero, found, n):
    """Of one token; a code of `zero` means 0."""
    for g in range(found.shape[2]):
        lower, upper, some = F32(0), F32(0), x[n, g * GROUP : (g + 1) * GROUP]
        for i in range(16):
            lower += some[i]
            upper += some[16 + i]
        found[0, n, g] = -F32(128 + zero) * lower - F32(2048 + zero) * upper
        found[1, n, g] = lower + upper


@jit(parallel=True)
def sums_of_rows(x, zero, found):
    """The same for each token, on all threads."""
    for n in prange(x.shape[0]):
        sums_of_groups(x, zero, found, n)


def of_groups(x, weights):
    """[2, tokens, G] for 4-bit weights: what `four_bits` starts from, and the sum of a group's x. Empty for others."""


@overload(of_groups, jit_options=OPTIONS)
def _of_groups(x, weights):
    zero = {"4 bits": 0.0, "4 bits around 0": 8.0}.get(kind(weights))
    if zero is None:
        return lambda x, weights: np.empty((2, 0, 0), np.float32)

    def groups(x, weights):
        found = np.empty((2, x.shape[0], x.shape[1] // GROUP), np.float32)
        if x.shape[0] > FEW:
            sums_of_rows(x, zero, found)
        else:
            for n in range(x.shape[0]):
                sums_of_groups(x, zero, found, n)
        return found

    return groups
