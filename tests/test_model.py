"""The forward against the oracle of loops, for every member of the family; and what a forward on the fast path must not do. CASES 1.10."""

import math
from dataclasses import replace

import pytest
import torch
from loud import ATTENTION, GQA, PROMPT, loud, oracle
from oracles import Plain, mask, rotate, sees, wavelengths
from torch.utils._python_dispatch import TorchDispatchMode

from tokenpace.cache.protocol import PIECE, Cache, NoCache
from tokenpace.cache.slab import Slab
from tokenpace.config import PRESETS, ModelConfig, RopeScaling, preset
from tokenpace.model import attention
from tokenpace.model.transformer import Transformer, linear, rms_norm, swiglu

LONG = RopeScaling(32.0, 1.0, 4.0, 8192)
FAMILY = {
    **ATTENTION,
    "two-way": replace(GQA, causal=False),
    "two-way window": replace(GQA, causal=False, window=4),
    "theta": replace(GQA, rope_theta=5e5, norm_eps=1e-6),
    "llama3": replace(GQA, rope_theta=5e5, rope_scaling=LONG),
    "bias": replace(GQA, qkv_bias=True),
    "qk-norm": replace(GQA, qk_norm=True),
    "untied": replace(GQA, tied=False),
    "window of 1": replace(GQA, window=1),
    "one layer": replace(GQA, n_layers=1, n_heads=2),
}
TOKENS = [(7 * i + i * i) % 61 for i in range(23)]


def double(config: ModelConfig) -> Transformer:
    model = Transformer(config).eval().requires_grad_(False).double()
    model.load_state_dict(loud(config).state_dict())
    return model


def once(model, tokens, flight=None):
    return model(torch.tensor([tokens]), flight)[0]


# Against the oracle


