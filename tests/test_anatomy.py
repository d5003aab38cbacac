"""A pass by part: watches on a made-up clock against sums done by hand; the law of a real pass against its own softmax; sliders."""

from math import log

import pytest
import torch

from tokenpace import lesson
from tokenpace.config import ModelConfig
from tokenpace.decode.sampling import Sampler
from tokenpace.generate import prepare
from tokenpace.lesson import Lesson, record
from tokenpace.load import fast, load
from tokenpace.measure.clock import timed
from tokenpace.measure.cost import Device
from tokenpace.measure.parts import PARTS, by_part, part
from tokenpace.measure.roof import Band
from tokenpace.model.transformer import Transformer
from tokenpace.run import Row, Step
from tokenpace.show import controls
from tokenpace.show.anatomy import Anatomy, Pass, dissect, parts
from tokenpace.show.distribution import Law, bars, law, likeliest, reshape, said, sample
from tokenpace.show.live import watch
from tokenpace.show.plots import owned

CONFIG = ModelConfig(vocab_size=100, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_head=8, d_ff=64)
HERE = Device("here", bandwidth=1e6, flops=1e9)
DECODE = Step((Row(0, "decode", 5, 1),))


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self):
        self.t = 0.0

    def __call__(self):
        return self.t


COSTS = {"embed": 1, "norm": 2, "qkv": 4, "out": 8, "gate_up": 16, "down": 32, "head": 64}  # seconds that each of these modules takes, once


def slowed(config, clock):
    """A model of which the modules in COSTS take so long, whatever they compute."""
    model = Transformer(config).eval().requires_grad_(False)
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last in COSTS or last.endswith("norm"):
            forward, seconds = module.forward, COSTS.get(last, COSTS["norm"])

            def slow(*given, forward=forward, seconds=seconds):
                clock.t += seconds
                return forward(*given)

            module.forward = slow
    return model


def passes(model, clock, n=2, before=0.5, after=0.25):
    """Passes with something before and after the model, as a driver has it."""
    for _ in range(n):
        clock.t += before
        model(torch.tensor([[5, 9, 2]]))
        clock.t += after
        yield DECODE


def test_each_part_has_the_seconds_of_its_own_modules():
    clock = Clock()
    model = slowed(CONFIG, clock)
    found = list(by_part(model, timed(passes(model, clock), now=clock), now=clock))
    layers = CONFIG.n_layers
    want = {
        "embed": 1,
        "norm": 2 * (2 * layers + 1),
        "attention": 12 * layers,
        "scores": 0,
        "mlp": 48 * layers,
        "head": 64,
        "rest": 0,
        "outside": 0.75,
    }
    assert len(found) == 2 and list(want) == list(PARTS)
    for stamped, taken in found:
        assert taken == want and sum(taken.values()) == stamped.seconds


def test_what_attention_does_between_its_products_is_its_scores(monkeypatch):
    from tokenpace.model import attention

    clock, attend = Clock(), attention.attend

    def slow(*given):
        clock.t += 3
        return attend(*given)

    monkeypatch.setattr(attention, "attend", slow)
    model = slowed(CONFIG, clock)
    ((_, taken),) = by_part(model, timed(passes(model, clock, 1), now=clock), now=clock)
    assert taken["scores"] == 3 * CONFIG.n_layers and taken["attention"] == 12 * CONFIG.n_layers


def test_norms_of_heads_are_norms():
    config = ModelConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__}, "qk_norm": True})
    clock = Clock()
    model = slowed(config, clock)
    ((_, taken),) = by_part(model, timed(passes(model, clock, 1), now=clock), now=clock)
    assert taken["norm"] == 2 * (4 * config.n_layers + 1) and taken["scores"] == 0


