"""Building blocks of compiled CPU kernels: scalar functions that LLVM vectorizes, and the parallel region.

A kernel is a C function `void(a, b, c, out, start, stop, slot, m, s)`. It gets four arrays, the range of units
to work on (elements, rows, tiles), and the number of its slice. Each kernel defines what the integers m and s
mean. `share` and `alone` call the kernels. They are compiled once for all kernels, so an op only compiles its
own loops.

- The functions of a body have only the flag {contract}: reassociation would delete the steps that make `exp`
  exact. Loops that add up have {contract, reassoc, nsz}; without these flags LLVM does not vectorize them.
- Maxima use `llvm.maximum`, which LLVM vectorizes as a reduction, and whose result is NaN if an argument is, as
  in NumPy. A comparison has neither property.
- Constants are typed: `0.5 * x` would be computed in float64.

Only workers import this module: numba takes half a second.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np  # noqa: TID253 - this module is imported in a worker only
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from gpubench.backends.numpy.machine_code import FunctionCode

BODY = {"contract"}
SUM = {"contract", "reassoc", "nsz"}
STREAMED = 2048  # elements of one block of streaming stores: it stays in the first cache
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}
# Options of functions that LLVM inlines. Without entry points for Python and C, compiling takes a sixth less time.
_INLINED: dict[str, Any] = {
    **_OPTIONS,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_POINTERS = {
    "float32": types.CPointer(types.float32), "float64": types.CPointer(types.float64),
    "float16": types.CPointer(types.uint16), "int32": types.CPointer(types.int32),
}  # fmt: skip

float32, float64, int32, int64 = np.float32, np.float64, np.int32, np.int64


def kernel(*dtypes: str) -> Any:
    """Return a decorator for a kernel whose four arrays have these dtypes."""
    arguments = (*(_POINTERS[dtype] for dtype in dtypes), *[types.intp] * 5)

    def compile_function(function: Any) -> Any:
        made = CFunc(function, (arguments, types.void), {}, {"nopython": True, "fastmath": BODY, **_OPTIONS})
        made._cache = FunctionCode(function)
        made.compile()
        return made

    return compile_function


def runner(**options: Any) -> Any:
    """Return a decorator for a function that runs plans (`_PLAN`). `options` are for numba's `njit`."""

    def compile_function(function: Any) -> Any:
        made = njit(**options, **_OPTIONS)(function)
        made._cache = FunctionCode(function)
        made.compile(_PLAN)
        made.disable_compile()
        return made

    return compile_function


def scalar(function: Any) -> Any:
    """Decorate a function of single elements. LLVM inlines the function with its own floating-point flags."""
    return njit(fastmath=BODY, **_INLINED)(function)


def summing(function: Any) -> Any:
    """Decorate a loop that adds up numbers."""
    return njit(fastmath=SUM, **_INLINED)(function)


# ---------------------------------------------------------------- the compiler


@intrinsic
def wide_vectors(typingctx):
    """Ask for 512-bit vectors in the calling function. LLVM then does not inline that function."""

    def codegen(context, builder, signature, args):
        # LLVM would prefer 256 bits, with which exp has 0.7 of the speed on data in the caches. The `add` of
        # llvmlite refuses attributes that are not on its list.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), codegen


def _cast(result: Any, argument: Any, llvm: Any) -> Any:
    @intrinsic
    def cast(typingctx, x):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], llvm)

        return result(argument), codegen

    return cast


bits32 = _cast(types.int32, types.float32, ir.IntType(32))
from_bits32 = _cast(types.float32, types.int32, ir.FloatType())
bits64 = _cast(types.int64, types.float64, ir.IntType(64))
from_bits64 = _cast(types.float64, types.int64, ir.DoubleType())


