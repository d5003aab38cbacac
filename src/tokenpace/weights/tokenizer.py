"""Text to token ids and back, chat templates, and text that streams.

`tokenizers` does the splitting. Going back is done here, byte by byte: a token is a few *bytes* (an emoji is often spread over three of them), so
text is what the bytes of all tokens spell, and a stream may show a character only when its last byte has come.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import tokenizers


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
        ways = ", ".join(sorted(kinds))
        raise ValueError(f"this tokenizer joins its tokens in a way not known here ({ways}); known are ByteLevel and SentencePiece's")

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

        Templates come with checkpoints, so they are programs of strangers: they run in jinja2's sandbox. ValueError if there is none, or it refuses.
        """
        if self.template is None:
            raise ValueError("this model has no chat template (a base model continues text): give it a plain prompt")
        import jinja2

        try:
            template = _sandbox().from_string(self.template)
            return template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None, **self.names)
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            form = "a list of {'role': …, 'content': …}"
            raise ValueError(f"the model's chat template does not take these messages: {error}; expected {form}") from error


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
