"""A llama.cpp file: a header that describes everything, then quantised blocks.

The `gguf` package dequantises. Its reader is not used: it makes a numpy view of each of 100,000 vocabulary strings, which takes longer than all
the weights together; the header is simple enough to be read directly. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import partial
from math import pi, prod
from pathlib import Path
from typing import Any

import torch

from ..config import ModelConfig, RopeScaling
from .codes import Codes
from .source import Names, Shape, Source
from .vocabulary import ends_of_gguf, from_gguf

NAMES = Names(
    block="blk.{}.",
    parts={
        "embed": ("token_embd",),
        "attention_norm": ("attn_norm",),
        "attention.qkv": ("attn_q", "attn_k", "attn_v"),
        "attention.q_norm": ("attn_q_norm",),
        "attention.k_norm": ("attn_k_norm",),
        "attention.out": ("attn_output",),
        "mlp_norm": ("ffn_norm",),
        "mlp.gate_up": ("ffn_gate", "ffn_up"),
        "mlp.down": ("ffn_down",),
        "norm": ("output_norm",),
        "head": ("output",),
    },
    ignored=("rope_freqs.weight",),
)
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral and SmolLM call themselves llama here
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
BLOCKS = {2: (1, 16, torch.uint8), 3: (2, 16, torch.uint8), 8: (1, 32, torch.int8)}  # Q4_0, Q4_1, Q8_0: float16 numbers, bytes of codes, their type


class _Header:
    """Takes values off the front of a buffer; running out of it is an EOFError."""

    def __init__(self, buffer):
        self.buffer, self.at = buffer, 0

    def take(self, size: int) -> bytes:
        piece = self.buffer[self.at : self.at + size]
        if len(piece) < size:
            raise EOFError
        self.at += size
        return piece

    def numbers(self, code: str, count: int = 1) -> tuple:
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code)))

    def number(self, code: str):
        return self.numbers(code)[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            return list(self.numbers(SCALARS[kind], count)) if kind in SCALARS else [self.value(kind) for _ in range(count)]
        return self.number(SCALARS[kind])


@dataclass(frozen=True)
class File:
    """What a GGUF file says: metadata, and for each tensor its shape (rows first), block type and first byte."""

    path: Path
    buffer: Any
    metadata: dict[str, Any]
    tensors: dict[str, tuple[Shape, int, int]]

    def dequantise(self, name: str) -> torch.Tensor:
        """One tensor in fp32 (or as stored, for plain floats)."""
        import numpy as np
        from gguf import GGMLQuantizationType, dequantize

        shape, kind, start = self.tensors[name]
        blocks = np.frombuffer(self.buffer, np.uint8, _bytes(shape, kind), start).reshape(*shape[:-1], -1)
        numbers = dequantize(blocks, GGMLQuantizationType(kind)).reshape(shape)
        return torch.from_numpy(np.require(numbers, requirements="W"))  # plain floats come as a read-only view of the file


def _bytes(shape: Shape, kind: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]  # per block
    if shape[-1] % numbers:
        raise ValueError(f"rows of {shape[-1]} are not whole blocks of {numbers}")
    return prod(shape) // numbers * size


def read(path: str | Path) -> File:
    """The header of a GGUF file, every length checked against the file's size. ValueError for anything that is not a whole GGUF file."""
    path = Path(path)
    with open(path, "rb") as file:
        if (start := file.read(4)) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file: it starts with {start!r} instead of b'GGUF'")
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _Header(buffer)
    try:
        _, version, n_tensors, n_values = header.numbers("I")[0], header.number("I"), header.number("Q"), header.number("Q")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not 2 or 3 (a big-endian file?)")
        metadata = {header.string(): header.value(header.number("I")) for _ in range(n_values)}
        tensors = dict(_tensor(header) for _ in range(n_tensors))
        align = metadata.get("general.alignment", 32)
        data = -(-header.at // align) * align
        tensors = {name: (shape, kind, data + offset) for name, (shape, kind, offset) in tensors.items()}
        for shape, kind, first in tensors.values():
            if first + _bytes(shape, kind) > len(buffer):
                raise EOFError
    except EOFError:
        short = f"{len(buffer):,} bytes are less than its header speaks of"
        raise ValueError(f"{path} ends too early: {short}; was its download cut off? Get it again") from None
    except (KeyError, ValueError, OverflowError, MemoryError, ZeroDivisionError) as error:
        raise ValueError(f"{path} is damaged or of an unknown kind of GGUF: {error}; get it again") from error
    return File(path, buffer, metadata, tensors)


def _tensor(header: _Header) -> tuple[str, tuple[Shape, int, int]]:
    name, n_dims = header.string(), header.number("I")
    return name, (header.numbers("Q", n_dims)[::-1], header.number("I"), header.number("Q"))  # the file counts the fastest dimension first


def config(file: File) -> ModelConfig:
    """The ModelConfig that a GGUF's metadata describes. ValueError, by name, for whatever this package would compute differently."""
    try:
        return _describe(file)
    except KeyError as missing:
        raise ValueError(f"{file.path}: its header lacks {missing}, which every model of these architectures needs") from None
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{file.path}: {error}") from error


def _describe(file: File) -> ModelConfig:
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"the architecture {architecture!r} is not one of {', '.join(ARCHITECTURES)}")
    own = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items() if key.startswith(f"{architecture}.")}
    d_model, heads = own["embedding_length"], own["attention.head_count"]
    d_head = own["attention.key_length"] if "attention.key_length" in own else d_model // heads
    _refuse(own, d_head)
    return ModelConfig(
        vocab_size=file.tensors["token_embd.weight"][0][0],
        d_model=d_model,
        n_layers=own["block_count"],
        n_heads=heads,
        n_kv_heads=own.get("attention.head_count_kv", heads),
        d_head=d_head,
        d_ff=own["feed_forward_length"],
        context=own["context_length"],
        norm_eps=_decimal(own["attention.layer_norm_rms_epsilon"]),
        rope_theta=_decimal(own.get("rope.freq_base", 10_000.0)),
        rope_scaling=_scaling(file, own, d_head),
        tied="output.weight" not in file.tensors,
        qkv_bias=any(name.endswith("attn_q.bias") for name in file.tensors),
        qk_norm=architecture == "qwen3",
        window=own.get("attention.sliding_window") or None,
        causal=own.get("attention.causal", True),
    )


