"""What this machine can do, found out by doing it: reads of memory and caches, matrix products, launches.

`roof` folds samples and never runs anything; this runs things and never judges. `probing` yields one Sample at a time, so a live figure
draws each as it lands; `probe` is the fold of it. The tasks take turns until the budget is spent, because the speed of a shared machine
changes within seconds: a burst of samples would agree with itself and still be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from math import ceil, inf, nan
from typing import NamedTuple

from .clock import synchronise
from .machine import features, last_level_cache, machine, ram
from .roof import OUTSIDE, Roof, Sample, Task, fold

ENOUGH = 2e-3  # seconds that a sample takes at least: far above what a clock resolves and a thread needs to wake
PLENTY = 20e-3  # seconds that are long enough whatever else runs
MOST = 1 << 16  # times in a row: a clock that stands still must not keep it going
LARGE = 8  # times the last-level cache: part of a buffer only a few times as large is still found in it
NATIVE_FP16 = {"avx512_fp16", "amx_fp16", "asimdhp"}  # elsewhere a CPU multiplies fp16 some hundred times slower than fp32


class Load(NamedTuple):
    """A task and how to do it: `run(times)` does it so many times and, on a GPU, need not wait."""

    task: Task
    run: Callable[[int], None]


def probe(budget: float = 5.0, device: str = "cpu", now: Callable[[], float] = time.perf_counter) -> Roof:
    """This machine's three ceilings in `budget` seconds, about two of which go into compiling and allocating the first time.

    An interrupt keeps what was measured.
    `print(probe())` shows it as a table; `probe().device("bfloat16")` predicts with it.
    Errors: ValueError (a budget that is no time), and those of `find_device`.
    """
    device = checked(budget, device)
    start, here, samples = now(), machine(device), []
    notes = (
        (f"in the minute before, {here['load']:.1f} programs at a time wanted one of {here['cores']} cores",)
        if (here["load"] or 0) > here["cores"] / 2
        else ()
    )
    try:
        prepared = loads(device)
        for sample in probing(prepared, budget - (now() - start), synchronise(device), now):
            samples.append(sample)
    except KeyboardInterrupt:
        notes += (f"interrupted: {len(samples)} samples kept",)
    return fold(here, samples, notes)


def checked(budget: float, device: str) -> str:
    """The device's own name, or the error that says why nothing can be probed there for so long."""
    from ..load import find_device  # brings torch, which this file does without until something runs

    if not 0 <= budget < inf:
        raise ValueError(f"budget must be finite seconds of at least 0, not {budget}")
    return str(find_device(device))


def probing(prepared: list[Load], budget: float, sync: Callable[[], None], now: Callable[[], float] = time.perf_counter) -> Iterator[Sample]:
    """Samples of the tasks in turn until `budget` seconds are over; nothing is begun that took longer last time than what is left.

    However small the budget, there is one sample of each kind and dtype: a coarse roof rather than none.
    `sync` waits for the device, `now` is a clock in seconds; both are parameters so that a test can hand in others.
    """
    end, turns, begun = now() + budget, [], set()
    for load in prepared:
        began, kind = now(), (load.task.kind, load.task.dtype)
        if began >= end and kind in begun:
            continue
        begun.add(kind)
        try:
            times = _often_enough(load, sync, now)
            yield Sample(load.task, _seconds(load, times, sync, now))
        except (RuntimeError, MemoryError) as error:  # a dtype without a kernel, a device without room
            yield Sample(load.task, nan, str(error).splitlines()[0] if str(error) else type(error).__name__)
        else:
            turns.append((load, times, now() - began))
    while turns:
        left = []
        for load, times, took in turns:
            began = now()
            if began + took <= end:
                yield Sample(load.task, _seconds(load, times, sync, now))
                left.append((load, times, now() - began))
        turns = left


def _seconds(load: Load, times: int, sync: Callable[[], None], now: Callable[[], float]) -> float:
    """Seconds of doing it once. One run before is not counted: the first may compile, and after another task's turn the caches are cold."""
    load.run(1)
    sync()
    start = now()
    load.run(times)
    sync()
    return (now() - start) / times


def _often_enough(load: Load, sync: Callable[[], None], now: Callable[[], float]) -> int:
    """How often in a row makes a sample.

    At least ENOUGH seconds, and so often that more work takes more time: on a busy machine even an empty run lasts as long as its wait for a core.
    """
    times, took = 1, _seconds(load, 1, sync, now)
    while took < PLENTY and times < MOST:
        more = min(MOST, max(2 * times, min(ceil(times * ENOUGH / took), 16 * times) if took > 0 else 0))
        again = more * _seconds(load, more, sync, now)
        if took >= ENOUGH and again / took > 0.75 * more / times:
            break
        times, took = more, again
    return times


def roof_now(seconds: float = 0.2, device: str = "cpu") -> tuple[float, ...]:
    """Bytes per second from memory at this moment, some samples of it: one before a run and one after make its `band`."""
    device = checked(seconds, device)
    buffer = _buffer(device)
    read = _reads(buffer, device)[0]
    samples = [read.task.work / sample.seconds for sample in probing([read], seconds, synchronise(device)) if sample.seconds > 0]
    if not samples:
        raise RuntimeError("no read of memory could be timed: the clock stood still or the device gave an error")
    return tuple(samples)


