"""The tiled kernels against products in float64 and against the model they replace.

Mutants that must die here: the last tile of a ragged matrix (store only whole tiles, or pad with ones); K an odd number; a second token
that reuses the first one's total; bf16 by cutting off instead of rounding; gate and up exchanged;
norm left out on one of the two paths; an embedding that returns padding for an id just past the vocabulary; thread count of PyTorch changed.
"""

import copy
import os
import pickle
import platform
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tokenpace.cache import Cache, Raw, Slab
from tokenpace.config import ModelConfig
from tokenpace.model import blocks, kernels, products
from tokenpace.model.kernels import tiled, why_not
from tokenpace.model.products import TiledLinear, TiledMLP
from tokenpace.model.quantize import QuantisedLinear
from tokenpace.model.tiles import memory
from tokenpace.model.transformer import MLP, Block, Linear, RMSNorm, Transformer
from tokenpace.weights.codes import SCHEMES, number

jit = pytest.importorskip("tokenpace.model.jit", reason="Numba is not installed")

PLAIN = ModelConfig(97, 32, 2, 4, 2, 8, 64)
ODD = ModelConfig(131, 39, 2, 3, 1, 10, 71, qkv_bias=True, qk_norm=True)  # no size is a multiple of 64, and those that are summed over are odd
UNTIED = ModelConfig(200, 64, 1, 4, 4, 16, 128, tied=False)
DTYPES = (torch.float32, torch.bfloat16)
sizes = st.integers(1, 150)
few = st.integers(1, 11)


def random(*shape, dtype=torch.float32, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def model(config, dtype=torch.float32) -> Transformer:
    made = Transformer(config).eval().requires_grad_(False)
    for i, p in enumerate(made.parameters()):
        p.copy_(random(*p.shape, seed=i) * (0.3 if p.dim() > 1 else 1))
    return made.to(dtype)


def pair(config, dtype=torch.float32) -> tuple[Transformer, Transformer]:
    plain = model(config, dtype)
    return plain, tiled(copy.deepcopy(plain))


def near(got: torch.Tensor, exact: np.ndarray, dtype, slack: np.ndarray | float = 0.0):
    """fp32: a millionth of the largest value or so; bf16: the exact sum rounded once, so half a step of 2⁻⁸. `slack`: what may be off before that."""
    got, scale = got.double().numpy(), np.abs(exact).max() + 1e-30
    limit = (0 if dtype == torch.float32 else np.abs(exact) * 2.0**-8) + 1e-5 * scale + slack
    assert got.shape == exact.shape
    assert (np.abs(got - exact) <= limit).all(), np.abs(got - exact).max() / scale


def exact_norm(x: np.ndarray, norm: RMSNorm) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * norm.weight.double().numpy()


def parts_of_layer(rows, inner, tokens, dtype, bias, normed):
    layer = Linear(inner, rows, bias=bias).requires_grad_(False).to(dtype)
    norm = RMSNorm(inner, 1e-5).requires_grad_(False) if normed else None
    if norm:
        norm.weight.copy_(random(inner, seed=3))
        norm.to(dtype)
    return layer, norm, random(tokens, inner, dtype=dtype, seed=1)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, few, st.sampled_from(DTYPES), st.booleans(), st.booleans())
def test_a_linear_layer_is_the_product_in_float64(rows, inner, tokens, dtype, bias, normed):
    layer, norm, x = parts_of_layer(rows, inner, tokens, dtype, bias, normed)
    x64, w64 = x.double().numpy(), layer.weight.double().numpy().T
    given = exact_norm(x64, norm) if norm else x64
    rounded = np.abs(given) @ np.abs(w64) * 2.0**-8 if norm and dtype == torch.bfloat16 else 0.0  # bfloat16 is multiplied by bfloat16
    near(TiledLinear(layer, norm)(x), given @ w64 + (layer.bias.double().numpy() if bias else 0), dtype, rounded)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, few, st.sampled_from(DTYPES), st.booleans(), st.booleans(), st.sampled_from(sorted(SCHEMES)))
