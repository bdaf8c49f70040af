"""Helpers to measure peaks: large arrays that are quick to make, checks of copies and products that are too large
for a reference, and chains of multiply-adds in WGSL.

A chain has no memory access between its steps: it replaces x by b - x again and again. Each thread has eight
chains, each of a vector of four elements, so that no step waits for the one before it. With b = 1 and x a
multiple of 1/1024 every step is exact, and an even number of steps changes nothing.
"""

from __future__ import annotations

from gpubench.backends.shared.host import host_dtype
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Limits, WgslProgram, one_dispatch
from gpubench.kernels.contract.op import UNIT_ROUNDOFF, Array, Dtype, Shape
from gpubench.kernels.templates import fold, group_threads, shader

PATTERN = (1 << 20) + 7  # random elements; odd, so that rows of a matrix are not alike
_ROWS = 512


def pattern(shape: Shape, dtype: Dtype, seed: int) -> Array:
    """Return values uniform in [-1, 1): a million random elements, repeated. Constant values would make a
    kernel faster than real ones."""
    import numpy as np

    values = np.random.Generator(np.random.SFC64(seed)).uniform(-1, 1, PATTERN).astype(host_dtype(dtype))
    array = np.empty(shape, values.dtype)
    flat = array.reshape(-1)
    for start in range(0, flat.size, PATTERN):  # np.resize takes four times as long
        flat[start : start + PATTERN] = values[: flat.size - start]
    return array


def is_copy(got: Array, want: Array) -> bool:
    return bool((got == want).all())


def is_dot(got: Array, a: Array, b: Array) -> bool:
    """Return whether the first element of `got` is the dot product of two float32 vectors within rounding. The
    allowed error, for sums in any order, is a multiple of the sum of the terms' absolute values."""
    import numpy as np

    want, size = 0.0, 0.0
    for first, second in zip(_slices(a, PATTERN), _slices(b, PATTERN), strict=True):
        terms = first.astype(np.float64) * second
        want, size = want + float(terms.sum()), size + float(np.abs(terms).sum())
    return bool(abs(float(np.ravel(got)[0]) - want) <= 64 * UNIT_ROUNDOFF["float32"] * size)


def is_product(a: Array, b: Array, c: Array, dtype: Dtype) -> bool:
    """Return whether c = a b within rounding, in n^2 steps instead of n^3. Each element may have an error of 8 u
    |row of a| |column of b|, where u is the unit round-off of `dtype`.

    Source: R. Freivalds, "Probabilistic machines can use less running time", 1977.
    """
    import numpy as np

    # c r is compared with a (b r) for a vector r of random signs, to which every element contributes.
    signs = np.where(np.random.Generator(np.random.SFC64(1)).random(b.shape[1]) < 0.5, -1.0, 1.0)
    inner = np.concatenate([part.astype(np.float64) @ signs for part in _slices(b)])
    norm = np.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in _slices(b)))
    for rows, right in zip(_slices(a), _slices(c), strict=True):
        wide = rows.astype(np.float64)
        # Four standard deviations of the sum of such errors with random signs.
        limit = 32 * UNIT_ROUNDOFF[dtype] * np.sqrt((wide**2).sum(axis=1)) * norm
        if not (np.abs(right.astype(np.float64) @ signs - wide @ inner) <= limit).all():
            return False
    return True


def _slices(array: Array, rows: int = _ROWS) -> list[Array]:
    return [array[start : start + rows] for start in range(0, len(array), rows)]


# Several times as many threads as any GPU runs at the same time, so that the last wave, which is not full, is a
# small part of them.
THREADS = 1 << 20
CHAINS, LANES = 8, 4
# Steps in the body of the loop, so that the loop itself takes no measurable time.
UNROLLED = 8
GRAIN = 1024


def chain_program(dtype: Dtype, rounds: int, limits: Limits) -> WgslProgram:
    """Return a program of one dispatch that does `rounds` times UNROLLED steps of every chain. It writes float32
    values of shape (THREADS,) to "out". float16 is computed in float32. Raises Unsupported if the device lacks
    the dtype."""
    if dtype == "bfloat16" or (dtype == "float64" and not limits.float64):
        raise Unsupported(f"this device has no {dtype} in WGSL", reason="no-dtype")
    group = group_threads(limits)
    grid = fold(THREADS // group, limits)
    return one_dispatch(chain_source(_real(dtype), group), grid, ("out",), uniform=(rounds, THREADS, 1))


def chain_flops(rounds: int) -> int:
    """Return the number of multiplications and additions in one launch of `chain_program`."""
    return 2 * THREADS * CHAINS * LANES * UNROLLED * rounds


def chain_source(real: str, group: int) -> str:
    """Return the shader text. `real` is f32 or f64, and `group` the threads of a workgroup. The factors come from the
    uniform buffer, so that no compiler knows that they are 1."""
    vector = f"vec{LANES}<{real}>"
    starts = ", ".join(f"{real}((k + {lane}u) % {GRAIN}u) / {real}({GRAIN})" for lane in range(LANES))
    names = [f"x{chain}" for chain in range(CHAINS)]
    steps = [f"    {name} = fma({name}, a, b);" for _ in range(UNROLLED) for name in names]
    lines = [
        f"  let i = (group.y * groups.x + group.x) * {group}u + thread;",
        "  if (i >= p.n) { return; }",
        f"  let b = {vector}({real}(p.one));",
        "  let a = -b;",
        *(f"  var {name} = start(i + {chain * LANES}u);" for chain, name in enumerate(names)),
        "  for (var round = 0u; round < p.rounds; round++) {",
        *steps,
        "  }",
        f"  let sum = {' + '.join(names)};",
        f"  out_[i] = f32({' + '.join(f'sum.{lane}' for lane in 'xyzw'[:LANES])});",
    ]
    start = f"fn start(k: u32) -> {vector} {{ return {vector}({starts}); }}"
    return shader({"out_": "f32"}, group, "\n".join(lines), params="rounds n one", before=start)


def chain_sums() -> Array:
    """Return the exact values that "out" must have, as float32 of shape (THREADS,)."""
    import numpy as np

    sums = np.zeros(THREADS, np.float32)
    first = np.arange(THREADS, dtype=np.uint32)
    for place in range(CHAINS * LANES):
        sums += ((first + place) % GRAIN).astype(np.float32) / GRAIN
    return sums


def _real(dtype: Dtype) -> str:
    return "f64" if dtype == "float64" else "f32"
