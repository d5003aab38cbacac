"""How tokens are chosen: conversations that see logits and know of no model, cache, batch or clock."""

from .autoregressive import autoregressive, uncached
from .beam import beam, parallel
from .drafters import ngram, small
from .protocol import Ask, Keep
from .refine import at_random, confident, evenly, refine
from .sampling import GREEDY, Sampler
from .speculative import speculative

__all__ = [
    "GREEDY",
    "Ask",
    "Keep",
    "Sampler",
    "at_random",
    "autoregressive",
    "beam",
    "confident",
    "evenly",
    "ngram",
    "parallel",
    "refine",
    "small",
    "speculative",
    "uncached",
]
