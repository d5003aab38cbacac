"""Against peers: the same weights and prompts, in one process, taking turns, with the roof probed before and after every turn.

A shared or warm machine changes its speed within seconds, so two figures from different minutes cannot be compared. Lanes take turns round by
round; ratios are formed within a round, and only then is a median taken. Raw seconds, the machine and the roof are kept: the rest is a fold.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from ..config import nearest, preset
from ..load import fast, load
from ..measure.machine import machine
from ..measure.probe import roof_now
from . import quality as qualities
from .engines import Models, engine
from .jobs import SUITES, Job, Suite
from .steps import steps
from .tables import Sample, compare, table, text

__all__ = ["SUITES", "Job", "Sample", "Suite", "bench", "compare", "read", "table", "text"]

PROMPT = "The history of computing is the history of moving numbers from where they are kept to where they are needed, and back again. "
AGAINST = {"all": ("transformers", "llama.cpp"), "transformers": ("transformers",), "llama.cpp": ("llama.cpp",), "none": ()}
EXTRA = ("load", "quality")  # suites without passes


def bench(suite: str = "decode", against: str = "all", file: str | None = None, say: Callable[[str], None] | None = None) -> dict:
    """Run a suite, its peers among the lanes if they are wanted and here; returns everything measured, and writes it to `file` if one is named: JSON
    lines, the first with the machine, then a sample each, the last with the rest.

    An interrupt keeps what was measured. Errors: ValueError (unknown name), OSError (a file that cannot be written: before anything is run).
    """
    for kind, name, known in (("suite", suite, (*SUITES, *EXTRA)), ("peer", against, AGAINST)):
        if name not in known:
            raise ValueError(f"no {kind} is called {name!r}{nearest(name, known)}")
    if file and not os.access(Path(file).absolute().parent, os.W_OK):
        raise OSError(f"{file} cannot be written: name a file in a folder that exists and is yours")
    say = say or (lambda text: print(text, end="", file=sys.stderr, flush=True))
    found = {"suite": suite, "machine": machine(), "samples": [], "start": {}, "quality": {}, "steps": {}, "notes": []}
    try:
        if suite == "load":
            found["start"] = starting("smollm2-135m", "bfloat16")
        elif suite == "quality":
            found["quality"] = losses("smollm2-135m", say)
        else:
            about = SUITES[suite]
            lanes = tuple(lane for lane in about.lanes if lane.split(" ", 1)[0] in ("plain", "tiled", *AGAINST[against]))
            measure(found, replace(about, lanes=lanes), say)
            if suite == "steps":
                found["steps"] = steps(preset(about.model), found["samples"])
    except RuntimeError as error:
        found["notes"].append(str(error))
    except KeyboardInterrupt:
        found["notes"].append("interrupted: this is what was measured until then")
    found["machine_after"] = machine()
    found["table"] = table(found["samples"])
    say("\r" + text(found) + "\n")
    if file:
        write(found, Path(file))
    return found


def write(found: dict, path: Path) -> None:
    """JSON lines: the suite and the machine, the samples, what came after them."""
    first, last = {k: found[k] for k in ("suite", "machine")}, {k: found[k] for k in ("start", "quality", "steps", "notes", "machine_after")}
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(json.dumps(line) + "\n" for line in (first, *(s._asdict() for s in found["samples"]), last)), encoding="utf-8")
    part.replace(path)


def read(path: str | Path) -> dict:
    """What `write` wrote, and its table. ValueError for anything else."""
    try:
        first, *samples, last = (json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines())
        found = first | last | {"samples": [Sample(**s) for s in samples]}
        return found | {"table": table(found["samples"])}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a bench's JSON lines ({error}): write one with bench --json {Path(path).name}") from error


def prompt_of(lm, length: int) -> list[int]:
    """So many tokens: of a text, or, without a vocabulary, of numbers that never repeat side by side."""
    ids = lm.tokenizer.encode(PROMPT) if lm.tokenizer else list(range(1, 24))
    return [ids[i % len(ids)] for i in range(length)]


def measure(found: dict, about: Suite, say: Callable[[str], None]) -> None:
    """All rounds of all jobs."""
    progress = Progress(say, len(about.lanes) + len(about.jobs) * len(about.lanes) * about.tries)
    with tempfile.TemporaryDirectory() as folder:
        models, engines = Models(about.model, Path(folder), load), {}
        for lane in about.lanes:
            try:
                engines[lane] = engine(lane, models)
                engines[lane](Job("", passes=2), prompt_of(models.ours("16 bit"), 8))  # compiles, allocates, fills lazy caches
            except RuntimeError as error:
                engines.pop(lane, None)
                found["notes"].append(f"{lane} was not run: {error}")
            progress(f"{lane} is warm" if lane in engines else found["notes"][-1])
        for job in about.jobs:
            one_job(found, job, about.tries, dict(engines), models, progress)


def one_job(found: dict, job: Job, tries: int, engines: dict, models: Models, progress: Progress) -> None:
    for turn in range(tries):
        order = list(engines)[turn % len(engines) :] + list(engines)[: turn % len(engines)]
        before = median(roof_now())
        for lane in order:
            weights = lane.split(" ", 1)[1]
            lm = models.ours(weights)
            gc.collect()
            try:
                passes = engines[lane](job, prompt_of(lm, job.prompt))
            except RuntimeError as error:
                engines.pop(lane)
                found["notes"].append(f"{lane} did not do {job.name}: {error}")
                continue
            after, price = median(roof_now()), job.cost(lm.config, lm.number, lm.dtype.itemsize)
            what = job.tokens, price.bytes, price.total_flops, job.shape
            found["samples"].append(Sample(job.name, lane, turn, job.counted(passes.seconds), (before, after), *what, job.counted(passes.forward)))
            before = after
            progress(f"{job.name}: round {turn + 1} of {tries}, {lane}")


def starting(model: str, dtype: str) -> dict:
    """Seconds to import this package beyond torch, seconds to load the model, and the most memory such a process held, each in a new process."""
    code = """
