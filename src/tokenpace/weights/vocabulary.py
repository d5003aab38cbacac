"""Where a tokenizer comes from: a folder's tokenizer.json, or the vocabulary in a GGUF's header.

A tokenizer.json is complete. A GGUF has the tokens, and merges or scores, but says how text is cut before merging only by a name; so the names are
a table here, and a name that is not in it is refused: ids that are slightly wrong make a model that is slightly stupid, and nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from .hfconfig import read_json
from .tokenizer import Tokenizer

# Ways to cut text before merging, by the name a GGUF has for them. They are part of what the model was trained on: another cut gives other ids.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}{_REST}",  # Llama 3: up to three digits are a piece
    "qwen2": rf"{_CONTRACTIONS}|\p{{N}}{_REST}",
}
_DIGITS_APART = ("smollm", "starcoder", "refact")
PRE_TOKENIZERS = ("gpt-2", "default", *_DIGITS_APART, *_SPLITS)
_CONTROL, _USER = 3, 4  # GGUF token types: stands for no text; text that is never cut
# Names under which a vocabulary marks the end of a turn or a document; a GGUF has room for one or two ids, models stop at any of these.
_ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>")


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder; None if there is no tokenizer.json (then the model takes and gives ids)."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer this library can read: {error}") from error
    said = read_json(folder / "tokenizer_config.json")
    names = {key: _content(said[key]) for key in ("bos_token", "eos_token", "unk_token", "pad_token") if said.get(key)}
    bos = backend.token_to_id(names.get("bos_token", ""))
    adds = said.get("add_bos_token")
    if adds is None:
        adds = bos is not None and backend.encode("a").ids[:1] == [bos]
    written = folder / "chat_template.jinja"
    return Tokenizer(
        backend=backend,
        bos=bos,
        adds_bos=bool(adds) and bos is not None,
        eos=_unique([backend.token_to_id(names.get("eos_token", "")), *ends_of_folder(folder)]),
        template=written.read_text(encoding="utf-8") if written.exists() else _template(said.get("chat_template")),
        names=names,
    )


def ends_of_folder(folder: Path) -> tuple[int, ...]:
    """The ids that end a text, as generation_config.json and config.json have them: also there where no vocabulary is."""
    found = []
    for path in (folder / "generation_config.json", folder / "config.json"):
        stored = read_json(path).get("eos_token_id")
        ids = stored if isinstance(stored, list) else [] if stored is None else [stored]
        if wrong := [id for id in ids if type(id) is not int or id < 0]:
            raise ValueError(f"{path}: eos_token_id holds {wrong[0]!r}, which is no token id")
        found += ids
    return _unique(found)


def ends_of_gguf(meta: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end a text, as a GGUF's header has them."""
    return _unique(meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))


def _content(token: str | dict) -> str:
    return token if isinstance(token, str) else token["content"]


def _template(stored: str | list | None) -> str | None:
    """A checkpoint may name several templates; the one called default is for plain chat."""
    if isinstance(stored, list):
        return next((one["template"] for one in stored if one["name"] == "default"), None)
    return stored


def _unique(ids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(id for id in ids if id is not None))


def from_gguf(meta: Mapping[str, Any], where: str = "this GGUF") -> Tokenizer | None:
    """The tokenizer in a GGUF's metadata; None if it holds none. ValueError for kinds whose way of cutting text is not known here, and damage."""
    try:
        return _from_gguf(meta, where)
    except Exception as error:  # the library raises bare Exception, and a damaged header may hold anything
        if isinstance(error, ValueError) and str(error).startswith(where):
            raise
        first = " ".join(str(error).split())[:200]
        raise ValueError(f"{where}: its vocabulary is damaged ({type(error).__name__}: {first}); get it again") from error


def _from_gguf(meta: Mapping[str, Any], where: str) -> Tokenizer | None:
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in meta.items() if key.startswith("tokenizer.ggml.")}
    if said.get("model", "none") == "none":
        return None
    needed = {"gpt2": ("tokens", "merges"), "llama": ("tokens", "scores")}.get(said["model"], ())
    if lacking := [key for key in needed if key not in said]:
        raise ValueError(f"{where}: its vocabulary lacks {', '.join(lacking)}")
    tokens: list[str] = said["tokens"]
    types = said.get("token_type", [1] * len(tokens))
    build = {"gpt2": _bpe, "llama": _spm}.get(said["model"])
    if build is None:
        raise ValueError(f"{where}: its vocabulary is of the kind {said['model']!r}; known are gpt2 (byte-level BPE) and llama (SentencePiece)")
    backend = build(tokens, said, where)
    for kind, add in ((_CONTROL, backend.add_special_tokens), (_USER, backend.add_tokens)):
        add([AddedToken(token, normalized=False, special=kind == _CONTROL) for token, own in zip(tokens, types, strict=True) if own == kind])
    bos = said.get("bos_token_id")
    ends = [*ends_of_gguf(meta)]
    ends += [id for id in map(backend.token_to_id, _ENDS) if id is not None and types[id] == _CONTROL]
    kinds = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: said.get(f"{key}_token_id") for name, key in kinds.items()}
    return Tokenizer(
        backend=backend,
        bos=bos,
        adds_bos=bos is not None and said.get("add_bos_token", said["model"] == "llama" or said.get("pre") == "llama-bpe"),
        eos=_unique(ends),
        template=meta.get("tokenizer.chat_template"),
        names={name: tokens[id] for name, id in ids.items() if id is not None},
    )


def _bpe(tokens: list[str], said: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    """Byte-level BPE: the merges are in the file, the way to cut text only by name."""
    pre = said.get("pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"{where}: it cuts text in the way called {pre!r}; known are {', '.join(PRE_TOKENIZERS)}")
    merges = [tuple(merge.split(" ")) for merge in said["merges"]]
    backend = tokenizers.Tokenizer(BPE({token: id for id, token in enumerate(tokens)}, merges, ignore_merges=pre == "llama-bpe"))
    cuts = [pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated")] if pre in _SPLITS else []
    cuts += [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGITS_APART else []
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in _SPLITS)  # GPT-2's own cut is within ByteLevel
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _spm(tokens: list[str], said: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    """SentencePiece BPE: no merges, but a score for each token. Whatever two tokens join to a third may merge, the best-scored result first."""
    scores, ids = said["scores"], {token: id for id, token in enumerate(tokens)}
    cuts = ((token, token[:i], token[i:]) for token in ids for i in range(1, len(token)))
    pairs = [(-scores[ids[token]], ids[token], left, right) for token, left, right in cuts if left in ids and right in ids]
    merges = [(left, right) for *_, left, right in sorted(pairs, key=lambda pair: pair[:2])]
    unknown = tokens[said.get("unknown_token_id", 0)]
    backend = tokenizers.Tokenizer(BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend("▁")] if said.get("add_space_prefix", True) else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend
