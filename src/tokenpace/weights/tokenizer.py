"""Text to token ids and back, chat templates, and text that streams.

`tokenizers` does the splitting, whether the vocabulary comes from a tokenizer.json or from a GGUF's header. Going back is done here, byte by byte:
a token is a few *bytes* (an emoji is often spread over three of them), so text is what the bytes of all tokens spell, and a stream may show a
character only when its last byte has come.
"""
from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

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


def _byte_letters() -> dict[str, int]:
    """The alphabet of byte-level vocabularies (GPT-2): printable Latin-1 stands for its own byte, the 68 others are moved up from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_LETTERS = _byte_letters()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_LETTERS[letter] for letter in token)
    except KeyError:  # an added token, kept as plain text
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").encode()


@dataclass(frozen=True)
class Tokenizer:
    """Text ↔ ids of one vocabulary.

    `bos`: the id that opens a text, or None; `adds_bos`: whether this model wants it there; `eos`: every id that ends one;
    `template`: the model's chat template (jinja2), or None for a base model.
    """

    backend: tokenizers.Tokenizer
    bos: int | None = None
    adds_bos: bool = False
    eos: tuple[int, ...] = ()
    template: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, … as chat templates call them

    def __post_init__(self):
        self.backend.no_truncation()
        self.backend.no_padding()

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {id: token for token, id in self.backend.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(id for id, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def _speller(self) -> Callable[[str], bytes]:
        """How this vocabulary writes bytes, as its decoder says."""
        decoder = json.loads(self.backend.to_str())["decoder"] if self.backend.decoder else None
        kinds = {step["type"] for step in ((decoder or {}).get("decoders") or [decoder or {"type": "none"}])}
        if kinds == {"ByteLevel"}:
            return _byte_level
        if "Metaspace" in kinds or {"Replace", "ByteFallback"} <= kinds:
            return _sentencepiece
        raise ValueError(f"this tokenizer joins its tokens in a way not known here ({', '.join(sorted(kinds))}); known are ByteLevel and SentencePiece's")

    @cached_property
    def size(self) -> int:
        """One more than the largest id. A model may have more rows than that (padding); those must never be drawn."""
        return max(self._tokens) + 1

    def encode(self, text: str, bos: bool | None = None) -> list[int]:
        """Ids of `text`; special tokens written out in it count as such. `bos`: whether to open with BOS (None: as the model wants); never twice."""
        if not isinstance(text, str):
            raise TypeError(f"encode takes a str, not {type(text).__name__}")
        ids = self.backend.encode(text, add_special_tokens=False).ids
        if bos and self.bos is None:
            raise ValueError("bos=True, but this vocabulary has no token that opens a text")
        wanted = self.adds_bos if bos is None else bos
        return [self.bos, *ids] if wanted and ids[:1] != [self.bos] else ids

    def token(self, id: int) -> str:
        """A token as the vocabulary spells it. ValueError if there is none of that id."""
        if id not in self._tokens:
            raise ValueError(f"token id {id} is not in this vocabulary of {self.size:,}")
        return self._tokens[id]

    def spell(self, id: int, skip_special: bool = True) -> bytes:
        """The bytes that one token adds to a text."""
        token = self.token(id)
        if id in self._special:
            return b"" if skip_special else token.encode()
        return self._speller(token)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text that `ids` spell; bytes that are no UTF-8 become U+FFFD. A continuation keeps its leading space (see Detokenizer)."""
        stream = self.stream(skip_special)
        return "".join([*map(stream.feed, ids), stream.flush()])

    def stream(self, skip_special: bool = True) -> Detokenizer:
        """Text as tokens come: pieces that join to decode(all)."""
        return Detokenizer(self, skip_special)

    def chat(self, messages: list[dict[str, str]]) -> str:
        """Messages ({"role": …, "content": …}) in the model's own format, up to where its answer begins. Encode it like any text.

        Templates come with checkpoints, so they are programs of strangers: they run in jinja2's sandbox. ValueError if there is no template, or it refuses.
        """
        if self.template is None:
            raise ValueError("this model has no chat template (a base model continues text): give it a plain prompt")
        import jinja2

        try:
            template = _sandbox().from_string(self.template)
            return template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None, **self.names)
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the model's chat template does not take these messages: {error}; expected a list of {{'role': …, 'content': …}}") from error


