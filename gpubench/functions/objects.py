"""Child side: what functions take and return, taken apart into arrays on the host, and compared."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from gpubench.kernels.contract.op import UNIT_ROUNDOFF, Array

# A result passes within so many roundings, or so many times the error that NumPy itself makes in the dtype, as far as
# that is no more than MOST_ERROR, or else twice that error. Where NumPy itself is farther off than MOST_ERROR, a
# floating result tells nothing in the dtype.
ROUNDINGS, TIMES_NUMPY, MOST_ERROR = 256, 64, 0.01


class Unreadable(Exception):
    """Why an object cannot be compared, in one sentence."""


def leaves(value: Any, name: str = "out") -> list[tuple[str, Any]]:
    """The arrays, numbers and frames of a result, each with its name: `out`, or `out[0]`, `out['mean']`."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{name}[{key!r}]")]
    if isinstance(value, tuple) or (
        isinstance(value, list) and not all(isinstance(x, int | float) for x in value)
    ):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{name}[{i}]")]
    return [(name, value)]


def on_host(value: Any) -> Array:
    """A NumPy array of what an array library, a frame or a number holds. Raises Unreadable."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):  # CuPy
        return np.asarray(value.get())
    for method in ("to_pandas", "to_numpy", "toarray"):
        if hasattr(value, method):
            return on_host(getattr(value, method)())
    array = np.asarray(getattr(value, "array", value))
    if array.dtype.kind == "O":
        raise Unreadable(
            f"it returns a {type(value).__name__}, which is no array: say same=, or make one with to_cpu="
        )
    return array


def size(value: Any) -> int:
    """The bytes that an object holds, as far as it tells."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "memory_usage"):  # pandas
        usage = value.memory_usage(deep=True)
        return int(usage if isinstance(usage, int) else usage.sum())
    if hasattr(value, "data") and hasattr(value, "indices"):  # a sparse matrix
        return int(value.data.nbytes + value.indices.nbytes)
    return sys.getsizeof(value)


def widen(value: Any) -> Any:
    """The object with floating arrays in float64; the same object if it is no array."""
    import numpy as np

    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return value
    return value.astype(np.float64 if value.dtype.kind == "f" else np.complex128)


def copy_of(value: Any) -> Any:
    """A copy of its own."""
    import copy

    return value.copy() if hasattr(value, "copy") else copy.deepcopy(value)


def equal(first: Any, second: Any) -> bool:
    """Whether two objects hold the same values, NaN being equal to itself; True if they cannot be read."""
    import numpy as np

    def same(a: Array, b: Array) -> bool:
        nan = a.dtype.kind in "fc" and b.dtype.kind in "fc"
        return a.shape == b.shape and np.array_equal(a, b, equal_nan=nan)

    try:
        firsts, seconds = _arrays(first), _arrays(second)
        return len(firsts) != len(seconds) or all(map(same, firsts, seconds)) or _equal_sparse(first, second)
    except (Unreadable, ValueError):
        return True


def _equal_sparse(first: Any, second: Any) -> bool:
    """Whether both are sparse matrices of the same elements: a product may sort them, and add up those of one place."""
    import numpy as np

    if not all(hasattr(x, "indptr") for x in (first, second)):
        return False
    plain = []
    for matrix in (first, second):
        host = matrix.get() if hasattr(matrix, "get") else matrix.copy()
        host.sum_duplicates()
        plain.append(host)
    a, b = plain
    places = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("indices", "indptr"))
    return bool(a.shape == b.shape and places and np.allclose(a.data, b.data, equal_nan=True))


def _arrays(value: Any) -> list[Array]:
    """The arrays that an object consists of: of a sparse matrix those of its elements, since all would need memory."""
    rows = [x.tocsr() if hasattr(x, "tocsr") else x for _, x in leaves(value)]
    parts = [(x.data, x.indices, x.indptr) if hasattr(x, "indptr") else (x,) for x in rows]
    return [on_host(array) for part in parts for array in part]


