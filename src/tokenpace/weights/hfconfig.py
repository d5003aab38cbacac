"""config.json, read strictly.

Two Hugging Face configs can differ in one key and describe different arithmetic, and a loader that skips what it does not know then writes fluent
nonsense. So every key is either used, required to have the one value this package computes, known to change nothing, or refused by name.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from ..config import ModelConfig, RopeScaling, nearest

# What each family computes when config.json is silent; the shared part is the llama's.
_COMMON: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "sliding_window": None,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "rope_parameters": None,
    "layer_types": None,
}
_QWEN = {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096, "num_key_value_heads": 32, "max_position_embeddings": 32_768}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131_072},
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
}
_NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Only these values are computed here.
_FIXED: dict[str, tuple] = {
    "attention_bias": (False, None),  # in transformers it would also bias the output projection
    "mlp_bias": (False, None),
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "use_mrope": (False, None),
    "quantization_config": (None,),
    "auto_map": (None,),  # names Python files to be run
    "is_decoder": (True, False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
}
_HARMLESS = {  # to the logits
    "model_type",
    "architectures",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "pretraining_tp",
    "_name_or_path",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "is_llama_config",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "tie_encoder_decoder",
    "chunk_size_feed_forward",
    "problem_type",
    "id2label",
    "label2id",
    "task_specific_params",
    "finetuning_task",
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} if there is no such file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}; get it again") from error
    if isinstance(content, dict):
        return content
    raise ValueError(f"{path} holds a {type(content).__name__}, expected a JSON object")


def read_config(numbers: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """The ModelConfig that a parsed config.json describes.

    ValueError for a family, key or value whose arithmetic is not this package's, by name. `tied` is what the flag says; what is stored decides later.

    >>> sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    >>> read_config({"model_type": "llama", **sizes}).d_head
    8
    >>> read_config({"model_type": "llama", "hidden_act": "gelu", **sizes})
    Traceback (most recent call last):
    ValueError: config.json: hidden_act = 'gelu' changes the arithmetic; only silu is computed here
    """
    try:
        return _describe(numbers)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{where}: {error}") from error


def _describe(numbers: dict[str, Any]) -> ModelConfig:
    family = numbers.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"the model_type {family!r} is not one of {', '.join(FAMILIES)}")
    if lacking := [key for key in _NEEDED if key not in numbers]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    known = _COMMON | FAMILIES[family]
    _refuse(numbers, known)
    c = known | numbers
    heads = c["num_attention_heads"]
    theta, scaling = _rope(c)
    return ModelConfig(
        vocab_size=c["vocab_size"],
        d_model=c["hidden_size"],
        n_layers=c["num_hidden_layers"],
        n_heads=heads,
        n_kv_heads=heads if c["num_key_value_heads"] is None else c["num_key_value_heads"],
        d_head=c["head_dim"] or c["hidden_size"] // heads,
        d_ff=c["intermediate_size"],
        context=c["max_position_embeddings"],
        norm_eps=_positive("rms_norm_eps", c["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=_flag("tie_word_embeddings", c["tie_word_embeddings"]),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        window=_window(c),
    )


def _refuse(numbers: dict, known: dict) -> None:
    for key, value in numbers.items():
        if key in _FIXED:
            if value not in _FIXED[key]:
                raise ValueError(f"{key} = {value!r} changes the arithmetic; only {_FIXED[key][0]} is computed here")
        elif key not in known and key not in _NEEDED and key not in _HARMLESS:
            raise ValueError(
                f"this package does not know the key {key!r} = {value!r}, and it might change the arithmetic"
                f"{nearest(key, [*known, *_NEEDED])}. If you are sure that it does not, remove it from the file"
            )


def _positive(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise ValueError(f"{key} must be a finite number over 0, not {value!r}")
    return float(value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return value


def _rope(c: dict) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from the keys of either era: rope_theta and rope_scaling side by side, or both within rope_parameters (transformers 5)."""
    rope = {**(c["rope_scaling"] or {}), **(c["rope_parameters"] or {})}
    theta = _positive("rope_theta", rope.pop("rope_theta", c["rope_theta"]))
    kinds = {rope.pop(key) for key in ("rope_type", "type") if key in rope} or {"default"}
    fields = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"} if kinds == {"llama3"} else set()
    if kinds not in ({"default"}, {"llama3"}):
        raise ValueError(f"the rope scaling {' / '.join(map(repr, kinds))} is not computed here; known are default and llama3")
    if rope.get("partial_rotary_factor") == 1:
        del rope["partial_rotary_factor"]
    if rope.keys() != fields:
        raise ValueError(f"rope scaling of type {kinds.pop()} has the keys {sorted(rope)}, expected {sorted(fields)}")
    if not fields:
        return theta, None
    return theta, RopeScaling(
        *(_positive(key, rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor")), rope["original_max_position_embeddings"]
    )


def _window(c: dict) -> int | None:
    """The sliding window, if all layers have one; a mixture of layers with and without is refused."""
    layers, window = c["num_hidden_layers"], c["sliding_window"]
    if c["layer_types"] is not None:
        kinds = set(c["layer_types"])
    elif c.get("use_sliding_window", True) and window is not None:
        first = c.get("max_window_layers", 0)  # qwen: this layer and those after it slide
        kinds = {"sliding_attention" if layer >= first else "full_attention" for layer in range(layers)}
    else:
        kinds = {"full_attention"}
    if kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"} or window is None:
        raise ValueError(f"layers of the kinds {', '.join(sorted(kinds))} with window {window}; here all layers attend alike")
    return window
