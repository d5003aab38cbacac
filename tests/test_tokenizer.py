"""Text ↔ ids: the same ids as transformers for every way of cutting text, and text that streams without losing a byte.

Vocabularies are trained here, on a few lines, so that nothing is fetched; tests/test_real.py repeats the comparison on SmolLM2's own.
"""

from __future__ import annotations

import json
import timeit
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from tokenpace.weights.tokenizer import Tokenizer
from tokenpace.weights.vocabulary import from_folder, from_gguf

CORPUS = [
    "It's 1234 o'clock; we'll see 99 birds.  Two  spaces,\n\n\ttabs and naïve café résumé",
    "def f(x):\n    return x ** 2  # 12 345 (123)",
    "你好世界 日本語 текст 🙂🙂 👩‍👩‍👧",
] * 4
TEXTS = [
    "",
    " ",
    "Hello world",
    "  leading and  double  spaces ",
    "a 1 22  333 4444   55555",
    "12,345.678 and 2024-01-31 (123) (1234)",
    "zebra (zebra)",
    "I'm sure they'LL say it's we've",
    "def f(x):\n\n    if x:\n\t\treturn {'a': [1, 2]}\r\n",
    "你好，世界！日本語のテキスト",
    "emoji 🙂👩‍👩‍👧 and flags 🇺🇳 ½ ² x",
    "café cafe\u0301",  # composed and decomposed
    "\u200b\u00a0 non-breaking\u2003em",
    "<|start|>user\nhi<|end|>\n<|start|>",
]
SPECIAL = ["<|start|>", "<|end|>"]


def trained() -> tuple[list[str], list[str]]:
    """(tokens, merges) of a small byte-level BPE."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    )
    vocab = backend.get_vocab()
    return sorted(vocab, key=vocab.get), [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


TOKENS, MERGES = trained()
TOKENS.append("zebra")  # a word that no merges make: only Llama 3 takes it whole


def header(pre: str, **more) -> dict:
    said = {
        "model": "gpt2",
        "pre": pre,
        "tokens": TOKENS,
        "merges": MERGES,
        "token_type": [3, 3] + [1] * (len(TOKENS) - 2),
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (said | more).items()}


def theirs(pre: str):
    """The same vocabulary in transformers, cut as the model's own tokenizer cuts."""
    vocab, merges = {token: id for id, token in enumerate(TOKENS)}, [tuple(merge.split()) for merge in MERGES]
    if pre == "qwen2":
        made = Qwen2Tokenizer(vocab=vocab, merges=merges)
    elif pre == "gpt-2":
        made = GPT2Tokenizer(vocab=vocab, merges=merges)
    else:  # SmolLM's tokenizer.json: digits one by one, then GPT-2's cut; Llama 3's: its own expression, and whole words before merges
        backend = Backend(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
        digits = pre_tokenizers.Digits(individual_digits=True)
        cut = digits if pre == "smollm" else pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")])
        backend.decoder = decoders.ByteLevel()
        made = PreTrainedTokenizerFast(tokenizer_object=backend)
    made.add_special_tokens({"additional_special_tokens": [AddedToken(token, normalized=False) for token in SPECIAL]})
    return made


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return from_gguf(header("smollm"))


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_ids_are_transformers_ids(pre):
    ours, other = from_gguf(header(pre)), theirs(pre)
    for text in TEXTS:
        ids = other(text, add_special_tokens=False).input_ids
        assert ours.encode(text, bos=False) == ids, text
        assert ours.decode(ids, skip_special=False) == other.decode(ids, clean_up_tokenization_spaces=False), text


def test_the_ways_to_cut_do_differ():  # or the test above would pass with any of them
    ids = {pre: tuple(tuple(from_gguf(header(pre)).encode(text, bos=False)) for text in TEXTS) for pre in ("smollm", "gpt-2", "qwen2", "llama-bpe")}
    assert len(set(ids.values())) == 4


def test_special_tokens_are_recognised_and_left_out(smollm):
    ids = smollm.encode("<|start|>hi<|end|>")
    assert (ids[0], ids[-1], smollm.eos, smollm.bos) == (0, 1, (1,), 0)
    assert smollm.decode(ids) == "hi"
    assert smollm.decode(ids, skip_special=False) == "<|start|>hi<|end|>"
    assert smollm.token(0) == "<|start|>"


def test_tokens_that_a_user_defined_are_whole_and_text():
    tokenizer = from_gguf(header("smollm", tokens=[*TOKENS, "  \t"], token_type=[3, 3] + [1] * (len(TOKENS) - 2) + [4]))
    ids = tokenizer.encode("a  \tb")
    assert ids[1] == len(TOKENS)
    assert tokenizer.decode(ids) == "a  \tb"


def test_ends_have_several_names():  # C11: a header names one, the vocabulary shows the others
    tokens, types = [*TOKENS, "<|endoftext|>", "<|eot_id|>", "</s>"], [3, 3] + [1] * (len(TOKENS) - 2) + [3, 3, 1]
    n = len(TOKENS)
    assert from_gguf(header("smollm", tokens=tokens, token_type=types)).eos == (1, n, n + 1)
    assert from_gguf(header("smollm", tokens=tokens, token_type=types, eot_token_id=5)).eos == (1, 5, n, n + 1)


# Streaming


def same_pieces(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = tokenizer.stream(skip)
    pieces = [*map(stream.feed, ids), stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip)
    return pieces


@given(ids=st.lists(st.integers(0, len(TOKENS) - 1), max_size=40), skip=st.booleans())
def test_any_ids_stream_to_what_the_library_decodes(ids, skip):  # L6, L7: the library decodes all at once, and is the oracle
    tokenizer = from_gguf_once()
    same_pieces(tokenizer, ids, skip)
    assert tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=40))
