"""Against peers: the same weights, prompt and dtype, in one process, taking turns, with the roof probed before and after every turn.

A shared or warm machine changes its speed within seconds, so two figures from different minutes cannot be compared. Engines take turns round
by round; ratios are formed within a round, and only then is a median taken. Raw seconds, the machine and the roof are kept: the rest is a fold.
An engine or a suite more is one row in a table.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from . import peers
from .cache import Cache, Slab
from .config import nearest
from .decode import autoregressive
from .load import Lm, load
from .measure.clock import timed
from .measure.cost import cost
from .measure.machine import machine
from .measure.probe import roof_now
from .model.kernels import tiled, why_not
from .run import Request, run

UNSTEADY = 2  # times the fastest round: where the slowest takes longer, something else was running
PROMPT = "The history of computing is the history of moving numbers: "
Run = Callable[[list[int], int], list[float]]  # prompt, new tokens -> seconds of each pass, the prefill first


@dataclass(frozen=True)
class Suite:
    """What is run: one prompt, so many new tokens whatever they say, rounds in turn; then `crowd` rows at once for the host's share of a pass."""

    model: str
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    new_tokens: int = 128
    rounds: int = 7
    crowd: int = 32


SUITES = {
    "batch1": Suite("smollm2-135m"),
    "shape": Suite("shape:15m", new_tokens=16, rounds=2),  # random weights: needs no download, done in seconds
}


def ours(lm: Lm) -> Run:
    """This package's own driver, PyTorch's kernels or whatever the model was made of."""

    def go(prompt: list[int], new_tokens: int) -> list[float]:
        return [s.seconds for s in timed(steps(lm, [prompt], new_tokens))]

    return go


def on_tiles(lm: Lm) -> Run:
    """The same with the tiled kernels."""
    if reason := why_not(lm.model):
        raise RuntimeError(reason)
    return ours(replace(lm, model=tiled(copy.deepcopy(lm.model))))


# name -> what makes it run. Those of ours come first, and plain PyTorch first of all: ratios are to it.
ENGINES: dict[str, Callable[[Lm], Run]] = {"plain": ours, "tiled": on_tiles, "transformers": peers.transformers_generate}
AGAINST: dict[str, tuple[str, ...]] = {"transformers": ("transformers",), "none": ()}


class Sample(NamedTuple):
    """One engine's turn in one round: seconds of its passes, and bytes per second that memory gave before and after."""

    engine: str
    dtype: str
    round: int
    passes: list[float]
    roof: tuple[float, float]
    bytes: float  # that a decode pass in the middle of the text must read and write


def bench(suite: str = "batch1", against: str = "transformers", file: str | None = None, say: Callable[[str], None] | None = None) -> dict:
    """Run a suite against peers ("transformers" or "none"); returns everything measured, ready for JSON, and writes it to `file` if one is named.

    An interrupt keeps what was measured. Errors: ValueError (unknown name), OSError (a file that cannot be written: before anything is run).
    """
    for kind, name, known in (("suite", suite, SUITES), ("peer", against, AGAINST)):
        if name not in known:
            raise ValueError(f"no {kind} is called {name!r}{nearest(name, known)}")
    if file and not os.access(Path(file).absolute().parent, os.W_OK):
        raise OSError(f"{file} cannot be written: name a file in a folder that exists and is yours")
    say = say or (lambda text: print(text, end="", file=sys.stderr, flush=True))
    about, names = SUITES[suite], [n for n in ENGINES if n in ("plain", "tiled", *AGAINST[against])]
    found = {"suite": suite, "about": asdict(about), "machine": machine(), "samples": [], "crowd": [], "start": {}, "notes": []}
    progress = Progress(say, len(about.dtypes) * (about.rounds * len(names) + 2) + 1)
    try:
        for dtype in about.dtypes:
            measure(found, about, dtype, names, progress)
        found["start"] = starting(about)
        progress("loading in a process of its own")
    except RuntimeError as error:
        found["notes"].append(str(error))
    except KeyboardInterrupt:
        found["notes"].append("interrupted: this is what was measured until then")
    found["machine_after"] = machine()
    found["table"] = table(found["samples"])
    say("\r" + report(found) + "\n")
    if file:
        part = Path(f"{file}.part")
        part.write_text(json.dumps(found))
        part.replace(file)
    return found