def hooked(model):
    return [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_the_watches_are_on_only_while_a_pass_runs():
    """Also where a run is left alone, or fails: other runs of the model go on without them."""
    clock = Clock()
    model = slowed(CONFIG, clock)
    run = by_part(model, timed(passes(model, clock), now=clock), now=clock)
    next(run)
    assert not hooked(model)
    run.close()

    def failing():
        model(torch.tensor([[1]]))
        assert hooked(model)
        raise RuntimeError("a pass that fails")
        yield

    with pytest.raises(RuntimeError, match="fails"):
        next(by_part(model, failing()))
    assert not hooked(model)


def test_every_clock_waits_for_queued_work():
    clock, waited = Clock(), []
    model = slowed(CONFIG, clock)
    list(by_part(model, timed(passes(model, clock, 1), now=clock), sync=lambda: waited.append(clock.t), now=clock))
    modules = [name for name, _ in model.named_modules() if part(name)]
    assert len(waited) == 2 * len(modules)


def test_the_parts_of_a_real_pass_are_the_pass():
    lm = load("shape:15m", device="cpu", dtype="float32")
    for stamped, taken in by_part(lm.model, prepare(lm, [1, 2, 3], max_new_tokens=4).timed()):
        assert sum(taken.values()) == pytest.approx(stamped.seconds, rel=1e-9)
        assert {name for name, seconds in taken.items() if seconds > 0} == set(PARTS), "each does something, and is inside the pass"


def test_the_texts_are_the_same_under_watches():
    lm = load("shape:15m", device="cpu", dtype="float32")
    tokens = lambda stamped: [row.writes for step, _ in stamped for row in step.rows]
    plain = tokens(prepare(lm, [1, 2, 3], max_new_tokens=5).timed())
    assert tokens(one for one, _ in by_part(lm.model, prepare(lm, [1, 2, 3], max_new_tokens=5).timed())) == plain


def test_a_tiled_model_is_refused():
    pytest.importorskip("numba")
    lm = fast(load("shape:15m", device="cpu", dtype="float32"))
    with pytest.raises(ValueError, match="give the plain model"):
        next(by_part(lm.model, []))


# the figure --------------------------------------------------------------------------------------------------------


def taken(mlp, scale=1.0):
    return {name: scale * (mlp if name == "mlp" else 1.0) for name in PARTS}


def anatomy(points, band=None, guess=None, planned=3):
    view = Anatomy(CONFIG, HERE, 50, planned=planned, guess=guess, where="a test")
    roof = iter([[1e9] * 3, [band or 1e9] * 3])
    return view, watch(view, {"parts": points}, roof=lambda: next(roof))


def test_the_bars_are_medians_of_the_parts():
    view, shown = anatomy([Pass(taken(3), 10.0), Pass(taken(1), 9.0), Pass(taken(100), 11.0)], guess=40)
    widths = dict(zip(view.names, (bar.get_width() for bar in view.measured)))
    assert widths == taken(3) and view.names == list(PARTS) and view.progress() == 1
    assert view.share == pytest.approx(2 / 10) and "attention with its scores 20% (you said 40%)" in shown.sentence
    assert "Measured on PyTorch's own kernels, mlp takes 30% of the time" in shown.sentence
    assert "Medians of 3 passes of 10.0 s (9.00 s to 11.0 s); the stopwatches make that 10.0 s." in shown.sentence and "[a test]" in shown.sentence
    assert "No verdict" not in shown.sentence and view.band == Band(1e9, 1e9, True)


def test_parts_that_hardly_read_are_named_however_slow_the_others_are():
    view, shown = anatomy([Pass(taken(500), 510.0)] * 3)
    counted = parts(CONFIG, 50)
    read, multiplied = (sum(c[i] for c in counted.values()) for i in (1, 2))
    idle = [n for n in PARTS if n not in counted or (counted[n][1] < 0.02 * read and counted[n][2] < 0.02 * multiplied)]
    assert view.idle() == idle == ["embed", "norm", "rest", "outside"]  # so small a model reads its keys and values, too
    assert f"embed, norm, rest, outside have {counted['norm'][1] / read:.1%} of the bytes and take 4.00 s, 1%." in shown.sentence


def test_a_disturbed_run_gives_no_verdict():
    """Nor does it say what the parts without bytes cost."""
    points = [Pass(taken(3), 10.0)] * 3
    moved, unlike = (anatomy(*given)[1].sentence for given in ((points, 2e9), ([Pass(taken(3), 1.0), *points[:2], Pass(taken(3), 90.0)],)))
    assert "No verdict: the roof moved between 1 and 2 GB/s" in moved and "No verdict: the passes took between" in unlike
    assert not [told for told in (moved, unlike) if "of the bytes and take" in told]


def test_a_budget_keeps_what_was_measured():
    clock = Clock()

    def slowly():
        while True:
            clock.t += 4
            yield Pass(taken(3), 10.0)

    view = Anatomy(CONFIG, HERE, 50, planned=10)
    shown = watch(view, {"parts": slowly()}, seconds=10, now=clock)
    assert len(view.passes) == 3 and "Medians of 3 passes" in shown.sentence
    assert "Stopped by its budget of 10 s: 3 points kept, 30% of the plan." in shown.sentence


def test_what_is_counted_by_hand():
    """3 layers, 32 wide, 4 query heads and 2 KV heads of 8, inner width 64, 100 tokens, 2 bytes a weight; 50 tokens are cached."""
    attention, mlp, head, norms = 3 * (32 * (32 + 16 + 16) + 32 * 32), 3 * 3 * 32 * 64, 100 * 32, (2 * 3 + 1) * 32
    kept = 3 * 2 * 16  # numbers of keys and values of one token
    tied = {
        "norm": (0, 2 * norms, 0),
        "attention": (6, 2 * attention, 2 * attention),
        "scores": (6, 2 * 51 * kept, 3 * 4 * 2 * 2 * 8 * 51),  # layers, heads, two products of 8 multiplications and additions each, 51 tokens
        "mlp": (6, 2 * mlp, 2 * mlp),
        "head": (1, 2 * head, 2 * head),
    }
    config = lambda tied: ModelConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__}, "tied": tied})
    assert parts(config(True), 50, 2) == tied
    assert parts(config(False), 50, 2) == tied | {"embed": (0, 2 * 32, 0)}


