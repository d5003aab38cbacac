"""The same prompt through several decoders, each between two looks at the roof: one ledger row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from .generate import DECODERS, prepare
from .load import Lm
from .measure.cost import step_cost
from .measure.counters import counter
from .measure.energy import metered
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
    Errors: those of `generate`, and ValueError for fewer than two new tokens: all before anything is probed.
    """
    names = _checked(lm, prompt, decoders, drafter, settings)
    place, lanes = lm.device.type, {"target": lm} | ({"draft": drafter} if drafter else {})
    price = lambda step: step_cost(lanes[step.to].config, step, lanes[step.to].number, lanes[step.to].dtype.itemsize)
    say("probing this machine's ceilings …")
    device, cache = probe(3.0, place).device(lm.card["dtype"]), last_level_cache(place)[0]
    ledger, plain, meter = Ledger(), None, counter(str(lm.device))
    for name in names:
        say(f"{name} …")
        how = _settings(name, drafter, settings)
        list(prepare(lm, prompt, **{**how, "max_new_tokens": 2, "min_new_tokens": 0}).steps())
        run, before = prepare(lm, prompt, **how), roof_now(0.2, place)
        stamped = list(metered(run.timed(), meter))
        roof, answer = band(before, roof_now(0.2, place)), run.read(stamped)[0]
        if answer.error:
            raise answer.error
        plain = answer.tokens if name == "autoregressive" else plain
        greedy = settings.get("sampler") is None or settings["sampler"].greedy
        exact = answer.tokens == plain if greedy and plain is not None else None
        at = replace(device, bandwidth=(roof.low + roof.high) / 2)
        what = f"{device.name}, {lm.card['quantize'] or lm.card['dtype']}"
        ledger.add(entry(name, stamped, price, at, cache, roof, exact, what))
    return ledger


def _settings(name: str, drafter: Lm | None, settings: dict) -> dict:
    return {**settings, "decoder": name, "drafter": drafter if name == "speculative" else None}


def _checked(lm: Lm, prompt: str | list[int], decoders: Iterable[str], drafter: Lm | None, settings: dict) -> list[str]:
    """The decoders, each prepared once and thrown away: what is wrong with any of them is known before seconds are spent."""
    names = list(decoders)
    if not names:
        raise ValueError(f"no decoders: give at least one of {', '.join(DECODERS)}")
    for name in names:
        session = prepare(lm, prompt, **_settings(name, drafter, settings))
        if min(request.limit for request in session.requests) < 2:
            raise ValueError(
                "a race needs max_new_tokens of at least 2, and room for as many: the first token comes with the prompt, so it has no pace"
            )
        for request in session.requests:
            request.decoder.close()
    return names
