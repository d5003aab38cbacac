"""`load`: what a name means, in which precision and where, and every name and setting that means nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from test_weights import TOKENS, make, write_folder, write_gguf

from tokenpace.config import preset
from tokenpace.load import find_device, load

module = sys.modules["tokenpace.load"]  # tokenpace.load itself is the function


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bf16", torch.float16])
def test_shapes_run_everywhere(dtype, device):
    lm = load("shape:15m", device=device, dtype=dtype)
    weights = list(lm.model.parameters())
    assert {w.dtype for w in weights} == {lm.dtype}
    assert {w.device.type for w in weights} == {lm.device.type} == {device}
    assert lm.tokenizer is None
    assert lm.config == preset("15m")
    logits = lm.model(torch.tensor([[1, 2, 3]], device=device))
    assert logits.isfinite().all()
    assert lm.card == {
        "source": "shape:15m (random weights)",
        "licence": "none needed",
        "dtype": str(lm.dtype).removeprefix("torch."),
        "quantize": None,
        "parameters": sum(w.numel() for w in weights),
        "bytes": sum(w.numel() * w.element_size() for w in weights),
    }


def test_a_folder_and_a_gguf_are_the_same_model(tmp_path, device):
    made = make("llama tied")
    folder, file = write_folder(made, tmp_path / "hf"), write_gguf(made, tmp_path / "toy.gguf")
    a, b = load(folder, device=device, dtype="float32"), load(str(file), device=device, dtype="float32")
    assert a.config == b.config
    tokens = TOKENS.to(device)
    torch.testing.assert_close(a.model(tokens), b.model(tokens))
    torch.testing.assert_close(a.model(tokens).cpu(), made(TOKENS).logits, rtol=1e-4, atol=1e-4)
    assert (a.card["source"], b.card["source"]) == ("hf", "toy.gguf")


def test_a_model_that_is_loaded_is_ready(tmp_path):
    lm = load(write_gguf(make("qwen3"), tmp_path / "toy.gguf"), dtype="bf16")
    assert not lm.model.training
    assert not any(w.requires_grad or w.is_meta for w in lm.model.parameters())
    assert not lm.model.frequencies.is_meta
    assert lm.model.frequencies.dtype == torch.float32  # N1: angles stay exact whatever the weights are


def test_auto_is_what_the_device_multiplies_natively(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for features, dtype in [({"avx512_bf16": True}, torch.bfloat16), ({"bf16": True}, torch.bfloat16), ({"avx2": True}, torch.float32)]:
        monkeypatch.setattr("torch.cpu.get_capabilities", lambda features=features: features)
        lm = load("shape:15m")
        assert (lm.device.type, lm.dtype) == ("cpu", dtype)


def test_ends_are_known_with_and_without_a_vocabulary(tmp_path):
    from test_tokenizer import header

    from tokenpace.weights.vocabulary import from_gguf

    folder = write_folder(make("llama", vocab_size=400), tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 1]}')
    said = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 9}
    (folder / "config.json").write_text(json.dumps(said))
    lm = load(folder)
    assert lm.tokenizer is None and lm.card["eos"] == (7, 1, 9)
    from_gguf(header("smollm")).backend.save(str(folder / "tokenizer.json"))
    lm = load(folder)
    assert lm.card["eos"] == lm.tokenizer.eos == (7, 1, 9)
    assert "eos" not in load("shape:15m").card


def test_ends_of_a_gguf_without_a_vocabulary(tmp_path):
    assert load(write_gguf(make("llama"), tmp_path / "none.gguf")).card["eos"] == ()


# What means nothing


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("smolm2-135m", ValueError, "did you mean smollm2-135m"),
        ("shape:smollm-135m", ValueError, "did you mean smollm2-135m"),
        ("shape:", ValueError, "no shape is called ''"),
        ("qqqq", ValueError, "there is smollm2-135m, shape:15m.*hf:OWNER/NAME"),
        ("./nowhere", FileNotFoundError, "there is no model at nowhere"),
        ("nowhere/at/all", FileNotFoundError, "there is no model at"),
        ("nowhere.gguf", FileNotFoundError, "expected a .gguf file"),
        ("weights.bin", ValueError, "is a pickle"),
        ("~/weights.pt", ValueError, "is a pickle"),
        ("hf:nothing", ValueError, "expected hf:OWNER/NAME"),
        ("", ValueError, "no model is called ''"),
    ],
)
def test_names_that_mean_nothing(name, error, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match) as raised:
        load(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"dtype": "float8"}, "dtype 'float8' is not one of auto, float32, bfloat16, float16"),
        ({"dtype": torch.int8}, "is not one of"),
        ({"device": "gpu"}, "device 'gpu' is not one"),
        ({"device": None}, "device None is not one"),
        ({"device": "meta"}, "device 'meta' has shapes but no numbers"),
        ({"quantize": "int7"}, "quantised as 'int7'; did you mean int8 or int4"),
    ],
)
def test_settings_that_mean_nothing(settings, match):
    with pytest.raises(ValueError, match=match):
        load("shape:15m", **settings)


def test_cuda_asked_for_but_absent(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"'cuda' was asked for, but .*use device='cpu'"):
        load("shape:15m", device="cuda")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "xpu", "hip", "vulkan", "privateuseone"])
def test_every_device_that_is_absent_is_said_in_one_way(name, monkeypatch):
    for kind in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(f"torch.{kind}.is_available", lambda: False)
    with pytest.raises(RuntimeError, match=rf"device '{name}' was asked for, but .*; use device='cpu' \(or 'auto'\)"):
        find_device(name)


def test_a_number_that_no_gpu_has(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(RuntimeError, match="there are only 2, counted from 0; use device='cpu'"):
        find_device("cuda:2")


def test_too_big_is_known_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(module, "free_bytes", lambda device: 50_000_000)
    monkeypatch.setattr("torch.randn", None)
    with pytest.raises(MemoryError, match=r"shape:15m needs 0\.10 GB, this machine has 0\.05 GB free; try dtype='bfloat16' or a smaller model"):
        load("shape:15m", dtype="float32")
    with pytest.raises(MemoryError, match=r"free; try a smaller model"):
        load("shape:15m", dtype="bfloat16")


def test_a_vocabulary_larger_than_the_model(tmp_path):  # the other way round is padding
    from test_tokenizer import TOKENS as words
    from test_tokenizer import header

    from tokenpace.weights.vocabulary import from_gguf

    folder = write_folder(make("llama"), tmp_path)
    from_gguf(header("smollm")).backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match=rf"the tokenizer has {len(words)} ids, the model only 61 rows"):
        load(folder)


def test_no_registry_is_named_in_the_code():
    for path in Path(module.__file__).parent.rglob("*.py"):
        assert "pypi.org" not in path.read_text() and "pythonhosted" not in path.read_text(), path
