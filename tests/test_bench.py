"""The bench on engines whose speed is known, and its peer against our own logits."""

import io
import json
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from tokenpace import bench, peers
from tokenpace.bench import Sample, Suite, report, table
from tokenpace.config import ModelConfig, RopeScaling
from tokenpace.load import Lm
from tokenpace.model.transformer import Transformer

TINY = ModelConfig(97, 32, 2, 4, 2, 8, 64)


def lm(config=TINY) -> Lm:
    model = Transformer(config).eval().requires_grad_(False)
    for p in model.parameters():
        p.normal_(0.5, 0.5, generator=torch.Generator().manual_seed(p.numel()))
    return Lm(model, None, config, torch.device("cpu"), torch.float32, {})


def rigged(monkeypatch, engines: dict):
    """A bench of two rounds in which nothing real is measured."""
    monkeypatch.setattr(bench, "SUITES", {"one": Suite("none", ("float32",), new_tokens=6, rounds=2, crowd=3)})
    monkeypatch.setattr(bench, "ENGINES", engines)
    monkeypatch.setattr(bench, "load", lambda *_, **__: lm())
    monkeypatch.setattr(bench, "roof_now", lambda: (10e9, 30e9, 20e9))
    monkeypatch.setattr(bench, "starting", lambda about: {"dtype": "float32", "runs": [{"import": 0.1, "load": 1.0, "peak": 5e8}]})


def constant(seconds):
    return lambda _: lambda prompt, n: [1.0] + [seconds] * (n - 1)


def test_every_engine_has_its_turn_and_samples_are_kept(monkeypatch, tmp_path):
    rigged(monkeypatch, {"plain": constant(0.4), "tiled": constant(0.1)})
    said, file = io.StringIO(), tmp_path / "found.json"
    found = bench.bench("one", "none", str(file), said.write)
    assert [s.engine for s in found["samples"]] == ["plain", "tiled", "tiled", "plain"]  # whoever goes first is not always the same
    kept = json.loads(file.read_text())
    assert kept["samples"][0][3] == [1.0] + [0.4] * 5 and kept["machine"]["cores"] >= 1 and kept["about"]["rounds"] == 2
    assert not list(tmp_path.glob("*.part"))
    plain, tiled = found["table"]
    assert plain["decode"] == 0.4 and tiled["prefill"] == 1.0 and tiled["roof"] == 20e9
    assert tiled["faster"]["plain"] == pytest.approx({"median": 4, "low": 4, "high": 4})
    assert found["crowd"][0]["rows"] == 3 and all(0 < f < p for p, f in zip(found["crowd"][0]["passes"], found["crowd"][0]["forwards"]))
    assert "100%" in said.getvalue() and "tokens/s" in said.getvalue()


def test_ratios_are_formed_within_a_round():
    """The machine halves its speed in the second round; pooled medians would see a difference between the engines that there isn't."""
    times = {("a", 0): 1.0, ("b", 0): 1.0, ("a", 1): 2.0, ("b", 1): 2.0, ("a", 2): 2.0}
    samples = [Sample(name, "float32", r, [5.0, t, t], (1e9, 1e9), 1e9) for (name, r), t in times.items()]
    assert [row["faster"] for row in table(samples)] == [{"b": {"median": 1, "low": 1, "high": 1}}, {"a": {"median": 1, "low": 1, "high": 1}}]


def test_rounds_that_differ_too_much_are_said_to():
    rounds = lambda name, *times: [Sample(name, "float32", i, [9.0, t, t], (4e9, 4e9), 2e9) for i, t in enumerate(times)]
    calm, wild = rounds("plain", 1, 1.9), rounds("tiled", 1, 2.1)
    found = {"table": table(calm), "crowd": [], "start": {}, "notes": []}
    assert "believe no ratio" not in report(found)
    said = report(found | {"table": table(calm + wild)})
    assert "the rounds of float32 tiled differ by more than 2 times: another program was busy, so believe no ratio here" in said


def test_what_cannot_run_is_noted_and_the_rest_goes_on(monkeypatch):
    def missing(_):
        raise RuntimeError("it is not installed: pip install it")

    rigged(monkeypatch, {"plain": constant(0.4), "transformers": missing})
    found = bench.bench("one", say=lambda text: None)
    assert {s.engine for s in found["samples"]} == {"plain"}
    assert found["notes"] == ["transformers float32 was not run: it is not installed: pip install it"]


def test_an_interrupt_keeps_what_was_measured(monkeypatch, tmp_path):
    def tired(_):
        turns = []

        def go(prompt, n):
            turns.append(n)
            if len(turns) == 3:  # warm, first round, second round
                raise KeyboardInterrupt
            return [1.0, 0.5]

        return go

    rigged(monkeypatch, {"plain": tired})
    found = bench.bench("one", "none", str(tmp_path / "kept.json"), lambda text: None)
    assert len(found["samples"]) == 1 and "interrupted" in found["notes"][0] and (tmp_path / "kept.json").exists()


def test_bad_names_and_places_are_told_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match=r"no suite is called 'batch'.*batch1"):
        bench.bench("batch")
    with pytest.raises(ValueError, match=r"no peer is called 'transformer'.*transformers"):
        bench.bench("shape", "transformer")
    with pytest.raises(OSError, match="cannot be written"):
        bench.bench("shape", "none", str(tmp_path / "nowhere" / "x.json"))


KINDS = {"tied": TINY, "untied": replace(TINY, tied=False, d_head=16), "stretched": replace(TINY, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 64))}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore")
def test_the_peer_runs_our_weights_without_a_copy(config):
    mine = lm(config)
    theirs = peers.llama(mine)
    ids = torch.randint(97, (1, 80), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(ids).logits, mine.model(ids), rtol=1e-3, atol=1e-3)
    assert {p.untyped_storage().data_ptr() for p in theirs.parameters()} <= {p.untyped_storage().data_ptr() for p in mine.model.parameters()}
    passes = peers.transformers_generate(mine)([1, 2, 3], 5)
    assert len(passes) == 5 and min(passes) > 0


def test_a_model_that_the_peer_cannot_run_says_so(monkeypatch):
    with pytest.raises(RuntimeError, match="not a plain Llama"):
        peers.llama(lm(replace(TINY, qk_norm=True)))
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="pip install transformers"):
        peers.llama(lm())


def test_our_driver_gives_exactly_the_tokens_asked_for():
    assert len(bench.ours(lm())([1, 2, 3], 7)) == 7
    if find_spec("numba"):
        assert len(bench.on_tiles(lm())([1, 2, 3], 7)) == 7