def _decimal(stored: float) -> float:
    """The decimal number that was rounded to this fp32: 1e-6 instead of 9.999999974752427e-07."""
    import numpy as np

    return float(str(np.float32(stored)))


# Everything else that the header of a llama, qwen2 or qwen3 model may say under its architecture's name.
_READ = {  # above
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "block_count",
    "feed_forward_length",
    "context_length",
    "vocab_size",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "attention.sliding_window",
    "attention.causal",
}
_SCALING = {  # below
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}
_FIXED = {"expert_count": 0, "expert_used_count": 0, "rope.scaling.attn_factor": 1.0}  # the only value whose arithmetic is ours


def _refuse(own: dict, d_head: int) -> None:
    """A header is refused for a key that is not known here, or a value that is not computed."""
    fixed = _FIXED | {"attention.value_length": d_head, "rope.dimension_count": d_head}
    for key, value in own.items():
        if key not in _READ | _SCALING | fixed.keys():
            raise ValueError(f"this package does not know {key} = {value!r} in its header, and it might change the arithmetic")
        if key in fixed and value != fixed[key]:
            raise ValueError(f"its header sets {key} = {value!r}; only {fixed[key]} is computed here")


def _scaling(file: File, own: dict, d_head: int) -> RopeScaling | None:
    """Llama 3's scaling. A GGUF keeps it as a table of what each frequency is divided by: the parameters are found, then proven on the table."""
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor", own.get("rope.scale_linear", 1.0))
    if kind not in ("none", "llama3") and (kind, factor) != ("linear", 1.0):
        raise ValueError(f"the rope scaling {kind!r} (factor {factor}) is not computed here; known are none and llama3's")
    if "rope_freqs.weight" not in file.tensors:
        if kind == "llama3":
            raise ValueError("rope scaling llama3 is announced, but its table rope_freqs.weight is missing")
        return None
    table = file.dequantise("rope_freqs.weight").double()
    if bool((table == 1).all()):
        return None
    scaling = RopeScaling(float(table.max()), 1.0, 4.0, own.get("rope.scaling.original_context_length", 8192))
    wavelength = 2 * pi * own.get("rope.freq_base", 10_000.0) ** (torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    smooth = ((scaling.original_context / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    if table.shape != smooth.shape or not torch.allclose(table, 1 / ((1 - smooth) / scaling.factor + smooth), rtol=1e-4):
        raise ValueError("its rope_freqs.weight is not the table of any Llama 3 model; this rope scaling is not computed here")
    return scaling


def _order(file: File, config: ModelConfig, name: str) -> torch.Tensor | None:
    """The rows of a tensor in the order in which the model turns them: rotary pairs half a head apart. None: as they are.

    llama.cpp turns neighbours (2i, 2i+1), so it stores the q and k rows of *llama* interleaved: new row 2i is old row i, 2i+1 is old i + D/2.
    Its qwen files keep the original order.
    """
    heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}.get(name.split(".")[-2])
    if heads is None or file.metadata["general.architecture"] != "llama":
        return None
    return torch.arange(heads * config.d_head).view(heads, config.d_head // 2, 2).transpose(1, 2).flatten()


def _numbers(file: File, config: ModelConfig, name: str) -> torch.Tensor:
    """A tensor in fp32 (or as stored, for plain floats), its heads in the model's order."""
    order, tensor = _order(file, config, name), file.dequantise(name)
    return tensor if order is None else tensor[order]


def _codes(file: File, config: ModelConfig, name: str) -> Codes | None:
    """A matrix as the blocks that stand in the file, its heads in the model's order; None if blocks of that kind do not run.

    A block is 32 numbers of a row: what each is multiplied by and, in Q4_1, what is added, as float16, then the codes, which `Codes` packs likewise.
    """
    shape, kind, start = file.tensors[name]
    if kind not in BLOCKS:
        return None
    halves, size, number = BLOCKS[kind]
    stored = torch.frombuffer(bytearray(memoryview(file.buffer)[start : start + _bytes(shape, kind)]), dtype=torch.uint8)
    stored = stored.view(shape[0], -1, 2 * halves + size)
    scales, codes = stored[..., : 2 * halves].contiguous().view(torch.float16), stored[..., 2 * halves :].flatten(1).view(number)
    order, made = _order(file, config, name), Codes(codes, *(s.contiguous() for s in scales.unbind(-1)))
    return made if order is None else made.part(order)


def open_gguf(path: str | Path) -> Source:
    """A .gguf file as a Source. Errors: ValueError (foreign, truncated, an architecture or key whose arithmetic is not ours), FileNotFoundError."""
    file = read(path)
    numbers = config(file)
    source = Source(
        where=str(path),
        config=numbers,
        names=NAMES,
        shapes={name: shape for name, (shape, _, _) in file.tensors.items()},
        read=partial(_numbers, file, numbers),
        stored=partial(_codes, file, numbers),
        sizes={name: _bytes(shape, kind) for name, (shape, kind, _) in file.tensors.items() if kind in BLOCKS},
        tokenizer=partial(from_gguf, file.metadata, str(path)),
        card={
            "source": Path(path).name,
            "licence": file.metadata.get("general.license", "not stated in the file"),
            "eos": ends_of_gguf(file.metadata),
        },
    )
    source.check()
    return source