def test_nothing_measured_is_what_is_counted():
    view, shown = anatomy([])
    assert view.took == {} and view.share is None and "Measured" not in shown.sentence and "MFLOP" in shown.sentence


@pytest.mark.parametrize("size", [11, 16])
def test_nothing_in_the_picture_is_cut_or_covered(size):
    from matplotlib import rcParams

    from tokenpace.show.plots import present

    before = rcParams["font.size"]
    try:
        present(size)
        _, shown = anatomy([Pass(taken(3), 10.0)] * 3)
        (ax,) = shown.figure.axes
        width, height = shown.figure.bbox.size
        boxes = [t.get_window_extent() for t in [*ax.texts, *ax.get_yticklabels(), ax.xaxis.label, ax.title] if t.get_text()]
        assert len(boxes) > 8 and not [b for b in boxes if min(b.x0, b.y0) < -1 or b.x1 > width + 1 or b.y1 > height + 1]
        assert not [b for b in boxes if ax.get_legend().get_window_extent().overlaps(b)]
    finally:
        rcParams["font.size"] = before


# a lesson: measured, recorded, replayed ----------------------------------------------------------------------------


class Letters:
    """A vocabulary whose tokens are spelt as numbers in brackets."""

    def encode(self, text):
        return [ord(letter) % 90 for letter in text]

    def decode(self, ids):
        return "".join(f"[{i}]" for i in ids)