class Discrepancy(NamedTuple):
    """How far a result is from what it has to be."""

    error: float  # the largest, relative
    limit: float  # the error allowed
    place: list[int]  # where the error is
    words: str = ""  # what is wrong where no number says it
    integers: bool = False  # it is of counts or labels

    @property
    def right(self) -> bool:
        return not self.words and self.error <= self.limit


class Allowed(NamedTuple):
    """The relative errors that results may have."""

    floating: float  # of each element
    integers: float  # of counts and labels all together


def allowed_error(want: Any, got: Any, dtype: str) -> Allowed:
    """The errors that a result may have in the dtype, by those of NumPy's own result `got`.

    Counts and labels have to be equal, unless NumPy in the dtype finds others itself, as where a number lies on the
    edge of two bins.
    """
    limit, integers = ROUNDINGS * UNIT_ROUNDOFF[dtype], 0.0
    for leaf in _discrepancies(got, want, Allowed(math.inf, math.inf)):
        own = min(TIMES_NUMPY * leaf.error, max(MOST_ERROR, 2 * leaf.error))
        if math.isfinite(own) and leaf.integers:
            integers = max(integers, own)
        elif math.isfinite(own):
            limit = max(limit, own)
    return Allowed(limit, integers)


def compare(got: Any, want: Any, allowed: Allowed) -> Discrepancy:
    """Compare every element: floating ones by |got - want| / (|want| + the root mean square of all), integers by the
    sum of |got - want| / the sum of |want|."""
    all_leaves = _discrepancies(got, want, allowed)
    wrong = [leaf for leaf in all_leaves if leaf.words]
    return max(wrong or all_leaves, key=lambda leaf: leaf.error)


def _discrepancies(got: Any, want: Any, allowed: Allowed) -> list[Discrepancy]:
    got_leaves, want_leaves = leaves(got), leaves(want)
    if len(got_leaves) != len(want_leaves):
        words = f"it returns {len(got_leaves)} results, not {len(want_leaves)}"
        return [Discrepancy(math.inf, allowed.floating, [], words)]
    return [
        _compare_leaf(name, on_host(mine), on_host(other), allowed)
        for (name, mine), (_, other) in zip(got_leaves, want_leaves, strict=True)
    ]


def _compare_leaf(name: str, got: Array, want: Array, allowed: Allowed) -> Discrepancy:
    import numpy as np

    limit = allowed.floating
    if got.shape != want.shape:
        words = f"{name} has the shape {got.shape}, not {want.shape}"
        return Discrepancy(math.inf, limit, [], words)
    if want.dtype.kind not in "fc" and got.dtype.kind not in "fc":
        return _compare_integers(name, got, want, allowed.integers)
    values, expected = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want))
    finite = np.isfinite(expected)
    mean = math.sqrt(float(np.mean(np.abs(expected[finite]) ** 2))) if finite.any() else 1.0
    with np.errstate(all="ignore"):
        error = np.abs(values - expected) / (np.abs(expected) + (mean or 1.0))
    error = np.where((values == expected) | (np.isnan(values) & np.isnan(expected)), 0.0, error)
    error = np.where(np.isfinite(error), error, math.inf)
    if not error.size:
        return Discrepancy(0.0, limit, [])
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    return Discrepancy(float(error[place]), limit, [int(i) for i in place])


def _compare_integers(name: str, got: Array, want: Array, limit: float) -> Discrepancy:
    import numpy as np

    wrong = got != want
    if not np.any(wrong):
        return Discrepancy(0.0, limit, [], integers=True)
    place = tuple(map(int, np.argwhere(wrong)[0])) if wrong.ndim else ()
    words = f"{name}{list(place)} is {got[place]}, not {want[place]}"
    if not {got.dtype.kind, want.dtype.kind} <= {*"biu"}:  # texts and dates
        return Discrepancy(math.inf, limit, list(place), words)
    total = float(np.abs(want.astype(np.float64)).sum())
    error = float(np.abs(got.astype(np.float64) - want).sum()) / max(total, 1.0)
    return Discrepancy(error, limit, list(place), words if error > limit else "", integers=True)
