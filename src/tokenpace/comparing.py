"""In what a result is not the one that was expected, in words that help who made it.

Two floats are seldom equal, a list may be a tuple, a number may be NumPy's: that is no fault. A shape, a dtype, a None is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from numbers import Integral, Number, Real
from types import CoroutineType, FunctionType, GeneratorType


def is_tensor(x: object) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape") and type(x).__module__.startswith("torch")


def same(a: object, b: object) -> bool:
    return difference(a, b) is None


def difference(got: object, want: object) -> str | None:
    """In what `got` is not `want`, in words; None: in nothing that counts. Rounding doesn't count, nor list or tuple, nor a number of NumPy's."""
    try:
        return _difference(got, want)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an array's truth, a tensor without numbers, a learner's own __eq__
        return f"it gives {kind(got)}, and that cannot be compared with what was expected ({type(error).__name__})"


def _difference(got: object, want: object) -> str | None:
    got, want = _plain(got), _plain(want)
    if got is None and want is not None:
        return "it gives None: does every way through it end with `return …`?"
    if is_tensor(want):
        return _tensors(got, want)
    if is_tensor(got):
        return f"it gives a tensor, but {kind(want)} was expected" + (
            " (`.item()` makes a number of a single one)" if isinstance(want, Number) else ""
        )
    if isinstance(want, bool) or isinstance(got, bool) or isinstance(want, str):
        return None if type(got) is type(want) and got == want else f"it gives {short(got)}, but {short(want)} was expected"
    if isinstance(want, Number):
        return _numbers(got, want)
    if isinstance(want, dict):
        if not isinstance(got, dict) or got.keys() != want.keys():
            return f"it gives {short(got)}, but {short(want)} was expected"
        return next((f"at {key!r}: {d}" for key in want if (d := difference(got[key], want[key]))), None)
    if isinstance(want, (list, tuple)):
        return _sequences(got, want)
    if is_dataclass(want) and type(got) is type(want):
        pairs = ((f.name, getattr(got, f.name), getattr(want, f.name)) for f in fields(want))
        return next((f"{type(want).__name__}.{name}: {d}" for name, g, w in pairs if (d := difference(g, w))), None)
    return None if got == want else f"it gives {short(got)}, but {short(want)} was expected"


def _plain(x: object) -> object:
    return x.item() if type(x).__module__ == "numpy" and getattr(x, "ndim", 1) == 0 and x.dtype != object else x


def _tensors(got, want) -> str | None:
    import torch

    if not is_tensor(got):
        more = "; `torch.tensor(…)` makes one of a list" if isinstance(got, (list, tuple)) else ""
        return f"it gives {kind(got)}, but a tensor of shape {list(want.shape)} was expected{more}"
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
    if not isinstance(got, Number):
        return f"it gives {kind(got)}, but a number was expected"
    if got == want or (not isinstance(want, Integral) and isinstance(got, Real | Decimal) and _close(got, want)):
        return None
    if isinstance(got, float) and math.isnan(got):
        return "it gives NaN: 0/0, or ∞ − ∞"
    return f"it gives {_number(got)}, but {_number(want)} was expected"


def _close(got, want) -> bool:
    try:
        return math.isclose(got, want, rel_tol=1e-6, abs_tol=1e-14) or (math.isnan(got) and math.isnan(want))
    except OverflowError:  # a whole number beyond all floats
        return False


def _sequences(got, want) -> str | None:
    if is_tensor(got) or not isinstance(got, (list, tuple)):
        return f"it gives {kind(got)}, but a list of {len(want)} was expected"
    if len(got) != len(want):
        return f"it gives {len(got)} of them, {short(got)}, but {len(want)} were expected, {short(want)}"
    found = next(((i, d) for i, (g, w) in enumerate(zip(got, want)) if (d := difference(g, w))), None)
    if found is None:
        return None
    simple = all(isinstance(x, (Number, str)) for x in [*got, *want]) and len(want) <= 16
    return f"it gives {short(got)}, but {short(want)} was expected" if simple else f"in place {found[0]} (counted from 0): {found[1]}"


KINDS = {
    list: "a list",
    tuple: "a tuple",
    dict: "a dict",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "True or False",
    type: "a class",
    FunctionType: "a function",
    GeneratorType: "a generator (a function with `yield` in it makes one; `return` hands back the thing itself)",
    CoroutineType: "a coroutine (`async def` makes one; leave `async` out)",
}


def kind(x: object) -> str:
    return KINDS.get(type(x), "an array of NumPy" if type(x).__module__ == "numpy" else f"something of type {type(x).__name__}")


def _number(x) -> str:
    return short(x, lambda x: f"{x:,}" if isinstance(x, Integral) and not isinstance(x, bool) else f"{x:.6g}" if isinstance(x, float) else repr(x))


def short(x: object, text: Callable[[object], str] = repr) -> str:
    """On one line."""
    try:
        said = " ".join(text(x).split())
    except KeyboardInterrupt:
        raise
    except BaseException:  # a learner's own __repr__, which may exit, too; a number of 5000 digits
        said = kind(x) if type(x) in KINDS else f"something of type {type(x).__name__}"
    return said if len(said) <= 120 else said[:117] + "…"


def _dtype(x) -> str:
    return str(x.dtype).removeprefix("torch.")
