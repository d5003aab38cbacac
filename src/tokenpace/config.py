"""What a model is, in numbers: every shape, byte and parameter follows from these few fields.

Nothing here needs torch, so a laptop can reason about a model it could never load.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from math import prod


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretched rotary frequencies: wavelengths beyond the original context turn `factor` times slower."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family: Llama, SmolLM, TinyLlama, Mistral, Qwen2 and Qwen3 differ only in these numbers.

    >>> c = preset("smollm2-135m")
    >>> round(c.n_params / 1e6), c.kv_numbers
    (135, 11520)
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int  # H: queries
    n_kv_heads: int  # G: keys and values; H is MHA, 1 is MQA, anything between is GQA
    d_head: int  # D; need not be d_model / n_heads
    d_ff: int
    context: int = 2048
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tied: bool = True  # the output head is the embedding
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # Qwen3
    window: int | None = None  # a key is seen from fewer than this many positions away; None: always
    sinks: int = 0  # the first positions, which a window never hides
    causal: bool = True  # False: tokens also see what comes later (a masked-diffusion model)

    def __post_init__(self):
        sizes = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff", "context")
        for name in sizes:
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"ModelConfig.{name} must be a positive whole number, not {getattr(self, name)!r}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} query heads cannot share {self.n_kv_heads} KV heads evenly: n_heads must be a multiple of n_kv_heads")
        if self.d_head % 2:
            raise ValueError(f"d_head is {self.d_head}, but rotary positions turn numbers in pairs: it must be even")
        if self.sinks < 0 or not self.rope_theta > 0 or not self.norm_eps >= 0:
            raise ValueError(f"sinks {self.sinks} and norm_eps {self.norm_eps} must be at least 0, rope_theta {self.rope_theta} more than 0")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}: a token must at least see itself (1), or everything (None)")

    @classmethod
    def from_dict(cls, numbers: dict) -> ModelConfig:
        """The config that `numbers` describes. A key it does not know is an error: it might change the arithmetic."""
        known = [f.name for f in fields(cls)]
        for key in numbers:
            if key not in known:
                raise ValueError(f"ModelConfig has no field {key!r}{nearest(key, known)}")
        scaling = numbers.get("rope_scaling")
        return cls(**{**numbers, "rope_scaling": RopeScaling(**scaling) if isinstance(scaling, dict) else scaling})

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight: what a checkpoint must hold, what a pass must read, what there is to count."""
        c, kv, shapes = self, self.n_kv_heads * self.d_head, {"embed.weight": (self.vocab_size, self.d_model)}
        for i in range(c.n_layers):
            shapes |= {
                f"blocks.{i}.attention_norm.weight": (c.d_model,),
                f"blocks.{i}.attention.qkv.weight": (c.n_heads * c.d_head + 2 * kv, c.d_model),
                f"blocks.{i}.attention.out.weight": (c.d_model, c.n_heads * c.d_head),
                f"blocks.{i}.mlp_norm.weight": (c.d_model,),
                f"blocks.{i}.mlp.gate_up.weight": (2 * c.d_ff, c.d_model),
                f"blocks.{i}.mlp.down.weight": (c.d_model, c.d_ff),
            }
            if c.qkv_bias:
                shapes[f"blocks.{i}.attention.qkv.bias"] = (c.n_heads * c.d_head + 2 * kv,)
            if c.qk_norm:
                shapes |= {f"blocks.{i}.attention.{n}.weight": (c.d_head,) for n in ("q_norm", "k_norm")}
        shapes["norm.weight"] = (c.d_model,)
        if not c.tied:
            shapes["head.weight"] = (c.vocab_size, c.d_model)
        return shapes

    @property
    def n_params(self) -> int:
        return sum(prod(shape) for shape in self.tensors.values())

    def kv_shapes(self, layer: int) -> tuple[tuple[int, int], ...]:
        """What one layer asks its cache to hold for each token: here keys [G, D] and values [G, D]."""
        return ((self.n_kv_heads, self.d_head),) * 2

    @property
    def kv_numbers(self) -> int:
        """Numbers that one token leaves in the cache, over all layers. Keys *and* values."""
        return sum(prod(shape) for layer in range(self.n_layers) for shape in self.kv_shapes(layer))


def nearest(word: str, known) -> str:
    """How an error message offers what may have been meant."""
    close = get_close_matches(str(word), list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else f"; there is {', '.join(known)}"


_LLAMA32 = RopeScaling(32.0, 1.0, 4.0, 8192)
_QWEN = dict(vocab_size=151_936, rope_theta=1e6, norm_eps=1e-6)

# Shapes of public models, and one that any machine can run. Bytes do not care about values: random weights are as slow as real ones.
PRESETS: dict[str, ModelConfig] = {
    "15m": ModelConfig(32_000, 288, 6, 6, 6, 48, 768, context=1024),
    "smollm2-135m": ModelConfig(49_152, 576, 30, 9, 3, 64, 1536, context=8192, rope_theta=1e5),
    "smollm2-360m": ModelConfig(49_152, 960, 32, 15, 5, 64, 2560, context=8192, rope_theta=1e5),
    "qwen2.5-0.5b": ModelConfig(d_model=896, n_layers=24, n_heads=14, n_kv_heads=2, d_head=64, d_ff=4864, context=32_768, qkv_bias=True, **_QWEN),
    "qwen3-0.6b": ModelConfig(d_model=1024, n_layers=28, n_heads=16, n_kv_heads=8, d_head=128, d_ff=3072, context=40_960, qk_norm=True, **_QWEN),
    "tinyllama-1.1b": ModelConfig(32_000, 2048, 22, 32, 4, 64, 5632, tied=False),
    "llama-3.2-1b": ModelConfig(128_256, 2048, 16, 32, 8, 64, 8192, context=131_072, rope_theta=5e5, rope_scaling=_LLAMA32),
    "smollm2-1.7b": ModelConfig(49_152, 2048, 24, 32, 32, 64, 8192, context=8192, rope_theta=1.3e5),
    "llama-3.2-3b": ModelConfig(128_256, 3072, 28, 24, 8, 128, 8192, context=131_072, rope_theta=5e5, rope_scaling=_LLAMA32),
    "llama-2-7b": ModelConfig(32_000, 4096, 32, 32, 32, 128, 11_008, context=4096, tied=False),
    "llama-3.1-8b": ModelConfig(
        128_256, 4096, 32, 32, 8, 128, 14_336, context=131_072, rope_theta=5e5, rope_scaling=replace(_LLAMA32, factor=8.0), tied=False
    ),
}


def preset(name: str) -> ModelConfig:
    """The shape of a public model, by name."""
    if name not in PRESETS:
        raise ValueError(f"no shape is called {name!r}{nearest(name, PRESETS)}")
    return PRESETS[name]
