"""The loops behind `kernels`: a matrix times one to a few hundred vectors, at the speed at which the matrix can be read or the core multiply.

A decode step reads every weight once and does two operations with it, so it can take no longer than the reading; PyTorch's CPU matrix
product is made for many rows, and does. Here weights lie in tiles of 64 rows side by side (`formats`): threads share the tiles out, and within
one the sums of 64 rows stay in registers (`lanes`), for four tokens at a time, while its columns go by. The first four tokens bring the tile
from memory; the others find it in the core's cache. Sums are float32 whatever the weights; bfloat16 arrives as uint16. Needs Numba.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from .formats import FEW, of_groups, product, room, seen
from .jit import F32, exp, jit, narrow, widen
from .lanes import AT_ONCE, TILE, one, put, several


@jit(forceinline=True)
def norm_row(x, weight, eps, y):
    """y [K, or more] = x [K] / √(mean(x²) + eps) · weight; an empty weight means: as it is."""
    size, scale = x.shape[0], F32(1)
    if len(weight):
        squares = F32(0)
        for k in range(size):
            squares += widen(x[k]) * widen(x[k])
        scale = F32(1) / np.sqrt(squares / F32(size) + F32(eps))
        for k in range(size):
            y[k] = narrow(widen(x[k]) * scale * widen(weight[k]), y[k])
    else:
        for k in range(size):
            y[k] = narrow(widen(x[k]), y[k])


@jit(parallel=True)
def norm_rows(x, weight, eps, y):
    """The same for each row, on all threads."""
    for n in prange(x.shape[0]):
        norm_row(x[n], weight, eps, y[n])


@jit()
def normed(x, weight, eps, weights):
    """norm(x [N, K]) as `product` wants it beside these weights: rounded to bfloat16 where they are that, with zeros at the ends."""
    y = room(x.shape[0], weights)
    if x.shape[0] > FEW:
        norm_rows(x, weight, eps, y)
    else:
        for n in range(x.shape[0]):
            norm_row(x[n], weight, eps, y[n])
    return y


@jit()
def rms_norm(x, weight, eps, y):
    """y [N, K] = norm(x)."""
    for n in range(x.shape[0]):
        norm_row(x[n], weight, eps, y[n])


@jit(forceinline=True)
def multiply(weights, t, x, groups, n, total):
    """total [AT_ONCE, 64] = x · Wᵀ of tile t, for AT_ONCE tokens from n on, or for one if there is but one."""
    if x.shape[0] == 1:
        put(product(one(), weights, t, x, groups, n), total)
    else:
        put(product(several(), weights, t, x, groups, n), total)


@jit(forceinline=True)
def store(total, y, n, first):
    """Rows n and after, columns `first` and after, of y, as far as it goes. A slice assignment would spoil the vector code before."""
    for i in range(min(AT_ONCE, y.shape[0] - n)):
        row, given = y[n + i, first : first + TILE], total[i]  # the loop runs over a view: `first + j` might be negative, for all the compiler knows
        for j in range(TILE):
            row[j] = narrow(given[j], row[j])


@jit(parallel=True)
def linear(x, norm, eps, weights, bias, y):
    """y [N, R] = norm(x [N, K]) · Wᵀ + bias; R whole tiles; an empty norm or bias is none."""
    a = normed(x, norm, eps, weights)
    groups, a = of_groups(a, weights), seen(a)
    for t in prange(weights[0].shape[0]):
        total = np.empty((AT_ONCE, TILE), F32)
        for n in range(0, y.shape[0], AT_ONCE):
            multiply(weights, t, a, groups, n, total)
            if len(bias):
                more = bias[t * TILE : t * TILE + TILE]
                for i in range(AT_ONCE):
                    for j in range(TILE):
                        total[i, j] += widen(more[j])
            store(total, y, n, t * TILE)


@jit(parallel=True)
def mlp(x, norm, eps, gate_up, down, y):
    """y [N, R] = (silu(gate) · up) · downᵀ with gate, up [N, F] = norm(x) · their Wᵀ: tile t of gate_up is gate's, tile F/64 + t is up's."""
    a, h = normed(x, norm, eps, gate_up), room(x.shape[0], down)
    groups, a, half = of_groups(a, gate_up), seen(a), gate_up[0].shape[0] // 2
    for t in prange(half):
        gate, up = np.empty((AT_ONCE, TILE), F32), np.empty((AT_ONCE, TILE), F32)
        first = t * TILE
        for n in range(0, y.shape[0], AT_ONCE):
            multiply(gate_up, t, a, groups, n, gate)
            multiply(gate_up, half + t, a, groups, n, up)
            for i in range(min(AT_ONCE, y.shape[0] - n)):
                row, g, u = h[n + i, first : first + TILE], gate[i], up[i]
                for j in range(row.shape[0]):  # h may end before the last tile does
                    row[j] = narrow(g[j] / (F32(1) + exp(-g[j])) * u[j], row[j])
    groups, b = of_groups(h, down), seen(h)
    for t in prange(down[0].shape[0]):
        total = np.empty((AT_ONCE, TILE), F32)
        for n in range(0, y.shape[0], AT_ONCE):
            multiply(down, t, b, groups, n, total)
            store(total, y, n, t * TILE)
