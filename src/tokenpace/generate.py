"""A prompt in, a text out. Everything below speaks of token ids and passes; here a model, a decoder, a sampler and the rules by which a text
ends are put together, and what comes out is read back as text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from inspect import signature

import torch

from .cache import Cache, NoCache, Slab
from .config import nearest
from .decode import GREEDY, Sampler, autoregressive, ngram, refine, small, speculative, uncached
from .load import Lm, free_bytes
from .measure.clock import Stamped, summary, synchronise, timed
from .run import Request, Step, canvas, run
from .stop import Strings, either, ends

REFINING = ["mask", "block", "steps", "pick", "schedule", "after", "reuse"]  # settings of decoder="refine", see decode/refine.py
SLOTS = 32  # requests that run at once; more wait


@dataclass(frozen=True)
class Generated:
    """One prompt's answer. `seconds` is the time of all passes up to its end, those of its partners included."""

    text: str
    tokens: list[int]  # new ones; an end-of-text token is the last
    finish_reason: str  # stop | length | end | cancelled | error
    passes: int  # of the target
    tokens_per_pass: float
    seconds: float
    ttft: float  # [s] to the first token
    tpot: float  # [s/token] after it
    logprobs: list[float | None] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Setting:
    """What a decoder is built from."""

    prompt: list[int]
    limit: int
    sampler: Sampler
    seed: int
    drafter: Callable | None = None
    options: dict = field(default_factory=dict)


def _speculative(s: Setting):
    return speculative(s.prompt, s.drafter or ngram(8), s.sampler, s.seed, s.limit)


def _refine(s: Setting):
    if "mask" not in s.options:
        raise ValueError(
            "decoder 'refine' needs the id that stands for a place not yet known: mask=…; an autoregressive model has none, so any will do"
        )
    return refine(s.prompt, s.limit, sampler=s.sampler, seed=s.seed, **s.options)


# Every way to decode, by the name by which it can be asked for.
DECODERS: dict[str, Callable[[Setting], Iterator]] = {
    "autoregressive": lambda s: autoregressive(s.prompt, s.sampler, s.seed),
    "uncached": lambda s: uncached(s.prompt, s.sampler, s.seed),
    "speculative": _speculative,
    "refine": _refine,
}


@dataclass
class Session:
    """Prompts about to be answered: what `run` needs, and how to read what it yields."""

    lm: Lm
    lanes: dict
    requests: list[Request]
    prompts: list[list[int]]
    texts: list[Strings]
    slots: int

    def steps(self) -> Iterator[Step]:
        try:
            yield from run(self.lanes, self.requests, self.slots)
        except RuntimeError as error:  # PyTorch has no other word for it on a CPU
            if "memory" not in str(error).lower():
                raise
            free = free_bytes(self.lm.device)
            left = f", {free / 1e9:.2f} GB are free now" if free is not None else ""
            raise MemoryError(
                f"a pass ran out of memory ({str(error).splitlines()[0]}){left}: lower slots, shorten the prompts, or take dtype='bfloat16'"
            ) from error

    def timed(self) -> Iterator[Stamped]:
        return timed(self.steps(), synchronise(self.lm.device))

    def read(self, stamped: list[Stamped]) -> list[Generated]:
        return [self.answer(i, stamped) for i in range(len(self.requests))]

    def answer(self, i: int, stamped: list[Stamped]) -> Generated:
        request, s = self.requests[i], summary(stamped, i)
        steps = [step for step, _ in stamped]
        self.texts[i].release(end=True)
        tokens = canvas(steps, self.prompts[i], i)[len(self.prompts[i]) :]
        logprobs = None
        if request.logprobs:
            at = {w[0]: lp for step in steps for row in step.rows if row.request == i for w, lp in zip(row.writes, row.logprobs) if w[2]}
            logprobs = [at.get(len(self.prompts[i]) + j) for j in range(len(tokens))]
        error = request.error
        if isinstance(error, FloatingPointError):
            error = FloatingPointError(f"{error}; {first_nan(self.lm, self.prompts[i] + tokens)}")
        return Generated(self.texts[i].text, tokens, s.finish or "cancelled", s.passes, s.tokens_per_pass, s.seconds, s.ttft, s.tpot, logprobs, error)


