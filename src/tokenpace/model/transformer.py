"""A decoder-only transformer, whole. It knows neither prompts nor phases nor caches: tokens and a Pass go in, logits come out.

Inside, the tokens of a pass are a list, [N, d_model]. Rows and columns matter to attention alone, which takes them rectangle by rectangle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.protocol import NoCache, Pass
from ..config import ModelConfig
from . import attention


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension, in fp32 (Zhang and Sennrich 2019, equation 4)."""
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """[N, 2F] -> [N, F]: silu(gate) · up (Shazeer 2020, GLU Variants Improve Transformer, equation 6)."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, K] · Wᵀ + bias -> [N, R]. One fp32 vector on a CPU takes a detour: PyTorch gives it one thread, but a batch of pieces all."""
    alone = len(x) == 1 and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.compiler.is_compiling()
    pieces = torch.get_num_threads() if alone else 1
    if pieces == 1 or len(weight) % pieces:
        return F.linear(x, weight, bias)
    y = torch.bmm(x.expand(pieces, 1, -1), weight.unflatten(0, (pieces, -1)).transpose(1, 2)).view(1, -1)
    return y if bias is None else y + bias


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c: ModelConfig):
        super().__init__()
        self.heads, self.d_head = (c.n_heads, c.n_kv_heads, c.n_kv_heads), c.d_head
        self.qkv = Linear(c.d_model, sum(self.heads) * c.d_head, bias=c.qkv_bias)
        self.q_norm = RMSNorm(c.d_head, c.norm_eps) if c.qk_norm else None
        self.k_norm = RMSNorm(c.d_head, c.norm_eps) if c.qk_norm else None
        self.out = Linear(c.n_heads * c.d_head, c.d_model, bias=False)

    def forward(self, x: Tensor, layer: int, flight: Pass, turns: tuple[Tensor, Tensor], biases: list[Tensor]) -> Tensor:
        heads, (h, g, _) = self.qkv(x).unflatten(-1, (-1, self.d_head)), self.heads
        if self.q_norm is not None:
            heads = torch.cat([self.q_norm(heads[:, :h]), self.k_norm(heads[:, h : h + g]), heads[:, h + g :]], 1)
        turned = attention.rope(heads[:, : h + g], *turns)
        q, k, v = turned[:, :h], turned[:, h:], heads[:, h + g :]
        known, out, at = flight.write(layer, (k, v)), [], 0
        for bias, (keys, values) in zip(biases, known):
            b, t, _ = bias.shape
            out.append(attention.attend(q[at : at + b * t].unflatten(0, (b, t)), keys.to(q.dtype), values.to(q.dtype), bias).flatten(0, 1))
            at += b * t
        return self.out((out[0] if len(out) == 1 else torch.cat(out)).flatten(1))


class MLP(nn.Module):
    def __init__(self, c: ModelConfig):
        super().__init__()
        self.gate_up = Linear(c.d_model, 2 * c.d_ff, bias=False)
        self.down = Linear(c.d_ff, c.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x)))


class Block(nn.Module):
    def __init__(self, c: ModelConfig):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(c.d_model, c.norm_eps), Attention(c)
        self.mlp_norm, self.mlp = RMSNorm(c.d_model, c.norm_eps), MLP(c)

    def forward(self, x: Tensor, *where) -> Tensor:
        x = x + self.attention(self.attention_norm(x), *where)
        return x + self.mlp(self.mlp_norm(x))


class Blocks(nn.ModuleList):
    def forward(self, x: Tensor, flight: Pass, turns: tuple[Tensor, Tensor], biases: list[Tensor], exit_at: int | None = None) -> Tensor:
        for layer, block in enumerate(list(self)[:exit_at]):
            x = block(x, layer, flight, turns, biases)
        return x


class TiedHead(nn.Module):
    """The embedding, read the other way: logits are the last state's products with every token's row. Holds no weights of its own."""

    def forward(self, x: Tensor, embed: nn.Embedding) -> Tensor:
        return linear(x, embed.weight)


class Transformer(nn.Module):
    """Parameters are exactly `config.tensors`.

    >>> from tokenpace.config import ModelConfig
    >>> Transformer(ModelConfig(97, 32, 2, 4, 2, 8, 64))(torch.tensor([[5, 9, 2]])).shape
    torch.Size([1, 3, 97])
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = Blocks(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = TiedHead() if config.tied else Linear(config.d_model, config.vocab_size, bias=False)
        self.follow()

    def follow(self) -> Transformer:
        """Frequencies go where the weights are, but never take their dtype: angles stay fp32."""
        self.frequencies = attention.frequencies(self.config).to(self.norm.weight.device)
        return self

    def _apply(self, fn, recurse=True):
        return super()._apply(fn, recurse).follow()

    def load_state_dict(self, *args, **kwargs):  # with assign=True the weights may come to another device than the model was made on
        keys = super().load_state_dict(*args, **kwargs)
        self.follow()
        return keys

    def hidden(self, tokens: Tensor, flight: Pass | None = None, read: Tensor | None = None, exit_at: int | None = None) -> Tensor:
        """The last states [N, d_model] of the tokens at the flat indices `read` into [B, T] (default: all), normalised, as the head sees them."""
        if flight is None:
            flight = NoCache().stage(torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens))
        c, x = self.config, self.embed(flight.pack(tokens))
        where = attention.turns(flight.pack(flight.queries), self.frequencies)
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        biases = [torch.where(attention.visible(r, c.window, c.sinks, c.causal), zero, -torch.inf) for r in flight.rectangles]
        x = self.blocks(x, flight, where, biases, exit_at)
        if read is None and flight.order is not None:
            x = x.new_zeros(tokens.numel(), x.shape[1]).index_copy_(0, flight.order, x)
        elif read is not None:
            x = x[flight.find(read)]
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden, self.embed) if self.config.tied else self.head(hidden)

    def forward(self, tokens: Tensor, flight: Pass | None = None, read: Tensor | None = None, exit_at: int | None = None) -> Tensor:
        """tokens [B, T] -> logits [N, V] of the tokens at `read` (flat indices into [B, T]); by default of all, [B, T, V].

        flight: where the tokens are, from a cache's `stage` (default: alone, no cache). exit_at: leave after so many layers.
        """
        logits = self.logits(self.hidden(tokens, flight, read, exit_at))
        return logits if read is not None else logits.unflatten(0, tuple(tokens.shape))
