"""A program that takes something away, on purpose: what slows down with it was bound by what it took.

A roof and a clock say how near a pass comes to the bandwidth of memory. They don't say whether bandwidth is what it waits for. So take some away.
Both thieves run the same loop in a process of their own, on cores of their own. The one for memory reads a buffer that no cache holds, the one
for compute a buffer that fits the first-level cache: the second is the control, because both take a core. A pass that only the first slows was
bound by bandwidth; this is evidence, where a formula is a premise. `intervention` says how much is enough.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from . import machine
from .probe import large

BUFFERS = {"memory": large, "compute": lambda: 16 << 10}  # bytes of each kind
PACKAGES = Path(__file__).parents[2]  # where the process finds this package: the one that is running here


class NoThief(RuntimeError):
    """There can be no thief here, or it is gone. The message says why."""


class Thief:
    """A thief at work. `bytes` it has read in `seconds`, as of the last time it was told something."""

    _process = _errors = None
    _told = 0  # words

    def __init__(self, kind: str, cores: int):
        self.kind, self.cores, self.bytes, self.seconds = kind, cores, 0, 0.0

    @property
    def rate(self) -> float:
        """Bytes per second while it read; nan before it has."""
        return self.bytes / self.seconds if self.seconds else float("nan")

    def go(self) -> None:
        """Read. Returns when it has begun to."""
        self._tell("go")

    def wait(self) -> None:
        """Rest. Returns when nothing is being read any more."""
        self._tell("wait")

    def _start(self, size: int) -> None:
        """A group of its own, because an interrupt from a terminal or a notebook goes to a whole group and is not meant for it."""
        flag = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if sys.platform == "win32" else {"start_new_session": True}
        command = [sys.executable or "python", "-m", f"{__package__}.steal", str(size), str(self.cores)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_close`)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "bufsize": 0}
        try:
            self._process = subprocess.Popen(command, cwd=PACKAGES, **pipes, **flag)
        except OSError as error:
            raise NoThief(f"no thief here, because no process can be started: {error}") from error
        self._hear("start")

    def _tell(self, word: str) -> None:
        self._told += 1
        with suppress(OSError):  # it is gone, and `_hear` says so
            self._process.stdin.write(f"{self._told} {word}\n".encode())
        self._hear(word)

    def _hear(self, word: str) -> None:
        """Wait for the answer to the last word. One to a word before, left unread because there was an interrupt, is passed over."""
        while line := self._process.stdout.readline():
            number, *loot = line.split()
            if number == b"%d" % self._told:
                self.bytes, self.seconds = int(loot[0]), float(loot[1])
                return
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {self._process.wait()}"]
        when = "did not start" if word == "start" else f"ended before it was told to {word}"
        raise NoThief(f"the thief of {self.kind} {when}: {last[0]}")

    def _close(self) -> None:
        """However it stands: it has nothing to lose."""
        if self._process:
            with self._process:  # closes its pipes and waits for its end
                self._process.kill()
        if self._errors:
            self._errors.close()

    __del__ = _close  # what an interrupt in `_close` itself left; a dropped Popen would keep its pipes, and with them the process


@contextmanager
def thief(kind: str = "memory", cores: int = 1) -> Iterator[Thief]:
    """While this is open, a process reads on so many more cores: "memory", or first-level cache only ("compute").

    It has compiled and allocated when the block begins, can be told to `wait()` and to `go()` again, and is gone when the block is left, also by an
    interrupt; if this process is killed, the thief ends too. Afterwards `bytes`, `seconds` and `rate` say what it read.

    Errors: ValueError (another kind, cores that are none), NoThief, a RuntimeError, with the reason where there can be none: too few cores, too
    little memory, no processes here, or one that fails.

    >>> import time
    >>> with thief("compute") as t:
    ...     time.sleep(0.1)
    >>> t.bytes > 0 and t.rate > 0
    True
    """
    if kind not in BUFFERS:
        raise ValueError(f"a thief takes {' or '.join(BUFFERS)}, not {kind!r}")
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ValueError(f"cores must be a whole number of at least 1, not {cores!r}")
    if cores >= (here := machine.cores()):
        some = "a core of its own" if cores == 1 else f"{cores} cores of its own"
        raise NoThief(f"no thief here: it needs {some} beside the one it steals from, and this process may use {here} in all")
    try:
        size = BUFFERS[kind]()
    except MemoryError as error:
        raise NoThief(f"no thief of {kind} here: {error}") from error
    found = Thief(kind, cores)
    try:
        found._start(size)
        found.go()
        yield found
        found._tell("end")
    finally:
        found._close()


def shared(cores: int, physical: int) -> tuple[int, int]:
    """How many cores the victim and the thief get of those there are. The thief gets half: one among many could take too little to be seen.

    Two threads that share a core are counted as one, for they would take time from each other; with a single such core there is no choice.

    >>> shared(2, 2), shared(8, 4), shared(2, 1), shared(5, 5)
    ((1, 1), (2, 2), (1, 1), (3, 2))
    """
    several = max(physical, min(cores, 2))
    return several - several // 2, several // 2


@contextmanager
def threads(count: int) -> Iterator[None]:
    """While this is open, PyTorch and Numba compute with so many threads; then with as many as before.

    Numba's first parallel loop starts its threads, which may set PyTorch's number of them too; so that is done here, between reading and setting.
    """
    import torch

    before, numba = torch.get_num_threads(), None
    if find_spec("numba"):
        import numba
    started = numba and numba.get_num_threads()
    try:
        if numba:
            numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
        torch.set_num_threads(count)
        yield
    finally:
        if numba:
            numba.set_num_threads(started)
        torch.set_num_threads(before)
