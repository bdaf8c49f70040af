"""Host side of the ceilings: large arrays made quickly, and the check of a product too large for a reference."""

from __future__ import annotations

from gpubench.backends._host import host_dtype
from gpubench.model.op import UNIT_ROUNDOFF, Array, Dtype, Shape

PATTERN = (1 << 20) + 7  # random elements; odd, so that rows of a matrix are not alike
_ROWS = 512


def pattern(shape: Shape, dtype: Dtype, seed: int) -> Array:
    """Uniform in [-1, 1), a million random elements again and again: constant inputs would be faster than real ones."""
    import numpy as np

    values = np.random.Generator(np.random.SFC64(seed)).uniform(-1, 1, PATTERN).astype(host_dtype(dtype))
    found = np.empty(shape, values.dtype)
    flat = found.reshape(-1)
    for start in range(0, flat.size, PATTERN):  # np.resize takes four times as long
        flat[start : start + PATTERN] = values[: flat.size - start]
    return found


def landing(shape: Shape, dtype: Dtype) -> Array:
    """NaN everywhere: what is not written fails."""
    import numpy as np

    return np.full(shape, np.nan, host_dtype(dtype))


def is_copy(got: Array, want: Array) -> bool:
    """Equal in every element."""
    return bool((got == want).all())


def is_dot(got: Array, a: Array, b: Array) -> bool:
    """Within rounding of sums in any order: a share of what the terms add up to in size."""
    import numpy as np

    want, size = 0.0, 0.0
    for left, right in zip(_slices(a, PATTERN), _slices(b, PATTERN), strict=True):
        terms = left.astype(np.float64) * right
        want, size = want + float(terms.sum()), size + float(np.abs(terms).sum())
    return bool(abs(float(np.ravel(got)[0]) - want) <= 64 * UNIT_ROUNDOFF["float32"] * size)


def is_product(a: Array, b: Array, c: Array, dtype: Dtype) -> bool:
    """Whether c = a b within rounding, by every element of c in n^2 steps: c r = a (b r) for random signs r.

    Source: R. Freivalds, "Probabilistic machines can use less running time", 1977. The limit is four deviations of
    a sum of errors of 8 u x norms with random signs.
    """
    import numpy as np

    signs = np.where(np.random.Generator(np.random.SFC64(1)).random(b.shape[1]) < 0.5, -1.0, 1.0)
    inner = np.concatenate([part.astype(np.float64) @ signs for part in _slices(b)])
    norm = np.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in _slices(b)))
    for left, right in zip(_slices(a), _slices(c), strict=True):
        wide = left.astype(np.float64)
        limit = 32 * UNIT_ROUNDOFF[dtype] * np.sqrt((wide**2).sum(axis=1)) * norm
        if not (np.abs(right.astype(np.float64) @ signs - wide @ inner) <= limit).all():
            return False
    return True


def _slices(array: Array, rows: int = _ROWS) -> list[Array]:
    return [array[start : start + rows] for start in range(0, len(array), rows)]
