"""Code that the tuned CPU implementations share. For compiled kernels (numba): their types, and the numbers of
threads that are worth a trial. For NumPy: slices for threads, scratch arrays that stay in cache, and the
conversion of halves to float32."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpubench.kernels.contract.kernel import Candidate, Kernel, Limits, NumbaProgram, choose_kernel
from gpubench.kernels.contract.op import Array, Dtype

Launch = Callable[[Sequence[Array], Array], None]

# ---------------------------------------------------------------- compiled kernels

_REAL = {"float32": "float32", "float64": "float64", "float16": "float32"}  # type of the arithmetic by dtype
# Least elements for which a thread is worth waking, and the most elements of a thread unless all cores are used.
_FEWEST, _ENOUGH = 4096, 1024 * 1024
# By default, which needs no trial, all threads are used from this many elements on. A parallel region of 16 threads
# costs 7 us.
_ALL_THREADS = 128 * 1024
# Least bytes of an output that no cache would keep. For smaller outputs, streaming stores take twice the time.
STREAMED_BYTES = 8 * 1024 * 1024
# A compiled kernel has four arrays: the output and up to three inputs.
MOST_INPUTS = 3


def compiled_kernels(candidates: Callable[..., tuple[Candidate, ...]], inputs: int = 0) -> tuple[Kernel, ...]:
    """Return a tuple with the numba kernel of these candidates, or () for more than MOST_INPUTS `inputs`."""
    return (choose_kernel("numba", candidates, dtypes=tuple(_REAL)),) if inputs <= MOST_INPUTS else ()


def numba_operands(names: Sequence[str], into: str) -> tuple[Any, ...]:
    """Return the four `operands` of a pass that reads the arrays `names` and writes to `into`."""
    return (*names, *[None] * (MOST_INPUTS - len(names)), into)


def numba_arguments(names: Sequence[str]) -> str:
    """Return the arguments of a kernel for its inputs: `x_` for an input x, and a name for each unused array."""
    unused = (f"unused_{k}" for k in range(MOST_INPUTS - len(names)))
    return ", ".join([*(f"{name}_" for name in names), *unused])


def numba_prelude(dtype: str) -> str:
    """Return the text that defines `real` for the arithmetic, `load` and `store` to convert between `real` and
    memory, and the elementary functions of `real`: those of `math` where `native` has none that is vectorized."""
    real = _REAL[dtype]
    bits = real[-2:]
    half = dtype == "float16"
    single = "expm1, erf, sin, cos, pow = expm1_32, erf32, sin32, cos32, pow32" if bits == "32" else ""
    return f"""from math import *
from gpubench.backends.numpy.native import *

real, exp, tanh, log, log1p = {real}, exp{bits}, tanh{bits}, log{bits}, log1p{bits}
{single}
minus_infinity = real(float64("-inf"))
load, store = {"wide, narrow" if half else "as_is, as_is"}
is_half = {half}
"""


def numba_signature(dtype: str, partial: int = -1) -> str:
    """Return the decorator of a kernel whose four arrays have this dtype. The array at the index `partial` is
    float64 instead."""
    kinds = ("float64" if i == partial else dtype for i in range(MOST_INPUTS + 1))
    return f"@kernel({', '.join(map(repr, kinds))})"


def thread_counts(elements: int, limits: Limits) -> list[int]:
    """Return the numbers of threads that are worth a trial for this many elements, the likeliest first."""
    most = limits.multiprocessors or 1
    # powers of two and all cores, unless a thread gets too few or too many elements
    powers = [1 << k for k in range(most.bit_length()) if 1 << k < most] + [most]
    counts = [t for t in powers if t == 1 or elements >= t * _FEWEST]
    counts = [t for t in counts if elements <= t * _ENOUGH] or counts[-1:]
    likely = counts[-1] if elements >= _ALL_THREADS else 1
    return sorted(counts, key=lambda t: (t != likely, t))


def numba_candidates(
    elements: int, limits: Limits, program: Callable[[int, bool], NumbaProgram], streamed: bool
) -> tuple[Candidate, ...]:
    """Return a candidate for each number of threads that is worth a trial, built by `program(threads, streaming)`.
    `streamed` says that the output exceeds the caches. Then the likeliest number has a second candidate, with
    streaming stores."""

    def candidate(threads: int, streaming: bool) -> Candidate:
        name = f"{threads} thread{'s' * (threads > 1)}{', streaming stores' * streaming}"
        return Candidate(name, lambda: program(threads, streaming))

    counts = thread_counts(elements, limits)
    extra = [candidate(counts[0], True)] if streamed else []
    return tuple([candidate(threads, False) for threads in counts] + extra)


# ---------------------------------------------------------------- for NumPy

# Most operations a second of NumPy's product of halves, which has no BLAS: 0.6 to 0.8 GFLOP/s on one core of a
# Xeon of 2023 at n = 256 to 512.
SLOW_HALVES: dict[tuple[str, Dtype], float] = {("numpy", "float16"): 1e9}


class Blocks(Protocol):
    """Threads that call a function on slices (start, stop) of at most `grain` elements each."""

    threads: int  # number of threads

    def run(self, function: Callable[[int, int], None], length: int, grain: int) -> None:
        """Call the function on all slices up to `length`, in any order."""

    def multiply(self, function: Callable[[int, int], None], length: int, grain: int) -> None:
        """Like `run`, for a function that calls BLAS, which then uses one thread in each of these threads."""


class ThreadScratch:
    """Scratch arrays for each thread, which are kept from launch to launch."""

    def __init__(self, np: Any) -> None:
        self._np = np
        self._kept = threading.local()

    def arrays(self, count: int, size: int, dtype: Any) -> list[Array]:
        """Return `count` arrays of `size` elements for the calling thread. A repeated request returns the same
        arrays, another one new arrays without values."""
        key = (count, size, dtype)
        if getattr(self._kept, "key", None) != key:
            self._kept.arrays = [self._np.empty(size, dtype) for _ in range(count)]
            self._kept.key = key
        views: list[Array] = self._kept.arrays
        return views


def widen(np: Any, half: Array, wide: Array) -> Array:
    """Write the values of `half` (float16) to `wide` (float32), and return `wide`."""
    # A third of the time of NumPy's cast: exponent and fraction move by 13 bits, and a product with 2^112
    # corrects the bias of the exponent exactly.
    bits = wide.view(np.int32)
    np.copyto(bits, half.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _SIGN_AND_REST, out=bits)
    np.multiply(wide, _REBIAS, out=wide)
    if wide.size and max(np.max(wide), -np.min(wide)) > _LARGEST_HALF:
        # infinities and NaNs would become finite
        np.copyto(wide, half)
    return wide


_SIGN_AND_REST = ~0x7FFFFFFF + 0x0FFFE000  # bits 31 and 13 to 27, as an int32
_REBIAS = 2.0**112
_LARGEST_HALF = 65504.0