@pytest.fixture
def unit(monkeypatch):
    lm = load("shape:15m", device="cpu", dtype="float32")
    machine = {"name": "a test", "device": "cpu", "threads": {"torch": 1}, "last_level_cache": {"bytes": 1}}
    unit = Lesson("02", "quick", lm, lm.config, 4.0, machine, HERE, Letters().decode)
    unit.plain = lm
    monkeypatch.setattr(Lesson, "roof", property(lambda self: lambda: (1e9, 1e9)))
    monkeypatch.setattr(Lesson, "length", lambda self, prompt: len(prompt))
    return unit


PROMPT = [1, 2, 3]


@pytest.fixture
def replayed(monkeypatch, tmp_path):
    """The lesson that a recording of another becomes."""
    monkeypatch.setattr(lesson, "RESULTS", tmp_path)
    monkeypatch.setattr(lesson, "preset", lambda name: load("shape:15m", device="cpu", dtype="float32").config)

    def again(unit):
        record(unit, {"before": (1e9,), "after": (1e9,)}, tmp_path)
        return lesson._dry("02", "smollm2-135m")

    return again


def test_a_dissection_is_replayed_as_it_was(unit, replayed):
    shown = dissect(unit, PROMPT, passes=3)
    kept = shown.points["parts"]
    assert len(kept) == 3 and all(list(one.parts) == list(PARTS) and one.without > 0 for one in kept)
    assert len(unit.runs["parts"]) == 3 * (1 + len(PARTS)) and {row.phase for step, _ in unit.runs["parts"] for row in step.rows} == {"decode"}
    again = dissect(replayed(unit), PROMPT, passes=3)
    assert again.points["parts"] == kept


def test_a_recording_that_was_cut_has_whole_passes_only(unit, replayed):
    dissect(unit, PROMPT, passes=3)
    unit.runs["parts"] = unit.runs["parts"][: 2 * (1 + len(PARTS)) + 4]
    assert len(dissect(replayed(unit), PROMPT, passes=3).points["parts"]) == 2


def test_the_law_is_the_softmax_of_the_pass(unit, replayed):
    told = law(unit, PROMPT)
    want = unit.lm.model(torch.tensor([PROMPT]))[0, -1].double().softmax(-1)
    assert told.prompt == tuple(PROMPT) and len(told.tokens) == 2048 and told.size == unit.config.vocab_size
    assert [told.raw[t] for t in told.tokens] == pytest.approx(want[list(told.tokens)].tolist(), rel=1e-4)
    assert set(told.tokens) == set(want.topk(2048).indices.tolist()) and list(told.logprobs) == sorted(told.logprobs, reverse=True)
    assert sum(p > 0 for p in told.raw) == 2048
    assert law(replayed(unit), PROMPT) == told


def test_who_asks_for_a_law_keeps_none_of_it(unit):
    """Three of them, after the prompt's own tokens; of a vocabulary that is smaller, all."""
    ((step, _),) = prepare(unit.lm, PROMPT, decoder=likeliest(3)).timed()
    best = unit.lm.model(torch.tensor([PROMPT]))[0, -1].topk(3).indices.tolist()
    assert step.rows[0].writes == (*((i, t, False) for i, t in enumerate(PROMPT)), *((3, t, False) for t in best))
    ((step, _),) = prepare(unit.lm, PROMPT, decoder=likeliest(10**6)).timed()
    assert len(step.rows[0].writes) == 3 + unit.config.vocab_size


