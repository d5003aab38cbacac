"""Other engines, made to run the weights of a model that is loaded here: what `bench` compares with. Each is optional and imported when asked for.

A peer runs a job: (its model, Job, prompt ids) -> seconds of each pass, the prompt's own first.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .config import ModelConfig
from .load import Lm


class Watch:
    """Looks at the clock whenever `generate` has new logits, which it hands to whoever may change them."""

    def __init__(self):
        self.at = [time.perf_counter()]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.at.append(time.perf_counter())
        return scores


@torch.no_grad()
def transformers_run(model, job, prompt: list[int]) -> list[float]:
    """Hugging Face's `generate`: greedy, dynamic cache, SDPA. It has no passes of several tokens, so those are its model's own."""
    ids, watch = torch.tensor([prompt] * job.rows), Watch()
    if job.width == 1:
        how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        model.generate(ids, **how, max_new_tokens=1 + job.passes, logits_processor=[watch])
    else:
        cache = watch(ids, model(input_ids=ids, use_cache=True, logits_to_keep=1)).past_key_values
        again = torch.tensor([[prompt[i % len(prompt)] for i in range(job.width)]] * job.rows)
        for _ in range(job.passes):
            watch(again, model(input_ids=again, past_key_values=cache, use_cache=True))
    return [b - a for a, b in pairwise(watch.at)]


def llama_cpp(path: Path):
    """llama.cpp on a GGUF file, as many threads as PyTorch uses. RuntimeError where its Python package is missing."""
    if find_spec("llama_cpp") is None:
        raise RuntimeError("llama.cpp is not installed: pip install llama-cpp-python (it is compiled, which takes ten minutes)")
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    return Llama(str(path), n_ctx=8192, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)


def llama_cpp_run(model, job, prompt: list[int]) -> list[float]:
    """Greedy. One row: its Python face has no more. Of a pass of several tokens it makes the last one's logits only, which favours it a little."""
    if job.rows > 1:
        raise RuntimeError("its Python face has no batches")
    model.reset()
    tokens, seconds = prompt, []
    for _ in range(1 + job.passes):
        start = time.perf_counter()
        model.eval(tokens)
        best = int(np.ctypeslib.as_array(model._ctx.get_logits(), (model.n_vocab(),)).argmax())
        seconds.append(time.perf_counter() - start)
        tokens = [best] if job.width == 1 else [prompt[i % len(prompt)] for i in range(job.width)]
    return seconds


def requantised(path: Path, target: Path, kind: str) -> Path:
    """A GGUF file's weights as numbers, and these as blocks of another kind: a new file, everything else in it as it was."""
    if target.exists():
        return target
    import gguf

    reader, to = gguf.GGUFReader(path), gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 2:
            writer.add_tensor(tensor.name, gguf.quantize(numbers, to), raw_dtype=to)
        else:
            writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


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