import json, sys, time
import torch
start = time.perf_counter(); import tokenpace; tokenpace.generate; imported = time.perf_counter() - start
start = time.perf_counter(); tokenpace.load(sys.argv[1], device="cpu", dtype=sys.argv[2]); loaded = time.perf_counter() - start
try:  # not getrusage: it would count what the process that started this one held
    peak = 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
except OSError:
    peak = 0  # not told here
print(json.dumps({"import": imported, "load": loaded, "peak": peak}))
"""
    done = [subprocess.run([sys.executable, "-c", code, model, dtype], capture_output=True, text=True) for _ in range(3)]
    if failed := [d.stderr.strip() for d in done if d.returncode]:
        raise RuntimeError(f"a new process could not load {model}: {failed[0].splitlines()[-1] if failed[0] else 'it was killed'}")
    return {"dtype": dtype, "runs": [json.loads(d.stdout) for d in done]}


def losses(model: str, say: Callable[[str], None]) -> dict:
    """Every kind of weights against float32."""
    exact, found = fast(load(model, device="cpu", dtype="float32")), {}
    kinds = {"bfloat16": None, "int8": "int8", "int4": "int4", "stored": "stored"}
    progress = Progress(say, len(kinds))
    for name, few in kinds.items():
        found |= qualities.quality(exact, {name: fast(load(model, device="cpu", dtype="bfloat16", quantize=few))})
        progress(f"{name} is compared")
    return found


class Progress:
    """What was just done, and how long the rest will take if it is like what came before."""

    def __init__(self, say: Callable[[str], None], total: int):
        self.say, self.total, self.done, self.start = say, total, 0, time.perf_counter()

    def __call__(self, what: str):
        self.done += 1
        left = (time.perf_counter() - self.start) / self.done * max(self.total - self.done, 0)
        self.say(f"\r{min(self.done / self.total, 1):4.0%}, about {left:3.0f} s left: {what:60}")