@pytest.mark.parametrize("name", FAMILY)
def test_forward_is_the_oracle(name):
    """fp64 weights; what is left is that angles are fp32."""
    config = FAMILY[name]
    torch.testing.assert_close(once(double(config), TOKENS), oracle(config).plain.logits(TOKENS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gqa", "qwen"])
def test_forward_on_each_device(name, device):
    config = FAMILY[name]
    model = Transformer(config).eval().requires_grad_(False)
    model.load_state_dict(loud(config).state_dict())
    got = model.to(device)(torch.tensor([TOKENS], device=device))[0].cpu().double()
    torch.testing.assert_close(got, oracle(config).plain.logits(TOKENS), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_leaving_early(layers):
    got = double(GQA)(torch.tensor([TOKENS]), exit_at=layers)[0]
    torch.testing.assert_close(got, oracle(GQA).plain.logits(TOKENS, layers=layers), atol=1e-5, rtol=1e-5)


def test_reading_some_logits_and_their_states():
    model, tokens = loud(), torch.tensor([TOKENS[:9], TOKENS[5:14]])
    whole = model(tokens)
    read = torch.tensor([17, 0, 8])
    torch.testing.assert_close(model(tokens, read=read), whole.flatten(0, 1)[read])
    torch.testing.assert_close(model.logits(model.hidden(tokens, read=read)), whole.flatten(0, 1)[read])
    assert model(tokens, read=torch.tensor([], dtype=torch.long)).shape == (0, 61)


def test_ragged_rows_in_any_order():
    """Rows of unlike width are computed in rectangles of their own: their logits still come where their tokens stood."""
    model, widths = loud(), [5, 1, 12, 3, 0, 9, 2]
    positions = torch.tensor([[*range(n), *[-1] * (12 - n)] for n in widths])
    tokens = torch.tensor([[TOKENS[(i + j) % 23] for j in range(12)] for i in range(7)])
    for store in (NoCache(), Cache(GQA, Slab(7, 16)), Cache(GQA, Slab(7, 16, fixed=True))):
        got = model(tokens, store.stage(positions))
        for row, n in enumerate(widths):
            if n:
                torch.testing.assert_close(got[row, :n].double(), oracle().plain.logits(tokens[row, :n].tolist()), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", ["gqa", "sinks"])
def test_longer_than_a_piece(kind):
    """A direct call of 640 tokens takes its queries in pieces: the same as one token after the other."""
    model, n = loud(replace(ATTENTION[kind], context=1024)), PIECE + 128
    tokens = [(7 * i + i * i // 3) % 61 for i in range(n)]
    flight = NoCache().stage(torch.arange(n)[None])
    assert [r.queries.shape[1] for r in flight.rectangles] == [PIECE, 128]
    whole = once(model, tokens, flight)
    cache = Cache(ATTENTION[kind], Slab(1, n))
    torch.testing.assert_close(once(model, tokens, cache.stage(torch.arange(n)[None])), whole, atol=1e-4, rtol=1e-3)
    cache, singly = Cache(ATTENTION[kind], Slab(1, n)), []
    for i, t in enumerate(tokens):
        singly.append(once(model, [t], cache.stage(torch.tensor([[i]]))))
        cache.keep([1])
    torch.testing.assert_close(torch.cat(singly), whole, atol=1e-4, rtol=1e-3)


# Parts


@pytest.mark.parametrize("window, sinks, causal", [(None, 0, True), (3, 0, True), (3, 2, True), (1, 0, True), (None, 0, False), (4, 1, False)])
def test_the_mask_is_the_written_out_one(window, sinks, causal):
    """Also with cells in any order and holes, which a mask made from lengths would not survive."""
    n = 9
    flight = NoCache().stage(torch.arange(n)[None])
    assert torch.equal(attention.visible(flight.rectangles[0], window, sinks, causal)[0], mask(n, window, sinks, causal))
    shuffled = replace(flight.rectangles[0], keys=torch.tensor([[4, -1, 0, 8, 2, -1, 7, 1]]))
    want = [[k >= 0 and sees(q, k, window, sinks, causal) for k in (4, -1, 0, 8, 2, -1, 7, 1)] for q in range(n)]
    assert attention.visible(shuffled, window, sinks, causal)[0].tolist() == want


@pytest.mark.parametrize("heads", [(6, 2), (6, 6), (6, 1), (4, 2)])
def test_fused_attention_is_plain_attention(heads):
    h, g = heads
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, n, heads, 8, generator=generator) for n, heads in ((5, h), (9, g), (9, g)))
    bias = torch.where(torch.rand(3, 5, 9, generator=generator) < 0.6, 0.0, -torch.inf).index_fill(2, torch.tensor(0), 0.0)
    plain = attention.attend_plainly(q, k, v, bias)
    torch.testing.assert_close(attention.attend(q, k, v, bias), plain, atol=1e-6, rtol=1e-5)
    for b in range(3):  # and both are softmax(q·k/√D + bias)·v, KV heads shared 0, 0, 0, 1, 1, 1 (CASES L3)
        for head in range(h):
            kv = head // (h // g)
            weights = (q[b, :, head] @ k[b, :, kv].T / math.sqrt(8) + bias[b]).softmax(-1)
            torch.testing.assert_close(plain[b, :, head], weights @ v[b, :, kv], atol=1e-6, rtol=1e-5)


def test_the_model_runs_on_plain_attention_too(monkeypatch):
    want = once(loud(), TOKENS)
    calls = []
    monkeypatch.setattr(attention, "attend", lambda *a: calls.append(1) or attention.attend_plainly(*a))
    torch.testing.assert_close(once(loud(), TOKENS), want, atol=1e-4, rtol=1e-4)
    assert len(calls) == GQA.n_layers


@pytest.mark.parametrize("name", ["gqa", "theta", "llama3", "qwen"])
def test_frequencies_in_closed_form(name):
    """CASES L4: theta and the llama3 stretching, also far out."""
    config = replace(FAMILY[name], d_head=64)
    want = torch.tensor([2 * math.pi / w for w in wavelengths(config)])
    torch.testing.assert_close(attention.frequencies(config), want, rtol=2e-6, atol=0)


def test_llama3_stretches_slow_pairs_only():
    config = replace(preset("llama-3.2-1b"), d_head=64)
    plain, stretched = attention.frequencies(replace(config, rope_scaling=None)), attention.frequencies(config)
    ratio = plain / stretched
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(32, rel=1e-5) and bool((ratio[1:] >= ratio[:-1] - 1e-5).all())
    middle = [i for i, w in enumerate(wavelengths(replace(config, rope_scaling=None))) if 8192 / 4 < w < 8192]
    assert middle and all(1 < ratio[i] < 32 for i in middle)


def test_rope_turns_pairs_by_their_position():
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).double()
    where = [0, 1, 7, 100, 4095]
    got = attention.rope(x[:, None], *attention.turns(torch.tensor(where), attention.frequencies(GQA)))[:, 0]
    torch.testing.assert_close(got, rotate(x, where, wavelengths(GQA)), atol=2e-3, rtol=0)  # fp32 angles at 4095
    torch.testing.assert_close(got[:3], rotate(x[:3], where[:3], wavelengths(GQA)), atol=1e-6, rtol=0)
    assert torch.equal(got[0], x[0])


def test_norm_and_gate():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(rms_norm(x, torch.tensor([1.0, 2.0]), 0.5), torch.tensor([[3.0, 8.0], [0.0, 0.0]]) / math.sqrt(13))
    gate_up = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    torch.testing.assert_close(swiglu(gate_up), torch.tensor([[3 / (1 + math.exp(-1)), -10 / (1 + math.exp(2))]]))


@pytest.mark.parametrize("name", FAMILY)
def test_parameters_are_the_configs(name):
    shapes = {n: tuple(w.shape) for n, w in Transformer(FAMILY[name]).state_dict().items()}
    assert shapes == FAMILY[name].tensors
    assert sum(w.numel() for w in Transformer(FAMILY[name]).parameters()) == FAMILY[name].n_params


@pytest.mark.parametrize(
    "name, millions",
    [
        ("smollm2-135m", 134.5),
        ("qwen2.5-0.5b", 494.0),
        ("llama-3.2-1b", 1235.8),
        ("tinyllama-1.1b", 1100.0),
        ("llama-2-7b", 6738.4),
        ("llama-3.1-8b", 8030.3),
        ("qwen3-0.6b", 596.0),
    ],
)
def test_presets_have_the_size_of_what_they_copy(name, millions):
    assert preset(name).n_params / 1e6 == pytest.approx(millions, abs=0.06)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_models(name):
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert {n: tuple(w.shape) for n, w in model.state_dict().items()} == preset(name).tensors


def test_a_model_built_without_memory_takes_its_tensors():
    with torch.device("meta"):
        model = Transformer(GQA)
    model.load_state_dict(loud().state_dict(), assign=True)
    assert torch.equal(once(model.requires_grad_(False), TOKENS), once(loud(), TOKENS))


# Configs that are none


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(n_layers=0), "n_layers"),
        (dict(vocab_size=-5), "vocab_size"),
        (dict(d_model=32.0), "d_model"),
        (dict(n_kv_heads=4), "multiple"),
        (dict(d_head=7), "even"),
        (dict(window=0), "window"),
        (dict(sinks=-1), "sinks"),
        (dict(rope_theta=0.0), "rope_theta"),
        (dict(norm_eps=-1e-5), "norm_eps"),
    ],
    ids=str,
)
def test_bad_numbers(change, words):
    with pytest.raises(ValueError, match=words):
        replace(GQA, **change)


