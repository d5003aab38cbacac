"""A read of memory that anybody can put a clock to, for `probe` times its own: so that a learner's measurement stands beside the probe's."""

from __future__ import annotations

from collections.abc import Callable

from .clock import synchronise
from .machine import ram
from .probe import _reader


def reader(device="cpu") -> Callable[[int], None]:
    """read(size): read a buffer of so many bytes once, with all threads, and wait until that is done. The first read of a size makes the buffer.

    Errors: ValueError for a size that is no whole number of 64 bytes or more, MemoryError for one above half of what is free.

    >>> read = reader()
    >>> read(1 << 20)
    """
    import torch

    sync, made = synchronise(device), {}

    def read(size: int) -> None:
        if size not in made:
            free = torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else ram()[1]
            if isinstance(size, bool) or size != int(size) or size < 64:
                raise ValueError(f"read({size!r}): a buffer has a whole number of bytes, at least 64")
            if free and size > free // 2:
                raise MemoryError(f"a buffer of {size / 1e9:.1f} GB is more than half of the {free / 1e9:.1f} GB that are free: take a smaller one")
            made.clear()  # one at a time
            _, run, threads = _reader(torch.empty(int(size) // 4, device=device).fill_(1))  # written, or all its pages are the same one
            made[size] = run(int(size) // 4, threads)
        made[size](1)
        sync()

    return read
