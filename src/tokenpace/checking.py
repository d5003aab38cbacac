"""Running code that somebody is still learning to write, and saying in one sentence what is wrong with it.

It may raise, run for ever, return nothing, print megabytes or change what it was given. None of that may stop a lesson, so here it becomes an
`Outcome`: something that can be compared with another Outcome, and told.
"""

from __future__ import annotations

import inspect
import io
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from numbers import Number

from .comparing import difference, is_tensor, same, short
from .patience import ROOM, TooLong, TooMuch, surely, within

PATIENCE = 10.0  # seconds that a trial may take
QUIET = 300  # characters that a trial may print before the rest is dropped


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
    left: set[str] = field(default_factory=set)  # settings of the whole process that it did not put back


class _Bounded(io.StringIO):
    """Takes everything, keeps the beginning."""

    size = 0

    def close(self) -> None:
        """The learner's own `sys.stdout.close()` closes nothing."""

    def write(self, text: str) -> int:
        self.size += len(text)
        return super().write(text[: max(QUIET - self.tell(), 0)]) and len(text)


def attempt(trial: Callable, mine: object, seconds: float = PATIENCE) -> Outcome:
    """Run a trial on something, whatever that may do.

    Raises KeyboardInterrupt (that is the learner's own) and Busy, and nothing else.
    """
    outcome, out, late, streams = Outcome(), _Bounded(), [], (sys.stdout, sys.stderr)
    watched = mine if inspect.isclass(mine) or not callable(mine) else watching(mine, outcome.changed, late)
    put_back = settings(outcome.left)
    try:
        sys.stdout = sys.stderr = out
        outcome.value = within(seconds, lambda: trial(watched))
        if inspect.iscoroutine(outcome.value):
            outcome.value.close()  # or Python would complain about it, sooner or later
        for look in late:
            look()
    except (KeyboardInterrupt, Busy):
        raise
    except BaseException as error:  # SystemExit, GeneratorExit, a recursion: all of it is an answer
        outcome.error, outcome.where = error, _line(error, mine)
    finally:
        sys.stdout, sys.stderr = streams  # calls nothing, so no interrupt comes between
        surely(put_back)
    outcome.printed = out.getvalue() + (f" … ({out.size:,} characters)" if out.size > QUIET else "")
    return outcome


def settings(left: set[str]) -> Callable[[], None]:
    """What puts everything back that holds for the whole process; `left` then names what had changed. Seeds too, but those are no fault."""
    import numpy as np
    import torch

    kept = {
        "PyTorch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "whether PyTorch keeps gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
        "PyTorch's number of threads": (torch.get_num_threads, torch.set_num_threads),
        "Python's recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    }
    before = {name: get() for name, (get, _) in kept.items()}
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def put_back() -> None:
        for name, (get, put) in kept.items():
            if get() != before[name]:
                left.add(name)
                put(before[name])
        torch.set_rng_state(drawn[0])
        random.setstate(drawn[1])
        np.random.set_state(drawn[2])

    return put_back


def watching(f: Callable, changed: set[str], late: list) -> Callable:
    """`f`, noting the names of those arguments that it changes. A generator's are looked at in the end, through `late`."""
    try:
        names = [p.name for p in inspect.signature(f).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):  # a builtin has none
        names = []

    @wraps(f)
    def watched(*args, **named):
        given = {names[i] if i < len(names) else f"argument {i + 1}": x for i, x in enumerate(args)} | named
        before = {name: _copy(x) for name, x in given.items()}
        look = lambda: changed.update(name for name, x in before.items() if not same(_copy(given[name]), x))
        result = f(*args, **named)
        late.append(look) if inspect.isgenerator(result) else look()
        return result

    return watched


def _copy(x: object) -> object:
    """As much of it as can be changed and looked at; anything else stands for itself."""
    if is_tensor(x):
        return x.detach().clone()
    if is_dataclass(x) and not inspect.isclass(x):
        return {f.name: _copy(getattr(x, f.name)) for f in fields(x)}
    if isinstance(x, dict):
        return {key: _copy(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_copy(one) for one in x]
    return set(x) if isinstance(x, set) else x if isinstance(x, (Number, str)) else id(x)


def _line(error: BaseException, mine: object) -> str:
    """The last line of the learner's own code on the way to an error."""
    home = getattr(getattr(mine, "__code__", None), "co_filename", None) or next(
        (f.__code__.co_filename for f in vars(mine).values() if inspect.isfunction(f)) if inspect.isclass(mine) else iter(()), None
    )
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == home]
    return f"line {frames[-1].lineno} of the cell, {frames[-1].line!r}" if frames and frames[-1].line else ""


def alike(a: Outcome, b: Outcome) -> bool:
    """Did the same come of both, whatever else they changed?"""
    return type(a.error) is type(b.error) and (bool(a.error) or same(a.value, b.value))


def told(got: Outcome, want: Outcome, what: str) -> str | None:
    """What is wrong with an outcome, in a sentence or two; None: nothing. `what` says what was tried."""
    tried = f" (Tried: {what}.)" if what else ""
    if isinstance(got.error, TooMuch):
        return f"it took more than {ROOM / 2**30:.0f} GiB of memory and was stopped. Is there a list that grows without end?{tried}"
    if isinstance(got.error, TooLong):
        return f"it did not end within {PATIENCE:.0f} seconds. Is there a loop whose condition never becomes false?{tried}"
    if got.error and not (want.error and type(got.error) is type(want.error)):
        line = f" in {got.where}" if got.where else ""
        return f"it raises {type(got.error).__name__}{line}: {_short_error(got.error)}{tried}"
    if want.error and not got.error:
        return f"it gives {short(got.value)}, but should raise {type(want.error).__name__}.{tried}"
    if found := difference(got.value, want.value):
        return f"{found.removesuffix('?')}{'?' if found.endswith('?') else '.'}{tried}"
    if got.changed - want.changed:
        names = " and ".join(sorted(got.changed))
        return f"it changes what it was given, {names}: make something new instead (`x = x + 1` does, `x += 1` and `x.append(…)` do not).{tried}"
    if got.left - want.left:
        names = " and ".join(sorted(got.left))
        return f"it changes {names}, for everything that runs after it. It was put back; do without it, or put it back yourself.{tried}"
    return None


def _short_error(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split()) or "no message"
    except KeyboardInterrupt:
        raise
    except BaseException:  # a learner's own __str__
        text = "its message cannot be read"
    return text if len(text) <= 300 else text[:297] + "…"
