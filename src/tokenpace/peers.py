"""Other engines, made to run the weights of a model that is loaded here: what `bench` compares with. Each is optional and imported when asked for.

A peer is a function: Lm -> (prompt ids, new tokens) -> seconds of each pass, the prefill first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor

from .config import ModelConfig
from .load import Lm

Run = Callable[[list[int], int], list[float]]


class Stamps:
    """What transformers calls a streamer: told every token, it looks at the clock."""

    def __init__(self):
        self.at: list[float] = []

    def put(self, tokens: Tensor):
        self.at.append(time.perf_counter())

    def end(self):
        pass


def transformers_generate(lm: Lm) -> Run:
    """Hugging Face's `generate`: greedy, dynamic cache, SDPA, on the very same tensors. RuntimeError where it cannot run this model."""
    model = llama(lm)

    def go(prompt: list[int], new_tokens: int) -> list[float]:
        stamps, ids = Stamps(), torch.tensor([prompt])
        how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        start = time.perf_counter()
        model.generate(ids, **how, streamer=stamps)
        marks = [start, *stamps.at[1:]]  # the first thing it is told is the prompt
        return [b - a for a, b in pairwise(marks)]

    return go


def llama(lm: Lm):
    """transformers' LlamaForCausalLM around this model's own tensors: the fused matrices are cut into views, nothing is copied."""
    if find_spec("transformers") is None:
        raise RuntimeError("transformers is not installed: pip install transformers, or bench with --against none")
    c = lm.config
    if c.qk_norm or c.qkv_bias or c.window or not c.causal:
        raise RuntimeError("this model is not a plain Llama, so its weights do not fit transformers' LlamaForCausalLM")
    import transformers

    transformers.logging.set_verbosity_error()
    rope = {"rope_theta": c.rope_theta, "rope_type": "default"}
    if s := c.rope_scaling:
        rope |= {"rope_type": "llama3", "factor": s.factor, "low_freq_factor": s.low_freq_factor, "high_freq_factor": s.high_freq_factor}
        rope |= {"original_max_position_embeddings": s.original_context}
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.d_head,
        max_position_embeddings=c.context,
        rms_norm_eps=c.norm_eps,
        rope_parameters=rope,
        tie_word_embeddings=c.tied,
        dtype=lm.dtype,
    )
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    model.load_state_dict(renamed(c, lm.model.state_dict()), assign=True)
    model.tie_weights()
    return model


def renamed(c: ModelConfig, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors under transformers' names. Rows of qkv are q heads, k heads, v heads; rows of gate_up are gate, up."""
    queries, keys = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    cut = {
        "attention.qkv": {
            "self_attn.q_proj": (0, queries),
            "self_attn.k_proj": (queries, queries + keys),
            "self_attn.v_proj": (queries + keys, queries + 2 * keys),
        },
        "attention.out": {"self_attn.o_proj": (0, c.d_model)},
        "mlp.gate_up": {"mlp.gate_proj": (0, c.d_ff), "mlp.up_proj": (c.d_ff, 2 * c.d_ff)},
        "mlp.down": {"mlp.down_proj": (0, c.d_model)},
        "attention_norm": {"input_layernorm": (0, c.d_model)},
        "mlp_norm": {"post_attention_layernorm": (0, c.d_model)},
    }
    theirs = {"model.embed_tokens.weight": ours["embed.weight"], "model.norm.weight": ours["norm.weight"]}
    theirs["lm_head.weight"] = ours["embed.weight" if c.tied else "head.weight"]
    for i in range(c.n_layers):
        for mine, parts in cut.items():
            for name, (a, b) in parts.items():
                theirs[f"model.layers.{i}.{name}.weight"] = ours[f"blocks.{i}.{mine}.weight"][a:b]
    return theirs
