"""The loops behind `kernels`: a matrix times one to a few vectors, at the speed at which the matrix can be read.

A decode step reads every weight once and does two operations with it, so it can take no longer than the reading; PyTorch's CPU matrix
product is made for many rows, and does. Here weights lie in tiles of 64 rows side by side, [tiles, K, 64]: the inner loop runs over rows,
contiguous in memory, one accumulator each, no horizontal sums. Sums are fp32 whatever the weights; bfloat16 arrives as uint16. Needs Numba.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

TILE = 64
F32 = np.float32
FAST = {"contract", "reassoc", "nsz", "arcp"}  # sums may be reordered, but NaN and infinity keep their meaning: a NaN must reach the logits
INT16, INT32 = ir.IntType(16), ir.IntType(32)


@intrinsic
def widen(context, number):
    """A float32 as it is; a uint16 as the float32 whose upper half it is, which is what a bfloat16 means."""

    def generate(ctx, build, signature, args):
        if number == types.float32:
            return args[0]
        return build.bitcast(build.shl(build.zext(args[0], INT32), INT32(16)), ir.FloatType())

    return types.float32(number), generate


@intrinsic
def narrow(context, number, like):
    """The float32 `number` in the type of `like`: as it is, or the nearest bfloat16 (ties to even; NaN stays NaN) as a uint16."""

    def generate(ctx, build, signature, args):
        if like == types.float32:
            return args[0]
        bits = build.bitcast(args[0], INT32)
        even = build.and_(build.lshr(bits, INT32(16)), INT32(1))
        nan = build.icmp_unsigned(">", build.and_(bits, INT32(0x7FFFFFFF)), INT32(0x7F800000))
        rounded = build.select(nan, INT32(0x7FC00000), build.add(bits, build.add(even, INT32(0x7FFF))))
        return build.trunc(build.lshr(rounded, INT32(16)), INT16)

    return like(types.float32, like), generate


@intrinsic
def power_of_two(context, number):
    """2ⁿ in float32, for an int32 n from -126 to 127."""

    def generate(ctx, build, signature, args):
        return build.bitcast(build.shl(build.add(args[0], INT32(127)), INT32(23)), ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def pointer(context, address, like):
    """An address as that of a number of the type that the array `like` holds."""

    def generate(ctx, build, signature, args):
        return build.inttoptr(args[0], ctx.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate


def jit(**options):
    """njit, kept on disk if there is a place for it: NUMBA_CACHE_DIR, else beside this file, else the user's cache folder."""

    options |= {"fastmath": FAST, "error_model": "numpy"}  # a division by zero is an infinity, as in PyTorch, and needs no test

    def compiled(f):
        try:
            return njit(cache=True, **options)(f)
        except RuntimeError:  # no such place: compile once per process
            return njit(**options)(f)

    return compiled


@jit(forceinline=True)
def exp(x):
    """e^x to a few millionths; 0 below -87, no more than e^88. Nothing is called, unlike in np.exp, so a loop over it becomes vector code."""
    small = F32(88) if x > F32(88) else x
    n = np.floor(small * F32(1.442695) + F32(0.5))
    r = small - n * F32(0.6931472)  # e^x = 2ⁿ · e^r, and |r| is so small that Taylor's series ends soon
    p = F32(1) + r * (F32(1) + r * (F32(1 / 2) + r * (F32(1 / 6) + r * (F32(1 / 24) + r * (F32(1 / 120) + r * F32(1 / 720))))))
    return F32(0) if x < F32(-87) else p * power_of_two(np.int32(n))


@jit(forceinline=True)
def add_tile(tile, x, total):
    """total [N, 64] += x [N, K/2, 2] · tile [K/2, 2, 64].

    Two products at a time: with one, a total is loaded and stored for every weight; with four, a core has to fetch eight or more places of memory
    at once, and reads less than it could.
    """
    for q in range(tile.shape[0]):
        for n in range(x.shape[0]):
            a, b = x[n, q, 0], x[n, q, 1]
            for j in range(TILE):
                total[n, j] += widen(tile[q, 0, j]) * a + widen(tile[q, 1, j]) * b


@jit(forceinline=True)
def store(total, y, first):
    """Columns `first` to `first` + 64 of y. Element by element: a slice assignment here would spoil the vector code of the loops before."""
    for n in range(total.shape[0]):
        row = y[n, first : first + TILE]  # the loop runs over a view: a sum like `first + j` might be negative, for all the compiler knows
        for j in range(TILE):
            row[j] = narrow(total[n, j], row[j])


@jit()
def normed(x, weight, eps):
    """x [N, K] in fp32 as [N, K/2, 2] (zeros at the end), each row x / √(mean(x²) + eps) · weight; an empty weight means: as it is."""
    rows, size = x.shape
    y = np.zeros((rows, (size + 1) // 2 * 2), F32)
    for n in range(rows):
        row, squares = y[n], F32(0)
        for k in range(size):
            row[k] = widen(x[n, k])
            squares += row[k] * row[k]
        if len(weight):
            scale = F32(1) / np.sqrt(squares / F32(size) + F32(eps))
            for k in range(size):
                row[k] *= scale * widen(weight[k])
    return y.reshape(rows, -1, 2)


@jit()
def rms_norm(x, weight, eps, y):
    """y [N, K] = norm(x)."""
    a = normed(x, weight, eps)
    for n in range(x.shape[0]):
        row, given = y[n], a[n].reshape(-1)
        for k in range(row.shape[0]):
            row[k] = narrow(given[k], row[k])


@jit(parallel=True)
def linear(x, norm, eps, tiles, bias, y):
    """y [N, R] = norm(x [N, K]) · Wᵀ + bias; W in `tiles` [R/64, K/2, 2, 64]; an empty norm or bias is none."""
    a = normed(x, norm, eps)
    for t in prange(tiles.shape[0]):
        total = np.zeros((a.shape[0], TILE), F32)
        add_tile(tiles[t], a, total)
        if len(bias):
            more = bias[t * TILE : t * TILE + TILE]
            for n in range(a.shape[0]):
                for j in range(TILE):
                    total[n, j] += widen(more[j])
        store(total, y, t * TILE)


@jit(parallel=True)
def mlp(x, norm, eps, gate_up, down, y):
    """y [N, R] = (silu(gate) · up) · downᵀ with gate, up [N, F] = norm(x) · their Wᵀ; gate_up [2, F/64, K/2, 2, 64], down [R/64, F/2, 2, 64]."""
    a, h = normed(x, norm, eps), np.empty((x.shape[0], gate_up.shape[1] * TILE), F32)
    for t in prange(gate_up.shape[1]):
        gate, up = np.zeros((a.shape[0], TILE), F32), np.zeros((a.shape[0], TILE), F32)
        add_tile(gate_up[0, t], a, gate)
        add_tile(gate_up[1, t], a, up)
        for n in range(a.shape[0]):
            for j in range(TILE):
                gate[n, j] = gate[n, j] / (F32(1) + exp(-gate[n, j])) * up[n, j]
        store(gate, h, t * TILE)
    b = h.reshape(x.shape[0], -1, 2)
    for t in prange(down.shape[0]):
        total = np.zeros((b.shape[0], TILE), F32)
        add_tile(down[t], b, total)
        store(total, y, t * TILE)
