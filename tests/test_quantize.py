"""Codes of few bits: against their definitions written out in Python, against the `gguf` package, and as models.

Mutants that must die here: halves of a byte exchanged; codes around 7; cut off instead of rounded; the last, ragged group scaled by what fills
it up; a constant row divided by zero; the scale rounded after the codes were chosen; NaN turned into a code; a model half quantised when a
later weight is refused.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tokenpace.config import ModelConfig
from tokenpace.model.kernels import tiled
from tokenpace.model.quantize import QuantisedLinear, quantise, stored_bytes, why_not
from tokenpace.model.transformer import Transformer
from tokenpace.weights import codes as written
from tokenpace.weights.codes import SCHEMES, Codes, Int4, Int8, number, pack, unpack

PLAIN = ModelConfig(97, 64, 2, 4, 2, 16, 128)
ODD = ModelConfig(131, 39, 2, 3, 1, 10, 71, qkv_bias=True, qk_norm=True)  # rows end inside a group
UNTIED = ModelConfig(200, 64, 1, 4, 4, 16, 128, tied=False)
HEADS = ModelConfig(64, 96, 1, 2, 1, 48, 80), ModelConfig(64, 160, 1, 2, 1, 80, 96)
matrices = st.tuples(st.integers(1, 9), st.integers(1, 100), st.integers(0, 999), st.sampled_from([1e-3, 1.0, 1e3]))


def weight(rows, columns, seed, size) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size


def model(config, dtype=torch.float32) -> Transformer:
    torch.manual_seed(1)
    return Transformer(config).eval().requires_grad_(False).to(dtype)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_pack_puts_column_i_and_i_plus_16_of_a_group_into_one_byte(rows, groups, seed):
    codes = torch.randint(16, (rows, groups * 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    packed = pack(codes)
    assert packed.shape == (rows, groups * 16)
    for r in range(rows):
        for g in range(groups):
            for i in range(16):
                assert packed[r, g * 16 + i] == int(codes[r, g * 32 + i]) + 16 * int(codes[r, g * 32 + 16 + i])
    assert torch.equal(unpack(packed), codes)


@settings(deadline=None)
@given(matrices)
def test_8_bits_are_off_by_half_a_step_at_most(of):
    w = weight(*of)
    codes = Int8()(w)
    step = w.abs().amax(1, keepdim=True) / 127
    assert codes.codes.dtype == torch.int8 and torch.equal(number(codes.scale_bits), step)
    assert ((codes.numbers() - w).abs() <= step / 2 * (1 + 1e-5)).all()
    assert (codes.codes.abs().amax(1) == 127).all()


@settings(deadline=None)
@given(matrices)
def test_4_bits_are_off_by_half_a_step_of_their_group_at_most(of):
    """Written out: a group's lowest value and step as float16, then each number's nearest code."""
    w = weight(*of)
    got = Int4()(w)
    numbers = got.numbers()
    assert numbers.shape == w.shape and got.codes.shape[1] == -(-w.shape[1] // 32) * 16
    for row, found in zip(w.numpy(), numbers.numpy()):
        for first in range(0, len(row), 32):
            some = np.pad(row[first : first + 32], (0, max(0, first + 32 - len(row))))
            low = np.float16(some.min())
            step = np.float16((some.max() - np.float32(low)) / 15)
            codes = np.clip(np.rint((some - np.float32(low)) / np.float32(step)), 0, 15)
            np.testing.assert_array_equal(found[first : first + 32], (codes * np.float32(step) + np.float32(low))[: len(row) - first])


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_rows_without_a_range_and_with_outliers(scheme):
    w = torch.stack([torch.zeros(64), torch.full((64,), 3.0), torch.arange(64.0), torch.full((64,), 1e-42), torch.arange(64.0)])
    w[4, 5] = 1e4
    numbers = scheme(w).numbers()
    assert numbers.isfinite().all() and not numbers[0].any()
    torch.testing.assert_close(numbers[1], w[1], rtol=1e-3, atol=0)
    assert (numbers[3] - w[3]).abs().max() <= 1e-42
    torch.testing.assert_close(numbers[4, 5], w[4, 5], rtol=1e-3, atol=0)
    if scheme is SCHEMES["int4"]:  # an outlier spoils its own group alone
        torch.testing.assert_close(numbers[4, 32:], numbers[2, 32:])


def blocks(kind: str, w: np.ndarray) -> np.ndarray:
    gguf = pytest.importorskip("gguf")
    return gguf.quants.quantize(w, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("columns", [32, 96])
def test_q4_0_q4_1_and_q8_0_mean_the_same_as_in_a_file(columns):
    """The bytes of a block taken apart by hand, as its definition says, and the numbers that the gguf package makes of it."""
    gguf = pytest.importorskip("gguf")
    w = weight(5, columns, 3, 1.0).numpy()
    for kind, halves in (("Q4_0", 1), ("Q4_1", 2), ("Q8_0", 1)):
        stored = blocks(kind, w)
        taken = torch.from_numpy(stored.reshape(5, columns // 32, -1).copy())
        scales = taken[..., : 2 * halves].contiguous().view(torch.float16).unbind(-1)
        codes = taken[..., 2 * halves :].flatten(1)
        made = Codes(codes.view(torch.int8) if kind == "Q8_0" else codes, *scales)
        exact = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(made.numbers().numpy(), exact)
        assert made.nbytes == stored.nbytes and made.shape == (5, columns)


@pytest.mark.parametrize("config", [PLAIN, ODD, UNTIED, *HEADS], ids=["plain", "odd", "untied", "48", "80"])
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_quantised_model_is_the_model_with_those_numbers(config, scheme):
    plain = model(config)
    with_numbers = copy.deepcopy(plain)
    for p in with_numbers.parameters():
        if p.dim() == 2:
            p.copy_(scheme(p).numbers())
    few, ids = quantise(copy.deepcopy(plain), scheme), torch.tensor([[5, 9, 2, 11]])
    exact = with_numbers(ids)
    torch.testing.assert_close(few(ids), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tiled(copy.deepcopy(few))(ids), exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()))
    assert not torch.allclose(exact, plain(ids), rtol=1e-4, atol=1e-4), "codes cost something"


@pytest.mark.parametrize("scheme,bits", [("int8", 8.6), ("int4", 5.0)])
def test_the_bytes_are_those_of_the_codes_and_tiles_add_none(scheme, bits):
    wide = ModelConfig(256, 64, 2, 4, 2, 16, 128)
    few = quantise(model(wide), SCHEMES[scheme])
    matrices = sum(a * b for a, b in (s for s in wide.tensors.values() if len(s) == 2))
    norms = 4 * (wide.n_params - matrices)
    before = stored_bytes(few)
    assert before - norms <= matrices * bits / 8
    assert stored_bytes(tiled(few)) == before


def test_a_model_in_another_dtype_keeps_its_codes():
    few = quantise(model(PLAIN), Int4())
    before = {k: v.clone() for k, v in few.named_buffers()}
    few.bfloat16()
    assert few(torch.tensor([[3]])).dtype == torch.bfloat16
    assert all(torch.equal(v, before[k]) for k, v in few.named_buffers() if v.numel())


def test_what_cannot_be_quantised_is_refused_and_left_as_it_was():
    def refused(m, words, scheme=SCHEMES["int8"]):
        before = {k: v.clone() for k, v in m.state_dict().items()}
        kinds = {k: type(v) for k, v in m.named_modules()}
        with pytest.raises(ValueError, match=words):
            quantise(m, scheme)
        assert {k: type(v) for k, v in m.named_modules()} == kinds and m.state_dict().keys() == before.keys()
        assert all(torch.equal(v.nan_to_num(), before[k].nan_to_num()) for k, v in m.state_dict().items())

    for scheme in SCHEMES.values():
        refused(quantise(model(PLAIN), scheme), "quantised already", scheme)
        for bad in (float("nan"), float("inf"), -float("inf")):
            spoilt = model(PLAIN)
            spoilt.blocks[1].mlp.down.weight[3, 4] = bad
            refused(spoilt, "NaN or infinity", scheme)
    refused(tiled(model(PLAIN)), "only a plain Transformer")
    refused(tiled(quantise(model(PLAIN), Int8())), "only a plain Transformer|quantised already")
    other = model(PLAIN)
    other.blocks[0].mlp.down = nn.Sequential(other.blocks[0].mlp.down)
    refused(other, "only a plain Transformer")
    assert why_not(nn.Linear(3, 3))


def test_a_scheme_of_ones_own():
    """Two levels a row: what a learner would write first."""

    def sign(w):
        return Codes(torch.where(w < 0, -1, 1).to(torch.int8), w.abs().mean(1, keepdim=True))

    few = quantise(model(PLAIN), sign)
    assert set(few.blocks[0].mlp.down.matrix.numbers()[0].abs().unique().tolist()) == {float(model(PLAIN).blocks[0].mlp.down.weight[0].abs().mean())}


def test_nothing_is_lost_between_float16_bits_and_numbers():
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    floats = every.view(torch.float16)
    finite = floats.isfinite()
    assert torch.equal(written.bits(floats), every) and torch.equal(number(every)[finite], floats.float()[finite])


def test_float16_scales_reach_the_sums_whole():
    """Every finite float16 as the scale of a row: the loop makes a float32 of it by its own means."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every[every.isfinite()][:, None]
    layer = QuantisedLinear(Codes(torch.ones(len(every), 1, dtype=torch.int8), every))
    from tokenpace.model.products import TiledLinear

    assert torch.equal(TiledLinear(layer)(torch.ones(1, 1))[0], every[:, 0].float())


def test_unlike_layers_run_one_by_one():
    few = quantise(model(PLAIN), Int8())
    other = quantise(model(PLAIN), Int4())
    few.blocks[1] = other.blocks[1]
    ids = torch.tensor([[5, 9, 2]])
    exact = few(ids)
    assert not tiled(few).blocks.in_one
    torch.testing.assert_close(few(ids), exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()))


def test_windows_and_two_way_models_too():
    for config in (replace(PLAIN, window=2, sinks=1), replace(PLAIN, causal=False)):
        few, ids = quantise(model(config), Int8()), torch.tensor([[5, 9, 2, 3, 8]])
        exact = few(ids)
        torch.testing.assert_close(tiled(few)(ids), exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()))
