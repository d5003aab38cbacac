"""The loop behind attention on narrow passes, as `gemv` is behind the products: there is little to compute and much to launch.

For one token, rotating, storing and looking up are some twenty small operations a layer, each of which takes longer to start than to do.
Here they are one loop over the cache as it lies. Everything is fp32 between the numbers that are read and those that are stored.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from .jit import F32, exp, jit, narrow, widen


@jit(forceinline=True)
def turn(x, weight, eps, cos, sin, out):
    """out [D] = rope(norm(x [D])): `sin` has its first half negated, an empty weight is no norm."""
    size, squares = x.shape[0], F32(0)
    for i in range(size):
        out[i] = widen(x[i])
        squares += out[i] * out[i]
    if len(weight):
        scale = F32(1) / np.sqrt(squares / F32(size) + F32(eps))
        for i in range(size):
            out[i] *= scale * widen(weight[i])
    half = size // 2
    for i in range(half):
        a, b = out[i], out[i + half]
        out[i], out[i + half] = a * cos[i] + b * sin[i], b * cos[i + half] + a * sin[i + half]


@jit()
def prepare(qkv, cos, sin, q_norm, k_norm, eps, into, keys, values, q):
    """Queries to q [N, H, D], keys and values to their slots. qkv [N, (H + 2G)·D], keys and values [slots, G, D], into [N]."""
    tokens, heads, size = q.shape
    groups, turned = keys.shape[1], np.empty(size, F32)
    for n in range(tokens):
        for h in range(heads):
            turn(qkv[n, h * size : (h + 1) * size], q_norm, eps, cos[n, 0], sin[n, 0], q[n, h])
        for g in range(groups):
            at = (heads + g) * size
            turn(qkv[n, at : at + size], k_norm, eps, cos[n, 0], sin[n, 0], turned)
            key, value, given = keys[into[n], g], values[into[n], g], qkv[n, at + groups * size : at + (groups + 1) * size]
            for i in range(size):
                key[i] = narrow(turned[i], key[i])
                value[i] = narrow(widen(given[i]), value[i])


@jit(forceinline=True)
def look(q, keys, values, start, g, bias, weights, total):
    """total [D] = softmax(q [D] · keys + bias) · values, over the S slots from `start` on; weights [S] is room to work in."""
    size, scale, best, mass = q.shape[0], F32(1) / np.sqrt(F32(q.shape[0])), F32(-np.inf), F32(0)
    for s in range(weights.shape[0]):
        b = widen(bias[s])
        if b > -np.inf:
            key, dot = keys[start + s, g], F32(0)  # one contiguous row: of a slice of slots the compiler would not know that
            for i in range(size):
                dot += q[i] * widen(key[i])
            b += dot * scale
        weights[s] = b
        best = max(best, b)
    for s in range(weights.shape[0]):
        weights[s] = exp(weights[s] - best)
        mass += weights[s]
    for i in range(size):
        total[i] = F32(0)
    for s in range(weights.shape[0]):
        if weights[s] != 0:  # hidden, or as good as that; a NaN is not, and must reach the logits
            w, value = weights[s], values[start + s, g]
            for i in range(size):
                total[i] += w * widen(value[i])
    for i in range(size):
        total[i] /= mass


@jit(parallel=True)
def attention(qkv, cos, sin, q_norm, k_norm, eps, into, keys, values, first, stride, bias, y):
    """y [N, H·D] of the tokens of one rectangle [b, t]; row r of it has its cells from slot (first + r)·stride on; bias [b, t, S]."""
    rows, width, reach = bias.shape
    tokens, groups, size = rows * width, keys.shape[1], keys.shape[2]
    heads = y.shape[1] // size
    q = np.empty((tokens, heads, size), F32)
    prepare(qkv, cos, sin, q_norm, k_norm, eps, into, keys, values, q)
    for p in prange(tokens * heads):
        n, h = p // heads, p % heads
        r, g = n // width, h // (heads // groups)
        start, weights, total = (first + r) * stride, np.empty(reach, F32), np.empty(size, F32)
        look(q[n, h], keys, values, start, g, bias[r, n % width], weights, total)
        row = y[n, h * size : (h + 1) * size]
        for i in range(size):
            row[i] = narrow(total[i], row[i])