def test_codes_are_multiplied_as_the_numbers_they_stand_for(rows, inner, tokens, dtype, bias, normed, scheme):
    """Against the numbers in float64. 4-bit codes are set into the last bits of a larger number, which costs three digits of its sums' seven."""
    layer, norm, x = parts_of_layer(rows, inner, tokens, dtype, bias, normed)
    codes = SCHEMES[scheme](layer.weight)
    given, w64 = x.double().numpy(), codes.numbers().double().numpy().T
    given = exact_norm(given, norm) if norm else given
    lost = 0.0
    if codes.bits == 4:
        scale = number(codes.scale_bits).double().numpy()
        lost = 2e-4 * np.abs(np.pad(given, ((0, 0), (0, -inner % 32)))).reshape(tokens, -1, 32).sum(2) @ np.abs(scale).T
    near(TiledLinear(QuantisedLinear(codes, layer.bias), norm)(x), given @ w64 + (layer.bias.double().numpy() if bias else 0), dtype, lost)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, few, st.sampled_from(DTYPES))
def test_a_feed_forward_half_is_its_definition_in_float64(d_model, d_ff, tokens, dtype):
    c = ModelConfig(8, d_model, 1, 1, 1, 2, d_ff)
    mlp, norm = MLP(c).requires_grad_(False).to(dtype), RMSNorm(d_model, 1e-5).requires_grad_(False).to(dtype)
    x = random(tokens, d_model, dtype=dtype)
    given = exact_norm(x.double().numpy(), norm)
    if dtype == torch.bfloat16:  # what is multiplied by bfloat16 is rounded to it: the norm, and silu(gate) · up
        given = torch.from_numpy(given).to(dtype).double().numpy()
    gate, up = np.split(given @ mlp.gate_up.weight.double().numpy().T, 2, axis=1)
    h, down = gate / (1 + np.exp(-gate)) * up, mlp.down.weight.double().numpy().T
    near(TiledMLP(mlp, norm)(x), h @ down, dtype, 2.0**-7 * (np.abs(h) @ np.abs(down)) if dtype == torch.bfloat16 else 0.0)


@pytest.mark.parametrize("weights", [*DTYPES, *SCHEMES])
@pytest.mark.parametrize("tokens,rows,inner", [(9, 64, 4), (300, 1100, 30), (257, 65, 64), (0, 10, 8)])
def test_wide_passes_use_the_same_tiles(tokens, rows, inner, weights):
    dtype = weights if weights in DTYPES else torch.float32
    layer, _, x = parts_of_layer(rows, inner, tokens, dtype, False, False)
    plain = QuantisedLinear(SCHEMES[weights](layer.weight)) if weights in SCHEMES else layer
    got, exact = TiledLinear(plain)(x), plain(x).double().numpy()
    assert got.shape == (tokens, rows)
    if tokens:
        near(got, exact, dtype, 2.0**-8 * np.abs(exact).max() if dtype == torch.bfloat16 else 1e-4 * np.abs(exact).max())


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even():
    from numba import njit

    @njit
    def convert(x, y):
        for i in range(len(x)):
            y[i] = jit.narrow(x[i], y[i])

    patterns = torch.arange(0, 1 << 32, 65_521, dtype=torch.int64).to(torch.int32).view(torch.float32)  # all exponents, NaN and infinities among them
    ties = (torch.arange(0, 1 << 32, 1 << 16, dtype=torch.int64) + 0x8000).to(torch.int32).view(torch.float32)
    x = torch.cat([patterns, ties])
    y = torch.empty(len(x), dtype=torch.bfloat16)
    convert(x.numpy(), memory(y))
    expected = x.bfloat16()
    assert expected.isnan().any()
    assert ((y == expected) | (y.isnan() & expected.isnan())).all()


