"""Passes at the speed of memory: a transformation of a finished model that runs on a CPU. Codes of few bits run as they are.

The transformer leaves its matrix products to PyTorch. `tiled` moves the same weights, or their codes, into tiles of 64 rows, where they are read
at the speed of memory by few tokens and multiplied at the speed of the cores by many; there is no second copy.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from .blocks import TiledBlock, TiledBlocks
from .products import TiledEmbedding, TiledLinear, TiledNorm, TiledTiedHead
from .quantize import QuantisedEmbedding, QuantisedLinear, QuantisedTiedHead
from .transformer import Linear, TiedHead


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
        if isinstance(model.head, (TiedHead, QuantisedTiedHead)):
            model.embed, model.head = TiledEmbedding(model.embed), TiledTiedHead()
        else:
            model.head = TiledLinear(model.head)
    return model


def why_not(model: nn.Module) -> str | None:
    """Why `tiled` would leave this model as it is, in a sentence for `doctor`; None if it would not."""
    if find_spec("numba") is None:
        return "Numba is not installed, so passes use PyTorch's matrix product: pip install numba"
    if any(isinstance(m, TiledBlock) for m in model.modules()):
        return "the model is tiled already"
    kinds = {(p.device.type, p.dtype) for p in model.parameters()}
    if len(kinds) > 1 or not kinds <= {("cpu", torch.float32), ("cpu", torch.bfloat16)}:
        found = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds)).replace("torch.", "")
        return f"the tiled kernels take float32 or bfloat16 weights on a CPU, all of one kind; these are {found}"
    products = [p for b in model.blocks for p in (b.attention.qkv, b.attention.out, b.mlp.gate_up, b.mlp.down)] + [model.head, model.embed]
    known = (Linear, TiedHead, nn.Embedding, QuantisedLinear, QuantisedTiedHead, QuantisedEmbedding)
    strange = [type(p).__name__ for p in products if type(p) not in known]
    return f"the tiled kernels replace Linear, but this model has {strange[0]}: tile it before other transformations" if strange else None
