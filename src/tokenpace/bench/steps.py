"""Can the seconds of a pass be told beforehand? A third of the passes is fitted (`measure.steptime`), the others are predicted and compared."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ..config import ModelConfig
from ..measure.steptime import Rows, fit
from ..model.blocks import PAIRS
from .tables import Sample

EVERY = 3  # one pass of so many is fitted


def by_blocks(rows: Rows) -> bool:
    """Do tiled models take such a pass from block to block?"""
    return max(width * (context + width) for context, width in rows) > PAIRS


def steps(config: ModelConfig, samples: Iterable[Sample]) -> dict[str, dict]:
    """lane -> how many passes were fitted, and (job, predicted ÷ measured) of the others."""
    samples, found = list(samples), {}
    for lane in dict.fromkeys(s.lane for s in samples):
        passes = [(s.job, [(s.shape[2], s.shape[1])] * s.shape[0], median(s.seconds)) for s in samples if s.lane == lane]
        model = fit(config, [(rows, seconds) for _, rows, seconds in passes[::EVERY]], by_blocks)
        others = [one for at, one in enumerate(passes) if at % EVERY]
        ratios = [(job, model.seconds(rows) / seconds) for job, rows, seconds in others]
        found[lane] = {"fitted": len(passes) - len(others), "ratios": ratios}
    return found
