"""Many numbers as one: the row sums of a tile, kept in a core's registers while its columns go by.

A core multiplies 4 to 16 numbers in one instruction, if they lie side by side, and writing a running sum to memory costs more than adding to it.
A loop in plain Python leaves both to the compiler's luck. Here they are types of Numba: `Rows`, one number for each of a tile's 64 rows, and
`Sums`, such numbers for one or for four tokens. LLVM cuts them to the width of whatever core it compiles for.

    sums = several()                                 four tokens × 64 rows, all zero
    for k in range(columns):
        sums = plus(sums, rows(tile[k]), x, n, k)    of tokens n to n + 3: sums += column k of the tile × x[n:n+4, k]
    put(sums, y)                                     to an array [4, 64]
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_untracked
from numba.extending import intrinsic, models, register_model

from .jit import FLOAT, INT16, INT32, has

TILE = 64
ROWS, WORDS = ir.VectorType(FLOAT, TILE), ir.VectorType(INT32, TILE)
PAIRED = has("avx512bf16")  # an instruction for pairs of bfloat16
AT_ONCE = 4 if has("avx512f") else 1  # tokens whose sums fit into the registers beside a column: there are 32 of 16 numbers, or 16 of 8


class Vector(types.Type):
    """The Numba type of an LLVM vector, or of an array of such."""

    def __init__(self, name: str, llvm_type: ir.Type):
        super().__init__(name)
        self.llvm_type = llvm_type


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.llvm_type)


Rows, Words = Vector("Rows", ROWS), Vector("Words", WORDS)
Sums = {n: Vector(f"Sums[{n}]", ir.ArrayType(ROWS, n)) for n in {1, AT_ONCE}}


class BFloat(ir.types._BaseFloatType):
    """llvmlite has no bfloat16; LLVM has."""

    null, intrinsic_name = "0.0", "bf16"

    def __str__(self):
        return "bfloat"


BFloat._create_instance()


def constant(number: int) -> ir.Constant:
    return ir.Constant(WORDS, [number] * TILE)


def splat(build, x, lanes: int):
    """A vector that has the number x everywhere."""
    kind = ir.VectorType(x.type, lanes)
    first = build.insert_element(ir.Constant(kind, ir.Undefined), x, INT32(0))
    return build.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def multiply_add(build, a, b, c):
    """a · b + c, in one instruction where there is one."""
    return build.fadd(build.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def data(ctx, build, kind, array):
    return cgutils.create_struct_proxy(kind)(ctx, build, array).data


def entry(ctx, build, kind, array, row, column):
    """The number array[row, column] of a two-dimensional C array."""
    whole = cgutils.create_struct_proxy(kind)(ctx, build, array)
    size = cgutils.unpack_tuple(build, whole.shape, 2)[1]
    return build.load(build.gep(whole.data, [build.add(build.mul(row, size), column)]))


def vector_at(build, pointer, number: ir.Type, lanes: int = TILE):
    """So many numbers from a pointer on, which need not be aligned."""
    loaded = build.load(build.bitcast(pointer, ir.VectorType(number, lanes).as_pointer()))
    loaded.align = 1
    return loaded


def half(build, loaded):
    """Rows of the bits of float16: sign, 5 bits of exponent and 10 of fraction are set into a float32, whose exponent counts from 112 higher.

    Cores and LLVM libraries without an instruction for it exist, so none is asked for. Infinity and NaN come out as large numbers: no scale is one.
    """
    word = build.sext(loaded, WORDS)
    size = build.bitcast(build.and_(build.shl(word, constant(13)), constant(0x0FFFE000)), ROWS)
    scaled = build.bitcast(build.fmul(size, ir.Constant(ROWS, [2.0**112] * TILE)), WORDS)
    return build.bitcast(build.or_(scaled, build.and_(word, constant(-0x80000000))), ROWS)


@intrinsic
def rows(context, array):
    """64 numbers of an array as Rows: float32, int8, or the bits of floats: int32 for float32, int16 for float16 (which Numba does not know)."""
    number = {"float32": FLOAT, "int32": FLOAT, "int16": INT16, "int8": ir.IntType(8)}[array.dtype.name]

    def generate(ctx, build, signature, args):
        loaded = vector_at(build, data(ctx, build, array, args[0]), number)
        if number is FLOAT:
            return loaded
        return half(build, loaded) if number is INT16 else build.sitofp(loaded, ROWS)

    return Rows(array), generate


@intrinsic
def words(context, array):
    """64 numbers of an array of uint32."""
    return Words(array), lambda ctx, build, signature, args: vector_at(build, data(ctx, build, array, args[0]), INT32)


@intrinsic
def field(context, word, shift, mask, bits):
    """Rows that are made of Words: moved by `shift` bits to the left (negative: right), all but those in `mask` cleared, `bits` set."""

    def generate(ctx, build, signature, args):
        word, shift, mask, bits = args
        mask, bits = (splat(build, build.trunc(a, INT32), TILE) for a in (mask, bits))
        left = build.shl(word, splat(build, build.trunc(shift, INT32), TILE))
        right = build.lshr(word, splat(build, build.trunc(build.neg(shift), INT32), TILE))
        moved = build.select(build.icmp_signed(">=", shift, ir.Constant(shift.type, 0)), left, right)
        return build.bitcast(build.or_(build.and_(moved, mask), bits), ROWS)

    return Rows(word, types.int64, types.int64, types.int64), generate


@intrinsic
def one(context):
    """Zero for one token's sums."""
    return Sums[1](), lambda ctx, build, signature, args: ir.Constant(Sums[1].llvm_type, None)