class Detokenizer:
    """Turns ids into text one by one, each in time independent of how many came before.

    A byte sequence that may still become a character is held back, and given as U+FFFD as soon as it cannot. SentencePiece writes a space before a
    text's first word; it is dropped only where a text begins, which BOS marks: a continuation's first space is real.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True):
        self._tokenizer, self._skip = tokenizer, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._opens = False

    def feed(self, id: int) -> str:
        """The text that this token completes; often "" in the middle of a character."""
        spelled = self._tokenizer.spell(id, self._skip)
        if self._opens and self._tokenizer._speller is _sentencepiece:
            spelled = spelled.removeprefix(b" ")
        self._opens = id == self._tokenizer.bos
        return self._decoder.decode(spelled)

    def flush(self) -> str:
        """What is still held back, at the end."""
        return self._decoder.decode(b"", final=True)


def _sandbox():
    from datetime import datetime

    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str):
        raise jinja2.TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    sandbox.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return sandbox


# tokenizer.json


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder; None if there is no tokenizer.json (then the model takes and gives ids)."""
    from .checkpoint import read_json

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
    ends = [backend.token_to_id(names.get("eos_token", ""))]
    for name in ("generation_config.json", "config.json"):
        stored = read_json(folder / name).get("eos_token_id")
        ends += stored if isinstance(stored, list) else [stored]
    written = folder / "chat_template.jinja"
    return Tokenizer(
        backend=backend,
        bos=bos,
        adds_bos=bool(adds) and bos is not None,
        eos=_unique(ends),
        template=written.read_text(encoding="utf-8") if written.exists() else _template(said.get("chat_template")),
        names=names,
    )


def _content(token: str | dict) -> str:
    return token if isinstance(token, str) else token["content"]


def _template(stored: str | list | None) -> str | None:
    """A checkpoint may name several templates; the one called default is for plain chat."""
    if isinstance(stored, list):
        return next((one["template"] for one in stored if one["name"] == "default"), None)
    return stored


def _unique(ids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(id for id in ids if id is not None))


# GGUF


def from_gguf(meta: Mapping[str, Any], where: str = "this GGUF") -> Tokenizer | None:
    """The tokenizer in a GGUF's metadata; None if it holds none. ValueError for kinds whose way of cutting text is not known here."""
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in meta.items() if key.startswith("tokenizer.ggml.")}
    if said.get("model", "none") == "none":
        return None
    tokens: list[str] = said["tokens"]
    types = said.get("token_type", [1] * len(tokens))
    build = {"gpt2": _bpe, "llama": _spm}.get(said["model"])
    if build is None:
        raise ValueError(f"{where}: its vocabulary is of the kind {said['model']!r}; known are gpt2 (byte-level BPE) and llama (SentencePiece)")
    backend = build(tokens, said, where)
    for kind, add in ((_CONTROL, backend.add_special_tokens), (_USER, backend.add_tokens)):
        add([AddedToken(token, normalized=False, special=kind == _CONTROL) for token, own in zip(tokens, types, strict=True) if own == kind])
    bos = said.get("bos_token_id")
    ends = [said.get(f"{name}_token_id") for name in ("eos", "eot", "eom")]
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
    pairs = [(-scores[id], id, token[:i], token[i:]) for token, id in ids.items() for i in range(1, len(token)) if token[:i] in ids and token[i:] in ids]
    merges = [(left, right) for _, _, left, right in sorted(pairs, key=lambda pair: pair[:2])]
    unknown = tokens[said.get("unknown_token_id", 0)]
    backend = tokenizers.Tokenizer(BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend("▁")] if said.get("add_space_prefix", True) else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend
