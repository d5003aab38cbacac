"""Weights: the same numbers from every layout, transformers as the oracle; and every way in which a file can be wrong gets one clear error.

The models are tiny and loud: 6 query heads share 2 KV heads, the head size is not d_model / heads, and weights are large enough for a wrong
rotation or a wrong head to move every logit.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tokenpace.config import RopeScaling, preset
from tokenpace.load import fast, load
from tokenpace.model import attention
from tokenpace.model.quantize import QuantisedLinear
from tokenpace.model.transformer import Transformer
from tokenpace.weights.checkpoint import open_folder, open_hub
from tokenpace.weights.gguf import open_gguf
from tokenpace.weights.hfconfig import read_config
from tokenpace.weights.source import Random

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama stretched": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16}}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 4}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
}
TOKENS = torch.tensor([[5, 17, 3, 44, 44, 9, 60, 0, 31, 2, 17, 8]])


def make(kind: str, **more):
    """A random transformers model whose every weight matters."""
    configuration, model, extra = KINDS[kind]
    torch.manual_seed(7)
    made = model(configuration(**SIZES | extra | more)).eval()
    for name, weight in made.named_parameters():
        with torch.no_grad():
            weight.normal_(1.0, 0.2) if "norm" in name else weight.normal_(0.0, 0.25)
    return made


def write_folder(made, folder: Path, **how) -> Path:
    made.save_pretrained(folder, **how)
    return folder


def write_gguf(made, path: Path, **more) -> Path:
    """As llama.cpp's converter lays a checkpoint out; `more` adds or overrides header values."""
    c, architecture = made.config, {"mistral": "llama"}.get(made.config.model_type, made.config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    for key, value in more.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}[type(value)]
        add(f"{architecture}.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], c.num_hidden_layers)
    for name, weight in made.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array, (stem, kind) = weight.numpy(), name.rsplit(".", 1)
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = c.num_attention_heads if stem.endswith("q_proj") else c.num_key_value_heads
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", np.ascontiguousarray(array))
    if c.rope_parameters["rope_type"] == "llama3":
        stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](c, "cpu")
        plain = c.rope_parameters["rope_theta"] ** -(torch.arange(0, c.head_dim, 2) / c.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / stretched).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_of(source) -> Transformer:
    with torch.device("meta"):
        model = Transformer(source.config)
    model.load_state_dict(source.tensors(torch.float32), assign=True)
    return model.to("cpu")


def assert_same_logits(source, made, tokens=TOKENS):
    with torch.no_grad():
        ours, theirs = model_of(source)(tokens), made(tokens).logits
    assert theirs.std() > 0.5  # loud enough to tell
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# The same logits from every layout


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_computes_what_transformers_computes(kind, tmp_path):
    made = make(kind)
    assert_same_logits(open_folder(write_folder(made, tmp_path)), made)


@pytest.mark.parametrize("kind", ["llama", "llama tied", "qwen2", "qwen3"])
def test_a_gguf_computes_what_transformers_computes(kind, tmp_path):  # L1, with 2 KV heads and 12 tokens
    made = make(kind)
    assert_same_logits(open_gguf(write_gguf(made, tmp_path / "m.gguf")), made)


def test_llama_and_qwen_ggufs_store_rows_in_different_orders(tmp_path):  # what makes the test above worth having
    made = make("llama")
    stored = open_gguf(write_gguf(made, tmp_path / "m.gguf"))
    rows = made.state_dict()["model.layers.0.self_attn.k_proj.weight"]
    raw = gguf.GGUFReader(tmp_path / "m.gguf")
    assert not np.array_equal(next(t.data for t in raw.tensors if t.name == "blk.0.attn_k.weight"), rows.numpy())
    assert torch.equal(stored.read("blk.0.attn_k.weight"), rows)


def test_llama_biases_turn_with_their_rows(tmp_path):
    made = make("qwen2")
    made.config.model_type = "llama"  # as a llama file whose q, k and v have biases
    assert_same_logits(open_gguf(write_gguf(made, tmp_path / "m.gguf")), made)


def test_shards_are_one_checkpoint(tmp_path):
    made = make("qwen3")
    write_folder(made, tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same_logits(open_folder(tmp_path), made)


def blocks_of(plain: Path, path: Path, kind) -> dict[str, np.ndarray]:
    """Write a GGUF file anew with its matrices in blocks, of a kind or of kind(name); the numbers these stand for."""
    reader, expected = gguf.GGUFReader(plain), {}
    fields = list(reader.fields.values())
    writer = gguf.GGUFWriter(path, next(f.contents() for f in fields if f.name == "general.architecture"))
    for field in fields[4:]:
        writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if len(tensor.shape) == 2:
            stored = gguf.GGMLQuantizationType[kind(tensor.name) if callable(kind) else kind]
            blocks = gguf.quantize(tensor.data, stored)
            writer.add_tensor(tensor.name, blocks, raw_dtype=stored)
            expected[tensor.name] = gguf.dequantize(blocks, stored)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


WIDE = dict(hidden_size=96, intermediate_size=64, head_dim=32)  # rows of whole blocks


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_blocks_become_the_numbers_they_stand_for(kind, tmp_path):
    made = make("qwen2", **WIDE)
    expected = blocks_of(write_gguf(made, tmp_path / "plain.gguf"), tmp_path / "blocks.gguf", kind)
    source = open_gguf(tmp_path / "blocks.gguf")
    down = expected["blk.1.ffn_down.weight"]
    assert 0 < abs(down - made.state_dict()["model.layers.1.mlp.down_proj.weight"].numpy()).max() < 0.2  # lossy, but these weights
    tensors = source.tensors(torch.bfloat16)
    assert torch.equal(tensors["blocks.1.mlp.down.weight"], torch.from_numpy(down).bfloat16())
    fused = np.concatenate([expected[f"blk.0.attn_{part}.weight"] for part in "qkv"])
    assert torch.equal(tensors["blocks.0.attention.qkv.weight"], torch.from_numpy(fused).bfloat16())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_run_as_they_are_stored(architecture, kind, tmp_path):
    """The same numbers as dequantising gives (llama's heads in their order, too), in the file's bytes."""
    path = tmp_path / "blocks.gguf"
    blocks_of(write_gguf(make(architecture, **WIDE), tmp_path / "plain.gguf"), path, kind)
    source, stored = open_gguf(path), load(path, device="cpu", dtype="float32", quantize="stored")
    matrices = [name for name, shape in source.config.tensors.items() if len(shape) == 2]
    for name in matrices:
        assert torch.equal(source.blocks(name).numbers(), source.tensor(name))
    assert stored.card["quantize"] == "stored"
    others = sum(4 * math.prod(shape) for shape in source.config.tensors.values() if len(shape) == 1)
    assert stored.card["bytes"] == sum(source.sizes.values()) + others
    exact = model_of(source)(TOKENS)
    torch.testing.assert_close(stored.model(TOKENS), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast(stored).model(TOKENS), exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()))


def test_blocks_that_do_not_run_become_numbers(tmp_path):
    """One piece of a fused matrix in another kind, and a whole matrix in one that only llama.cpp runs."""
    path = tmp_path / "blocks.gguf"
    kinds = {"attn_k": "Q8_0", "ffn_down": "Q5_0"}
    blocks_of(write_gguf(make("qwen2", **WIDE), tmp_path / "plain.gguf"), path, lambda name: kinds.get(name.split(".")[-2], "Q4_1"))
    lm, source = load(path, device="cpu", dtype="float32", quantize="stored"), open_gguf(path)
    kept = {type(m).__name__ for m in (lm.model.blocks[0].attention.qkv, lm.model.blocks[0].mlp.down)}
    assert kept == {"Linear"} and type(lm.model.blocks[1].mlp.gate_up) is QuantisedLinear
    exact = model_of(source)(TOKENS)
    torch.testing.assert_close(fast(lm).model(TOKENS), exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()))


def test_a_file_without_such_blocks_has_nothing_to_run_as_stored(tmp_path):
    with pytest.raises(ValueError, match="holds no blocks of Q4_0, Q4_1 or Q8_0 .* try quantize='int8'"):
        load(write_gguf(make("llama"), tmp_path / "plain.gguf"), quantize="stored")
    with pytest.raises(ValueError, match="holds no blocks"):
        load(write_folder(make("llama"), tmp_path / "folder"), quantize="stored")
    with pytest.raises(ValueError, match="holds no blocks"):
        load("shape:15m", quantize="stored")


# Rotary frequencies


@pytest.mark.parametrize("scaled", [False, True])
def test_theta_and_scaling_arrive_in_the_angles(scaled, tmp_path):  # L4: at position 20 000, where a wrong theta cannot hide
    rope = LLAMA3 | {"original_max_position_embeddings": 8192} if scaled else {"rope_type": "default", "rope_theta": 5e5}
    made = make("llama", rope_parameters=rope)
    expected = made.model.rotary_emb.inv_freq * 20_000
    for source in (open_folder(write_folder(made, tmp_path / "hf")), open_gguf(write_gguf(made, tmp_path / "m.gguf"))):
        assert source.config.rope_scaling == (RopeScaling(8.0, 1.0, 4.0, 8192) if scaled else None)
        torch.testing.assert_close(attention.frequencies(source.config) * 20_000, expected, rtol=1e-5, atol=0)


def test_rope_keys_of_both_eras_mean_the_same():
    sizes = {**SIZES, "model_type": "llama"}
    llama3 = {k: v for k, v in LLAMA3.items() if k != "rope_theta"} | {"original_max_position_embeddings": 8192}
    old = read_config(sizes | {"rope_theta": 5e5, "rope_scaling": llama3})
    older = read_config(sizes | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | {k: v for k, v in llama3.items() if k != "rope_type"}})
    new = read_config(sizes | {"rope_parameters": llama3 | {"rope_theta": 5e5}})
    assert old == new == older
    assert new.rope_theta == 5e5


def test_a_table_of_frequencies_that_is_not_llama3s_is_refused(tmp_path):
    made = make("llama", rope_parameters=LLAMA3 | {"original_max_position_embeddings": 16})
    with pytest.raises(ValueError, match=r"rope_freqs.*not computed here"):
        open_gguf(write_gguf(made, tmp_path / "m.gguf"))


# Tied and untied heads


def folder_with(tmp_path: Path, tied: bool, stored: bool):
    made = make("llama", tie_word_embeddings=False)
    write_folder(made, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"tie_word_embeddings": tied}))
    if not stored:
        weights = load_file(tmp_path / "model.safetensors")
        del weights["lm_head.weight"]
        save_file(weights, tmp_path / "model.safetensors")
        made.lm_head.weight = made.model.embed_tokens.weight
    return made


@pytest.mark.parametrize(("tied", "stored"), [(True, True), (False, True), (True, False)])
def test_a_stored_head_wins_and_a_missing_one_is_the_embedding(tied, stored, tmp_path):  # L2
    made = folder_with(tmp_path, tied, stored)
    source = open_folder(tmp_path)
    assert source.config.tied is not stored
    assert_same_logits(source, made)


def test_an_untied_head_that_is_missing_is_an_error(tmp_path):  # L2
    folder_with(tmp_path, tied=False, stored=False)
    with pytest.raises(ValueError, match=r"missing: lm_head.weight$"):
        open_folder(tmp_path)


# Tensors that do not fit


def rewritten(tmp_path: Path, change) -> Path:
    write_folder(make("llama"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def test_everything_that_does_not_fit_is_listed_in_one_error(tmp_path):  # L8
    def change(weights):
        weights["model.layers.0.self_attn.qq_proj.weight"] = weights.pop("model.layers.0.self_attn.q_proj.weight")
        weights["model.layers.1.mlp.down_proj.weight"] = weights["model.layers.1.mlp.down_proj.weight"].T.contiguous()
        weights["extra"] = torch.zeros(3)
        del weights["model.norm.weight"]

    with pytest.raises(ValueError) as error:
        open_folder(rewritten(tmp_path, change))
    said = str(error.value)
    assert "missing: model.layers.0.self_attn.q_proj.weight, model.norm.weight" in said
    assert "unexpected: extra, model.layers.0.self_attn.qq_proj.weight" in said
    assert "of the wrong shape: model.layers.1.mlp.down_proj.weight is (40, 48) instead of (48, 40)" in said
    assert str(tmp_path) in said
    assert "\n" not in said


def test_fused_shapes_are_checked_piece_by_piece(tmp_path):  # q too short and k too long by the same rows: their sum would fit
    def change(weights):
        q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
        weights[q], weights[k] = weights[q][:-2].clone(), torch.cat([weights[k], weights[q][-2:]])

    with pytest.raises(ValueError, match=r"q_proj.weight is \(58, 48\).*k_proj.weight is \(22, 48\)"):
        open_folder(rewritten(tmp_path, change))


@pytest.mark.parametrize(
    ("dtype", "called"),
    [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2"), (torch.bool, "BOOL")],
)
def test_quantised_weights_are_not_read_as_numbers(dtype, called, tmp_path):
    name = "model.layers.1.mlp.down_proj.weight"
    folder = rewritten(tmp_path, lambda weights: weights.update({name: weights[name].to(dtype)}))
    with pytest.raises(ValueError, match=rf"{tmp_path}: {name} \({called}\) .*quantised checkpoints are not supported yet"):
        open_folder(folder)


def test_buffers_that_repeat_the_config_are_ignored(tmp_path):
    open_folder(rewritten(tmp_path, lambda weights: weights.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}))).check()


def test_a_gguf_with_a_renamed_tensor_is_refused(tmp_path):
    path = write_gguf(make("qwen2"), tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_q.bias", b"blk.0.attn_x.bias"))
    with pytest.raises(ValueError, match=r"missing: blk.0.attn_q.bias; unexpected: blk.0.attn_x.bias$"):
        open_gguf(path)


# Files that are not what they should be


def test_an_index_that_lists_what_is_not_there(tmp_path):  # L9
    write_folder(make("llama"), tmp_path, max_shard_size="30KB")
    index = tmp_path / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    broken = said | {"weight_map": said["weight_map"] | {"model.layers.7.ghost": next(iter(said["weight_map"].values()))}}
    index.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=r"lists tensors that no file holds: model\.layers\.7\.ghost"):
        open_folder(tmp_path)
    index.write_text(json.dumps(said))
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=gone.name):
        open_folder(tmp_path)
    index.write_text("{}")
    with pytest.raises(ValueError, match="no weight_map"):
        open_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ValueError, match="beside it"):
        open_folder(tmp_path)


