"""Running code that somebody is still learning to write, and saying in one sentence what is wrong with it.

It may raise, run for ever, return nothing, print megabytes or change what it was given. None of that may stop a lesson, so here it becomes an
`Outcome`: something that can be compared with another Outcome, and told.
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import io
import math
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from numbers import Integral, Number

PATIENCE = 10.0  # seconds that a trial may take
QUIET = 300  # characters that a trial may print before the rest is dropped


class TooLong(BaseException):
    """Raised inside code that does not end. No Exception, so that an `except Exception` in it does not catch it."""


class Busy(Exception):
    """A trial that measures may raise this: the machine was too busy to tell."""


@dataclass
class Outcome:
    """What came of one trial: a value, or an error; what was printed; which inputs were changed."""

    value: object = None
    error: BaseException | None = None
    where: str = ""  # the line of the learner's that raised it
    printed: str = ""
    changed: set[str] = field(default_factory=set)


class _Bounded(io.StringIO):
    """Takes everything, keeps the beginning."""

    size = 0

    def write(self, text: str) -> int:
        self.size += len(text)
        return super().write(text[: max(QUIET - self.tell(), 0)]) and len(text)


def attempt(trial: Callable, mine: object, seconds: float = PATIENCE) -> Outcome:
    """Run a trial on something, whatever that may do.

    Raises KeyboardInterrupt (that is the learner's own) and Busy, and nothing else.
    """
    outcome, out, late = Outcome(), _Bounded(), []
    watched = watching(mine, outcome.changed, late) if inspect.isfunction(mine) else mine
    try:
        with redirect_stdout(out), redirect_stderr(out):
            outcome.value = within(seconds, lambda: trial(watched))
        for look in late:
            look()
    except (KeyboardInterrupt, Busy):
        raise
    except BaseException as error:  # SystemExit, GeneratorExit, a recursion: all of it is an answer
        outcome.error, outcome.where = error, _line(error, mine)
    outcome.printed = out.getvalue() + (f" … ({out.size:,} characters)" if out.size > QUIET else "")
    return outcome


def within(seconds: float, call: Callable[[], object]) -> object:
    """call(), or TooLong inside it after that many seconds, and again each second until it gives in.

    It reaches Python code on any system and in any thread; a single long operation of PyTorch ends first.
    """
    me, lock, over = threading.get_ident(), threading.Lock(), threading.Event()

    def raise_in_it(error) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(error) if error else None)

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            with lock:
                if not over.is_set():
                    raise_in_it(TooLong)
            wait = 1.0

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return call()
    finally:
        over.set()
        with lock:
            raise_in_it(None)  # one that was sent while it ended must not arrive here
        watcher.join()


def watching(f: Callable, changed: set[str], late: list) -> Callable:
    """`f`, noting the names of those arguments that it changes. A generator's are looked at in the end, through `late`."""
    names = list(inspect.signature(f).parameters)

    @wraps(f)
    def watched(*args, **named):
        given = {**dict(zip(names, args)), **named}
        before = {name: copy.deepcopy(x) for name, x in given.items() if isinstance(x, (list, dict, set)) or is_tensor(x)}
        look = lambda: changed.update(name for name, x in before.items() if not same(given[name], x))
        late.append(look) if inspect.isgeneratorfunction(f) else None
        result = f(*args, **named)
        look()
        return result

    return watched


def _line(error: BaseException, mine: object) -> str:
    """The last line of the learner's own code on the way to an error."""
    home = getattr(getattr(mine, "__code__", None), "co_filename", None) or next(
        (f.__code__.co_filename for f in vars(mine).values() if inspect.isfunction(f)) if inspect.isclass(mine) else iter(()), None
    )
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == home]
    return f"line {frames[-1].lineno} of the cell, {frames[-1].line!r}" if frames and frames[-1].line else ""


# comparing -------------------------------------------------------------------------------------------------------


def is_tensor(x: object) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape") and type(x).__module__.startswith("torch")


def same(a: object, b: object) -> bool:
    return difference(a, b) is None


def alike(a: Outcome, b: Outcome) -> bool:
    """Did the same come of both, whatever else they changed?"""
    return type(a.error) is type(b.error) and (bool(a.error) or same(a.value, b.value))


def difference(got: object, want: object) -> str | None:
    """In what `got` is not `want`, in words; None: in nothing that counts. Rounding doesn't count, nor list or tuple."""
    if got is None and want is not None:
        return "it gives None: does every way through it end with `return …`?"
    if is_tensor(want):
        return _tensors(got, want)
    if is_tensor(got):
        return f"it gives a tensor, but {_a(want)} was expected" + (" (`.item()` makes a number of a single one)" if isinstance(want, Number) else "")
    if isinstance(want, bool) or isinstance(got, bool) or isinstance(want, str):
        return None if type(got) is type(want) and got == want else f"it gives {_short(got)}, but {_short(want)} was expected"
    if isinstance(want, Number):
        return _numbers(got, want)
    if isinstance(want, dict):
        if not isinstance(got, dict) or got.keys() != want.keys():
            return f"it gives {_short(got)}, but {_short(want)} was expected"
        return next((f"at {key!r}: {d}" for key in want if (d := difference(got[key], want[key]))), None)
    if isinstance(want, (list, tuple)):
        return _sequences(got, want)
    if is_dataclass(want) and type(got) is type(want):
        pairs = ((f.name, getattr(got, f.name), getattr(want, f.name)) for f in fields(want))
        return next((f"{type(want).__name__}.{name}: {d}" for name, g, w in pairs if (d := difference(g, w))), None)
    return None if got == want else f"it gives {_short(got)}, but {_short(want)} was expected"


