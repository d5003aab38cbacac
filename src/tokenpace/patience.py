"""A call that is given so long, so much memory, and no more, whatever code it is that runs.

Code that somebody is still learning to write loops for ever, sleeps, fills a list without end, and has `except: pass` around all of it. It runs in
the notebook's own process, beside the model, so it cannot simply be ended: it must be made to raise. A thread watches, and raises an exception in it.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

ROOM = 1 << 30  # bytes that a call may add to the process
LOOK = 0.1  # seconds between two looks at the memory
POLITE = 2  # exceptions, a second apart, that code may catch and go on: it may have been about to end
SIGNAL = getattr(signal, "SIGURG", None)  # by default it does nothing, so that one which comes too late is harmless


class TooLong(BaseException):
    """Raised inside code that does not end. No Exception, so that an `except Exception` in it does not catch it."""


class TooMuch(TooLong):
    """Raised inside code that takes all the memory."""


def within(seconds: float, call: Callable[[], object]) -> object:
    """call(), or TooLong inside it after that many seconds, or TooMuch once it has taken ROOM.

    It is raised again each second until the code gives in; from the third on so that no `except:` around a loop holds it: what catches one gets the
    next at once. It reaches Python code on any system and in any thread, in the main thread of a POSIX system also what sleeps or waits. A single
    long operation of PyTorch ends first.
    """
    watch = _Watch(seconds, sys._getframe())
    try:
        watch.start()
        return call()
    except TooLong:
        watch.calm()
        raise (watch.why or TooLong)() from None
    finally:
        watch.calm()  # the first thing, before anything that Python could interrupt
        watch.end()


def surely(restore: Callable[[], None]) -> None:
    """restore(), which may be done again: as often as it takes until nothing interrupted it. An interrupt comes when it is done."""
    interrupt = None
    while True:
        try:
            restore()
            break
        except TooLong:
            pass
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt:
        raise interrupt


_Raise = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)
_raise = _Raise(("PyThreadState_SetAsyncExc", ctypes.pythonapi))  # None of a result, because an __init__ must have none
_clear = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.c_void_p)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))


class _Watch:
    """What looks after one call, from a thread of its own."""

    def __init__(self, seconds: float, frame):
        self.seconds, self.frame, self.why, self.me = seconds, frame, None, ctypes.c_ulong(threading.get_ident())
        self.lock, self.over = threading.Lock(), threading.Event()
        self.calm = partial(_clear, self.me, None)  # takes back what was not raised yet; a call of C alone, so nothing is raised within it
        self.again = type("TooLong", (TooLong,), {})  # whoever catches it makes an instance of it, and that raises the next
        self.again.__init__ = staticmethod(partial(_raise, self.me, ctypes.py_object(self.again)))
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.handler = None  # of SIGNAL, as it was

    def start(self) -> None:
        if SIGNAL and threading.current_thread() is threading.main_thread():
            self.handler = signal.signal(SIGNAL, self._wake)
        self.thread.start()

    def _wake(self, *_) -> None:
        """In the main thread: what sleeps or waits in C hears a signal, and nothing else."""
        if not self.over.is_set():
            raise TooLong

    def end(self) -> None:
        """Nothing is raised from here on, whatever is on its way."""
        surely(self._end)

    def _end(self) -> None:
        self.calm()
        with self.lock:
            self.over.set()
            self.calm()
        if self.handler is not None:
            signal.signal(SIGNAL, self.handler)
            self.handler = None
        if self.thread.ident:
            self.thread.join()
        self.frame = None

    def _look(self) -> None:
        full, told, left = _memory() + ROOM, 0, self.seconds
        while not self.over.wait(min(left, LOOK)):
            left -= min(left, LOOK)
            if left > 0 and (told or _memory() < full):
                continue
            self.why = self.why or (TooLong if left <= 0 else TooMuch)
            with self.lock:
                if self.over.is_set() or not self._is_running():
                    return
                if told >= POLITE or self.handler is None:
                    _raise(self.me, ctypes.py_object(self.again if told >= POLITE else TooLong))
                if self.handler is not None:
                    signal.pthread_kill(self.me.value, SIGNAL)
            told, left = told + 1, 1.0

    def _is_running(self) -> bool:
        """Is the call still on its thread's stack? An interrupt may have ended it, and `end` too."""
        frame = sys._current_frames().get(self.me.value)
        while frame and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


def _memory() -> int:
    import psutil

    return psutil.Process().memory_info().rss
