"""The bench on engines whose speed is known, and its peers against our own logits.

Mutants that must die here: ratios of pooled medians; a lane that is always the first of a round; the prompt's pass among those that count; 8 bits
compared with 32; a run cut off that loses what it had.
"""

import io
import json
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from tokenpace import bench, peers
from tokenpace.bench import Job, Sample, Suite, compare, engines, quality, read, table, tables, text
from tokenpace.bench.engines import Passes
from tokenpace.config import ModelConfig, RopeScaling
from tokenpace.load import Lm
from tokenpace.model.quantize import quantise
from tokenpace.model.transformer import Transformer
from tokenpace.weights.codes import Int8

TINY = ModelConfig(97, 32, 2, 4, 2, 8, 64)


def lm(config=TINY) -> Lm:
    model = Transformer(config).eval().requires_grad_(False)
    for p in model.parameters():
        p.normal_(0.5, 0.5, generator=torch.Generator().manual_seed(p.numel()))
    return Lm(model, None, config, torch.device("cpu"), torch.float32, {})


DECODE = (Job("decode", passes=5),)


def rigged(monkeypatch, lanes: dict, jobs=DECODE):
    """A bench of two rounds in which nothing real is measured. lanes: name -> what makes its engine."""
    monkeypatch.setattr(bench, "SUITES", {"one": Suite("none", jobs, tuple(lanes), tries=2)})
    monkeypatch.setattr(bench, "engine", lambda lane, models: lanes[lane]())
    monkeypatch.setattr(bench, "load", lambda *_, **__: lm())
    monkeypatch.setattr(bench, "roof_now", lambda: (10e9, 30e9, 20e9))


def constant(seconds):
    return lambda: lambda job, prompt: Passes([1.0] + [seconds] * job.passes)


def test_every_lane_has_its_turn_and_samples_are_kept(monkeypatch, tmp_path):
    rigged(monkeypatch, {"plain 32 bit": constant(0.4), "tiled 32 bit": constant(0.1)})
    said, file = io.StringIO(), tmp_path / "found.jsonl"
    found = bench.bench("one", "none", str(file), said.write)
    assert [s.lane for s in found["samples"]] == [f"{n} 32 bit" for n in ("plain", "tiled", "tiled", "plain")]  # whoever goes first changes
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept[1]["seconds"] == [0.4] * 5 and kept[0]["machine"]["cores"] >= 1 and len(kept) == 6
    assert not list(tmp_path.glob("*.part"))
    plain, tiled = found["table"]
    assert plain["seconds"] == 0.4 and tiled["roof"] == 20e9
    assert tiled["faster"]["plain"] == pytest.approx({"median": 4, "low": 4, "high": 4})
    assert "100%" in said.getvalue() and "tokens/s" in said.getvalue()
    again = read(file)
    assert again["table"] == found["table"] and again["suite"] == "one"


def test_the_books_of_a_job_are_those_of_the_passes_that_count():
    config = lm().config
    job = Job("width 4", prompt=10, rows=3, width=4, passes=6)
    assert job.counted([9.0, 1.0, 2.0]) == [1.0, 2.0] and job.tokens == 12
    assert job.cost(config, 2.0, 4.0).kv_written == 3 * 4 * config.kv_numbers * 4
    assert job.cost(config, 2.0, 4.0).kv_read == 3 * (10 + 12) * config.kv_numbers * 4
    prompt = Job("prompt", prompt=10, passes=0)
    assert prompt.counted([9.0]) == [9.0] and prompt.tokens == 10 and prompt.cost(config, 2.0, 2.0).kv_read == 0


def sample(lane, turn, seconds, job="decode", roof=4e9) -> Sample:
    return Sample(job, lane, turn, [seconds, seconds], (roof, roof), 1, 2e9, 1e9)


def test_ratios_are_formed_within_a_round():
    """The machine halves its speed in the second round; pooled medians would see a difference between the engines that there isn't."""
    times = {("a", 0): 1.0, ("b", 0): 1.0, ("a", 1): 2.0, ("b", 1): 2.0, ("a", 2): 2.0}
    samples = [sample(f"{name} 16 bit", r, t) for (name, r), t in times.items()]
    assert [row["faster"] for row in table(samples)] == [{"b": {"median": 1, "low": 1, "high": 1}}, {"a": {"median": 1, "low": 1, "high": 1}}]


def test_the_host_has_what_the_forward_leaves_of_a_pass():
    told = sample("tiled 16 bit", 0, 2.0)._replace(forward=[1.5, 1.5])
    rows = table([told, sample("llama.cpp 16 bit", 0, 2.0)])
    assert [row["host"] for row in rows] == [0.25, None]
    assert " 25.0%   llama.cpp 1.00" in text({"table": rows, "notes": []})