def _tensors(got, want) -> str | None:
    import torch

    if not is_tensor(got):
        more = "; `torch.tensor(…)` makes one of a list" if isinstance(got, (list, tuple)) else ""
        return f"it gives {_a(got)}, but a tensor of shape {list(want.shape)} was expected{more}"
    if got.shape != want.shape:
        return f"it gives a tensor of shape {list(got.shape)}, but {list(want.shape)} was expected"
    if got.dtype != want.dtype:
        return f"its numbers are {_dtype(got)}, but {_dtype(want)} was expected: mind in what precision you compute, and what you give back"
    if not want.dtype.is_floating_point:
        off = got != want
    else:
        g, w = got.detach().double(), want.detach().double()
        nan = g.isnan() & ~w.isnan()
        if bool(nan.any()):
            return f"there is NaN in it, first at {nan.nonzero()[0].tolist()}: 0/0, ∞ − ∞, or a softmax over nothing"
        rounding = 4 * torch.finfo(want.dtype).eps if want.dtype.itemsize < 4 else 1e-4
        finite = w[w.isfinite()].abs()
        atol = rounding * 0.05 * (float(finite.max()) if len(finite) else 0.0)
        off = ~torch.isclose(g, w, rtol=rounding, atol=atol, equal_nan=True)
    if not bool(off.any()):
        return None
    at = tuple(off.nonzero()[0].tolist())
    first = f"{_number(got[at].item())}, but {_number(want[at].item())} was expected"
    return f"{int(off.sum())} of {off.numel()} numbers are off, first at {list(at)}: {first}"


def _numbers(got, want) -> str | None:
    if not isinstance(got, Number) and not (type(got).__module__ == "numpy" and getattr(got, "ndim", 1) == 0):
        return f"it gives {_a(got)}, but a number was expected"
    right = got == want if isinstance(want, Integral) else math.isclose(got, want, rel_tol=1e-6) or (math.isnan(got) and math.isnan(want))
    if right:
        return None
    if isinstance(got, float) and math.isnan(got):
        return "it gives NaN: 0/0, or ∞ − ∞"
    return f"it gives {_number(got)}, but {_number(want)} was expected"


def _sequences(got, want) -> str | None:
    if is_tensor(got) or not isinstance(got, (list, tuple)):
        return f"it gives {_a(got)}, but a list of {len(want)} was expected"
    if len(got) != len(want):
        return f"it gives {len(got)} of them, {_short(got)}, but {len(want)} were expected, {_short(want)}"
    found = next(((i, d) for i, (g, w) in enumerate(zip(got, want)) if (d := difference(g, w))), None)
    if found is None:
        return None
    simple = all(isinstance(x, (Number, str)) for x in [*got, *want]) and len(want) <= 16
    return f"it gives {_short(got)}, but {_short(want)} was expected" if simple else f"in place {found[0]} (counted from 0): {found[1]}"


def _a(x: object) -> str:
    kinds = {list: "a list", tuple: "a tuple", dict: "a dict", str: "a string", int: "a number", float: "a number", bool: "True or False"}
    return kinds.get(type(x), "an array of NumPy" if type(x).__module__ == "numpy" else f"something of type {type(x).__name__}")


def _number(x) -> str:
    return f"{x:,}" if isinstance(x, Integral) and not isinstance(x, bool) else f"{x:.6g}" if isinstance(x, float) else repr(x)


def _short(x: object) -> str:
    try:
        text = repr(x)
    except Exception:  # a learner's own __repr__
        text = f"something of type {type(x).__name__}"
    return text if len(text) <= 120 else text[:117] + "…"


def _dtype(x) -> str:
    return str(x.dtype).removeprefix("torch.")


# telling ---------------------------------------------------------------------------------------------------------


def told(got: Outcome, want: Outcome, what: str) -> str | None:
    """What is wrong with an outcome, in a sentence or two; None: nothing. `what` says what was tried."""
    tried = f" (Tried: {what}.)" if what else ""
    if isinstance(got.error, TooLong):
        return f"it did not end within {PATIENCE:.0f} seconds. Is there a loop whose condition never becomes false?{tried}"
    if got.error and not (want.error and type(got.error) is type(want.error)):
        line = f" in {got.where}" if got.where else ""
        return f"it raises {type(got.error).__name__}{line}: {_short_error(got.error)}{tried}"
    if want.error and not got.error:
        return f"it gives {_short(got.value)}, but should raise {type(want.error).__name__}.{tried}"
    if found := difference(got.value, want.value):
        return f"{found.removesuffix('?')}{'?' if found.endswith('?') else '.'}{tried}"
    if got.changed - want.changed:
        names = " and ".join(sorted(got.changed))
        return f"it changes what it was given, {names}: make something new instead (`x = x + 1` does, `x += 1` and `x.append(…)` do not).{tried}"
    return None


def _short_error(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if len(text) <= 300 else text[:297] + "…"
