"""A program that takes something away, on purpose: what slows down with it was bound by what it took.

Both thieves run the same loop on another core. The one for memory reads a buffer that no cache holds, the one for compute a buffer that fits the
first-level cache: the second is the control, because both take a core. A pass that only the first slows is bound by bandwidth; this is
evidence, where a formula is a premise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

from .probe import large

BUFFERS: dict[str, Callable[[], int]] = {"memory": large, "compute": lambda: 16 << 10}  # bytes of each kind


class Loot:
    """What a thief has read since it began."""

    def __init__(self):
        self.bytes, self.began = 0, time.perf_counter()

    @property
    def rate(self) -> float:
        """Bytes per second, so far."""
        return self.bytes / (time.perf_counter() - self.began)


@contextmanager
def thief(kind: str = "memory") -> Iterator[Loot]:
    """While this is open, one more core reads: "memory", or its first-level cache ("compute"). Compiles and allocates before it begins.

    >>> with thief("compute") as loot:
    ...     time.sleep(0.1)
    >>> loot.bytes > 0
    True
    """
    if kind not in BUFFERS:
        raise ValueError(f"a thief takes {' or '.join(BUFFERS)}, not {kind!r}")
    import numpy as np

    buffer, total, stop = np.ones(BUFFERS[kind]() // 4, np.float32), adder(), threading.Event()
    total(buffer[:1], 1)  # compiles
    rounds, loot = max(1, (8 << 20) // buffer.nbytes), Loot()  # so many before it looks whether it should stop

    def steal():
        while not stop.is_set():
            total(buffer, rounds)
            loot.bytes += rounds * buffer.nbytes

    worker = threading.Thread(target=steal, name=f"thief of {kind}", daemon=True)
    worker.start()
    try:
        yield loot
    finally:
        stop.set()
        worker.join()


@cache
def adder() -> Callable:
    """total(numbers, rounds), on one thread and without Python's lock: Numba's loop, or numpy's sum (about half as fast) where there is none."""
    if not find_spec("numba"):
        return lambda numbers, rounds: sum(numbers.sum() for _ in range(rounds))
    import numba
    import numpy as np

    @numba.njit(fastmath=True)
    def once(numbers):
        s = np.float32(0)
        for i in range(numbers.size):
            s += numbers[i]
        return s

    @numba.njit(nogil=True)
    def total(numbers, rounds):
        s = np.float32(0)
        for _ in range(rounds):
            s += once(numbers)
        return s

    return total
