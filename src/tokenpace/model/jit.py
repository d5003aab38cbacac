"""How the loops are compiled and kept, and what they need of numbers that neither Python nor Numba has: bfloat16, e^x without a call, addresses.

Sums may be taken in any order and products joined to them, which is what lets a compiler use all of a core's lanes.
"""

from __future__ import annotations

from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

F32 = np.float32
INT16, INT32, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
FAST = {"contract", "reassoc", "nsz", "arcp"}  # sums may be reordered, but NaN and infinity keep their meaning: a NaN must reach the logits
OPTIONS = {"fastmath": FAST, "error_model": "numpy"}  # a division by zero is an infinity, as in PyTorch, and needs no test


def has(feature: str) -> bool:
    """Can the core that is compiled for do this? It is the one at hand, or what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say."""
    if config.CPU_FEATURES is None and config.CPU_NAME is None:
        return bool(llvm.get_host_cpu_features().get(feature))
    return f"+{feature}" in (config.CPU_FEATURES or "")


def jit(**options):
    """njit, kept on disk if there is a place for it: NUMBA_CACHE_DIR, else beside this file, else the user's cache folder."""

    def compiled(f):
        try:
            made = njit(cache=True, **OPTIONS, **options)(f)
        except RuntimeError:  # no such place: compile once per process
            return njit(**OPTIONS, **options)(f)
        if hasattr(made, "_cache"):
            made._cache._cache_file._source_stamp = STAMP
        return made

    return compiled


def stamp() -> tuple:
    """What the compiled loops were made from: all of these files. Numba asks about the one that a function stands in alone."""
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(Path(__file__).parent.glob("*.py")))


STAMP = stamp()


@intrinsic
def widen(context, number):
    """A float32 as it is; a uint16 as the float32 whose upper half it is, which is what a bfloat16 means."""

    def generate(ctx, build, signature, args):
        if number == types.float32:
            return args[0]
        return build.bitcast(build.shl(build.zext(args[0], INT32), INT32(16)), FLOAT)

    return types.float32(number), generate


@intrinsic
def narrow(context, number, like):
    """The float32 `number` in the type of `like`: as it is, or the nearest bfloat16 (ties to even; NaN stays NaN) as a uint16."""

    def generate(ctx, build, signature, args):
        if like == types.float32:
            return args[0]
        bits = build.bitcast(args[0], INT32)
        even = build.and_(build.lshr(bits, INT32(16)), INT32(1))
        nan = build.icmp_unsigned(">", build.and_(bits, INT32(0x7FFFFFFF)), INT32(0x7F800000))
        rounded = build.select(nan, INT32(0x7FC00000), build.add(bits, build.add(even, INT32(0x7FFF))))
        return build.trunc(build.lshr(rounded, INT32(16)), INT16)

    return like(types.float32, like), generate


@intrinsic
def power_of_two(context, number):
    """2ⁿ in float32, for an int32 n from -126 to 127."""

    def generate(ctx, build, signature, args):
        return build.bitcast(build.shl(build.add(args[0], INT32(127)), INT32(23)), FLOAT)

    return types.float32(types.int32), generate


@intrinsic
def pointer(context, address, like):
    """An address as that of a number of the type that the array `like` holds."""

    def generate(ctx, build, signature, args):
        return build.inttoptr(args[0], ctx.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate


@jit(forceinline=True)
def exp(x):
    """e^x to a few millionths; 0 below -87, no more than e^88. Nothing is called, unlike in np.exp, so a loop over it becomes vector code."""
    small = F32(88) if x > F32(88) else x
    n = np.floor(small * F32(1.442695) + F32(0.5))
    r = small - n * F32(0.6931472)  # e^x = 2ⁿ · e^r, and |r| is so small that Taylor's series ends soon
    p = F32(1) + r * (F32(1) + r * (F32(1 / 2) + r * (F32(1 / 6) + r * (F32(1 / 24) + r * (F32(1 / 120) + r * F32(1 / 720))))))
    return F32(0) if x < F32(-87) else p * power_of_two(np.int32(n))
