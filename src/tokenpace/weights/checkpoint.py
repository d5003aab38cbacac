"""A Hugging Face folder: config.json, *.safetensors and tokenizer.json, on disk or fetched by name.

safetensors, not pickle: a pickle file runs code when it is opened, so *.bin and *.pt are refused unread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .hfconfig import read_config, read_json
from .source import Names, Shape, Source
from .vocabulary import ends_of_folder, from_folder

NAMES = Names(
    block="model.layers.{}.",
    parts={
        "embed": ("model.embed_tokens",),
        "attention_norm": ("input_layernorm",),
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.q_norm": ("self_attn.q_norm",),
        "attention.k_norm": ("self_attn.k_norm",),
        "attention.out": ("self_attn.o_proj",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
        "norm": ("model.norm",),
        "head": ("lm_head",),
    },
    ignored=("rotary_emb.inv_freq",),
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
FILES += ["model*.safetensors", "model*.index.json"]


FLOATS = ("F64", "F32", "F16", "BF16")  # whose numbers are weights; those of narrower types mean nothing without their scales


class Shards:
    """The tensors of one or several .safetensors files as one table: `shapes`, `dtypes`, and `read(name)`."""

    def __init__(self, files: list[Path]):
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, str] = {}
        self.home: dict[str, Any] = {}
        for path in files:
            opened = _open(path)
            for name in sorted(opened.keys()):
                if name in self.home:
                    raise ValueError(f"{path} holds {name}, and so does another file beside it: which is meant? Keep one")
                header = opened.get_slice(name)
                self.home[name], self.shapes[name], self.dtypes[name] = opened, tuple(header.get_shape()), header.get_dtype()

    def read(self, name: str) -> torch.Tensor:
        return self.home[name].get_tensor(name)


def _open(path: Path):
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); was its download cut off? Get it again") from error


def _weights(folder: Path) -> Shards:
    """The folder's weights, after checking that they are all there."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) and Path(name).name == name for name in listed.values()):
            raise ValueError(f"{index} has no weight_map from tensor names to files beside it")
        files = sorted({folder / name for name in listed.values()})
        if absent := [path.name for path in files if not path.exists()]:
            raise FileNotFoundError(f"{index} lists {', '.join(absent)}, which {folder} does not hold; get the rest of the download")
        shards = Shards(files)
        if absent := [name for name, file in listed.items() if name not in shards.home]:
            raise ValueError(f"{index} lists tensors that no file holds: {', '.join(absent)}; get the checkpoint again")
        return shards
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        hint = f"; {', '.join(pickles)} could run code when opened and is not read: convert it to safetensors where you trust it" if pickles else ""
        raise FileNotFoundError(f"{folder} holds no *.safetensors{hint}")
    return Shards(files)


def open_folder(path: str | Path, source: str | None = None) -> Source:
    """A folder with config.json, *.safetensors (index or not) and, for text, tokenizer.json, as a Source.

    The head: one that is stored wins over the flag; none and the flag says tied: the embedding; none and untied: an error like any missing tensor.
    Errors: FileNotFoundError, ValueError (foreign or damaged files, other arithmetic; tensors that do not fit are all listed).
    """
    folder = Path(path)
    if not (folder / "config.json").exists():
        expected = "a folder with config.json, *.safetensors and tokenizer.json, or one .gguf file"
        raise FileNotFoundError(f"{folder} holds no config.json: expected {expected}")
    config = read_config(read_json(folder / "config.json"), where=str(folder / "config.json"))
    shards = _weights(folder)
    if quantised := [f"{name} ({dtype})" for name, dtype in shards.dtypes.items() if dtype not in FLOATS]:
        more = f" and {len(quantised) - 3} more" if len(quantised) > 3 else ""
        raise ValueError(f"{folder}: {', '.join(quantised[:3])}{more} are no floats; quantised checkpoints are not supported yet, take the original")
    found = Source(
        where=str(folder),
        config=replace(config, tied=config.tied and "lm_head.weight" not in shards.shapes),
        names=NAMES,
        shapes=shards.shapes,
        read=shards.read,
        tokenizer=partial(from_folder, folder),
        card={"source": source or folder.name, "licence": "not stated in the files; see the model's page", "eos": ends_of_folder(folder)},
    )
    found.check()
    return found


def open_hub(repository: str) -> Source:
    """`OWNER/NAME` of the Hugging Face hub: the files of FILES only (no code, no pickle), kept in the hub's own cache folder."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    if repository.count("/") != 1:
        raise ValueError(f"hf:{repository} is not a model's name: expected hf:OWNER/NAME")
    try:
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=FILES)
    except HFValidationError as error:
        raise ValueError(f"hf:{repository} is not a model's name: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:  # every network and permission error of the hub is one of these
        raise OSError(
            f"could not fetch hf:{repository} through huggingface_hub: {str(error).splitlines()[0]}. Check the name, the network and, "
            "for a gated model, your login; meanwhile a random-weight model such as shape:smollm2-135m serves the latency figures"
        ) from error
    return open_folder(folder, source=f"hf:{repository}")