def _of_two(function: str, **flags: Any) -> Any:
    """Return an intrinsic that calls LLVM's function of this name for two numbers of one type."""

    @intrinsic
    def of_two(typingctx, a, b):
        def codegen(context, builder, signature, args):
            kind = args[0].type
            name = f"llvm.{function}.{'f64' if isinstance(kind, ir.DoubleType) else 'f32'}"
            called = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, kind]), name)
            return builder.call(called, args, **flags)

        return a(a, b), codegen

    return of_two


maximum = _of_two("maximum")  # the larger one; NaN if either number is NaN
larger = _of_two(
    "maxnum", fastmath=("nnan", "nsz")
)  # in one instruction; if either is a NaN, some number or NaN


@intrinsic
def fma(typingctx, a, b, c):
    """Return a b + c, rounded once."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return a(a, b, c), codegen


@intrinsic
def wide(typingctx, half):
    """Return the float32 value of a float16 with the bits `half`."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def narrow(typingctx, x):
    """Return the bits of the float16 nearest to `x`."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@intrinsic
def scratch(typingctx, dtype):
    """Return a pointer to `STREAMED` elements of the argument's type on the stack, aligned to 64 bytes."""

    def codegen(context, builder, signature, args):
        with builder.goto_entry_block():
            pointer = builder.alloca(ir.ArrayType(args[0].type, STREAMED))
            pointer.align = 64
        return builder.bitcast(pointer, context.get_value_type(signature.return_type))

    return types.CPointer(dtype)(dtype), codegen


def _vector(builder: Any, pointer: Any, at: Any, lanes: int) -> Any:
    """Return a pointer to the vector of `lanes` elements that begins at element `at`."""
    place = builder.gep(pointer, [at])
    return builder.bitcast(place, ir.VectorType(place.type.pointee, lanes).as_pointer())


def _store(builder: Any, value: Any, pointer: Any, itemsize: int, *, streamed: bool) -> None:
    """Store a vector; a `streamed` store bypasses the caches and needs a pointer aligned to a cache line."""
    stored = builder.store(value, pointer, align=64 if streamed else itemsize)
    if streamed:
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


@intrinsic
def stream(typingctx, out, at, block, count):
    """Write block[:count] to out[at:], bypassing the caches. `count` elements must fill whole lines of 64 bytes.
    If out[at] is not the beginning of a line, as in a split, the caches are used."""

    def codegen(context, builder, signature, args):
        target, start, source, length = args
        element = context.get_value_type(signature.args[0].dtype)
        itemsize = context.get_abi_sizeof(element)
        lanes = 64 // itemsize
        zero, step = (ir.Constant(length.type, value) for value in (0, lanes))
        begin = builder.ptrtoint(builder.gep(target, [start]), length.type)
        # A streaming store within a line would end the process.
        is_line = builder.icmp_unsigned("==", builder.and_(begin, length.type(63)), zero)
        with builder.if_else(is_line, likely=True) as branches:
            for streamed, branch in zip((True, False), branches, strict=True):
                with branch, cgutils.for_range_slice(builder, zero, length, step) as (i, _):
                    read = builder.load(_vector(builder, source, i, lanes), align=64)
                    place = _vector(builder, target, builder.add(start, i), lanes)
                    _store(builder, read, place, itemsize, streamed=streamed)
        return context.get_dummy_value()

    return types.none(out, types.intp, block, types.intp), codegen


@intrinsic
def address(typingctx, pointer):
    def codegen(context, builder, signature, args):
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.intp(pointer), codegen