def test_unknown_keys_are_refused_with_the_nearest():
    numbers = {f: getattr(GQA, f) for f in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")}
    assert (
        ModelConfig.from_dict(
            {**numbers, "rope_scaling": dict(factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)}
        ).rope_scaling.factor
        == 2
    )
    with pytest.raises(ValueError, match="rope_teta.*rope_theta"):
        ModelConfig.from_dict({**numbers, "rope_teta": 1e4})


def test_unknown_presets_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="smollm2-135m"):
        preset("smollm-135m")


# Dtypes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_n1_angles_stay_fp32(dtype):
    """In bf16 positions beyond 256 would merge."""
    model = Transformer(replace(GQA, context=8192)).to(dtype)
    assert model.frequencies.dtype == torch.float32 and torch.equal(model.frequencies, attention.frequencies(GQA))
    cos, _ = attention.turns(torch.tensor([257, 256, 4095, 4094]), model.frequencies)
    assert cos.dtype == torch.float32 and len({tuple(row) for row in cos[:, 0].tolist()}) == 4
    want = torch.tensor([[math.cos(2 * math.pi * p / w) for w in wavelengths(GQA)] for p in (257, 256, 4095, 4094)])
    torch.testing.assert_close(cos[:, 0, :4], want, atol=3e-4, rtol=0)


