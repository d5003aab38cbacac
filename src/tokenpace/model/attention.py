"""Where tokens meet: which of them a token may look at, where it stands, and what it takes from the others.

Positions are the only description of that. There is no attention mask to keep in step with a length, a padding side and a phase.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.protocol import Rectangle
from ..config import ModelConfig


def visible(r: Rectangle, window: int | None = None, sinks: int = 0, causal: bool = True) -> Tensor:
    """Bool [b, t, S]: a key is seen if something is there, it is not in the future, and it is inside the window (or a sink)."""
    gap = r.queries[:, :, None] - r.keys[:, None, :]
    seen = gap >= 0 if causal else torch.ones_like(gap, dtype=torch.bool)
    if r.among is not None:  # the caller rules on tokens in flight (a tree, a block); padding falls on one key more
        seen = F.pad(seen, (0, 1)).scatter(2, r.columns[:, None, :].expand(-1, gap.shape[1], -1), r.among)[..., :-1]
    if window is not None:
        seen = seen & ((gap.abs() < window) | (r.keys < sinks)[:, None, :])
    seen = seen & (r.keys >= 0)[:, None, :]
    return seen | (r.queries < 0)[:, :, None]  # padding looks at everything: a softmax over nothing would be NaN


def frequencies(config: ModelConfig) -> Tensor:
    """[D/2] radians per position, in fp32 (Su et al. 2021, RoFormer, section 3.2.2), stretched as Llama 3 does where the config says so."""
    f = 1.0 / config.rope_theta ** (torch.arange(0, config.d_head, 2).float() / config.d_head)
    if (s := config.rope_scaling) is None:
        return f
    turns = s.original_context * f / (2 * math.pi)  # of each pair, within the context the model was first trained on
    keep = ((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)  # 1: fast, as it was; 0: slow, stretched
    return f * keep + f / s.factor * (1 - keep)


def turns(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [N, 1, D] for positions [N]. fp32 always: in bf16 positions beyond 256 would merge. Half of sin is negated, as `rope` wants it."""
    angle = positions.clamp(min=0).float()[:, None, None] * frequencies
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, heads, D]: each pair (x[i], x[i + D/2]) turned by the angle of its position; then a dot product depends on distance only."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention as it is defined: softmax(q·k/√D + bias)·v, each group of H/G query heads sharing one KV head.

    q [b, t, H, D], k and v [b, S, G, D], bias [b, t, S] (0 seen, -inf hidden) -> [b, t, H, D]
    """
    q = q.unflatten(2, (k.shape[2], -1))
    scores = torch.einsum("btghd,bsgd->bghts", q, k) * q.shape[-1] ** -0.5
    weights = (scores.float() + bias[:, None, None].float()).softmax(-1).to(v.dtype)
    return torch.einsum("bghts,bsgd->btghd", weights, v).flatten(2, 3)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The same by PyTorch's fused kernel, which never holds all scores at once (Dao et al. 2022, FlashAttention)."""
    q, k, v, bias = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias[:, None]
    if q.shape[2] == 1:  # a decode step: the H/G heads of a group are as many queries to one head, and the kernel reads its keys once for them all
        grouped = q.squeeze(2).unflatten(1, (k.shape[1], -1))
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=bias).flatten(1, 2)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)