@intrinsic
def fence(typingctx):
    """Wait until this thread's streaming stores are done."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen


# ---------------------------------------------------------------- scalar functions


@scalar
def as_is(x):
    return x


@scalar
def select(condition, a, b):
    return a if condition else b


@scalar
def fabs(x):
    return abs(x)


# exp(x) = 2^k exp(r) with |r| <= ln 2 / 2. k is rounded by adding a number that leaves no room for a fraction. r is
# computed in two steps (Cody and Waite), and exp(r) by a polynomial: for float32 that of Cephes, of degree 5, with an
# error of 1.4 u; for float64 that of Taylor, of degree 13, with 2 u. k is added to the exponent as an integer. A result
# beyond the largest number is infinity, below the smallest normal number 0, and of a NaN NaN.
_LOG2E, _MAGIC = float32(1.44269504088896341), float32(12582912.0)
_LN2_HIGH, _LN2_LOW = float32(-0.693359375), float32(2.12194440e-4)
_E5, _E4, _E3 = float32(1.9875691500e-4), float32(1.3981999507e-3), float32(8.3334519073e-3)
_E2, _E1, _E0 = float32(4.1665795894e-2), float32(1.6666665459e-1), float32(5.0000001201e-1)
_ONE, _LARGEST, _SMALLEST = float32(1), float32(88.72283), float32(-87.33654)
_INFINITY, _NOTHING = float32(np.inf), float32(0)


@scalar
def exp32(x):
    shifted = fma(x, _LOG2E, _MAGIC)
    k = shifted - _MAGIC
    r = fma(k, _LN2_LOW, fma(k, _LN2_HIGH, x))
    p = fma(fma(fma(fma(fma(_E5, r, _E4), r, _E3), r, _E2), r, _E1), r, _E0)
    y = from_bits32(bits32(fma(p, r * r, r) + _ONE) + (bits32(shifted) << int32(23)))
    y = y if x <= _LARGEST else (_INFINITY if x > _LARGEST else x)
    return _NOTHING if x < _SMALLEST else y


_LOG2E_64, _MAGIC_64 = float64(1.4426950408889634), float64(6755399441055744.0)
_LN2_HIGH_64, _LN2_LOW_64 = float64(-0.6931471803691238), float64(-1.9082149292705877e-10)
_LARGEST_64, _SMALLEST_64 = float64(709.782712893384), float64(-708.3964185322641)
_F2, _F3, _F4, _F5, _F6, _F7, _F8, _F9, _F10, _F11, _F12, _F13 = (
    float64(1) / float64(f)
    for f in (2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800)
)


@scalar
def exp64(x):
    shifted = fma(x, _LOG2E_64, _MAGIC_64)
    k = shifted - _MAGIC_64
    r = fma(k, _LN2_LOW_64, fma(k, _LN2_HIGH_64, x))
    p = fma(fma(fma(fma(_F13, r, _F12), r, _F11), r, _F10), r, _F9)
    p = fma(fma(fma(fma(p, r, _F8), r, _F7), r, _F6), r, _F5)
    p = fma(fma(fma(p, r, _F4), r, _F3), r, _F2)
    y = from_bits64(bits64(fma(p, r * r, r) + float64(1)) + (bits64(shifted) << int64(52)))
    y = y if x <= _LARGEST_64 else (float64(np.inf) if x > _LARGEST_64 else x)
    return float64(0) if x < _SMALLEST_64 else y


# tanh in float32 is a quotient of polynomials, an odd one of degree 13 over an even one of degree 6 (from Eigen, with
# an error of 4.3 u). Beyond 7.99 it is 1. In float64 it is a quotient from Cephes below 0.625, and uses exp(2 |x|)
# above.
_FLAT = float32(7.99881172180175781)
_P0, _P1, _P2 = float32(4.89352455891786e-03), float32(6.37261928875436e-04), float32(1.48572235717979e-05)
_P3, _P4, _P5 = float32(5.12229709037114e-08), float32(-8.60467152213735e-11), float32(2.00018790482477e-13)
_P6 = float32(-2.76076847742355e-16)
_Q0, _Q1 = float32(4.89352518554385e-03), float32(2.26843463243900e-03)
_Q2, _Q3 = float32(1.18534705686654e-04), float32(1.19825839466702e-06)


@scalar
def tanh32(x):
    x = _FLAT if x > _FLAT else x
    x = -_FLAT if x < -_FLAT else x
    z = x * x
    p = fma(fma(fma(fma(fma(fma(_P6, z, _P5), z, _P4), z, _P3), z, _P2), z, _P1), z, _P0)
    q = fma(fma(fma(_Q3, z, _Q2), z, _Q1), z, _Q0)
    return x * p / q


_T0, _T1, _T2 = (
    float64(-9.64399179425052238628e-1),
    float64(-9.92877231001918586564e1),
    float64(-1.61468768441708447952e3),
)
_U0, _U1, _U2 = (
    float64(1.12811678491632931402e2),
    float64(2.23548839060100448583e3),
    float64(4.84406305325125486048e3),
)


@scalar
def tanh64(x):
    z = x * x
    near = x + x * z * (fma(fma(_T0, z, _T1), z, _T2) / fma(fma(z + _U0, z, _U1), z, _U2))
    far = float64(1) - float64(2) / (exp64(float64(2) * abs(x)) + float64(1))
    far = -far if x < float64(0) else far
    return near if abs(x) < float64(0.625) else far


# log(2^e m) = e ln 2 + log(m) with m between sqrt(1/2) and sqrt(2). With z = m - 1, log(m) in float32 is the polynomial
# of Cephes, with an error of 1 u; in float64 it is a polynomial of z / (2 + z) (from FreeBSD, 1 u). Numbers below the
# smallest normal number are scaled. Below 0 the result is NaN.
_HALF_ROOT, _TINY, _SCALE = int32(0x3F3504F3), float32(2**-126), float32(2**23)
_L8, _L7, _L6 = float32(7.0376836292e-2), float32(-1.1514610310e-1), float32(1.1676998740e-1)
_L5, _L4, _L3 = float32(-1.2420140846e-1), float32(1.4249322787e-1), float32(-1.6668057665e-1)
_L2, _L1, _L0, _HALF = (
    float32(2.0000714765e-1),
    float32(-2.4999993993e-1),
    float32(3.3333331174e-1),
    float32(0.5),
)


@scalar
def log32(x):
    small = x < _TINY
    bits = bits32(x * _SCALE if small else x)
    k = (bits - _HALF_ROOT) >> int32(23)
    z = from_bits32(bits - (k << int32(23))) - _ONE
    e = float32(k) - (float32(23) if small else _NOTHING)
    p = fma(fma(fma(fma(_L8, z, _L7), z, _L6), z, _L5), z, _L4)
    p = fma(fma(fma(fma(p, z, _L3), z, _L2), z, _L1), z, _L0)
    y = fma(e, -_LN2_LOW, z * z * z * p)
    y = fma(e, -_LN2_HIGH, z + fma(-_HALF, z * z, y))
    y = y if x < _INFINITY else x
    return y if x > _NOTHING else (-_INFINITY if x == _NOTHING else float32(np.nan))


_HALF_ROOT_64, _TINY_64, _SCALE_64 = int64(0x3FE6A09E667F3BCD), float64(2.0**-1022), float64(2.0**54)
_G1, _G2, _G3, _G4 = (
    float64(6.666666666666735130e-01), float64(3.999999999940941908e-01), float64(2.857142874366239149e-01),
    float64(2.222219843214978396e-01),
)  # fmt: skip
_G5, _G6, _G7 = (
    float64(1.818357216161805012e-01),
    float64(1.531383769920937332e-01),
    float64(1.479819860511658591e-01),
)


@scalar
def log64(x):
    small = x < _TINY_64
    bits = bits64(x * _SCALE_64 if small else x)
    k = (bits - _HALF_ROOT_64) >> int64(52)
    z = from_bits64(bits - (k << int64(52))) - float64(1)
    e = float64(k) - (float64(54) if small else float64(0))
    s = z / (float64(2) + z)
    w, half = s * s, float64(0.5) * z * z
    p = fma(fma(fma(_G7, w, _G6), w, _G5), w, _G4)
    p = w * fma(fma(fma(p, w, _G3), w, _G2), w, _G1)
    y = fma(e, -_LN2_HIGH_64, z - (half - fma(s, half + p, e * -_LN2_LOW_64)))
    y = y if x < float64(np.inf) else x
    return y if x > float64(0) else (float64(-np.inf) if x == float64(0) else float64(np.nan))


# log(1 + x) is log(u) x / (u - 1), where u is the rounded 1 + x (Kahan).
@scalar
def log1p32(x):
    u = _ONE + x
    y, d = log32(u), u - _ONE
    return y * (x / d) if d != _NOTHING and u < _INFINITY else (y if d != _NOTHING else x)


@scalar
def log1p64(x):
    u = float64(1) + x
    y, d = log64(u), u - float64(1)
    return y * (x / d) if d != float64(0) and u < float64(np.inf) else (y if d != float64(0) else x)


@scalar
def expm1_32(x):
    near = x * fma(x, fma(x, fma(x, fma(x, float32(1 / 120), float32(1 / 24)), float32(1 / 6)), _HALF), _ONE)
    return near if abs(x) < float32(0.125) else exp32(x) - _ONE


# erf is a polynomial (1 ulp) up to 0.93, and 1 minus a power of e above.
@scalar
def erf32(x):
    t, z = abs(x), x * x
    far = fma(fma(float32(-1.72853470e-5), t, float32(3.83197126e-4)), z,
              fma(float32(-3.88396438e-3), t, float32(2.42546219e-2)))  # fmt: skip
    far = fma(fma(fma(far, t, float32(-1.06777877e-1)), t, float32(-6.34846687e-1)), t, float32(-1.28717512e-1))
    far = _ONE - exp32(fma(far, t, -t)) if t < float32(4) else _ONE
    far = far if x > _NOTHING else -far
    near = fma(fma(float32(-5.96761703e-4), z, float32(4.99119423e-3)), z, float32(-2.67681349e-2))
    near = fma(fma(fma(near, z, float32(1.12819925e-1)), z, float32(-3.76125336e-1)), z, float32(1.28379166e-1))
    return fma(near, x, x) if not t > float32(0.927734375) else far


# What follows computes in float64, whose rounding float32 does not see. A sine is a polynomial of the distance to the
# nearest multiple of pi / 2 (Taylor, 2e-9), whose number, below 2^50, tells which polynomial, and the sign.
_S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9 = (float64((-1) ** (i // 2) / math.factorial(i)) for i in range(2, 10))
_TWO_OVER_PI, _PIO2_HIGH, _PIO2_LOW = float64(2 / np.pi), float64(np.pi / 2), float64(6.123233995736766e-17)


@scalar
def _sine(x, quarter):
    wide_x = float64(x)
    shifted = fma(wide_x, _TWO_OVER_PI, _MAGIC_64)
    k = shifted - _MAGIC_64
    r = fma(k, -_PIO2_LOW, fma(k, -_PIO2_HIGH, wide_x))
    z, place = r * r, bits64(shifted) + quarter
    odd = fma(fma(fma(fma(_S9, z, _S7), z, _S5), z, _S3) * z, r, r)
    even = fma(fma(fma(fma(_S8, z, _S6), z, _S4), z, _S2), z, float64(1))
    y = even if place & int64(1) else odd
    return float32(-y if place & int64(2) else y)


@scalar
def sin32(x):
    return _sine(x, int64(0))


@scalar
def cos32(x):
    return _sine(x, int64(1))


@scalar
def pow32(x, y):
    power = float32(exp64(float64(y) * log64(float64(abs(x)))))
    power = _ONE if y == _NOTHING or x == _ONE or (x == -_ONE and y == y) else power
    large = abs(y) >= float32(2**24)  # then y is an even number
    k = int32(_NOTHING if large else y)
    whole = large or float32(k) == y
    below = -power if whole and k & int32(1) else power
    below = below if whole or x == _NOTHING or x == -_INFINITY else float32(np.nan)
    return below if bits32(x) < int32(0) else power


@intrinsic(prefer_literal=True)
def transpose_tile(typingctx, x, at, stride, out, out_at, out_stride, streamed):
    """Compute out[out_at + i out_stride + j] = x[at + j stride + i] for i and j below `_side`. Whole rows are
    loaded, exchanged in registers (Eklundh's method) and stored. If the literal `streamed` is true, stores
    bypass the caches, and rows of `out` must begin at multiples of 64 bytes."""

    def codegen(context, builder, signature, args):
        source, start, step, target, out_start, out_step, _ = args
        element = context.get_value_type(signature.args[0].dtype)
        itemsize = context.get_abi_sizeof(element)
        side = _side(itemsize)

        def row(pointer, first, step, i):
            place = builder.add(first, builder.mul(step, ir.Constant(step.type, i)))
            return _vector(builder, pointer, place, side)

        rows = [builder.load(row(source, start, step, i), align=itemsize) for i in range(side)]
        distance = side // 2
        while distance:
            for i in range(side):
                if i & distance:
                    continue
                first = [side + k - distance if k & distance else k for k in range(side)]
                second = [side + k if k & distance else k + distance for k in range(side)]
                pair = rows[i], rows[i + distance]
                rows[i] = builder.shuffle_vector(*pair, _lanes(first))
                rows[i + distance] = builder.shuffle_vector(*pair, _lanes(second))
            distance //= 2
        whole = bool(signature.args[6].literal_value)
        for i in range(side):
            _store(builder, rows[i], row(target, out_start, out_step, i), itemsize, streamed=whole)
        return context.get_dummy_value()

    return types.none(x, types.intp, types.intp, out, types.intp, types.intp, streamed), codegen


def _lanes(indices: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), indices)


def _side(itemsize: int) -> int:
    """Return the number of rows and columns of a tile in registers: 64 bytes a row, at most 16."""
    return min(16, 64 // itemsize)


# ---------------------------------------------------------------- the parallel region


@intrinsic
def call(typingctx, function, a, b, c, out, start, stop, slot, m, s):
    """Call the kernel whose address is `function`, with four addresses of arrays and five integers."""

    def codegen(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte] * 4 + [ir.IntType(64)] * 5)
        pointers = [builder.inttoptr(arg, byte) for arg in args[1:5]]
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*pointers, *args[5:]])
        return context.get_dummy_value()

    return types.none(*[types.intp] * 10), codegen


# A plan has a row for each pass: the addresses of the kernel and of its four arrays, then units, slices, granule,
# m and s.
_PLAN = types.void(types.Array(types.int64, 2, "C"))


@scalar
def run_slice(plan, p, start, stop, slot):
    call(
        plan[p, 0], plan[p, 1], plan[p, 2], plan[p, 3], plan[p, 4], start, stop, slot, plan[p, 8], plan[p, 9]
    )  # fmt: skip


@runner(parallel=True)
def share(plan):
    """Run the passes of a plan in order. Threads share the slices of a pass. Slices begin at multiples of the
    granule."""
    for p in range(plan.shape[0]):
        units, slices, granule = plan[p, 5], plan[p, 6], plan[p, 7]
        if slices == 1:
            run_slice(plan, p, 0, units, 0)
        else:
            longest = (units + slices * granule - 1) // (slices * granule) * granule
            for slot in prange(slices):
                start = min(slot * longest, units)
                stop = min(start + longest, units)
                run_slice(plan, p, start, stop, slot)


@runner()
def alone(plan):
    """Run the passes of a plan in the calling thread, each in one slice."""
    for p in range(plan.shape[0]):
        run_slice(plan, p, 0, plan[p, 5], 0)