@pytest.mark.parametrize("config", [PLAIN, ODD, UNTIED], ids=["plain", "odd", "untied"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 40])
def test_the_whole_model_says_the_same(config, dtype, tokens):
    plain, fast = pair(config, dtype)
    assert why_not(fast) == "the model is tiled already" and tiled(fast) is fast
    ids = torch.randint(config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    a, b = plain(ids), fast(ids)
    assert b.dtype == torch.float32
    torch.testing.assert_close(b, a, rtol=0, atol=float(a.abs().max()) * (1e-5 if dtype == torch.float32 else 0.05), check_dtype=False)


@pytest.mark.parametrize("config", [PLAIN, ODD, UNTIED], ids=["plain", "odd", "untied"])
def test_greedy_tokens_are_the_same_through_a_cache(config):
    def greedy(m):
        cache, tokens, at, said = Cache(config, Slab(1, 64)), [1, 2, 3], 0, []
        for _ in range(24):
            flight = cache.stage(torch.arange(at, at + len(tokens))[None])
            best = int(m(torch.tensor([tokens]), flight, torch.tensor([len(tokens) - 1])).argmax())
            cache.keep([len(tokens)])
            at, tokens = at + len(tokens), [(best + 7 * at) % config.vocab_size]  # a random model left alone soon repeats itself
            said.append(best)
        return said

    plain, fast = pair(config)
    said = greedy(plain)
    assert len(set(said)) > 4
    assert greedy(fast) == said


@pytest.mark.parametrize(
    "config", [PLAIN, ODD, replace(PLAIN, window=4, sinks=1), replace(PLAIN, causal=False)], ids=["gqa", "qk norm", "window", "two-way"]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fixed", [False, True])
def test_the_attention_loop_leaves_the_same_logits_and_the_same_cache(config, dtype, fixed):
    """Three passes of narrow rows: several tokens of two rows, one of them silent; a tree; what follows a rejected token."""
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool().expand(2, -1, -1)
    passes = [([[0, 1, 2], [0, 1, 2]], None, [3, 2]), ([[3, 4, 4], [2, 3, 3]], tree, [1, 3]), ([[4], [5]], None, [1, 1])]
    found = []
    for m in pair(config, dtype):
        cache, logits = Cache(config, Slab(2, 24, fixed), dtype=dtype), []
        for positions, among, stay in passes:
            positions = torch.tensor(positions)
            ids = (positions * 5 + torch.tensor([[1], [2]])) % config.vocab_size
            logits.append(m(ids, cache.stage(positions, among)))
            cache.keep(stay)
        held = [parts[0][cache.held(row, cache.top[row])] for row in range(2) for layer in cache.layers for parts in layer]
        found.append((logits, held))
    (plain, plain_held), (fast, fast_held) = found
    for a, b in zip(plain + plain_held, fast + fast_held):
        torch.testing.assert_close(b, a, rtol=0, atol=float(a.abs().max()) * (1e-5 if dtype == torch.float32 else 0.05), check_dtype=False)


@pytest.mark.parametrize("other", ["codec", "half", "scattered rows", "no cache"])
def test_what_the_attention_loop_does_not_know_goes_the_plain_way(other, monkeypatch):
    class Mine(Raw):
        pass

    plain, fast = pair(PLAIN)
    said = []
    monkeypatch.setattr(products.loops(), "through", lambda *_: said.append("loop"))
    for m in (plain, fast):
        rows = 3 if other == "scattered rows" else 1
        cache = Cache(PLAIN, Slab(rows, 24), Mine() if other == "codec" else None, torch.float16 if other == "half" else torch.float32)
        flight = None if other == "no cache" else cache.stage(torch.tensor([[0, 1], [-1, -1], [0, 1]][:rows]))
        said.append(m(torch.tensor([[5, 9]] * rows), flight)[0])
    torch.testing.assert_close(said[1], said[0], rtol=1e-4, atol=1e-5)
    if other == "codec":
        fast(torch.tensor([[5]]), Cache(PLAIN, Slab(1, 4)).stage(torch.tensor([[0]])))
        assert said[2:] == ["loop"], "it would have been noticed"


@pytest.mark.parametrize("pairs, loop", [(12, True), (11, False)])
def test_many_tokens_far_into_a_text_go_from_block_to_block(pairs, loop, monkeypatch):
    """Three tokens that see four keys each."""
    plain, fast = pair(PLAIN)
    through, called, said = products.loops().through, [], []
    monkeypatch.setattr(products.loops(), "through", lambda *given: called.append(1) or through(*given))
    monkeypatch.setattr(blocks, "PAIRS", pairs)
    for m in (plain, fast):
        cache = Cache(PLAIN, Slab(2, 24))
        m(torch.tensor([[5], [6]]), cache.stage(torch.tensor([[0], [0]])))
        cache.keep([1, 1])
        called.clear()
        said.append(m(torch.tensor([[5, 9, 2], [1, 3, 4]]), cache.stage(torch.tensor([[1, 2, 3], [1, 2, 3]]))))
    torch.testing.assert_close(said[1], said[0], rtol=1e-4, atol=1e-5)
    assert bool(called) == loop


def test_a_nan_in_an_earlier_tokens_key_reaches_the_logits():
    plain, fast = pair(UNTIED)
    for m in (plain, fast):
        m.embed.weight[7] = float("nan")
        cache = Cache(UNTIED, Slab(1, 8))
        m(torch.tensor([[7, 9]]), cache.stage(torch.tensor([[0, 1]])))
        cache.keep([2])
        assert m(torch.tensor([[5]]), cache.stage(torch.tensor([[2]]))).isnan().all()


def test_an_early_exit_still_finds_the_norm_and_the_head():
    plain, fast = pair(PLAIN)
    ids = torch.tensor([[5, 9, 2]])
    torch.testing.assert_close(fast(ids, exit_at=1), plain(ids, exit_at=1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(fast(ids, exit_at=1), fast(ids))


@pytest.mark.parametrize("exit_at", [0, 1, 2, -1, 5])
def test_an_early_exit_through_a_slab_leaves_the_later_layers_alone(exit_at):
    plain, fast = pair(replace(PLAIN, n_layers=3))
    found = []
    for m in (plain, fast):
        cache = Cache(m.config, Slab(1, 8))
        logits = m(torch.tensor([[5, 9, 2]]), cache.stage(torch.tensor([[0, 1, 2]])), exit_at=exit_at)
        found.append((logits, [bool(part.any()) for layer in cache.layers for (part,) in layer]))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-5)
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings_are_read_out_of_the_tiles_unchanged(dtype):
    plain, fast = pair(ODD, dtype)
    ids = torch.arange(ODD.vocab_size)
    assert torch.equal(fast.embed(ids), plain.embed(ids))
    for wrong in (ODD.vocab_size, 191, 5000, -1):  # 191 is still inside the last tile
        with pytest.raises(IndexError, match=f"from 0 to 130, but there is {wrong}"):
            fast.embed(torch.tensor([3, wrong]))


def stored(m: nn.Module) -> int:
    return sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in [*m.parameters(), *m.buffers()]}.values())


def test_there_is_no_second_copy_of_the_weights():
    whole = ModelConfig(128, 64, 2, 4, 2, 16, 128)  # multiples of 64 throughout: nothing to pad
    plain, fast = pair(whole)
    assert stored(fast) == stored(plain) == 4 * whole.n_params
    assert not list(fast.head.parameters())  # tied: it reads the embedding's tiles


def test_nan_and_infinity_reach_the_logits():
    _, fast = pair(PLAIN)
    fast.blocks[0].attention.out.tiles.numbers.view(-1)[5] = float("nan")
    assert fast(torch.tensor([[1]])).isnan().all()
    layer = Linear(8, 8, bias=False).requires_grad_(False)
    x = torch.ones(1, 8)
    x[0, 3] = float("inf")
    got = TiledLinear(layer)(x)
    assert got.isinf().all() and torch.equal(got, layer(x))


def test_a_model_that_cannot_be_tiled_is_left_as_it_was(monkeypatch):
    def refused(m, *words):
        before = {k: type(v) for k, v in m.named_modules()}
        reason = why_not(m)
        assert all(w in reason for w in words), reason
        assert tiled(m) is m and {k: type(v) for k, v in m.named_modules()} == before

    refused(model(PLAIN).half(), "float16 on cpu")
    mixed = model(PLAIN)
    mixed.norm.to(torch.bfloat16)
    refused(mixed, "all of one kind", "bfloat16 on cpu, float32 on cpu")
    with torch.device("meta"):
        refused(Transformer(PLAIN), "float32 on meta")
    other = model(PLAIN)
    other.blocks[1].mlp.down = nn.Sequential(other.blocks[1].mlp.down)
    refused(other, "Sequential", "before")
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    refused(model(PLAIN), "pip install numba")


def test_e_to_the_x():
    x = np.concatenate([np.linspace(-90, 90, 20_001), [-np.inf, np.inf, np.nan, -87, 88, 0]]).astype(np.float32)
    got = np.array([jit.exp(v) for v in x], np.float32)
    exact = np.exp(np.clip(x.astype(np.float64), None, 88))
    assert np.isnan(got[np.isnan(x)]).all() and not got[x < -87].any() and (got[x == 0] == 1).all()
    sound = x >= -87
    assert (np.abs(got[sound] / exact[sound] - 1) < 1e-5).all()


def test_gradients_are_refused():
    _, fast = pair(PLAIN)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="only infers"):
        fast.head(torch.ones(1, PLAIN.d_model, requires_grad=True), fast.embed)


