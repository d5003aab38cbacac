"""SmolLM2-135M itself: the numbers, ids and texts of transformers, on the same file. Fetches 93 MB, once."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tokenpace.config import preset
from tokenpace.generate import generate
from tokenpace.load import Lm, load
from tokenpace.weights.gguf import read
from tokenpace.weights.registry import fetch

pytestmark = [pytest.mark.real, pytest.mark.slow]
PROMPTS = [
    "Gravity is",
    "def fibonacci(n):\n    ",
    "The capital of France is Paris. The capital of Japan is",
    "1, 2, 3, 4, 5, 6, 7,",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
]
TEXT = (
    """A language model writes one token at a time. Each token needs the whole model: every weight is read from memory, multiplied once, and
forgotten until the next token asks for it again. On 2 cores that read 40 GB/s, a model of 269 MB cannot write more than 149 tokens per second,
however fast its arithmetic is. def pace(cost, kept):\n    return cost / kept  # seconds per token\nLe modèle écrit, 模型写作, 🙂. """
    * 2
)
PUBLISHED = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}
TEXTS = [
    "  leading and  double   spaces ",
    "a 1 22  333 4444   55555, 12,345.678 on 2024-01-31",
    "emoji 🙂👩‍👩‍👧🚀 flags 🇺🇳 ½",
    "你好，世界！日本語のテキスト 한국어 текст",
    "def f(x):\n\n    if x:\n\t\treturn {'a': [1, 2]}\r\n",
    "I'm sure they'LL say it's <|im_start|>user\nhi<|im_end|>\n",
    TEXT,
]


@pytest.fixture(scope="module")
def path() -> str:
    try:
        return str(fetch("smollm2-135m"))
    except OSError as error:
        pytest.skip(f"the real model is not here: {error}")


@pytest.fixture(scope="module")
def lm(path) -> Lm:
    return load("smollm2-135m", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def theirs(path) -> LlamaForCausalLM:
    """transformers' own reading of the file: its names, its blocks, its order of rows; the config is the published one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        model = LlamaForCausalLM(LlamaConfig(**PUBLISHED)).eval()
        weights = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
        assert model.load_state_dict(weights, strict=False).missing_keys == ["lm_head.weight"]  # tied
    return model


def test_logits_of_a_long_text(lm, theirs):
    tokens = torch.tensor([lm.tokenizer.encode(TEXT)[:200]])
    assert tokens.shape == (1, 200)
    ours, expected = lm.model(tokens), theirs(tokens).logits
    assert (ours - expected).abs().max() < 1e-3
    assert expected.std() > 1


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(5))
def test_greedy_tokens(prompt, lm, theirs):
    ids = lm.tokenizer.encode(prompt)
    out = generate(lm, prompt, max_new_tokens=64)
    expected = theirs.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=list(lm.tokenizer.eos),
        pad_token_id=2,
    )[0, len(ids) :].tolist()
    assert out.tokens == expected
    assert len(expected) > 16


def test_ids_and_texts_are_those_of_the_models_tokenizer(lm, path):
    """The oracle is built from the model's published tokenizer.json: digits one by one, then GPT-2's bytes. transformers' own conversion of a GGUF
    leaves the digits step out, and so cuts the spaces before a number differently; a second test pins that, in case it gets mended."""
    said = read(path).metadata
    vocab = {token: id for id, token in enumerate(said["tokenizer.ggml.tokens"])}
    backend = Backend(models.BPE(vocab, [tuple(merge.split(" ")) for merge in said["tokenizer.ggml.merges"]]))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token, id in vocab.items() if id < 17])
    other = PreTrainedTokenizerFast(tokenizer_object=backend)
    for text in TEXTS + PROMPTS:
        ids = other(text).input_ids
        assert lm.tokenizer.encode(text) == ids
        assert lm.tokenizer.decode(ids, skip_special=False) == other.decode(ids) == text
        assert lm.tokenizer.decode(ids) == other.decode(ids, skip_special_tokens=True)


def test_transformers_conversion_differs_before_digits_only(lm, path):
    from transformers import AutoTokenizer

    folder, name = os.path.split(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    spell = lambda ids: [lm.tokenizer.token(id) for id in ids]
    assert spell(lm.tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]
    assert spell(other("a  12").input_ids) == ["a", "Ġ", "Ġ", "1", "2"]
    for text in [TEXTS[0], TEXTS[3], TEXTS[5], *PROMPTS]:
        assert lm.tokenizer.encode(text) == other(text).input_ids


def test_the_tokenizer_of_the_real_model(lm):
    assert (lm.tokenizer.size, lm.config.vocab_size) == (49_152, 49_152)
    assert 2 in lm.tokenizer.eos
    assert lm.tokenizer.encode("Hi")[:1] != [lm.tokenizer.bos]
    chat = lm.tokenizer.chat([{"role": "user", "content": "Hello"}])
    assert chat.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert chat.count("<|im_start|>") == lm.tokenizer.encode(chat).count(lm.tokenizer.bos) == 3


def test_the_card(lm):
    assert lm.config == preset("smollm2-135m")
    assert lm.card["licence"] == "Apache-2.0"
    assert lm.card["sha256"].startswith("b179c952")
    assert (lm.card["parameters"], lm.card["bytes"]) == (134_515_008, 4 * 134_515_008)


def test_loading_stays_small(path):
    """Peak memory of a process that does nothing else, in bf16."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("this system does not tell a process's peak memory in /proc")
    script = (
        "from tokenpace.load import load; lm = load('smollm2-135m', device='cpu', dtype='bfloat16'); "
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], lm.card['bytes'])"  # getrusage would count the parent's memory too
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    peak, n_bytes = map(int, out.split())
    assert n_bytes == 269_030_016
    assert peak * 1024 < 1.2e9
