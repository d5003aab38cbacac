"""Running the package on somebody else's parts: their norm in the real model, their loop in the real driver."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from .config import nearest
from .exercises import exercises


@dataclass
class Used:
    """How often each part that was put in was called."""

    calls: Counter = field(default_factory=Counter)
    inside: tuple[str, ...] = ()  # those of the model, for which the tiled kernels have loops of their own

    def __str__(self) -> str:
        told = ", ".join(f"{name} {n:,} time{'s' * (n != 1)}" for name, n in self.calls.items())
        idle = [name for name in self.inside if not self.calls[name]]
        return f"called: {told}" + (f" (nothing here needs {', '.join(idle)}: do the tiled kernels run in its place?)" if idle else "")

    __repr__ = __str__


@contextmanager
def using(**mine) -> Iterator[Used]:
    """While this is open, the package runs on these in place of its own: `with using(rms_norm=mine) as used: …`. `used.calls` counts.

    Names are those of exercises' targets; ValueError for another. Every module that holds the original gets the replacement, and the original back
    in the end, whatever happened. The tiled kernels are compiled and call no parts: use a plain model. This is the package's one global state.
    """
    targets = {one.target.split(":")[1]: one for one in exercises().values() if one.target and one.original}
    for name, part in mine.items():
        if name not in targets:
            raise ValueError(f"nothing that can be replaced is called {name!r}{nearest(name, targets)}")
        if not callable(part):
            raise TypeError(f"{name} is {part!r:.60}, which cannot be called")
    used = Used(Counter(dict.fromkeys(mine, 0)), tuple(name for name in mine if targets[name].target.startswith("tokenpace.model.")))
    with ExitStack() as back:
        for name, part in mine.items():
            original, counted = targets[name].standing, _counted(part, name, used.calls)
            for module in [m for at, m in list(sys.modules.items()) if at.split(".")[0] == "tokenpace" and m]:
                for attribute, value in list(vars(module).items()):
                    if value is original:
                        back.callback(setattr, module, attribute, original)
                        setattr(module, attribute, counted)
        yield used


def _counted(part: Callable, name: str, calls: Counter) -> Callable:
    if inspect.isclass(part):
        methods = {n: _counted(f, name, calls) for n, f in vars(part).items() if inspect.isfunction(f)}
        return type(part.__name__, (part,), methods)

    @functools.wraps(part)
    def counted(*args, **named):
        calls[name] += 1
        return part(*args, **named)

    return counted
