"""Probed Samples as a file, for `roof` folds and never keeps: what one machine was seen to do, sample by sample, to be drawn and judged elsewhere.

One JSON object per line. The first says what this is and where it was probed, with the tasks in it; each further one is a Sample, as
(lane, number of its task, seconds, error); the last says how many there are, so that a file that was cut short is not taken for a whole one.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .roof import Sample, Task


@dataclass
class Samples:
    """What was probed: Samples by lane, in their order, and the machine."""

    machine: dict
    lanes: dict[str, list[Sample]]


def save(path: str | Path, samples: Samples) -> None:
    """Keep them. The file appears complete or not at all, and takes the place of one that was there."""
    path, every = Path(path), [(lane, sample) for lane, points in samples.lanes.items() for sample in points]
    tasks = {task: number for number, task in enumerate(dict.fromkeys(sample.task for _, sample in every))}
    head = {"tokenpace": "samples", "version": 1, "machine": samples.machine, "lanes": list(samples.lanes), "tasks": [asdict(t) for t in tasks]}
    body = [{"lane": lane, "task": tasks[s.task], "seconds": s.seconds if math.isfinite(s.seconds) else None, "error": s.error} for lane, s in every]
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in [head, *body, {"end": len(body)}])
        partial.write_text(text, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | Path) -> Samples:
    """What `save` wrote; seconds that were no number are nan. ValueError with the line for anything else."""
    number = 1
    try:
        lines = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            lines.append(json.loads(line))
        number, head = 1, lines[0]
        if (head["tokenpace"], head["version"]) != ("samples", 1):
            raise ValueError("its first line would say samples, version 1")
        tasks, lanes = [Task(**task) for task in head["tasks"]], {lane: [] for lane in head["lanes"]}
        for number, line in enumerate(lines[1:-1], 2):
            seconds = math.nan if line["seconds"] is None else float(line["seconds"])
            lanes[line["lane"]].append(Sample(tasks[line["task"]], seconds, line["error"]))
        number = len(lines)
        if lines[-1]["end"] != len(lines) - 2:
            raise ValueError(f"{lines[-1]['end']} samples were saved, and {len(lines) - 2} are here")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} line {number}: not saved samples: {type(error).__name__} {error}") from None
    return Samples(head["machine"], lanes)
