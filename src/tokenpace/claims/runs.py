"""What the judges ask of a measured figure before they say anything: was the run whole, and was the machine its own?"""

from __future__ import annotations

from ..measure.clock import Stamped
from ..show.live import Shown, verdict


def passes(shown: Shown, lane: str) -> list[Stamped]:
    """The stamped passes of a lane, without those over the prompt."""
    return [one for one in shown.points.get(lane, ()) if any(row.width and row.phase != "prefill" for row in one.step.rows)]


def kept(step) -> int:
    """Tokens that a pass wrote and that stayed."""
    return sum(stayed for row in step.rows for writes in row.each for _, _, stayed in writes)


def doubt(shown: Shown, *like: float) -> str:
    """Why a run judges nothing, or "". `like` are the seconds of passes that should have taken about the same.

    The roof's band and the passes are held to what the figure itself holds them to, so that figure and claim agree.
    """
    if shown.view.progress() < 1:
        return f"the run was cut short at {shown.view.progress():.0%} of what was planned; run it again"
    if shown.band is None:
        return "the roof was not probed before and after the run; run it again"
    return verdict(shown.band, "", like).removeprefix("No verdict: ").removesuffix(".")