def test_text_comes_back(text):
    tokenizer = from_gguf_once()
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def from_gguf_once(made=[]) -> Tokenizer:  # noqa: B006  hypothesis takes no fixtures of a module
    made or made.append(from_gguf(header("smollm")))
    return made[0]


def test_a_character_appears_with_its_last_byte(smollm):  # L6
    ids = [smollm.backend.token_to_id(letter) for letter in "ðŁļĢ"]  # the four bytes of a rocket
    assert same_pieces(smollm, ids) == ["", "", "", "🚀", ""]
    assert same_pieces(smollm, ids[:3]) == ["", "", "", "\ufffd"]
    space = smollm.encode(" ")
    assert same_pieces(smollm, ids[:2] + space + ids) == ["", "", "\ufffd ", "", "", "", "🚀", ""]


def test_spaces_survive_the_stream(smollm):  # L7
    assert "".join(same_pieces(smollm, smollm.encode(" a b  c"))) == " a b  c"


def test_streaming_costs_the_same_at_the_thousandth_token(smollm):
    ids = smollm.encode("the same few words again and again ") * 400
    stream = smollm.stream()
    first = min(timeit.repeat(lambda: [stream.feed(id) for id in ids[:500]], number=1, repeat=5))
    for id in ids:
        stream.feed(id)
    later = min(timeit.repeat(lambda: [stream.feed(id) for id in ids[:500]], number=1, repeat=5))
    assert later < 5 * first  # decoding the whole again would be 30 times


# SentencePiece vocabularies

WORDS = ["▁", "a", "b", "c", "▁a", "▁b", "ab", "bc", "▁ab", "abc", "▁▁", "▁abc"]
SCORES = [-50.0, -51.0, -52.0, -53.0, -3.0, -9.0, -2.0, -1.0, -5.0, -4.0, -6.0, -7.0]


def pieces_header(**more) -> dict:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    said = {"model": "llama", "tokens": tokens, "scores": [0.0] * 259 + SCORES, "token_type": [2, 3, 3] + [6] * 256 + [1] * len(WORDS)}
    said |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in (said | more).items()}


