"""All layers of a narrow pass behind one call: the loops of `gemv` and `lookup` one after the other, and the sums between them.

Each of those is fast; but on a small model coming back to Python between them takes a good part of a pass.
What is handed from loop to loop has the type of the weights, so a pass rounds where one in single steps would.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from .gemv import TILE, jit, linear, mlp, narrow, pointer, widen
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


@jit()
def through(x, weights, addresses, store, places, n_heads, eps, cos, sin, into, first, stride, bias):
    """x [N, d] becomes what comes out of the last layer. cos, sin, into, first, stride, bias: as for `attention`.

    weights: the arrays of the first TiledBlock; addresses [L, 10]: where those of each begin; store: (keys, values) of the first layer,
    and places [L, 2]. Layers differ in nothing else, and to hand over ten arrays of each could be felt.
    """
    norm, qkv, qkv_bias, q_norm, k_norm, out, none, mlp_norm, gate_up, down = weights
    heads = np.empty((x.shape[0], qkv.shape[0] * TILE), x.dtype)
    found = np.empty((x.shape[0], n_heads * store[0].shape[2]), x.dtype)
    more = np.empty((x.shape[0], out.shape[0] * TILE), x.dtype)
    for at, (k, v) in zip(addresses, places):
        linear(x, there(at[0], norm), eps, there(at[1], qkv), there(at[2], qkv_bias), heads)
        norms, keys, values = (there(at[3], q_norm), there(at[4], k_norm)), there(k, store[0]), there(v, store[1])
        attention(heads, cos, sin, norms[0], norms[1], eps, into, keys, values, first, stride, bias, found)
        linear(found, none, eps, there(at[5], out), none, more)
        add(x, more)
        mlp(x, there(at[7], mlp_norm), eps, there(at[8], gate_up), there(at[9], down), more)
        add(x, more)
