"""A model on codes: its matrices, the embedding and the head too, in 8 or 4 bits (`weights.codes`), everything else as it was.

A transformation of a finished model, and one of checkpoints while they are read (`load`): no more than one matrix is ever held in full.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..weights.codes import Codes
from .transformer import Linear, TiedHead, Transformer


class QuantisedLinear(nn.Module):
    """Linear on codes. The bias stays as it is."""

    def __init__(self, matrix: Codes, bias: Tensor | None = None):
        super().__init__()
        self.matrix, self.bias = matrix, None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.matrix(x)
        return y if self.bias is None else y + self.bias


class QuantisedEmbedding(nn.Module):
    """Embedding on codes: only the rows that are looked up become numbers, in the dtype of `like`."""

    def __init__(self, matrix: Codes, dtype: torch.dtype):
        super().__init__()
        self.matrix = matrix
        self.register_buffer("like", torch.empty(0, dtype=dtype, device=matrix.codes.device), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.matrix.part(tokens.flatten()).numbers(self.like.dtype).unflatten(0, tokens.shape)


class QuantisedTiedHead(nn.Module):
    """TiedHead on the embedding's codes."""

    def forward(self, x: Tensor, embed: QuantisedEmbedding) -> Tensor:
        return embed.matrix(x)


def quantise(model: Transformer, scheme) -> Transformer:
    """The same Transformer with its matrices (embedding and head, too) as `scheme` makes them of each. Changed in place; norms and biases stay.

    scheme: Int8(), Int4(), or any function of a weight [R, K] that gives Codes. ValueError for a model that is quantised, tiled or otherwise
    transformed already, and for weights that hold NaN or infinity; the model is then as it was.

    >>> from tokenpace.config import ModelConfig
    >>> from tokenpace.weights.codes import Int8
    >>> model = Transformer(ModelConfig(97, 32, 2, 4, 2, 8, 64)).requires_grad_(False)
    >>> before = stored_bytes(model)
    >>> round(stored_bytes(quantise(model, Int8())) / before, 2)
    0.29
    """
    return replace(model, lambda name, weight: scheme(weight))


def replace(model: Transformer, matrix) -> Transformer:
    """The model with every matrix for which `matrix(name, weight)` gives Codes on them. All are made before anything is changed."""
    if reason := why_not(model):
        raise ValueError(reason)
    dtype, made = model.norm.weight.dtype, {}
    for name, module in model.named_modules():
        if type(module) in (Linear, nn.Embedding) and (codes := matrix(f"{name}.weight", module.weight)) is not None:
            made[name] = codes
    for name, codes in made.items():
        parent = model.get_submodule(name.rpartition(".")[0])
        new = QuantisedEmbedding(codes, dtype) if name == "embed" else QuantisedLinear(codes, model.get_submodule(name).bias)
        setattr(parent, name.rpartition(".")[2], new)
    if "embed" in made and isinstance(model.head, TiedHead):
        model.head = QuantisedTiedHead()
    return model.eval()


def why_not(model: nn.Module) -> str | None:
    """Why `quantise` refuses a model, None if it would not."""
    if any(isinstance(m, Codes) for m in model.modules()):
        return "the model is quantised already, and codes of codes would lose twice: load it again and quantise that"
    plain = isinstance(model, Transformer) and type(model.embed) is nn.Embedding and type(model.head) in (Linear, TiedHead)
    if not plain or any(type(p) is not Linear for b in model.blocks for p in (b.attention.qkv, b.attention.out, b.mlp.gate_up, b.mlp.down)):
        return "only a plain Transformer can be quantised: do it before fast(…), compiling or other transformations"
    return None


def stored_bytes(model: nn.Module) -> int:
    """What the weights of a model take up, in the formats they are in: what a pass has to read of them."""
    codes = [m for m in model.modules() if isinstance(m, Codes)]
    return sum(p.nbytes for p in model.parameters()) + sum(c.nbytes for c in codes)
