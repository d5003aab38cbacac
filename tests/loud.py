"""Small models whose attention can be heard. At the default scale the residual stream drowns it, and a wrong mask changes no token.

Six query heads, heads larger than d_model / heads, random norms and prompts of 8 tokens and more: each hides a fault if it is missing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from oracles import Oracle, Plain

from tokenpace.cache.protocol import Cache
from tokenpace.cache.slab import Slab
from tokenpace.config import ModelConfig, RopeScaling
from tokenpace.model.transformer import Transformer
from tokenpace.run import canvas, run

GQA = ModelConfig(61, 32, 2, 6, 2, 8, 48, context=256)
ATTENTION = {
    "gqa": GQA,
    "mha": replace(GQA, n_kv_heads=6),
    "mqa": replace(GQA, n_kv_heads=1),
    "window": replace(GQA, window=6),
    "sinks": replace(GQA, window=6, sinks=2),
    "qwen": replace(GQA, tied=False, qkv_bias=True, qk_norm=True, rope_scaling=RopeScaling(4.0, 1.0, 4.0, 16)),
}
PROMPT = [5, 9, 5, 9, 2, 7, 5, 9, 1, 3, 5]
MASK = 60


@lru_cache
def loud(kind: str | ModelConfig = "gqa", seed: int = 1, noise: float = 0.0) -> Transformer:
    """A model with attention weights × 4. noise: how far it is from the one without; a draft model that is sometimes right."""
    config = ATTENTION[kind] if isinstance(kind, str) else kind
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config).eval().requires_grad_(False)
    for name, w in model.named_parameters():
        scale = 1.0 if name == "embed.weight" else config.d_model**-0.5
        w.copy_(scale * torch.randn(w.shape, generator=generator))
        if "norm" in name:
            w.abs_().add_(0.5)
        elif "attention" in name:
            w.mul_(4)
    for w in model.parameters():
        w.add_(noise * torch.randn(w.shape, generator=generator))
    return model


@lru_cache
def oracle(kind: str | ModelConfig = "gqa", seed: int = 1) -> Oracle:
    model = loud(kind, seed)
    return Oracle(Plain(dict(model.state_dict()), model.config))


def lanes(model=None, rows: int = 1, capacity: int = 100, fixed: bool = False, **others) -> dict:
    """{"target": (model, its cache), …}"""
    named = {"target": model or loud(), **others}
    return {name: (m, Cache(m.config, Slab(rows, capacity, fixed))) for name, m in named.items()}


def serve(served: dict, requests: list, **settings) -> list:
    """All Steps of a run, after which every cache must be as empty as new."""
    steps = list(run(served, requests, **settings))
    assert empty(served)
    return steps


def empty(served: dict) -> bool:
    return all(bool((cache.table == -1).all()) and cache.top == [0] * cache.rows for _, cache in served.values() if isinstance(cache, Cache))


def text(steps, prompt=PROMPT, request: int = 0, branch: int = 0) -> list[int]:
    return canvas(steps, prompt, request, branch)


def finishes(steps) -> dict[int, str]:
    """How each request ended; each ends once."""
    ends = [(row.request, row.finish) for step in steps for row in step.rows if row.finish]
    assert len(ends) == len(dict(ends))
    return dict(ends)
