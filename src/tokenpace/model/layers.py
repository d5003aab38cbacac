"""All layers of a narrow pass behind one call: the loops of `gemv` and `lookup` one after the other, and the sums between them.

Each of those is fast; but on a small model coming back to Python between them takes a good part of a pass.
What is handed from loop to loop has the type of the hidden states, so a pass rounds where one in single steps would.
"""

from __future__ import annotations

import numpy as np
from numba import carray
from numba.extending import overload

from .gemv import linear, mlp
from .jit import OPTIONS, jit, narrow, pointer, widen
from .lanes import TILE
from .lookup import attention


@jit()
def add(x, more):
    """x += the first columns of `more`."""
    for n in range(x.shape[0]):
        row, given = x[n], more[n]
        for i in range(x.shape[1]):
            row[i] = narrow(widen(row[i]) + widen(given[i]), row[i])


@jit(forceinline=True)
def there(address, like):
    """The array at an address, in shape and type like another one."""
    return carray(pointer(address, like), like.shape)


def matrix(addresses, first, like):
    """The arrays of a matrix, in shape and type like those of another one: their addresses stand one after the other from `first` on."""


@overload(matrix, jit_options=OPTIONS)
def _matrix(addresses, first, like):
    def one(addresses, first, like):
        return (there(addresses[first], like[0]),)

    def two(addresses, first, like):
        return there(addresses[first], like[0]), there(addresses[first + 1], like[1])

    def three(addresses, first, like):
        return there(addresses[first], like[0]), there(addresses[first + 1], like[1]), there(addresses[first + 2], like[2])

    return (one, two, three)[len(like) - 1]


@jit()
def through(x, weights, addresses, store, places, n_heads, eps, cos, sin, into, first, stride, bias):
    """x [N, d] becomes what comes out of the last layer. cos, sin, into, first, stride, bias: as for `attention`.

    weights: the arrays of the first TiledBlock; addresses [L, all of them]: where those of each begin; store: (keys, values) of the first layer,
    and places [L, 2]. Layers differ in nothing else, and to hand over the arrays of each could be felt.
    """
    norm, qkv_bias, q_norm, k_norm, mlp_norm, qkv, out, gate_up, down = weights
    heads = np.empty((x.shape[0], qkv[0].shape[0] * TILE), x.dtype)
    found = np.empty((x.shape[0], n_heads * store[0].shape[2]), x.dtype)
    more = np.empty((x.shape[0], out[0].shape[0] * TILE), x.dtype)
    none = np.empty(0, np.float32)
    for at, (k, v) in zip(addresses, places):
        o = 5 + len(qkv)
        g = o + len(out)
        d = g + len(gate_up)
        linear(x, there(at[0], norm), eps, matrix(at, 5, qkv), there(at[1], qkv_bias), heads)
        norms, keys, values = (there(at[2], q_norm), there(at[3], k_norm)), there(k, store[0]), there(v, store[1])
        attention(heads, cos, sin, norms[0], norms[1], eps, into, keys, values, first, stride, bias, found)
        linear(found, none, eps, matrix(at, o, out), none, more)
        add(x, more)
        mlp(x, there(at[4], mlp_norm), eps, matrix(at, g, gate_up), matrix(at, d, down), more)
        add(x, more)
