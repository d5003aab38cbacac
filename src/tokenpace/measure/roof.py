"""What a machine can do at best, folded from raw timings: the three ceilings under which every pass runs.

`machine` says what there is; this says what it gives: bytes read per second, FLOP per second, seconds per launched operation.
Nothing here runs anything: `probe` makes the samples, so the same fold serves a live figure, a saved trace and a fake clock.
The roofline is that of Williams, Waterman and Patterson (2009), with launch as a third ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from ..config import nearest
from .devices import like

if TYPE_CHECKING:
    from .cost import Device

UNITS = {"read": "B/s", "multiply": "FLOP/s", "launch": "operations/s"}
OUTSIDE = 4  # a buffer this many times the last-level cache is read from memory
FEW = 5  # samples, below which the caches bound nothing
STEADY = 1.2  # two probes of the roof further apart than this forbid a verdict


@dataclass(frozen=True)
class Task:
    """One thing to do again and again. `size` is bytes for "read", n of an n × n matrix for "multiply", operations for "launch"."""

    kind: str
    size: int
    dtype: str
    threads: int | None  # None on a GPU
    means: str  # the kernel, by name
    work: float  # bytes read, FLOP or operations of doing it once


class Sample(NamedTuple):
    """Doing the task once took this long; an `error` says why it could not be done at all."""

    task: Task
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class Point:
    """All samples of one task: the seconds that can be true, and a line for each that cannot."""

    task: Task
    seconds: tuple[float, ...]
    rejected: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Work per second in the median sample: B/s, FLOP/s or operations/s."""
        return self.task.work / median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median; nan from fewer than two samples."""
        if len(self.seconds) < 2:
            return float("nan")
        low, middle, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / middle

    def __str__(self) -> str:
        task = self.task
        what = {"read": f"read {task.size / 1e6:.2f} MB", "multiply": f"multiply {task.dtype} {task.size}"}.get(task.kind, "launch an operation")
        threads = f"{task.threads} thread{'s' * (task.threads > 1)}" if task.threads else "device"
        rate = f"{1e6 / self.rate:8.2f} microseconds" if task.kind == "launch" else f"{self.rate / 1e9:8.1f} G{UNITS[task.kind]}"
        return f"{what:24} {threads:10} {rate:22} spread {self.spread:4.0%}  n {len(self.seconds):3}  {task.means}"


@dataclass(frozen=True)
class Roof:
    """A machine and what it was seen to do. `notes` tells what went wrong on the way."""

    machine: dict
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()

    def seen(self, kind: str) -> list[Point]:
        """The points of one kind that have samples, smallest first."""
        return sorted((p for p in self.points if p.task.kind == kind and p.seconds), key=lambda p: (p.task.size, p.task.threads or 0))

    @property
    def read(self) -> Point:
        """The read of the largest buffer by the most threads: memory, not a cache."""
        outside = OUTSIDE * self.machine["last_level_cache"]["bytes"]
        return self._best([p for p in self.seen("read") if p.task.size >= outside][-1:], f"a read of {outside / 1e6:.0f} MB or more")

    def multiply(self, dtype="float32") -> Point:
        """The fastest matrix product of a dtype (a name or a torch.dtype)."""
        name = str(dtype).removeprefix("torch.")
        known = {p.task.dtype for p in self.seen("multiply")}
        if known and name not in known:
            raise ValueError(f"no matrix product of {name} was probed on this machine{nearest(name, sorted(known))}")
        return self._best([p for p in self.seen("multiply") if p.task.dtype == name], f"a matrix product of {name}")

    @property
    def bandwidth(self) -> float:
        """Bytes per second from memory."""
        return self.read.rate

    def flops(self, dtype="float32") -> float:
        """FLOP per second in that dtype."""
        return self.multiply(dtype).rate

    @property
    def launch(self) -> float:
        """Seconds that one operation takes when it has next to nothing to do."""
        return 1 / self._best(self.seen("launch"), "a launch").rate

    def device(self, dtype="float32", operations: int = 0) -> Device:
        """This machine as `predicted` takes it. A pass of so many operations then costs their launches at least."""
        from .cost import Device

        return Device(self.machine["name"], bandwidth=self.bandwidth, flops=self.flops(dtype), launch=operations * self.launch)

    def to_dict(self) -> dict:
        """For JSON: lists in place of tuples, raw seconds kept."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict) -> Roof:
        points = (Point(Task(**p["task"]), tuple(p["seconds"]), tuple(p["rejected"])) for p in saved["points"])
        return cls(saved["machine"], tuple(points), tuple(saved["notes"]))

    def _best(self, points: list[Point], what: str) -> Point:
        if not points:
            raise ValueError(f"{what} was not measured{''.join('; ' + note for note in self.notes)}: probe again with a larger budget")
        return max(points, key=lambda p: p.rate)

    def __str__(self) -> str:
        here, cache = self.machine, self.machine["last_level_cache"]
        lines = [f"{here['name']}, {here['cores']} cores; last-level cache {cache['bytes'] / 1e6:.0f} MB ({cache['source']})"]
        points = self.seen("read") + self.seen("multiply") + self.seen("launch")
        return "\n".join(lines + [str(point) for point in points] + [f"note: {note}" for note in self.notes])