def test_n1_far_positions_in_bf16():
    """Two positions that bf16 cannot tell apart give different attention: logits follow the fp32 ones."""
    model = Transformer(GQA).requires_grad_(False).eval()
    model.load_state_dict(loud().state_dict())
    where = torch.arange(1000, 1011)[None]
    near, exact = model.bfloat16()(torch.tensor([PROMPT]), NoCache().stage(where)), loud()(torch.tensor([PROMPT]))
    assert float((near.float() - exact).abs().mean() / exact.abs().mean()) < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("attend", [attention.attend, attention.attend_plainly])
def test_b3_n2_padding_is_finite(dtype, fixed, attend, device, monkeypatch):
    """A row of one token beside one of 33, in half precision: nothing becomes NaN, and the short row is what it is alone."""
    monkeypatch.setattr(attention, "attend", attend)  # some fused kernels forgive a softmax over nothing; the definition does not
    model = Transformer(GQA).requires_grad_(False).eval()
    model.load_state_dict(loud().state_dict())
    model = model.to(dtype).to(device)
    positions = torch.tensor([[0, *[-1] * 32], [*range(33)], [-1] * 33])
    tokens = torch.tensor([[5, *[0] * 32], [i % 61 for i in range(33)], [0] * 33], device=device)
    got = model(tokens, Cache(GQA, Slab(3, 40, fixed), dtype=dtype, device=device).stage(positions))
    assert bool(got.isfinite().all())
    alone = model(tokens[:1, :1])
    torch.testing.assert_close(got[0, :1], alone[0], atol=0.1, rtol=0.05)


# The fast path


def decode_steps(model, cache, n: int, rows: int):
    """n passes of one token for each row, staged outside of what a graph would capture."""
    for i in range(n):
        flight = cache.stage(torch.full((rows, 1), i))
        yield torch.full((rows, 1), i % 61), flight, torch.arange(rows)
        cache.keep([1] * rows)


def test_the_fixed_slab_compiles_whole():
    """No graph break, and what was compiled for the first pass serves all of them."""
    torch._dynamo.reset()
    model, rows = loud(), 2
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for (tokens, flight, read), (_, twin, _) in zip(
            decode_steps(model, Cache(GQA, Slab(rows, 60, fixed=True)), 50, rows),
            decode_steps(model, Cache(GQA, Slab(rows, 60, fixed=True)), 50, rows),
        ):
            torch.testing.assert_close(compiled(tokens, flight, read), model(tokens, twin, read), atol=1e-5, rtol=1e-5)
    torch._dynamo.reset()


def test_the_fixed_slab_never_moves():
    """Shapes and addresses of all that a captured graph would hold on to, over 50 passes."""
    model, rows = loud(), 2
    cache, seen = Cache(GQA, Slab(rows, 60, fixed=True)), set()
    for tokens, flight, read in decode_steps(model, cache, 50, rows):
        [r] = flight.rectangles
        shapes = tuple(map(tuple, (r.queries.shape, r.keys.shape, flight.into.shape, model(tokens, flight, read).shape)))
        seen.add((shapes, r.end, r.keys.data_ptr(), *(p.data_ptr() for layer in cache.layers for parts in layer for p in parts)))
    assert len(seen) == 1


