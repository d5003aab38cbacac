"""The claim about prices: that an output token costs several times an input token, in seconds first, in joules where they can be read."""

from __future__ import annotations

from ..show.live import Shown
from ..show.plots import seconds
from .runs import doubt
from .verdict import Judgement, holds_if, judged, unknown

SEVERAL = 2  # times: from here on a price is "several times" another
FEW = 8  # passes of writing, below which a median says little


def price(shown: Shown) -> Judgement:
    """The lanes of show.price.Prices: output ÷ input for each number of texts that share a pass, in seconds and, where they were counted, in joules.

    Holds if both are SEVERAL (2) times or more for all batches. It holds under a condition if so for one text, but not for the largest batch, or if
    joules say otherwise than seconds, or were not counted.
    """
    view, first = shown.view, min(shown.view.batches)
    passes = view.sides(first)["output"].passes
    if why := doubt(shown, *(spent for _, spent in passes)):
        return unknown(why)
    if len(passes) < FEW:
        return unknown(f"{len(passes)} passes of writing are too few; write more tokens")
    found, counted = view.ratios(), view.ratios("joules")
    if missing := [batch for batch in view.batches if batch not in found]:
        return unknown(f"of {missing[0]} texts a pass there are no passes that all of them shared; write more tokens")
    each = view.sides(first)
    figures = (
        f"With {first} text{'s' * (first > 1)} a pass an input token takes {seconds(each['input'].seconds)}, an output token "
        f"{seconds(each['output'].seconds)}; output ÷ input in seconds is {_listed(found)} texts a pass"
        + (f", in joules {_listed(counted)}." if counted else "; joules are not readable here.")
    )
    numbers = {f"{batch} texts": ratio for batch, ratio in found.items()} | {f"{batch} texts, joules": ratio for batch, ratio in counted.items()}
    if found[first] < SEVERAL:
        return judged(False, figures, **numbers)
    conditions = []
    if (most := _most(found)) < max(found):
        conditions.append(f"no more than {most} texts share a pass" if most > 1 else "each text has its passes to itself")
    if not counted:
        conditions.append("seconds are what is paid for (joules are not readable here)")
    elif not all(ratio >= SEVERAL for batch, ratio in counted.items() if batch <= most):
        conditions.append("seconds are what is paid for, not joules")
    return holds_if(" and ".join(conditions), figures, **numbers) if conditions else judged(True, figures, **numbers)


def _most(found: dict[int, float]) -> int:
    """The largest batch up to which every one has SEVERAL times."""
    most = 0
    for batch in sorted(found):
        if found[batch] < SEVERAL:
            break
        most = batch
    return most


def _listed(ratios: dict[int, float]) -> str:
    return ", ".join(f"{ratio:.3g} for {batch}" for batch, ratio in sorted(ratios.items()))
