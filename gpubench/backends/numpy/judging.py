"""The comparison of outputs with their float64 reference as compiled code: one pass, no temporaries."""

from __future__ import annotations

from gpubench.backends.numpy.compiled import NumbaThreads
from gpubench.backends.shared.reference import BLOCK
from gpubench.model.kernel import NumbaPass, NumbaProgram
from gpubench.model.op import Array

# How an element of an output is read.
DTYPES = {"float32": "got[i]", "float64": "got[i]", "float16": "wide(got[i])"}

# `maximum` hands a NaN on: a block that has one is beyond any limit.
_SOURCE = """from gpubench.backends.numpy.native import *

SMALLEST = float64({smallest!r})

@summing
def largest(got, want, scale, first, last):
    error = float64(0)
    for i in range(first, last):
        error = maximum(error, abs(float64({value}) - want[i]) / maximum({scale}, SMALLEST))
    return error

@kernel("{dtype}", "float64", "float64", "float64")
def errors(got, want, scale, out, start, stop, slot, m, s):
    for block in range(start, stop):
        out[block] = largest(got, want, scale, block * s, min(block * s + s, m))
"""


def block_errors(
    threads: NumbaThreads, got: Array, want: Array, scale: Array | None, smallest: float
) -> Array | None:
    """Return the largest error of each block of contiguous arrays, as `reference.judge` asks for it. Returns None if
    the pass does not compile."""
    import numpy as np

    out = np.empty(-(-want.size // BLOCK))
    dtype = got.dtype.name
    source = _SOURCE.format(
        dtype=dtype,
        value=DTYPES[dtype],
        smallest=smallest,
        scale="abs(want[i])" if scale is None else "scale[i]",
    )
    operands = ("got", "want", None if scale is None else "scale", "out")
    step = NumbaPass("errors", operands, units=out.size, m=want.size, s=BLOCK)
    program = NumbaProgram(source, (step,), threads=threads.most)
    if not threads.compiles(program):
        return None
    threads.launch(program, {"got": got, "want": want, "scale": scale, "out": out})()
    return out