def test_only_weights_of_one_width_are_compared():
    rows = table([sample("tiled 8 bit", 0, 1.0), sample("plain 32 bit", 0, 4.0), sample("llama.cpp 8 bit", 0, 2.0)])
    assert [list(row["faster"]) for row in rows] == [["llama.cpp"], [], ["tiled"]]


def test_rounds_that_differ_too_much_are_said_to():
    rounds = lambda name, *times: [sample(name, i, t) for i, t in enumerate(times)]
    calm, wild = rounds("plain 16 bit", 1, 1.9), rounds("tiled 16 bit", 1, 2.1)
    assert "believe no ratio" not in text({"table": table(calm), "notes": []})
    said = text({"table": table(calm + wild), "notes": []})
    assert "the rounds of decode tiled 16 bit differ by more than 2 times: another program was busy, so believe no ratio here" in said


def test_two_runs_are_compared_by_shares_and_ratios():
    machine = {"machine": {"name": "a"}}
    old = machine | {"table": table([sample("plain 16 bit", 0, 2.0), sample("tiled 16 bit", 0, 1.0), sample("x 8 bit", 0, 1.0)])}
    new = machine | {"table": table([sample("plain 16 bit", 0, 4.0, roof=2e9), sample("tiled 16 bit", 0, 1.0, roof=2e9), sample("y 8 bit", 0, 1.0)])}
    said = compare(old, new).splitlines()
    assert "25% → 25%" in said[1] and "2000.00 → 4000.00" in said[1], "half the speed on half the roof is no change"
    assert "plain 2.00 → 4.00 *" in said[2]
    assert "y 8 bit: new" in said[3] and "x 8 bit: gone" in said[4]
    assert "only ratios within a run" in compare(old, new | {"machine": {"name": "b"}})


def test_what_cannot_run_is_noted_and_the_rest_goes_on(monkeypatch):
    def missing():
        raise RuntimeError("it is not installed: pip install it")

    def short():
        def go(job, prompt):
            if job.rows > 1:
                raise RuntimeError("it has no batches")
            return Passes([1.0] + [0.5] * job.passes)

        return go

    jobs = Job("decode", passes=2), Job("rows 2", rows=2, passes=2)
    rigged(monkeypatch, {"plain 32 bit": constant(0.4), "transformers 32 bit": missing, "llama.cpp 32 bit": short}, jobs)
    found = bench.bench("one", say=lambda text: None)
    assert {(s.job, s.lane) for s in found["samples"]} == {(j.name, "plain 32 bit") for j in jobs} | {("decode", "llama.cpp 32 bit")}
    assert found["notes"] == [
        "transformers 32 bit was not run: it is not installed: pip install it",
        "llama.cpp 32 bit did not do rows 2: it has no batches",
    ]


def test_an_interrupt_keeps_what_was_measured(monkeypatch, tmp_path):
    def tired():
        turns = []

        def go(job, prompt):
            turns.append(job)
            if len(turns) == 3:  # warm, first round, second round
                raise KeyboardInterrupt
            return Passes([1.0, 0.5])

        return go

    rigged(monkeypatch, {"plain 32 bit": tired})
    found = bench.bench("one", "none", str(tmp_path / "kept.jsonl"), lambda text: None)
    assert len(found["samples"]) == 1 and "interrupted" in found["notes"][0]
    assert [s.seconds for s in read(tmp_path / "kept.jsonl")["samples"]] == [[0.5]]


def test_bad_names_and_places_are_told_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match=r"no suite is called 'batc'.*batch"):
        bench.bench("batc")
    with pytest.raises(ValueError, match=r"no peer is called 'transformer'.*transformers"):
        bench.bench("shape", "transformer")
    with pytest.raises(OSError, match="cannot be written"):
        bench.bench("shape", "none", str(tmp_path / "nowhere" / "x.json"))
    (tmp_path / "other.jsonl").write_text("{}\n[1]\n")
    with pytest.raises(ValueError, match="is not a bench's JSON lines"):
        read(tmp_path / "other.jsonl")


def test_the_command_line_knows_the_suites():
    from tokenpace.__main__ import SUITES

    assert set(SUITES) == {*bench.SUITES, *bench.EXTRA}


KINDS = {"tied": TINY, "untied": replace(TINY, tied=False, d_head=16), "stretched": replace(TINY, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 64))}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore")
def test_the_peer_runs_our_weights_without_a_copy(config):
    mine = lm(config)
    theirs = peers.llama(mine)
    ids = torch.randint(97, (1, 80), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(ids).logits, mine.model(ids), rtol=1e-3, atol=1e-3)
    assert {p.untyped_storage().data_ptr() for p in theirs.parameters()} <= {p.untyped_storage().data_ptr() for p in mine.model.parameters()}
    for job in (Job("decode", passes=4), Job("rows", rows=3, passes=2), Job("width", width=3, passes=2), Job("prompt", 7, passes=0)):
        passes = peers.transformers_run(theirs, job, [1, 2, 3])
        assert len(passes) == 1 + job.passes and min(passes) > 0


