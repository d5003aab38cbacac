"""What a measurement says about a claim: a verdict, the figures it rests on in words, and the same in numbers.

There is no verdict between these four. "holds if …" names its condition; "not yet measured" names what is missing, and is never a guess.
"""

from __future__ import annotations

from typing import NamedTuple

HOLDS, HOLDS_IF, NOT_HERE, UNKNOWN = "holds", "holds if", "not here", "not yet measured"
VERDICTS = (HOLDS, HOLDS_IF, NOT_HERE, UNKNOWN)


class Judgement(NamedTuple):
    """What a measuring function returns."""

    verdict: str  # one of VERDICTS
    figures: str  # one or two sentences
    numbers: dict[str, float]
    condition: str = ""  # of "holds if"

    def given(self, condition: str) -> Judgement:
        """The same for a claim that is only ever meant under a condition."""
        return self._replace(verdict=HOLDS_IF, condition=condition) if self.verdict == HOLDS and condition else self


def judged(holds: bool, figures: str, **numbers: float) -> Judgement:
    """It holds or it doesn't.

    >>> judged(2 > 1, "2 is more than 1.", difference=1).verdict
    'holds'
    """
    return Judgement(HOLDS if holds else NOT_HERE, figures, numbers)


def holds_if(condition: str, figures: str, **numbers: float) -> Judgement:
    """It holds where `condition` is met; elsewhere it was seen not to, or was not seen."""
    return Judgement(HOLDS_IF, figures, numbers, condition)


def unknown(why: str, **numbers: float) -> Judgement:
    """Too little was measured. `why` says what to do."""
    return Judgement(UNKNOWN, why, numbers)