def test_bars_are_the_law_inside_the_model():
    ax = owned().subplots()
    bars(ax, [0.2, 0.5, 0.3], [0, 0.625, 0.375], [1, 2, 0], ["a\n", " b", "\u4e2d"].__getitem__, "top-k 2")
    model, sampler = ([bar.get_height() for bar in one] for one in ax.containers)
    assert (model, sampler) == ([0.5, 0.3, 0.2], [0.625, 0.375, 0]) and [one.get_label() for one in ax.containers] == ["the model", "top-k 2"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [" b", "□", "a\\n"], "what has no glyph is a box, a line's end is spelt"


def test_a_law_under_a_sampler_by_hand():
    told = Law((7,), (3, 0, 2), tuple(log(p) for p in (0.5, 0.3, 0.1)), 5)  # a tenth is spread over tokens that were not asked about
    assert told.raw == pytest.approx([0.3, 0, 0.1, 0.5, 0])
    assert told.under(Sampler(1.0)) == pytest.approx([3 / 9, 0, 1 / 9, 5 / 9, 0])
    assert told.under(Sampler(0.5)) == pytest.approx([9 / 35, 0, 1 / 35, 25 / 35, 0])
    assert told.under(Sampler(1.0, top_p=0.6)) == pytest.approx([3 / 8, 0, 0, 5 / 8, 0])
    assert told.under(Sampler(0.0)) == [0, 0, 0, 1, 0]


def test_a_sampler_in_words():
    assert (
        said(Sampler(0.7, top_k=5, top_p=0.9, min_p=0.1)) == "temperature 0.7, top-k 5, top-p 0.9, min-p 0.1" and said(Sampler(0)) == "temperature 0"
    )


def test_the_shape_says_what_is_left(unit):
    told = Law((7,), (3, 0, 2), tuple(log(p) for p in (0.5, 0.3, 0.1)), 5)
    shown = reshape(unit, told, temperature=1.0, top_k=2)
    for words in (
        "leaves 2 of the 3 likeliest tokens (the vocabulary has 5), which had 80.0%",
        "'[3]', has 0.625 (before: 0.5)",
        "one among 1.9 equally likely",
    ):
        assert words in shown.sentence
    greedy = reshape(unit, told, temperature=0.0)
    assert "leaves 1 of the 3" in greedy.sentence and "one among 1.0 equally" in greedy.sentence


def test_draws_of_the_real_machinery_come_near_their_law(unit):
    """1,024 rows, each with its own seed, through driver, model and sampler."""
    told, sampler = law(unit, PROMPT), Sampler(0.2, top_k=8)
    shown = sample(unit, PROMPT, told, sampler, 1024)
    view = shown.view
    assert view.n == 1024 and len(view.support) == 8 and view.distance() < 2 * view.expected(1024)
    assert view.distances[0][0] == 32 and "temperature 0.2, top-k 8 leaves 8 of" in shown.sentence
    other = sample(unit, PROMPT, told, sampler, 64)
    assert [s.step for s in other.points["draws"]] == [s.step for s in shown.points["draws"][:2]], "seeds say what is drawn"


# sliders -----------------------------------------------------------------------------------------------------------


def test_sliders_call_when_they_are_let_go_with_all_their_values():
    widgets = pytest.importorskip("ipywidgets")
    calls = []
    box = controls.sliders(lambda *a, **k: calls.append((a, k)), 1, ranges={"t": (0.0, 2.0, 0.1, 1.0), "k": (0, 50, 1, 3)}, screen="here")
    t, k, message = box.children
    assert isinstance(t, widgets.FloatSlider) and isinstance(k, widgets.IntSlider) and not t.continuous_update and not k.continuous_update
    assert (t.value, k.value, calls) == (1.0, 3, [])
    t.value = 0.5
    k.value = 7
    assert calls == [((1,), {"screen": "here", "t": 0.5, "k": 3}), ((1,), {"screen": "here", "t": 0.5, "k": 7})] and message.value == ""


def test_a_slider_says_what_went_wrong():
    pytest.importorskip("ipywidgets")

    def refuse(t):
        if t > 1:
            raise ValueError(f"{t} is <b>too</b> much")

    slider, message = controls.sliders(refuse, ranges={"t": (0.0, 2.0, 0.5, 0.0)}).children
    slider.value = 1.5
    assert message.value == "ValueError: 1.5 is &lt;b&gt;too&lt;/b&gt; much"  # as it was said, whatever HTML makes of it
    slider.value = 0.5
    assert message.value == ""