@intrinsic
def several(context):
    """Zero for the sums of AT_ONCE tokens."""
    return Sums[AT_ONCE](), lambda ctx, build, signature, args: ir.Constant(Sums[AT_ONCE].llvm_type, None)


@intrinsic
def none_of(context, sums):
    """Zero for as many tokens as `sums` has."""
    return sums(sums), lambda ctx, build, signature, args: ir.Constant(sums.llvm_type, None)


@intrinsic
def ones(context):
    """Rows of ones."""
    return Rows(), lambda ctx, build, signature, args: ir.Constant(ROWS, [1.0] * TILE)


def each(build, sums, change):
    """Sums whose token i is change(i, what it was)."""
    for i in range(sums.type.count):
        sums = build.insert_value(sums, change(i, build.extract_value(sums, i)), i)
    return sums


def token(build, n, i: int):
    return build.add(n, ir.Constant(n.type, i))


@intrinsic
def plus(context, sums, column, x, n, k):
    """Sums of tokens n and after, with column · x[token, k] added; x float32 [N, K]."""

    def generate(ctx, build, signature, args):
        sums, column, array, n, k = args
        number = lambda i: splat(build, entry(ctx, build, x, array, token(build, n, i), k), TILE)
        return each(build, sums, lambda i, total: multiply_add(build, column, number(i), total))

    return sums(sums, column, x, types.int64, types.int64), generate


@intrinsic
def plus_pair(context, sums, columns, x, n, q):
    """Sums of tokens n and after, with two columns at a time: `columns` has a pair of bfloat16 for each row, x [N, K/2] one for each token.

    In one instruction where the core has one for it.
    """

    def generate(ctx, build, signature, args):
        sums, columns, array, n, q = args

        def paired(i, total):
            pair = entry(ctx, build, x, array, token(build, n, i), q)
            if not PAIRED:
                upper = lambda bits: build.bitcast(bits, FLOAT)
                low, high = upper(build.shl(pair, INT32(16))), upper(build.and_(pair, INT32(0xFFFF0000)))
                first = build.bitcast(build.shl(columns, constant(16)), ROWS)
                second = build.bitcast(build.and_(columns, constant(0xFFFF0000)), ROWS)
                total = multiply_add(build, first, splat(build, low, TILE), total)
                return multiply_add(build, second, splat(build, high, TILE), total)
            half, part = ir.VectorType(BFloat(), 32), ir.VectorType(FLOAT, 16)
            dot = cgutils.get_or_insert_function(build.module, ir.FunctionType(part, [part, half, half]), "llvm.x86.avx512bf16.dpbf16ps.512")
            given, parts = build.bitcast(splat(build, pair, 16), half), []
            for at in range(0, TILE, 16):
                some = ir.Constant(ir.VectorType(INT32, 16), list(range(at, at + 16)))
                w = build.bitcast(build.shuffle_vector(columns, columns, some), half)
                parts.append(build.call(dot, [build.shuffle_vector(total, total, some), w, given]))
            join = lambda a, b: build.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, 2 * a.type.count), list(range(2 * a.type.count))))
            return join(join(parts[0], parts[1]), join(parts[2], parts[3]))

        return each(build, sums, paired)

    return sums(sums, columns, x, types.int64, types.int64), generate


@intrinsic
def plus_scaled(context, sums, scale, more):
    """sums + scale · more: what a group of columns came to, times the group's scale."""

    def generate(ctx, build, signature, args):
        sums, scale, more = args
        return each(build, sums, lambda i, total: multiply_add(build, scale, build.extract_value(more, i), total))

    return sums(sums, scale, more), generate


@intrinsic
def put(context, sums, y):
    """Write Sums to a float32 array [tokens, 64]."""

    def generate(ctx, build, signature, args):
        sums, pointer = args[0], data(ctx, build, y, args[1])
        for i in range(sums.type.count):
            place = build.gep(pointer, [ir.Constant(ir.IntType(64), i * TILE)])
            build.store(build.extract_value(sums, i), build.bitcast(place, ROWS.as_pointer())).align = 4
        return impl_ret_untracked(ctx, build, types.none, ctx.get_dummy_value())

    return types.none(sums, y), generate
