"""A race that nobody ran: made-up passes of a made-up model, whose bytes are counted by hand, and a clock that moves when it is told to."""

from dataclasses import replace
from functools import partial

from tokenpace.config import ModelConfig
from tokenpace.measure.clock import Stamped
from tokenpace.measure.cost import Device, step_cost
from tokenpace.run import Row, Step
from tokenpace.show.live import watch
from tokenpace.show.race import Race

CONFIG = ModelConfig(vocab_size=1000, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, d_head=16, d_ff=128)
PRICE = partial(step_cost, CONFIG, number=2)
HERE = Device("here", bandwidth=1e9, flops=1e9)
P, N = 5, 4
SCORE = Step((Row(0, "verify", P, N),))
WRITE = [Step((Row(0, "decode", P + i, 1, ((P + 1 + i, 10 + i, True),)),)) for i in range(N)]
PROMPT = Step((Row(0, "prefill", 0, P, ((P, 9, True),)),))


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self):
        self.t = 0.0

    def __call__(self):
        return self.t

    def stream(self, steps, each):
        for step in steps:
            self.t += each
            yield step


def by_hand():
    """Bytes of the weights: every tensor once, two bytes a number; the head is the embedding."""
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 256 + 128 * 64 + 2 * 64
    return 2 * (1000 * 64 + 2 * layer + 64)


def raced(guess=None, roofs=None, device=HERE, prompt=True, words="abcdefghijklmno", **more):
    plan = {"score": [SCORE], "write": [replace(step, rows=(replace(step.rows[0], writes=()),)) for step in WRITE]}
    view = Race(plan, PRICE, device, lambda ids: " ".join(words[i] for i in ids), guess, where="a test", **more)
    lanes = {
        "score": [Stamped(PROMPT, 7.0)] * prompt + [Stamped(SCORE, 0.5)],
        "write": [Stamped(PROMPT, 7.0)] * prompt + [Stamped(step, 0.25 * (i + 1)) for i, step in enumerate(WRITE)],
    }
    roof = iter(roofs or ()).__next__ if roofs else None
    return view, watch(view, lanes, roof=roof)