def by_hand(text: str) -> list[str]:
    """SentencePiece's rule, slowly: of all neighbours that join to a token, join the best-scored (leftmost), until none do."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [(-SCORES[WORDS.index(a + b)], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in WORDS]
        if not joins:
            return [piece for part in parts for piece in ([part] if part in WORDS else [f"<0x{byte:02X}>" for byte in part.encode()])]
        i = min(joins)[1]
        parts[i : i + 2] = ["".join(parts[i : i + 2])]


@given(text=st.text(alphabet="abc é🙂", max_size=12).filter(bool))
def test_scores_become_merges(text):
    tokenizer = from_gguf(pieces_header())
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos
    assert [tokenizer.token(id) for id in ids[1:]] == by_hand(text)
    assert "".join(same_pieces(tokenizer, ids)) == text  # the space before the first word is not the text's


def test_a_continuation_keeps_its_leading_space():  # L7
    tokenizer = from_gguf(pieces_header())
    a = tokenizer.backend.token_to_id("▁ab")
    assert tokenizer.decode([a, a]) == " ab ab"
    assert tokenizer.decode([1, a, a]) == "ab ab"


def test_bytes_are_bytes():  # L6: never the literal <0xF0>
    tokenizer = from_gguf(pieces_header())
    rocket = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "🚀".encode()]
    assert same_pieces(tokenizer, rocket) == ["", "", "", "🚀", ""]
    assert same_pieces(tokenizer, rocket[:2]) == ["", "", "\ufffd"]


# tokenizer.json


def write_tokenizer(folder, backend: Backend, **config) -> None:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def with_bos(pre: str = "smollm") -> Backend:
    backend = from_gguf(header(pre)).backend
    backend.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 0)])
    return backend


def test_a_folder_gives_the_same_ids(tmp_path):
    backend = with_bos()
    backend.enable_truncation(4)  # a file may carry the settings of its last user
    backend.enable_padding(length=9)
    write_tokenizer(tmp_path, backend, bos_token="<|start|>", eos_token={"content": "<|end|>"})
    ours, other = from_folder(tmp_path), PreTrainedTokenizerFast(tokenizer_object=with_bos())
    assert (ours.bos, ours.eos, ours.adds_bos, ours.size) == (0, (1,), True, len(TOKENS))
    for text in TEXTS:
        if not text.startswith("<|start|>"):
            assert ours.encode(text) == other(text).input_ids


def test_all_ends_are_known(tmp_path):  # C11
    write_tokenizer(tmp_path, with_bos(), eos_token="<|end|>")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 1]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert from_folder(tmp_path).eos == (1, 7, 9)


@pytest.mark.parametrize(
    ("said", "adds"), [({}, True), ({"add_bos_token": False}, False), ({"add_bos_token": None}, True), ({"bos_token": None}, False)]
)
def test_whether_to_open_with_bos_is_the_models_rule(said, adds, tmp_path):
    write_tokenizer(tmp_path, with_bos(), **{"bos_token": "<|start|>"} | said)
    tokenizer = from_folder(tmp_path)
    assert (tokenizer.encode("a")[0] == 0) is adds


def test_one_bos_however_often_it_is_added(tmp_path):  # L5
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    write_tokenizer(tmp_path, with_bos(), bos_token="<|start|>", chat_template=template)
    tokenizer = from_folder(tmp_path)
    text = tokenizer.chat([{"role": "user", "content": "ab"}])
    assert text == "<|start|>ab"
    for bos in (None, True, False):
        assert tokenizer.encode(text, bos).count(0) == 1
    assert tokenizer.encode("ab", bos=False).count(0) == 0
    assert tokenizer.encode("ab").count(0) == tokenizer.encode("ab", bos=True).count(0) == 1


def test_no_tokenizer_is_none(tmp_path):
    assert from_folder(tmp_path) is None
    assert from_gguf({}) is None
    assert from_gguf({"tokenizer.ggml.model": "none"}) is None


# Chat templates


def chatty(template: str | None) -> Tokenizer:
    return from_gguf(header("smollm") | ({"tokenizer.chat_template": template} if template else {}))


def test_a_template_is_rendered_as_transformers_renders_it():
    template = (
        "{%- for m in messages %}\n    {%- if loop.first and m['role'] != 'system' %}\n{{ bos_token }}system\n{%- endif %}\n"
        "    {% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{{ '<|start|>' + m['role'] + '\n' + m['content'] | trim + '<|end|>\n' }}{{ m | tojson }}\n"
        "{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}{% if tools %}tools{% endif %}"
    )
    messages = [{"role": "user", "content": " hé <b> "}, {"role": "tool", "content": "x"}, {"role": "assistant", "content": "ho"}]
    other = theirs("smollm")
    other.bos_token = "<|start|>"
    expected = other.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert chatty(template).chat(messages) == expected


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ cycler.__init__.__globals__.os.system('x') }}",
    ],
)
def test_templates_run_in_a_sandbox(attack):
    with pytest.raises(ValueError, match="chat template does not take"):
        chatty(attack).chat([{"role": "user", "content": "x"}])


def test_a_template_can_refuse_and_tell_the_date():
    with pytest.raises(ValueError, match="roles must alternate"):
        chatty("{{ raise_exception('roles must alternate') }}").chat([])
    assert chatty("{{ strftime_now('%Y') }}").chat([]).isdigit()
    with pytest.raises(ValueError, match="expected a list of"):
        chatty("{% for m in messages %}{{ 'a' + m['content'] }}{% endfor %}").chat([{"role": "user"}])
    with pytest.raises(ValueError, match="no chat template"):
        chatty(None).chat([])


def test_named_templates_and_files(tmp_path):
    write_tokenizer(tmp_path, with_bos(), chat_template=[{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}])
    assert from_folder(tmp_path).chat([]) == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert from_folder(tmp_path).chat([]) == "J"


# Bad input


@pytest.mark.parametrize("id", [-1, len(TOKENS), 10**9])
def test_ids_out_of_range(id, smollm):  # C9: rows beyond the vocabulary are padding
    assert smollm.size == len(TOKENS)
    with pytest.raises(ValueError, match=rf"token id {id} is not in this vocabulary of {len(TOKENS)}"):
        smollm.decode([0, id])


def test_what_cannot_be_encoded(smollm):
    with pytest.raises(TypeError, match="str, not list"):
        smollm.encode(["a"])
    with pytest.raises(ValueError, match="no token that opens a text"):
        from_gguf({key: value for key, value in header("smollm").items() if "bos" not in key}).encode("a", bos=True)


@pytest.mark.parametrize(
    ("change", "match"),
    [({"pre": "tekken"}, "'tekken'; known are gpt-2"), ({"model": "rwkv"}, "'rwkv'; known are gpt2"), ({"model": "llama"}, "lacks scores")],
)
def test_vocabularies_of_unknown_kinds(change, match):
    with pytest.raises(ValueError, match=match):
        from_gguf(header("smollm") | {f"tokenizer.ggml.{key}": value for key, value in change.items()})


@pytest.mark.parametrize(
    "damage",
    [
        {"merges": [*MERGES, "no such"]},
        {"merges": ["a b c"]},
        {"merges": [7]},
        {"token_type": [3]},
        {"token_type": 3},
        {"tokens": [["x"]]},
        {"padding_token_id": 10**9},
        {"model": ["gpt2"]},
    ],
)
def test_a_damaged_vocabulary_names_its_file(damage):
    with pytest.raises(ValueError, match=r"^toy\.gguf: its vocabulary is damaged") as raised:
        from_gguf(header("smollm", **damage), "toy.gguf")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("stored", ['"</s>"', "true", "[1, -1]", "[[2]]", "1.0"])
def test_ends_that_are_no_ids(name, stored, tmp_path):
    write_tokenizer(tmp_path, with_bos())
    (tmp_path / name).write_text(f'{{"eos_token_id": {stored}}}')
    with pytest.raises(ValueError, match=f"{name}: eos_token_id holds .* no token id"):
        from_folder(tmp_path)


def test_a_tokenizer_json_that_is_none(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        from_folder(tmp_path)


def test_a_decoder_that_is_not_known(smollm):
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    backend.normalizer = normalizers.Lowercase()
    with pytest.raises(ValueError, match="WordPiece"):
        Tokenizer(backend).decode([0])