class Waits(TorchDispatchMode):
    """Every operation after which the host must know a number that is on the device."""

    HOST = {  # noqa: RUF012
        "_local_scalar_dense",
        "nonzero",
        "item",
        "is_nonzero",
        "masked_select",
        "unique",
        "_unique2",
        "equal",
        "repeat_interleave",
        "nonzero_static",
    }

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indexed_by_a_mask = name in ("index", "index_put", "index_put_") and any(t is not None and t.dtype == torch.bool for t in args[1])
        if name in self.HOST or indexed_by_a_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_a_pass_waits_for_nothing(fixed):
    """Inside the forward no operation needs the host to know a result; staging and keeping need none from the device either."""
    model = loud()
    for positions in (torch.tensor([[0, 1, 2], [0, -1, -1]]), torch.tensor([[3], [1]])):
        cache = Cache(GQA, Slab(2, 20, fixed))
        flight = cache.stage(positions)
        with Waits() as waits:
            model(torch.ones_like(positions), flight, torch.tensor([0, 1]))
            cache.keep([1, 1])
            cache.copy([0], [1])
            cache.release(0)
        assert waits.found == []


def test_the_spy_sees_what_waits():
    x = torch.tensor([1.0, 0.0])
    for ask in (lambda: x[0].item(), lambda: bool(x[0] > 0), lambda: x.nonzero(), lambda: x[x > 0], lambda: float(x.sum()), lambda: x.unique()):
        with Waits() as waits:
            ask()
        assert waits.found


# Where tokens are


def test_what_positions_a_pass_has():
    """Lesson 1: rotary positions hide a shift of everything, so the numbers themselves are looked at."""
    seen = []
    original = attention.turns
    model = loud()
    try:
        attention.turns = lambda positions, f: seen.append(positions.tolist()) or original(positions, f)
        model(torch.tensor([TOKENS[:4], TOKENS[4:8]]))
        cache = Cache(GQA, Slab(2, 20))
        for where in ([[0, 1, 2], [0, 1, -1]], [[3], [2]]):
            model(torch.tensor(where).clamp(min=0), cache.stage(torch.tensor(where)))
            cache.keep([n.count(-1) * -1 + len(n) for n in where])
    finally:
        attention.turns = original
    assert seen == [[0, 1, 2, 3] * 2, [0, 1, 2, 0, 1, -1], [3, 2]] or seen == [[0, 1, 2, 3] * 2, [0, 1, 0, 1, 2], [3, 2]]


def test_a_shift_changes_nothing_but_absolute_positions_do():
    """Rotary attention looks at distances only; the suite's absolute model, which test_cache uses, looks at more."""
    a, b = (once(loud(), PROMPT, NoCache().stage(torch.arange(at, at + len(PROMPT))[None])) for at in (0, 100))
    torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)
    absolute = Plain(dict(loud().state_dict()), GQA, torch.randn(300, 32, generator=torch.Generator().manual_seed(0)))
    a, b = (absolute.logits(PROMPT, [*range(at, at + len(PROMPT))]) for at in (0, 100))
    assert not torch.allclose(a, b, atol=0.1)


def test_attention_is_loud():
    """What the other tests rely on: a token's logits depend on the order of those long before it, in every layer."""
    swapped = [PROMPT[1], PROMPT[0], *PROMPT[2:]]
    for kind in ("gqa", "mqa", "mha"):
        assert float((once(loud(kind), PROMPT)[-1] - once(loud(kind), swapped)[-1]).abs().max()) > 0.3


@pytest.mark.parametrize("rows", [64, 63])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 2])
def test_one_vector_on_several_threads_is_the_same_product(rows, bias, tokens):
    x, w, b = torch.randn(tokens, 40), torch.randn(rows, 40), torch.randn(rows) if bias else None
    want = x.double() @ w.double().T + (b.double() if bias else 0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.testing.assert_close(linear(x, w, b).double(), want, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(threads)
