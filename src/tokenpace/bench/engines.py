"""Who runs a job: this package's driver on PyTorch's kernels or on tiles, and the peers, on weights of 32, 16, 8 or 4 bits.

A lane is an engine and its weights, `"tiled 8 bit"`. An engine is made of the models that a suite shares, and is then a function: a Job and its
prompt -> Passes, the prompt's first. RuntimeError where it cannot run something, which is noted, and the rest goes on.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from .. import peers
from ..cache import Cache, Slab
from ..decode import autoregressive
from ..decode.protocol import Ask, Keep
from ..load import Lm, load
from ..measure.clock import timed
from ..model.kernels import tiled, why_not
from ..run import Request, run
from ..weights.registry import REGISTRY, fetch
from .jobs import Job


class Passes(NamedTuple):
    """Seconds of each pass and, of engines that tell, how many of them the forward took; the rest is the host's: staging, picking, books."""

    seconds: list[float]
    forward: Sequence[float] = ()


Engine = Callable[[Job, list[int]], Passes]


class Models:
    """The models of one suite, each loaded when it is first asked for. `folder`: where files that a peer needs may be written."""

    def __init__(self, name: str, folder: Path, load: Callable[..., Lm] = load):
        self.name, self.folder, self.load, self.known = name, folder, load, {}

    def ours(self, weights: str) -> Lm:
        """On PyTorch's kernels. 4 bits are a GGUF file's own blocks where there is a file, codes made here where there is none."""
        if weights not in self.known:
            dtype = "float32" if weights == "32 bit" else "bfloat16"
            few = {"8 bit": "int8", "4 bit": "stored" if self.name in REGISTRY else "int4"}.get(weights)
            self.known[weights] = self.load(self.name, device="cpu", dtype=dtype, quantize=few)
        return self.known[weights]

    def file(self, weights: str) -> Path:
        """A GGUF file of the same weights, for llama.cpp; those that are not the registry's own are written once."""
        if self.name not in REGISTRY:
            raise RuntimeError("llama.cpp reads files, and this model has none")
        path = fetch(self.name)
        kind = {"4 bit": None, "8 bit": "Q8_0", "16 bit": "BF16"}[weights]
        return path if kind is None else peers.requantised(path, self.folder / f"{self.name}.{kind}.gguf", kind)


def forced(prompt: list[int], width: int):
    """Passes of `width` tokens each: the prompt's own, over and over, as if they were guesses that all turned out right."""
    yield Ask("decode", prompt, 0, sure=len(prompt))
    yield Keep(len(prompt), ((len(prompt), prompt[0], True),))
    at, tokens = len(prompt), [prompt[i % len(prompt)] for i in range(width)]
    while True:
        yield Ask("verify", tokens, at, read=width)
        yield Keep(width, tuple((at + 1 + i, token, True) for i, token in enumerate(tokens)))
        at += width


def ours(lm: Lm) -> Engine:
    """The driver, as `generate` uses it."""

    def go(job: Job, prompt: list[int]) -> Passes:
        inside = []

        def forward(*args, **how):
            start = time.perf_counter()
            logits = lm.model(*args, **how) if job.computed or inside else zeros(*args)
            inside.append(time.perf_counter() - start)
            return logits

        zeros = lambda tokens, flight, read: torch.zeros(len(read), lm.config.vocab_size)
        new = 1 + job.width * job.passes
        cache = Cache(lm.config, Slab(job.rows, len(prompt) + new + job.width), dtype=lm.dtype, device=lm.device)
        decoder = (lambda: autoregressive(prompt)) if job.width == 1 else (lambda: forced(prompt, job.width))
        requests = [Request(decoder(), limit=new) for _ in range(job.rows)]
        budget = 512 if job.computed else job.rows * job.prompt  # one pass, which is left out
        return Passes([s.seconds for s in timed(run({"target": (forward, cache)}, requests, job.rows, budget))], inside)

    return go


def on_tiles(lm: Lm) -> Engine:
    if reason := why_not(lm.model):
        raise RuntimeError(reason)
    return ours(replace(lm, model=tiled(copy.deepcopy(lm.model))))


def engine(lane: str, models: Models) -> Engine:
    """What runs a lane."""
    name, weights = lane.split(" ", 1)
    made = {
        "plain": lambda: ours(models.ours(weights)),
        "tiled": lambda: on_tiles(models.ours(weights)),
        "transformers": lambda: theirs(partial(peers.transformers_run, peers.llama(models.ours(weights)))),
        "llama.cpp": lambda: theirs(partial(peers.llama_cpp_run, peers.llama_cpp(models.file(weights)))),
    }
    return made[name]()


def theirs(run: Callable[[Job, list[int]], list[float]]) -> Engine:
    return lambda job, prompt: Passes(run(job, prompt))