def measure(found: dict, about: Suite, dtype: str, names: list[str], progress: Progress):
    """All rounds of one dtype."""
    lm, engines = load(about.model, device="cpu", dtype=dtype), {}
    prompt = lm.tokenizer.encode(PROMPT) if lm.tokenizer else list(range(1, 13))
    moved = cost(lm.config, [(len(prompt) + about.new_tokens // 2, 1)], lm.number, lm.dtype.itemsize).bytes
    for name in names:
        try:
            engines[name] = ENGINES[name](lm)
            engines[name](prompt, 4)  # compiles, allocates, fills lazy caches
        except RuntimeError as error:
            found["notes"].append(f"{name} {dtype} was not run: {error}")
            progress.say(f"\r{found['notes'][-1]}\n")
    progress(f"{dtype}: engines are warm")
    for turn in range(about.rounds):
        order = list(engines)[turn % len(engines) :] + list(engines)[: turn % len(engines)]
        before = median(roof_now())
        for name in order:
            gc.collect()
            passes = engines[name](prompt, about.new_tokens)
            after = median(roof_now())
            found["samples"].append(Sample(name, dtype, turn, passes, (before, after), moved))
            before = after
            progress(f"{dtype}: round {turn + 1} of {about.rounds}, {name}")
    found["crowd"].append({"dtype": dtype, "rows": about.crowd, **crowd(lm, prompt, about.crowd)})
    progress(f"{dtype}: {about.crowd} rows at once")


def steps(lm: Lm, prompts: list[list[int]], new_tokens: int, forward=None):
    """Greedy decoding of all prompts at once, exactly so many tokens each."""
    cache = Cache(lm.config, Slab(len(prompts), max(map(len, prompts)) + new_tokens), dtype=lm.dtype, device=lm.device)
    requests = [Request(autoregressive(p), limit=new_tokens) for p in prompts]
    return run({"target": (forward or lm.model, cache)}, requests, slots=len(prompts))


def crowd(lm: Lm, prompt: list[int], rows: int, new_tokens: int = 24) -> dict:
    """Seconds of decode passes with many rows, and of the model's forward within them: the difference is the host's work."""
    inside = []

    def forward(*args):
        start = time.perf_counter()
        logits = lm.model(*args)
        inside.append(time.perf_counter() - start)
        return logits

    passes = [s.seconds for s in timed(steps(lm, [prompt] * rows, new_tokens, forward))]
    return {"passes": passes[2:], "forwards": inside[2:]}  # the prefill, and one pass for warming up


def starting(about: Suite) -> dict:
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
    done = [subprocess.run([sys.executable, "-c", code, about.model, about.dtypes[-1]], capture_output=True, text=True) for _ in range(3)]
    if failed := [d.stderr.strip() for d in done if d.returncode]:
        raise RuntimeError(f"a new process could not load {about.model}: {failed[0].splitlines()[-1] if failed[0] else 'it was killed'}")
    return {"dtype": about.dtypes[-1], "runs": [json.loads(d.stdout) for d in done]}


def table(samples: list[Sample]) -> list[dict]:
    """One row for each dtype and engine: median seconds, their range over rounds, bytes against the roof, and how often as fast as each other engine.

    >>> slow, fast = (Sample(n, "float32", 0, [9.0, t, t], (4e9, 4e9), 2e9) for n, t in (("plain", 2.0), ("tiled", 1.0)))
    >>> row = table([slow, fast])[1]
    >>> row["decode"], row["mbu"], row["faster"]["plain"]["median"]
    (1.0, 0.5, 2.0)
    """
    rows = []
    for dtype, name in dict.fromkeys((s.dtype, s.engine) for s in samples):
        turns = {s.round: s for s in samples if (s.dtype, s.engine) == (dtype, name)}
        pace = {r: median(s.passes[1:]) for r, s in turns.items()}
        faster = {}
        for other in dict.fromkeys(s.engine for s in samples if s.dtype == dtype and s.engine != name):
            theirs = {s.round: median(s.passes[1:]) for s in samples if (s.dtype, s.engine) == (dtype, other)}
            if ratios := sorted(theirs[r] / pace[r] for r in theirs if r in pace):
                faster[other] = {"median": median(ratios), "low": ratios[0], "high": ratios[-1]}
        rows.append(
            {
                "dtype": dtype,
                "engine": name,
                "prefill": median(s.passes[0] for s in turns.values()),
                "decode": median(pace.values()),
                "low": min(pace.values()),
                "high": max(pace.values()),
                "roof": median(median(s.roof) for s in turns.values()),
                "mbu": median(s.bytes / pace[r] / median(s.roof) for r, s in turns.items()),
                "faster": faster,
            }
        )
    return rows


def report(found: dict) -> str:
    """The figures of a bench as text."""
    lines = [f"{'':10}{'':14}{'prefill':>9}{'ms/token':>10}{'range':>14}{'tokens/s':>10}{'roof GB/s':>11}{'of it':>7}   times as fast as"]
    for r in found["table"]:
        others = ", ".join(f"{o} {q['median']:.2f} ({q['low']:.2f}–{q['high']:.2f})" for o, q in r["faster"].items())
        span = f"{1e3 * r['low']:.1f}–{1e3 * r['high']:.1f}"
        speed = f"{1e3 * r['prefill']:7.1f}ms{1e3 * r['decode']:10.2f}{span:>14}{1 / r['decode']:10.1f}"
        lines.append(f"{r['dtype']:10}{r['engine']:14}{speed}{r['roof'] / 1e9:11.1f}{r['mbu']:7.0%}   {others}")
    for c in found["crowd"]:
        host = median(1 - f / p for p, f in zip(c["passes"], c["forwards"]))
        lines.append(f"{c['rows']} rows at once, {c['dtype']}: {1e3 * median(c['passes']):.1f} ms a pass, host work {host:.1%} of it")
    if runs := found["start"].get("runs"):
        first = {k: median(r[k] for r in runs) for k in runs[0]}
        loading = f"load in {found['start']['dtype']} {first['load']:.2f} s" + (
            f", peak memory {first['peak'] / 1e9:.2f} GB" if first["peak"] else ""
        )
        lines.append(f"import {first['import']:.2f} s beyond torch; {loading}")
    unsteady = [f"{r['dtype']} {r['engine']}" for r in found["table"] if r["high"] > UNSTEADY * r["low"]]
    if unsteady:
        lines.append(f"the rounds of {', '.join(unsteady)} differ by more than {UNSTEADY} times: another program was busy, so believe no ratio here")
    return "\n".join(lines + found["notes"])


class Progress:
    """What was just done, and how long the rest will take if it is like what came before."""

    def __init__(self, say: Callable[[str], None], total: int):
        self.say, self.total, self.done, self.start = say, total, 0, time.perf_counter()

    def __call__(self, what: str):
        self.done += 1
        left = (time.perf_counter() - self.start) / self.done * (self.total - self.done)
        self.say(f"\r{self.done / self.total:4.0%}, about {left:3.0f} s left: {what:60}")
