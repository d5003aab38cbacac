"""tokenpace: pace [s/token] = cost of a pass [s] ÷ tokens kept per pass.

Read it in this order; each file opens with what the one before it lacked:

    config                  a model in numbers
    model/attention         where tokens meet          model/transformer   the forward pass
    cache/protocol          stage, write, keep         cache/slab          where the cells lie
    decode/protocol         ask, keep                  decode/sampling     logits, distributions, tokens
    decode/autoregressive   one token a pass           decode/speculative  guess and verify
    decode/refine           all places at once         run, stop           one loop for all of them
    measure/cost            what a pass must take      measure/clock       what it did take
"""

import sys
from importlib import import_module
from types import ModuleType

_PUBLIC = {
    "config": ("ModelConfig", "PRESETS", "preset"),
    "cache": ("Cache", "NoCache", "Slab"),
    "decode": ("Ask", "Keep", "Sampler", "autoregressive", "beam", "ngram", "parallel", "refine", "small", "speculative", "uncached"),
    "run": ("Request", "Row", "Step", "canvas", "run"),
    "load": ("Lm", "fast", "load"),
    "generate": ("generate", "prepare", "stream"),
    "measure.cost": ("Cost", "Device", "cost", "step_cost"),
    "measure.clock": ("Stamped", "Summary", "predicted", "summary", "timed"),
    "measure.devices": ("DEVICES", "device"),
    "measure.machine": ("machine",),
    "measure.probe": ("probe", "probing"),
    "exercises": ("check", "learner_or_reference", "mine", "solution", "stub"),
    "using": ("using",),
    "claims": ("claims",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOME)
__version__ = "0.1.0"


class _Package(ModuleType):
    """Public names are found where they live when they are first used: importing this package imports nothing heavy.

    `tokenpace.load` is the function, also after the module of that name was imported (which would otherwise take its place).
    """

    def __getattr__(self, name: str):
        if name not in _HOME:
            raise AttributeError(f"tokenpace has no {name!r}; it has {', '.join(__all__)}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)

    def __setattr__(self, name: str, value):
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self):
        return __all__


sys.modules[__name__].__class__ = _Package