def fold(machine: dict, samples: Iterable[Sample], notes: tuple[str, ...] = ()) -> Roof:
    """Samples to a roof. What cannot be true is put aside, each with its reason, and never enters a median."""
    raw: dict[Task, list[float]] = {}
    failed = []
    for sample in samples:
        if sample.error:
            failed.append(f"{sample.task.kind} {sample.task.dtype} {sample.task.size} could not be run: {sample.error}")
        else:
            raw.setdefault(sample.task, []).append(sample.seconds)
    points = tuple(_point(task, seconds, limit(task, machine)) for task, seconds in raw.items())
    points = tuple(_outside(point, points, machine) for point in points)
    put_aside = [f"{p.task.kind} {p.task.dtype} {p.task.size}: {len(p.rejected)} impossible, first {p.rejected[0]}" for p in points if p.rejected]
    return Roof(machine, points, (*notes, *failed, *put_aside))


def _point(task: Task, seconds: list[float], most: float) -> Point:
    kept, rejected = [], []
    for s in seconds:
        if not isfinite(s) or s <= 0:
            rejected.append(f"{s} s: no clock can have shown that")
        elif task.work / s > most:
            rejected.append(f"{s:.3g} s: {task.work / s:.3g} {UNITS[task.kind]} is above the {most:.3g} this machine could do at all")
        else:
            kept.append(s)
    return Point(task, tuple(kept), tuple(rejected))


def _outside(point: Point, points: tuple[Point, ...], machine: dict) -> Point:
    """Memory cannot be faster than the caches in front of it at their best: such a sample was read from them, or not read at all.

    Only on a CPU: on a GPU a read that fits the cache is over before the next is launched, so it bounds nothing. And only with FEW samples of
    the caches or more: on a busy machine one of them alone may have waited for its turn.
    """
    cache, task = machine["last_level_cache"]["bytes"], point.task
    if task.kind != "read" or task.size < OUTSIDE * cache or machine["device"] != "cpu":
        return point
    caches = [p for p in points if p.task.kind == "read" and p.task.threads == task.threads and p.task.size <= cache / 2]
    within = [p.task.work / seconds for p in caches for seconds in p.seconds]
    if len(within) < FEW:
        return point
    known = _point(task, list(point.seconds), max(within))
    return Point(task, known.seconds, point.rejected + known.rejected)


def limit(task: Task, machine: dict) -> float:
    """More than this a machine cannot do, whatever the clock says; inf where nothing is known of it.

    A GPU: its data sheet, and a tenth for clocks above it. An x86 core: two vector loads and two fused multiply-adds per cycle,
    twice as much in bf16 with its own instructions, and 1,024 FLOP per cycle with AMX; at 6 GHz where the clock is not told.
    """
    if machine["device"] != "cpu":
        sheet = like(machine["name"])
        if sheet is None or task.kind == "launch":
            return float("inf")
        if task.kind == "multiply":
            return 1.1 * sheet.flops.get(task.dtype, float("inf"))
        return 1.1 * sheet.bandwidth if task.size >= OUTSIDE * machine["last_level_cache"]["bytes"] else float("inf")
    has = set(machine["features"])
    if "avx2" not in has or task.kind == "launch":
        return float("inf")
    cycles, vector = (task.threads or machine["cores"]) * (machine["clock"]["highest"] or 6e9), 64 if "avx512f" in has else 32  # bytes
    if task.kind == "read":
        return cycles * 2 * vector
    if f"amx_{ {'bfloat16': 'bf16', 'float16': 'fp16'}.get(task.dtype) }" in has:
        return cycles * 1024
    return cycles * vector * (2 if task.dtype in ("bfloat16", "float16") else 1)


class Band(NamedTuple):
    """Bytes per second between which the roof stood during a run, and whether it stood still enough for a verdict."""

    low: float
    high: float
    steady: bool


def band(before: Iterable[float], after: Iterable[float]) -> Band:
    """The band of two probes of the roof (`roof_now`), from their medians.

    >>> band([40e9, 41e9, 42e9], [44e9, 45e9, 46e9])
    Band(low=41000000000.0, high=45000000000.0, steady=True)
    >>> band([41e9], [80e9]).steady
    False
    """
    before, after = list(before), list(after)
    if not before or not after:
        raise ValueError("a band needs samples of the roof from before and after the run")
    low, high = sorted((median(before), median(after)))
    return Band(low, high, high <= STEADY * low)
