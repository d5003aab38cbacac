"""The public face, on a small random model: what goes in, what comes out, and what bad input gets."""

from dataclasses import replace

import pytest
import torch

import tokenpace as tp
from tokenpace.generate import first_nan


@pytest.fixture(scope="module")
def lm():
    return tp.load("shape:15m", device="cpu", dtype="float32")


def greedy(lm, prompt, n):
    """Recomputation, without cache, driver or sampler."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(lm.model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


PROMPT = [3, 14, 15, 92, 65]


@pytest.mark.parametrize("decoder", ["autoregressive", "uncached", "speculative"])
def test_every_decoder_that_promises_it_writes_the_greedy_text(lm, decoder):
    out = tp.generate(lm, PROMPT, decoder=decoder, max_new_tokens=6)
    assert out.tokens == greedy(lm, PROMPT, 6)
    assert out.finish_reason == "length" and out.passes <= 6 and out.tokens_per_pass == pytest.approx(6 / out.passes)


def test_a_draft_model_that_is_the_target_is_always_right(lm):
    out = tp.generate(lm, PROMPT, decoder="speculative", drafter=lm, max_new_tokens=16)
    assert out.tokens == greedy(lm, PROMPT, 16)
    assert out.passes == 4, "four drafted and one more in each: 5 + 5 + 5 + 1"


def test_a_list_gives_a_list_and_each_is_as_alone(lm):
    prompts, sampler = [PROMPT, [7], PROMPT[::-1] * 3], tp.Sampler(temperature=0.9, top_p=0.9)
    together = tp.generate(lm, prompts, sampler=sampler, max_new_tokens=8, seed=5)
    alone = [tp.generate(lm, p, sampler=sampler, max_new_tokens=8, seed=5) for p in prompts]
    assert [o.tokens for o in together] == [o.tokens for o in alone]
    fewer_slots = tp.generate(lm, prompts, sampler=sampler, max_new_tokens=8, seed=5, slots=2)
    assert [o.tokens for o in fewer_slots] == [o.tokens for o in alone]


def test_seeds(lm):
    sampler = tp.Sampler(temperature=1.0)
    write = lambda seed: tp.generate(lm, PROMPT, sampler=sampler, max_new_tokens=8, seed=seed).tokens
    assert write(1) == write(1) != write(2)
    assert write(None) != write(None), "no seed: a new one each time"
    two = tp.generate(lm, [PROMPT, PROMPT], sampler=sampler, max_new_tokens=8, seed=[1, 2])
    assert [o.tokens for o in two] == [write(1), write(2)]
    before = torch.get_rng_state()
    write(3)
    assert torch.equal(before, torch.get_rng_state()), "no global generator is touched"


def test_log_probabilities_are_the_models_own(lm):
    sampler = tp.Sampler(temperature=0.7, top_p=0.5, repetition=1.3)
    for decoder in ("autoregressive", "speculative"):
        out = tp.generate(lm, PROMPT, decoder=decoder, sampler=sampler, max_new_tokens=6, seed=1, logprobs=True)
        raw = lm.model(torch.tensor([PROMPT + out.tokens]))[0].log_softmax(-1)
        want = [float(raw[len(PROMPT) - 1 + i, t]) for i, t in enumerate(out.tokens)]
        assert out.logprobs == pytest.approx(want, abs=1e-4)


def test_the_stream_folds_to_what_generate_gives(lm):
    steps = list(tp.stream(lm, PROMPT, max_new_tokens=5))
    assert tp.canvas(steps, PROMPT)[5:] == tp.generate(lm, PROMPT, max_new_tokens=5).tokens


def test_the_context_is_the_end(lm):
    prompt = [1] * (lm.config.context - 3)
    for decoder in ("autoregressive", "speculative"):
        out = tp.generate(lm, prompt, decoder=decoder, max_new_tokens=50)
        assert len(out.tokens) == 3 and out.finish_reason == "length"


def test_refinement_never_writes_the_mask(lm):
    out = tp.generate(lm, PROMPT, decoder="refine", mask=0, max_new_tokens=10, steps=3, block=4)
    assert len(out.tokens) == 10 and 0 not in out.tokens and out.finish_reason in ("end", "length")


class Words:
    """A vocabulary of single letters, a…z and on, for models without one; ids 20 and 21 end a text; ids from 40 on stand for nothing."""

    eos, size, bos = (20, 21), 40, None

    class backend:
        @staticmethod
        def get_vocab():
            return {}

    def encode(self, text):
        return [ord(c) - ord("a") for c in text]

    def stream(self):
        return self

    def feed(self, token):
        return chr(ord("a") + token)

    def flush(self):
        return ""


@pytest.fixture
def spelled(lm):
    """A model that says the next letter of the alphabet, whatever came before."""

    class Next(torch.nn.Module):
        def forward(self, tokens, flight, read):
            last = flight.pack(tokens)[flight.find(read)]
            return torch.nn.functional.one_hot((last + 1) % 64, 64).float() * 5 + torch.nn.functional.one_hot(torch.full_like(last, 50), 64) * 4

    return replace(lm, model=Next(), tokenizer=Words(), config=tp.ModelConfig(64, 8, 1, 1, 1, 2, 8, context=64))


def test_stops(spelled):
    write = lambda prompt, **how: tp.generate(spelled, prompt, **{"max_new_tokens": 40, **how})
    out = write("a")
    assert out.text == "bcdefghijklmnopqrstu" and out.tokens[-1] == 20 and out.finish_reason == "stop"
    assert write("a", stop="fgh").text == "bcde"
    assert write("a", stop=["zz", "de"]).text == "bc"
    assert write("a", max_new_tokens=3).finish_reason == "length"


def test_an_end_token_waits_for_the_least_number_of_tokens(spelled):
    out = tp.generate(spelled, "q", max_new_tokens=9, min_new_tokens=6)
    assert out.tokens[:3] == [17, 18, 19] and 20 not in out.tokens[:6], "after t would come the end, which is not yet allowed"
    for decoder in ("autoregressive", "speculative"):
        assert tp.generate(spelled, "q", decoder=decoder, max_new_tokens=9, min_new_tokens=6).tokens == out.tokens


def test_rows_of_the_head_that_mean_nothing_are_never_drawn(spelled):
    out = tp.generate(spelled, "a", sampler=tp.Sampler(temperature=5.0), max_new_tokens=40, min_new_tokens=40, seed=0)
    assert len(out.tokens) == 40 and max(out.tokens) < Words.size


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (dict(prompt=[]), "prompt is empty"),
        (dict(prompt=[1, 40_000]), "40000 is not in the model's vocabulary"),
        (dict(prompt=[1] * 2000), "context holds 1024"),
        (dict(prompt="words"), "no vocabulary"),
        (dict(max_new_tokens=0), "max_new_tokens"),
        (dict(max_new_tokens=2.5), "max_new_tokens"),
        (dict(min_new_tokens=9, max_new_tokens=8), "more than max_new_tokens"),
        (dict(seed="7"), "a seed is a whole number"),
        (dict(seed=1.0), "a seed is a whole number"),
        (dict(seed=True), "a seed is a whole number"),
        (dict(seed=[1, 2]), "2 seeds for 1 prompts"),
        (dict(decoder="autoregresive"), "did you mean autoregressive"),
        (dict(decoder="speculative", drafter="no"), "neither 'ngram' nor a loaded model"),
        (dict(decoder="refine"), "mask="),
        (dict(stop=""), "stop string is empty"),
        (dict(slots=0), "slots"),
        (dict(temperature=5.0), "no setting 'temperature'"),
        (dict(max_tokens=2), "did you mean max_new_tokens"),
        (dict(mask=3), "no setting 'mask'"),
        (dict(drafter="ngram"), "a drafter is for"),
        (dict(prompt=torch.tensor([1, 2])), "has .tolist()"),
        (dict(prompt=None), "a prompt is a str"),
        (dict(prompt=[True, False]), "token id True"),
        (dict(stop=5), "stop must be"),
        (dict(stop=None), "stop must be"),
        (dict(sampler=0.8), "sampler must be"),
        (dict(decoder=lambda s: 5), "a decoder is a generator"),
    ],
)
def test_bad_input_gets_one_clear_sentence(lm, how, says):
    with pytest.raises((ValueError, TypeError)) as error:
        tp.generate(lm, **{"prompt": PROMPT, **how})
    assert says in str(error.value) and "\n" not in str(error.value)


def test_another_vocabulary_cannot_draft(lm, spelled):
    with pytest.raises(ValueError, match="another vocabulary"):
        tp.generate(lm, PROMPT, decoder="speculative", drafter=spelled)


def test_too_large_a_cache_is_refused_before_anything_runs(lm):
    huge = replace(lm, config=replace(lm.config, context=10**9))
    with pytest.raises(MemoryError, match=r"needs [\d.]+ GB, and [\d.]+ GB are free: lower"):
        tp.generate(huge, PROMPT, max_new_tokens=10**8)


def test_nan_is_named_with_the_layer_that_made_it():
    lm = tp.load("shape:15m", device="cpu", dtype="float32")
    with torch.no_grad():
        lm.model.blocks[2].mlp.down.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"NaN.*blocks\.2\.mlp\.down\.weight"):
        tp.generate(lm, PROMPT)
    with torch.no_grad():
        lm.model.blocks[2].mlp.down.weight[0, 0] = float("inf")
    assert "blocks.2.mlp.down.weight" in first_nan(lm, PROMPT)
    two = tp.generate(lm, [PROMPT, [1]])
    assert [o.finish_reason for o in two] == ["error", "error"]


def test_an_overflow_is_named_with_its_layer():
    lm = tp.load("shape:15m", device="cpu", dtype="float32")
    with torch.no_grad():
        lm.model.blocks[3].mlp.gate_up.weight.fill_(1e30)
    with pytest.raises(FloatingPointError, match=r"NaN or infinite.*overflow, first put out by layer 3"):
        tp.generate(lm, PROMPT)


def test_the_draft_models_context_is_respected(lm):
    """F3: where the text has outgrown the small model, drafting stops and the text goes on."""
    narrow = replace(lm, config=replace(lm.config, context=12))
    out = tp.generate(lm, PROMPT, decoder="speculative", drafter=narrow, max_new_tokens=20)
    assert out.tokens == greedy(lm, PROMPT, 20) and out.passes > 10


def test_the_same_size_with_other_words_cannot_draft_either(spelled):
    """D18"""
    other = Words()
    other.backend = type("Other", (), {"get_vocab": staticmethod(lambda: {"other": 1})})
    with pytest.raises(ValueError, match="another vocabulary"):
        tp.generate(spelled, "a", decoder="speculative", drafter=replace(spelled, tokenizer=other))


def test_end_tokens_count_where_there_is_no_vocabulary(spelled):
    wordless = replace(spelled, tokenizer=None, card={"eos": (20,)})
    assert tp.generate(wordless, [16], max_new_tokens=30).tokens[-1] == 20


def test_the_public_names_are_all_there():
    for name in tp.__all__:
        assert getattr(tp, name) is not None
    with pytest.raises(AttributeError, match="tokenpace has no 'nonsense'"):
        _ = tp.nonsense


def test_a_pass_that_runs_out_of_memory_says_what_to_lower(lm):
    class Hungry(torch.nn.Module):
        def forward(self, *_):
            torch.empty(1 << 60)

    with pytest.raises(MemoryError, match="ran out of memory .* lower slots"):
        tp.generate(replace(lm, model=Hungry()), PROMPT)