def test_threads_of_python_may_share_a_model():
    _, fast = pair(PLAIN)
    prompts = [torch.tensor([[i, i + 1]]) for i in range(8)]
    alone, together = [fast(p) for p in prompts], [None] * 8

    def work(i):
        for _ in range(20):
            together[i] = fast(prompts[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(torch.equal(a, b) for a, b in zip(alone, together))


def test_a_copy_has_weights_of_its_own():
    _, fast = pair(PLAIN)
    other, ids = copy.deepcopy(fast), torch.tensor([[5]])
    cached = lambda m: m(ids, Cache(PLAIN, Slab(1, 4)).stage(torch.tensor([[0]])))
    for say in (cached, lambda m: m(ids)):  # all layers in one loop, and one by one
        before, kept = say(fast), copy.deepcopy(other.state_dict())
        for p in other.blocks.parameters():
            p.zero_()
        assert torch.equal(say(fast), before) and not torch.equal(say(other), before)
        other.load_state_dict(kept)
        assert torch.equal(say(other), before)


def narrow(m, config=PLAIN):
    """Logits of three tokens that go through a slab, so through all layers in one loop where that can be."""
    return m(torch.tensor([[5, 9, 2]]), Cache(config, Slab(1, 8), dtype=m.norm.weight.dtype).stage(torch.tensor([[0, 1, 2]])))


def doubled(m):
    for p in m.parameters():
        p.data = p.data * 2


def other_weights(m):
    other = model(PLAIN) if isinstance(m.blocks[0], Block) else pair(PLAIN)[1]
    for p in other.parameters():
        p.mul_(0.7)
    m.load_state_dict(other.state_dict(), assign=True)


def exchanged(m):
    m.blocks[0], m.blocks[1] = m.blocks[1], m.blocks[0]


CHANGES = {
    "doubled": doubled,
    "assigned": other_weights,
    "in another type": lambda m: m.bfloat16(),
    "shared": lambda m: m.share_memory(),
    "a block gone": lambda m: m.blocks.__delitem__(1),
    "a block twice": lambda m: m.blocks.append(m.blocks[0]),
    "exchanged": exchanged,
    "fewer": lambda m: setattr(m, "blocks", m.blocks[:1]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_after_tiling_counts(change):
    plain, fast = pair(PLAIN)
    before = narrow(fast)
    change(plain)
    change(fast)
    config = replace(PLAIN, n_layers=len(fast.blocks))
    close = 0.05 if plain.norm.weight.dtype == torch.bfloat16 else 1e-4
    for say in (lambda m: narrow(m, config), lambda m: m(torch.tensor([[5, 9, 2]]))[0]):
        a, b = say(plain).float(), say(fast).float()
        torch.testing.assert_close(b.view_as(a), a, rtol=0, atol=float(a.abs().max()) * close)
    assert not torch.equal(narrow(fast, config), before) or change is CHANGES["shared"]


@pytest.mark.parametrize("unlike", ["shape", "eps"])
def test_layers_that_are_not_alike_go_one_by_one(unlike):
    plain = model(PLAIN)
    if unlike == "shape":
        plain.blocks[1].mlp = MLP(replace(PLAIN, d_ff=5)).requires_grad_(False)
    else:
        plain.blocks[1].attention_norm.eps = 0.5
    fast = tiled(copy.deepcopy(plain))
    torch.testing.assert_close(narrow(fast), narrow(plain), rtol=1e-4, atol=1e-5)


def test_whoever_listens_to_a_block_hears_of_it():
    _, fast = pair(PLAIN)
    heard, before = [], narrow(fast)
    fast.blocks[1].register_forward_hook(lambda block, given, came: heard.append(came.shape))
    torch.testing.assert_close(narrow(fast), before, rtol=1e-4, atol=1e-5)
    assert heard == [(3, PLAIN.d_model)]


@pytest.mark.parametrize("other", [{"n_kv_heads": 4}, {"d_head": 4}, {"n_layers": 1}])
def test_a_cache_of_another_model_is_refused_as_by_the_plain_one(other):
    for m in pair(PLAIN):
        with pytest.raises((RuntimeError, IndexError)):
            narrow(m, replace(PLAIN, **other))


def test_a_pickled_model_runs_in_another_process(tmp_path):
    _, fast = pair(PLAIN)
    (tmp_path / "model").write_bytes(pickle.dumps(fast))
    torch.save(narrow(fast), tmp_path / "logits")
    code = f"""
import pickle, torch
from test_kernels import narrow
torch.set_grad_enabled(False)
with open({str(tmp_path / "model")!r}, "rb") as file:
    m = pickle.load(file)
print(torch.allclose(narrow(m), torch.load({str(tmp_path / "logits")!r}), rtol=1e-4, atol=1e-5))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent)
    assert run.stdout.strip() == "True", run.stderr[-2000:]


def test_a_model_is_tiled_with_gradients_on():
    with torch.enable_grad():
        fast = tiled(Transformer(PLAIN))
        copy.deepcopy(fast)
    assert narrow(fast).shape == (1, 3, PLAIN.vocab_size)


def test_the_thread_count_of_pytorch_stays_what_it_was():
    code = """
import torch; torch.set_num_threads(1)
from tokenpace.config import ModelConfig
from tokenpace.model.kernels import tiled
from tokenpace.model.transformer import Transformer
with torch.no_grad(): tiled(Transformer(ModelConfig(97, 32, 1, 4, 2, 8, 64)))(torch.tensor([[1]]))
import numba
print(torch.get_num_threads(), numba.get_num_threads())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["1", "1"], run.stderr


def test_nothing_to_write_to_is_no_reason_to_fail(monkeypatch):
    asked = []

    def njit(**options):
        asked.append(options.get("cache", False))
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda f: f

    monkeypatch.setattr(jit, "njit", njit)
    assert jit.jit()(len) is len and asked == [True, False]


def test_importing_the_transformation_does_not_import_numba():
    code = "import sys, tokenpace.model.kernels; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout.strip() == "False"


OTHER_CORES = {"no AVX-512": ("haswell", "+avx2,+fma,+avx"), "no AVX at all": ("x86-64", "+sse2")}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="asks for cores of the x86 family")
@pytest.mark.parametrize("core", OTHER_CORES.values(), ids=OTHER_CORES)
def test_the_loops_are_right_on_cores_that_can_do_less(core, tmp_path):
    """Compiled for another core, in another process; what this one can do besides is not used."""
    code = """
import torch
from tokenpace.model import lanes
from tokenpace.model.products import TiledLinear
from tokenpace.model.quantize import QuantisedLinear
from tokenpace.weights.codes import SCHEMES
from tokenpace.model.transformer import Linear
assert lanes.AT_ONCE == 1 and not lanes.PAIRED
torch.manual_seed(1)
with torch.no_grad():
    for dtype in (torch.float32, torch.bfloat16):
        layer, x = Linear(70, 70).to(dtype), torch.randn(5, 70, dtype=dtype)
        for plain in (layer, *(QuantisedLinear(s(layer.weight), layer.bias) for s in SCHEMES.values())):
            close = 2e-2 if dtype == torch.bfloat16 else 1e-3 if getattr(plain, "matrix", None) and plain.matrix.bits == 4 else 1e-5
            torch.testing.assert_close(TiledLinear(plain)(x), plain(x), rtol=0, atol=close)
print("right")
"""
    name, features = core
    env = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env)
    assert run.stdout.strip() == "right", run.stderr[-2000:]


def test_a_change_in_any_file_of_the_loops_compiles_anew(tmp_path):
    """Numba alone would ask about gemv.py only, and go on using what was inlined from jit.py."""
    shutil.copytree(Path(jit.__file__).parents[1], tmp_path / "tokenpace", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import numpy as np; from tokenpace.model.jit import jit; from tokenpace.model.caller import twice; print(twice(np.float32(1)))"
    caller, called = tmp_path / "tokenpace/model/caller.py", tmp_path / "tokenpace/model/called.py"
    caller.write_text("from .called import exp2\nfrom .jit import jit\n@jit()\ndef twice(x):\n    return 2 * exp2(x)\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONDONTWRITEBYTECODE": "1"}
    for factor in (3, 5):
        called.write_text(f"from .jit import jit\n@jit(forceinline=True)\ndef exp2(x):\n    return {factor} * x\n")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env)
        assert run.stdout.strip() == str(2.0 * factor), run.stderr[-2000:]
    assert list((tmp_path / "kept").rglob("*.nbc")), "it is kept on disk"