def prepare(
    lm: Lm,
    prompts: str | list,
    decoder: str | Callable[[Setting], Iterator] = "autoregressive",
    sampler: Sampler = GREEDY,
    max_new_tokens: int = 32,
    stop: str | tuple[str, ...] = (),
    seed: int | list[int] | None = None,
    min_new_tokens: int = 0,
    drafter: str | Lm | None = None,
    logprobs: bool = False,
    slots: int = SLOTS,
    **options,
) -> Session:
    """Everything checked and put together, nothing run yet. See `generate`."""
    build = _decoder(decoder, options)
    if drafter is not None and decoder != "speculative" and not callable(decoder):
        raise ValueError(f"a drafter is for decoder='speculative', not {decoder!r}")
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler must be a Sampler, as in Sampler(temperature=0.8), not {sampler!r}")
    if not isinstance(stop, str) and not (isinstance(stop, (list, tuple)) and all(isinstance(s, str) for s in stop)):
        raise TypeError(f"stop must be a string or a list of strings, not {stop!r}")
    ids = [_ids(lm, p) for p in ([prompts] if _single(prompts) else prompts)]
    if not ids:
        raise ValueError("no prompts: give at least one")
    limit, least = _count("max_new_tokens", max_new_tokens, 1), _count("min_new_tokens", min_new_tokens, 0)
    if least > limit:
        raise ValueError(f"min_new_tokens is {least}, more than max_new_tokens, {limit}")
    limits = [_room(lm, p, limit) for p in ids]
    seeds, slots = _seeds(seed, len(ids)), min(_count("slots", slots, 1), len(ids))
    capacity = max(len(p) + n for p, n in zip(ids, limits))
    lanes = {"target": (lm.model, _cache(lm, slots, capacity, keep=build is not DECODERS["uncached"]))}
    if isinstance(drafter, Lm):
        lanes["draft"] = (_same_words(drafter, lm).model, _cache(drafter, slots, min(capacity, drafter.config.context)))
    texts = [Strings(stream.feed, (stop,) if isinstance(stop, str) else stop, stream.flush) for stream in (_stream(lm) for _ in ids)]
    eos = lm.tokenizer.eos if lm.tokenizer else lm.card.get("eos", ())
    requests = []
    for p, n, s, text in zip(ids, limits, seeds, texts):
        law = replace(sampler, forbid=(*sampler.forbid, *_unspoken(lm), *((e, e + 1, len(p) + least) for e in eos if least)))
        conversation = build(Setting(p, n, law, s, _drafter(drafter, law, s), options))
        if not hasattr(conversation, "send"):
            raise TypeError(f"a decoder is a generator that yields Ask and Keep in turn, but {decoder!r} made {conversation!r}")
        requests.append(Request(conversation, n, either(ends(eos), text), logprobs=logprobs))
    return Session(lm, lanes, requests, ids, texts, slots)


def stream(lm: Lm, prompts: str | list, **settings) -> Iterator[Step]:
    """The Steps as they happen; settings as in `generate`."""
    return prepare(lm, prompts, **settings).steps()


def generate(lm: Lm, prompt: str | list, **settings) -> Generated | list[Generated]:
    """Continue a prompt (a str, or a list of token ids); a list of prompts gives a list, answered together.

    decoder: a name in DECODERS, or a function from a Setting to a decoder · sampler: the law drawn from (default greedy)
    max_new_tokens, min_new_tokens: an end-of-text token cannot be drawn before the latter · stop: strings before which the text is cut
    seed: a whole number (the same prompt, sampler and seed give the same text, alone or in any company), one for each prompt, or None: a new one
    drafter: for speculation, "ngram" or a smaller Lm with the same vocabulary · logprobs: of the new tokens, from raw logits

    Errors: ValueError or TypeError, before anything is run, with what to change; a fault in one of several prompts ends that one alone (`.error`).

    >>> from tokenpace.load import load
    >>> out = generate(load("shape:15m", dtype="float32"), [1, 2, 3], max_new_tokens=4)
    >>> len(out.tokens), out.passes, out.finish_reason
    (4, 4, 'length')
    """
    session = prepare(lm, prompt, **settings)
    answers = session.read(list(session.timed()))
    if not _single(prompt):
        return answers
    if answers[0].error:
        raise answers[0].error
    return answers[0]


def first_nan(lm: Lm, tokens: list[int]) -> str:
    """Where NaN or infinity first appears: in a weight, else in what a layer puts out (layers count from 0)."""
    for name, weight in lm.model.named_parameters():
        if not bool(weight.isfinite().all()):
            return f"the weight {name} holds it"
    found, hooks = [], []
    for i, block in enumerate(lm.model.blocks):
        hooks.append(block.register_forward_hook(lambda m, _, x, i=i: None if bool(x.isfinite().all()) else found.append(i)))
    try:
        lm.model(torch.tensor([tokens], device=lm.device))
    finally:
        for hook in hooks:
            hook.remove()
    where = f"layer {found[0]}" if found else "the last norm or the head"
    return f"all weights are finite, so it is an overflow, first put out by {where}: try dtype='float32'"