def test_a_model_that_the_peer_cannot_run_says_so(monkeypatch):
    with pytest.raises(RuntimeError, match="not a plain Llama"):
        peers.llama(lm(replace(TINY, qk_norm=True)))
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="pip install transformers"):
        peers.llama(lm())
    with pytest.raises(RuntimeError, match="pip install llama-cpp-python"):
        peers.llama_cpp("x.gguf")


SHAPES = [Job("decode", passes=6), Job("rows 3", rows=3, passes=2), Job("width 4", width=4, passes=3), Job("prompt", 9, passes=0)]


@pytest.mark.parametrize("job", SHAPES, ids=lambda job: job.name)
def test_our_driver_makes_exactly_the_passes_asked_for(job):
    widths, mine = [], lm()
    mine.model.register_forward_pre_hook(lambda model, given: widths.append(tuple(given[0].shape)))
    passes = engines.ours(mine)(job, [1, 2, 3, 4, 5])
    assert len(passes.seconds) == len(passes.forward) == 1 + job.passes
    assert all(0 < inside < whole for whole, inside in zip(*passes))
    assert widths == [(job.rows, 5)] + [(job.rows, job.width)] * job.passes
    if find_spec("numba"):
        assert len(engines.on_tiles(lm())(job, [1, 2, 3, 4, 5]).seconds) == 1 + job.passes


def test_a_prompt_that_is_not_computed_costs_no_pass_of_the_model():
    widths, mine = [], lm()
    mine.model.register_forward_pre_hook(lambda model, given: widths.append(tuple(given[0].shape)))
    job = Job("2 × 3 at 700", 700, rows=2, width=3, passes=2, computed=False)
    passes = engines.ours(mine)(job, [1 + i % 90 for i in range(700)])
    assert len(passes.seconds) == 3 and widths == [(2, 3)] * 2
    assert job.shape == (2, 3, 703) and job.cost(TINY, 4.0, 4.0).kv_read == 2 * 703 * TINY.kv_numbers * 4


def test_the_step_time_model_is_judged_by_passes_it_has_not_seen():
    """Seconds that follow the law exactly, but for one pass in three of those held out."""
    shapes = [(b, t, s) for s in (30, 900) for b in (1, 2, 5, 9) for t in (1, 3, 8, 20)]
    law = lambda b, t, s: 0.01 + 1e-4 * b + 1e-3 * max(b * t - 4, 0) * 1.0
    made = []
    for i, (b, t, s) in enumerate(shapes):
        seconds = law(b, t, s) * (2 if i % 9 == 1 else 1)
        made.append(Sample(f"{b} × {t} at {s}", "tiled 16 bit", 0, [seconds] * 3, (1e9, 1e9), b * t, 1.0, 1.0, (b, t, s)))
    found = bench.steps(TINY, made)["tiled 16 bit"]
    ratios = dict(found["ratios"])
    assert found["fitted"] == 11 and len(ratios) == 21
    wrong = {job for job, ratio in ratios.items() if not 0.85 < ratio < 1.15}
    assert wrong == {f"{b} × {t} at {s}" for i, (b, t, s) in enumerate(shapes) if i % 9 == 1}
    assert "fitted to 11 passes, the step-time model tells 81% of 21 others within 0.85–1.15" in text(
        {"table": [], "notes": [], "steps": {"x": found}}
    )


def test_quality_of_the_same_weights_is_perfect_and_of_fewer_bits_is_not():
    class Letters:
        encode = staticmethod(lambda text: [b % 97 for b in text.encode()])

    exact, few = replace(lm(), tokenizer=Letters()), lm()
    quantise(few.model, Int8())
    found = quality.quality(exact, {"same": lm(), "8 bits": few}, tokens=600)
    assert found["same"]["agree"] == 1 and found["same"]["loss"] == found["same"]["exact"] and found["same"]["tokens"] >= 590
    assert 0.5 < found["8 bits"]["agree"] <= 1 and found["8 bits"]["loss"] != found["8 bits"]["exact"]
    assert "the likeliest token is that of float32 in 100.00% of" in text({"table": [], "notes": [], "quality": found})
    with pytest.raises(RuntimeError, match="fewer than"):
        quality.passages(Letters.encode, 10**9)


def test_a_ratio_that_lies_apart_is_marked():
    of = lambda low, high: {"faster": {"x": {"median": 1.0, "low": low, "high": high}}}
    assert tables.apart(of(1, 2), of(3, 4), "x") == tables.apart(of(3, 4), of(1, 2), "x") == " *"
    assert tables.apart(of(1, 3), of(2, 4), "x") == ""
