"""The same prompt through several decoders, each between two looks at the roof: one ledger row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from .generate import DECODERS, prepare
from .load import Lm
from .measure.cost import step_cost
from .measure.ledger import Ledger, entry
from .measure.machine import last_level_cache
from .measure.probe import probe, roof_now
from .measure.roof import band

SAME_TEXT = tuple(name for name in DECODERS if name != "refine")  # these write what plain decoding writes


def race(
    lm: Lm, prompt: str | list[int], decoders: Iterable[str] = SAME_TEXT, say: Callable[[str], None] = print, drafter: Lm | None = None, **settings
) -> Ledger:
    """Run them one after the other; `say` is told what is going on. settings as in `generate`.

    Each decoder first writes a little that is not counted: the first pass of a process finds cold caches and work put off until then.
    """
    place, number = lm.device.type, lm.dtype.itemsize
    configs = {"target": lm.config} | ({"draft": drafter.config} if drafter else {})
    say("probing this machine's ceilings …")
    device, cache = probe(3.0, place).device(lm.card["dtype"]), last_level_cache(place)[0]
    ledger, plain = Ledger(), None
    for name in decoders:
        say(f"{name} …")
        how = {**settings, "decoder": name, "drafter": drafter if name == "speculative" else None}
        list(prepare(lm, prompt, **{**how, "max_new_tokens": 2, "min_new_tokens": 0}).steps())
        run, before = prepare(lm, prompt, **how), roof_now(0.2, place)
        stamped = list(run.timed())
        roof, answer = band(before, roof_now(0.2, place)), run.read(stamped)[0]
        if answer.error:
            raise answer.error
        plain = answer.tokens if name == "autoregressive" else plain
        greedy = settings.get("sampler") is None or settings["sampler"].greedy
        exact = answer.tokens == plain if greedy and plain is not None else None
        at = replace(device, bandwidth=(roof.low + roof.high) / 2)
        ledger.add(
            entry(name, stamped, lambda step: step_cost(configs[step.to], step, number), at, cache, roof, exact, f"{device.name}, {lm.card['dtype']}")
        )
    return ledger
