"""What a thief's process does: it reads, rests and ends as it is told, and ends by itself when there is nobody left to tell it.

    python -m tokenpace.measure.steal BYTES CORES

It allocates so many bytes and rests. Every line that it is sent is a number and a word: go, wait or end. It answers each, once it is so, with the
number, the bytes read so far and the seconds that took; when it is ready, as if 0 had been asked. It is a process of its own so that what it steals
from shares nothing else with it, not even Python's lock; it imports no torch, so that it is there in a second.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from itertools import cycle, islice
from queue import Empty, SimpleQueue
from threading import Thread

import numpy as np

PIECE = 32 << 20  # bytes that a core reads before it looks whether it should rest: a few milliseconds


if find_spec("numba"):
    from ..model.jit import jit

    @jit(nogil=True)
    def once(numbers):
        s = np.float32(0)
        for i in range(numbers.size):
            s += numbers[i]
        return s

    @jit(nogil=True)
    def total(numbers, times):
        s = np.float32(0)
        for _ in range(times):
            s += once(numbers)
        return s

else:  # about half as fast

    def total(numbers, times):
        return sum(numbers.sum() for _ in range(times))


def listen(words: SimpleQueue) -> None:
    """Hand on what comes in. Its end means that nobody is there any more, whatever the others are doing."""
    for line in sys.stdin:
        words.put(line.split())
    os._exit(0)


def say(*what) -> None:
    print(*what, flush=True)


def serve(size: int, cores: int) -> None:
    """Steal as told, on so many cores, from a buffer of `size` bytes."""
    words, parent = SimpleQueue(), os.getppid()
    Thread(target=listen, args=(words,), daemon=True).start()
    buffer = np.ones(size // 4, np.float32)  # written, because untouched pages are all the same page of zeros
    total(buffer[:1], 1)  # compiles
    step, times = PIECE // 4, max(1, PIECE // buffer.nbytes)
    pieces = cycle([buffer[at : at + step] for at in range(0, buffer.size, step)])

    def steal(piece) -> int:
        total(piece, times)
        return times * piece.nbytes

    pool, going, stolen, spent = ThreadPoolExecutor(cores), False, 0, 0.0
    say(0, stolen, spent)
    while os.getppid() == parent:  # a fork of the parent may hold the pipe open after its death
        with suppress(Empty):
            number, word = words.get(timeout=0 if going else 1)
            going = word == "go"
            say(number, stolen, spent)
            if word == "end":
                break
        if going:
            start = time.perf_counter()
            stolen += sum(pool.map(steal, islice(pieces, cores)))
            spent += time.perf_counter() - start
    os._exit(0)  # `listen` waits for a line, and an orderly exit would wait for `listen`


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