def test_two_files_with_the_same_tensor(tmp_path):
    write_folder(make("llama"), tmp_path)
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "copy.safetensors")
    with pytest.raises(ValueError, match="which is meant"):
        open_folder(tmp_path)


def test_a_truncated_safetensors_file(tmp_path):
    path = write_folder(make("llama"), tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        open_folder(tmp_path)


def test_pickles_are_refused_unread(tmp_path):
    write_folder(make("llama"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model.bin could run code"):
        open_folder(tmp_path)


@pytest.mark.parametrize(("content", "match"), [("{", "not JSON"), ("[1]", "expected a JSON object")])
def test_a_config_that_is_no_config(content, match, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=match):
        open_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        open_folder(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return write_gguf(make("llama tied"), tmp_path_factory.mktemp("whole") / "m.gguf").read_bytes()


def test_a_gguf_cut_off_anywhere(whole, tmp_path):
    path = tmp_path / "m.gguf"
    for size in [*range(4, 400), *range(400, len(whole), 997), len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"m\.gguf ends too early"):
            open_gguf(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip file", b"\x80\x04\x95 a pickle"])
def test_a_foreign_file(content, tmp_path):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ValueError, match="is not a GGUF file"):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_a_gguf_of_another_version(version, whole, tmp_path):
    (tmp_path / "m.gguf").write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])
    with pytest.raises(ValueError, match=rf"version {version}"):
        open_gguf(tmp_path / "m.gguf")


def test_a_damaged_header_is_a_valueerror_or_harmless(whole, tmp_path):
    path, random, refused = tmp_path / "m.gguf", np.random.default_rng(5), 0
    for at, byte in zip(random.integers(4, 2400, 600), random.integers(0, 256, 600), strict=True):
        path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
        try:
            open_gguf(path)
        except ValueError as error:
            refused += 1
            assert "m.gguf" in str(error)
    assert refused > 200


# Arithmetic that is not ours is refused by name

NO_NUMBERS = (float("nan"), float("inf"), 0, -1e-5, True, "1e-5", None)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "gemma"}, "gemma"),
        ({"model_type": None}, "model_type"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_type": "default", "attention_factor": 2.0}}, "attention_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"logit_scale": 0.5}, "logit_scale"),
        ({"num_hidden_layer": 3}, "did you mean num_hidden_layers"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}, "full_attention, sliding_attention"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "full_attention, sliding_attention"),
        *(({key: value}, f"{key} must be a finite number over 0") for key in ("rms_norm_eps", "rope_theta") for value in NO_NUMBERS),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, "rope_theta must be"),
        ({"rope_scaling": LLAMA3 | {"factor": 0.0, "original_max_position_embeddings": 16}}, "factor must be"),
        *(({"tie_word_embeddings": value}, "tie_word_embeddings must be true or false") for value in ("false", 0, None)),
        ({"head_dim": 7}, "even"),
        ({"num_key_value_heads": 4}, "multiple"),
    ],
)
def test_config_json_with_other_arithmetic(change, match):
    with pytest.raises(ValueError, match=match):
        read_config({"model_type": "llama", **SIZES} | change)