def loads(device: str = "cpu") -> list[Load]:
    """Everything that is probed, what the ceilings need most first. Allocates and compiles; runs nothing yet.

    int8 products are not among it: PyTorch has none on a CPU that is faster than bf16 (measured), so they would say nothing about a decoder.
    """
    reads = _reads(_buffer(device), device)
    return [reads[0], *_multiplies(device), _launch(device), *reads[1:]]


def large(device: str = "cpu") -> int:
    """Bytes of a buffer that a read must fetch from memory: LARGE times the last-level cache if an eighth of what is free and 4 GiB allow it."""
    import torch

    cache_size, _ = last_level_cache(device)
    free = torch.cuda.mem_get_info(device)[0] if str(device).startswith("cuda") else ram()[1] or 2 << 30
    least = OUTSIDE * cache_size
    if least > free // 2:
        needed = f"reading past a {cache_size / 1e6:.0f} MB cache takes a buffer of {least / 1e6:.0f} MB"
        raise MemoryError(f"{needed}, and {free / 1e6:.0f} MB are free: close something")
    return max(least, min(LARGE * cache_size, free // 8, 4 << 30)) // 4096 * 4096


def _buffer(device: str):
    """fp32 ones. Written, because untouched pages are all the same page of zeros, which is read from a cache whatever their number."""
    import torch

    return torch.empty(large(device) // 4, device=device).fill_(1)


def _reads(buffer, device: str) -> list[Load]:
    """Reads of the whole buffer (by all threads, by one) and of ever smaller parts, down to what fits the first-level cache."""
    means, run, threads = _reader(buffer)
    smallest = (16 << 10) * (threads or 1) if str(device) == "cpu" else 1 << 20

    def load(size: int, by: int | None) -> Load:
        return Load(Task("read", size, "float32", by, means, float(size)), run(size // 4, by))

    found = [load(4 * buffer.numel(), threads)]
    if threads and threads > 1 and means.startswith("numba"):  # torch would need its global thread count changed
        found.append(load(4 * buffer.numel(), 1))
    size = 4 * buffer.numel() // 2
    while size >= smallest:
        found.append(load(size, threads))
        size //= 2
    return found


def _reader(buffer):
    """(name, run(numbers, threads) -> run(times), threads): Numba's loop on a CPU that has it, else torch.sum."""
    import torch

    if buffer.device.type == "cpu" and find_spec("numba"):
        import numba
        import numpy as np

        array, kernel = buffer.numpy(), read_kernel()
        kernel(array[:1], np.zeros(1, np.float32), 1)  # compiles

        def by_numba(numbers, threads):
            part, sums = array[:numbers], np.zeros(threads, np.float32)
            return lambda times: kernel(part, sums, times)

        return "numba read", by_numba, numba.get_num_threads()

    def by_torch(numbers, threads):
        part = buffer[:numbers]
        return lambda times: [torch.sum(part) for _ in range(times)]

    return "torch.sum", by_torch, _threads(buffer.device)


@cache
def read_kernel():
    """read(a, sums, times): each of len(sums) threads adds up its own part of `a`, `times` times over.

    The inner loop is a function of its own: written into the parallel loop it is not vectorised, and twenty times slower.
    """
    import numba
    import numpy as np

    @numba.njit(fastmath=True)
    def total(part):
        s = np.float32(0)
        for i in range(part.size):
            s += part[i]
        return s

    @numba.njit(parallel=True, nogil=True)
    def read(a, sums, times):
        n = a.size // sums.size
        for t in numba.prange(sums.size):
            for _ in range(times):
                sums[t] += total(a[t * n : (t + 1) * n])

    return read


def _multiplies(device: str) -> list[Load]:
    """Square matrix products per dtype. Random numbers: a GPU that multiplies zeros draws less power and clocks higher."""
    import torch

    kind = torch.device(device).type
    half = kind != "cpu" or NATIVE_FP16 & set(features())
    dtypes = [torch.float32, torch.bfloat16] + [torch.float16] * bool(half)
    return [_multiply(n, dtype, device) for n in ((1024, 512) if kind == "cpu" else (4096, 1024)) for dtype in dtypes]


def _multiply(n: int, dtype, device: str) -> Load:
    import torch

    threads = _threads(device)
    task = Task("multiply", n, str(dtype).removeprefix("torch."), threads, "torch.mm", 2.0 * n**3)
    try:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    except (RuntimeError, TypeError) as error:
        return Load(task, _fails(str(error)))
    out = torch.empty_like(a)
    return Load(task, lambda times: [torch.mm(a, b, out=out) for _ in range(times)] and None)


def _threads(device) -> int | None:
    import torch

    return torch.get_num_threads() if torch.device(device).type == "cpu" else None


def _fails(message: str) -> Callable[[int], None]:
    def run(times):
        raise RuntimeError(message)

    return run


def _launch(device: str) -> Load:
    """Three operations of the kinds a decoder is made of, on next to nothing: what is left is what launching them costs."""
    import torch
    import torch.nn.functional as F

    x, w = torch.ones(1, 8, device=device), torch.ones(8, 8, device=device)
    threads = _threads(device)

    def run(times):
        with torch.inference_mode():
            for _ in range(times):
                F.linear(x, w)
                F.rms_norm(x, (8,))
                x + x

    return Load(Task("launch", 3, "float32", threads, "linear, rms_norm, add", 3.0), run)