def _single(prompt) -> bool:
    """Is this one prompt, not a list of them?"""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, (list, tuple)):
        raise TypeError(f"a prompt is a str or a list of token ids, not {type(prompt).__name__} (an array or a tensor has .tolist())")
    return not prompt or not isinstance(prompt[0], (str, list, tuple))


def _ids(lm: Lm, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        if lm.tokenizer is None:
            raise ValueError("this model has no vocabulary (no tokenizer.json, or random weights): give the prompt as a list of token ids")
        prompt = lm.tokenizer.encode(prompt)
    ids = list(prompt)
    if not ids:
        raise ValueError("the prompt is empty: a model continues something; give at least one token")
    wrong = [t for t in ids if type(t) is not int or not 0 <= t < lm.config.vocab_size]
    if wrong:
        raise ValueError(f"token id {wrong[0]!r} is not in the model's vocabulary: ids go from 0 to {lm.config.vocab_size - 1}")
    return ids


def _room(lm: Lm, prompt: list[int], limit: int) -> int:
    """How many tokens may follow: at most as many as the context has room for."""
    if len(prompt) >= lm.config.context:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens, but the model's context holds {lm.config.context}, the answer included: shorten the prompt"
        )
    return min(limit, lm.config.context - len(prompt))


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def _seeds(seed, n: int) -> list[int]:
    """A seed for each prompt. None: one that nobody chose, taken from the system, so that no global generator is touched."""
    if seed is None:
        return [random.SystemRandom().getrandbits(62) for _ in range(n)]
    seeds = [*seed] if isinstance(seed, (list, tuple)) else [seed] * n
    if len(seeds) != n:
        raise ValueError(f"{len(seeds)} seeds for {n} prompts: give one for each, or one for all")
    for s in seeds:
        if isinstance(s, bool) or not isinstance(s, int):
            raise TypeError(f"a seed is a whole number, not {s!r} ({type(s).__name__})")
        if not -(2**63) <= s < 2**63:
            raise ValueError(f"a seed must fit into 64 bits, but {s} does not")
    return seeds


def _decoder(decoder, options: dict) -> Callable[[Setting], Iterator]:
    if callable(decoder):
        return decoder
    if decoder not in DECODERS:
        raise ValueError(f"no decoder is called {decoder!r}{nearest(decoder, DECODERS)}")
    known = [*signature(prepare).parameters][2:-1] + (REFINING if decoder == "refine" else [])
    for name in options:
        if name not in known:
            raise TypeError(f"there is no setting {name!r}{nearest(name, known)}")
    return DECODERS[decoder]


def _drafter(drafter, sampler: Sampler, seed: int):
    """A new one for each request: it remembers how far its own cache has come."""
    if isinstance(drafter, Lm):
        return small(4, sampler, seed, context=drafter.config.context)
    if drafter not in (None, "ngram"):
        raise ValueError(f"drafter {drafter!r} is neither 'ngram' nor a loaded model")
    return ngram(8)


def _same_words(draft: Lm, lm: Lm) -> Lm:
    """A guess means something only in the target's own vocabulary."""
    words = [m.tokenizer and m.tokenizer.backend.get_vocab() for m in (draft, lm)]
    if draft.config.vocab_size != lm.config.vocab_size or words[0] != words[1]:
        raise ValueError("the draft model has another vocabulary than the target: its token ids mean other words; take one with the same tokenizer")
    return draft


def _cache(lm: Lm, slots: int, capacity: int, keep: bool = True):
    if not keep:
        return NoCache()
    needed, free = lm.config.kv_numbers * slots * (capacity + 1) * lm.dtype.itemsize, free_bytes(lm.device)
    if free is not None and needed > free:
        raise MemoryError(
            f"a cache for {slots} rows of {capacity} tokens needs {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free: "
            "lower slots or max_new_tokens, or shorten the prompts"
        )
    return Cache(lm.config, Slab(slots, capacity), dtype=lm.dtype, device=lm.device)


def _unspoken(lm: Lm) -> tuple:
    """Rows of the output head that stand for no token (a vocabulary padded to a round number) are never drawn."""
    return ((lm.tokenizer.size, lm.config.vocab_size, None),) if lm.tokenizer and lm.tokenizer.size < lm.config.vocab_size else ()


def _stream(lm: Lm):
    return lm.tokenizer.stream() if lm.tokenizer else _Wordless()


class _Wordless:
    """Reads ids of a model that has no vocabulary: there is no text."""

    def feed(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""