def test_a_published_config_json():  # SmolLM2-135M's, whole
    said = json.loads(
        """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
        "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
        "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers.js_config": {"kv_cache_dtype": {}},
        "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152}"""
    )
    assert read_config(said) == preset("smollm2-135m")


def test_config_json_that_lacks_a_size():
    with pytest.raises(ValueError, match="lacks hidden_size"):
        read_config({"model_type": "llama", **{k: v for k, v in SIZES.items() if k != "hidden_size"}})


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 8}, None),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, 8),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, None),
        ({"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 8),
    ],
)
def test_windows_as_each_family_means_them(change, window):
    assert read_config({**SIZES, **change}).window == window


@pytest.mark.parametrize("configuration", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_a_silent_config_means_what_transformers_takes_it_for(configuration):
    few = {"vocab_size": 61, "hidden_size": 256, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 32}
    ours, theirs = read_config({"model_type": configuration.model_type, **few}), configuration(**few)
    assert ours.n_kv_heads == theirs.num_key_value_heads
    assert ours.d_head == getattr(theirs, "head_dim", None) or 256 // 32
    assert (ours.context, ours.norm_eps, ours.tied) == (theirs.max_position_embeddings, theirs.rms_norm_eps, theirs.tie_word_embeddings)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "yarn"),
        ({"rope.scaling.type": "longrope"}, "longrope"),
        ({"rope.scaling.type": "llama3"}, "rope_freqs"),
        ({"rope.dimension_count": 6}, "rope.dimension_count = 6; only 10"),
        ({"expert_count": 8}, "expert_count = 8"),
        ({"attention.clamp_kqv": 1.0}, "attention.clamp_kqv"),
        ({"logit_scale": 1.0}, "logit_scale"),
    ],
)
def test_gguf_headers_with_other_arithmetic(more, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        open_gguf(write_gguf(make("llama"), tmp_path / "m.gguf", **more))


def test_gguf_headers_that_change_nothing(tmp_path):
    made = make("llama")
    harmless = {"rope.dimension_count": 10, "rope.scaling.type": "linear", "rope.scaling.factor": 1.0, "expert_count": 0, "vocab_size": 61}
    assert_same_logits(open_gguf(write_gguf(made, tmp_path / "m.gguf", **harmless)), made)


def test_a_gguf_of_another_architecture(whole, tmp_path):
    (tmp_path / "m.gguf").write_bytes(whole.replace(b"llama", b"gemma"))
    with pytest.raises(ValueError, match="'gemma' is not one of llama, qwen2, qwen3"):
        open_gguf(tmp_path / "m.gguf")


# The hub, without a network


def test_the_hub_gives_safe_files_only(tmp_path, monkeypatch):
    folder, asked = write_folder(make("qwen2"), tmp_path), {}

    def snapshot(repository, allow_patterns):
        asked.update(repository=repository, patterns=allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert open_hub("someone/model").card["source"] == "hf:someone/model"
    assert asked["repository"] == "someone/model"
    assert all(pattern.endswith((".json", ".safetensors", ".jinja")) for pattern in asked["patterns"])


def test_the_hub_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match=r"could not fetch hf:nobody/nothing.*shape:smollm2-135m"):
        open_hub("nobody/nothing")


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "a/..b..", "/x"])
def test_names_that_the_hub_cannot_have(name):
    with pytest.raises(ValueError, match="not a model's name"):
        open_hub(name)


# Random weights


def test_random_weights_keep_activations_sane_and_rows_apart():
    config = preset("15m")
    source = Random(config)
    tensors = {name: source.tensor(name) for name in config.tensors}
    assert {name: tuple(t.shape) for name, t in tensors.items()} == config.tensors
    rows = tensors["embed.weight"]
    assert len(torch.unique(rows[:, :4], dim=0)) == len(rows)
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(tensors, assign=True)
    logits = model.to("cpu")(torch.arange(64)[None])
    assert 0.3 < logits.std() < 3
    assert torch.equal(Random(config).tensor("blocks.3.mlp.down.weight"), tensors["blocks.3.mlp.down.weight"])
    assert not torch.equal(Random(config, seed=1).tensor("embed.weight"), rows)
