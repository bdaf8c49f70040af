"""What decides whether an output is right: sentinels, the float64 reference, and the comparison of every element.

NumPy is imported inside the functions: only workers call them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpubench import disk
from gpubench.backends.shared.host import SLICE, host_dtype, in_slices
from gpubench.errors import BackendError
from gpubench.model.backend import each
from gpubench.model.op import (
    OVERFLOW,
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Array,
    Op,
    Shape,
    Stored,
    Tolerance,
)
from gpubench.model.result import Check

# What a right answer does not hold: a number that no op gives by design where NaN is one, no id, no byte of ASCII.
_ODD = 0.6180339887
_NO_ID = -(2**31)
_NO_LETTER = 255


def sentinel_for(want: Array) -> float:
    """The value that no right answer holds: NaN; where the answer holds NaN itself, a number."""
    import numpy as np

    flat = np.ravel(want)
    holds_nan = any(in_slices(lambda start: bool(np.isnan(flat[start : start + SLICE]).any()), flat.size))
    return _ODD if holds_nan else float("nan")


def not_finite(want: Array, inputs: Sequence[Array]) -> list[int]:
    """Where the first infinity or NaN of a reference is; empty: it has none, or an input is not finite either."""
    import numpy as np

    flat = np.ravel(want)

    def first_in(start: int) -> int | None:
        finite = np.isfinite(flat[start : start + SLICE])
        return None if finite.all() else start + int(np.argmin(finite))

    first = next((place for place in in_slices(first_in, flat.size) if place is not None), None)
    if first is None or not all(np.isfinite(x).all() for x in inputs):
        return []
    return [int(i) for i in np.unravel_index(first, np.shape(want))]


def sentinels(shape: Shape, dtype: Stored, value: float = float("nan")) -> Array:
    """An array of sentinels: what an output is filled with, so that an unwritten element fails the check."""
    import numpy as np

    array = np.empty(shape, host_dtype(dtype))
    fill(array, value)
    return array


def fill(array: Array, value: float) -> None:
    """Write the value into every element of a C-contiguous array; among ids, that of none, and in a text no letter."""
    flat = array.reshape(-1)
    value = {"i": _NO_ID, "u": _NO_LETTER}.get(flat.dtype.kind, value)

    def one(start: int) -> None:
        flat[start : start + SLICE] = value

    in_slices(one, flat.size)


class Reference(NamedTuple):
    """What an output has to be, in float64, and the scale of its tolerance; None where that is |want|."""

    want: Array
    scale: Array | None


def reference(op: Op, inputs: list[Array], folder: Path, key: str) -> Reference:
    """The answer of an op with one output."""
    return references(op, inputs, folder, key)[0]


def references(op: Op, inputs: list[Array], folder: Path, key: str) -> tuple[Reference, ...]:
    """The float64 answer of each output and its tolerance's scale: computed once per workload, shared by all workers.

    They are memory-mapped files in `folder`; the second worker finds what the first one wrote.
    """
    import numpy as np

    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    wants = [folder / f"{name}-want{i}.npy" for i in range(len(op.outputs))]
    dtype = next((array.dtype.name for array in inputs if array.dtype.kind not in "iu"), "float64")
    scales = {
        i: (folder / f"{name}-scale{i}.npy", scale)
        for i, output in enumerate(op.outputs)
        if (scale := _spread(op.judged(output), dtype)) is not None
    }
    try:
        if not wants[-1].exists():
            for file, scale in scales.values():
                _publish([file], scale, op, inputs)
            _publish(wants, op.reference or op.expr, op, inputs)
    except OSError as error:
        for begun in folder.glob(f"{name}-*.part"):  # smaller cases may still find room
            with contextlib.suppress(OSError):
                begun.unlink()
        raise BackendError(
            f"the temporary folder {folder.parent} does not take the reference of this case: {disk.reason(error)}",
            hint=disk.remedy(error, "name another folder in TMPDIR"),
        ) from error
    return tuple(
        Reference(np.load(file, mmap_mode="r"), np.load(scales[i][0], mmap_mode="r") if i in scales else None)
        for i, file in enumerate(wants)
    )


def _spread(tolerance: Tolerance, dtype: str) -> Callable[..., Array] | None:
    """The scale of a tolerance, with the slack as so much more of it."""
    scale, slack, u = tolerance.scale, tolerance.slack, UNIT_ROUNDOFF[dtype]
    if scale is None or slack is None:
        return scale
    return lambda xp, *inputs: scale(xp, *inputs) + slack(xp, u, *inputs) / (tolerance.units * u)


def _publish(paths: Sequence[Path], function: Callable[..., Any], op: Op, inputs: list[Array]) -> None:
    """The function of the inputs in float64, each of its results as a file that appears when it is whole.

    Where the op is cut along its first dimension, slice by slice on all CPUs: the copies in float64 stay in the caches.
    """
    import numpy as np

    def of(part: slice) -> Any:
        # Overflow and invalid values are legal results here; the comparison judges them.
        with np.errstate(all="ignore"):
            return function(np, *(widened(x[part]) for x in inputs))

    rows = op.rows(inputs)
    step = max(1, SLICE // max(1, math.prod(inputs[0].shape[1:]))) if inputs else 1
    first = np.asarray(of(slice(0, step)), np.float64) if rows > step else None
    if first is None or first.shape[:1] != (step,):
        for path, array in zip(paths, each(of(slice(None))), strict=True):
            temporary = _unfinished(path)
            want = np.asarray(array, np.float64)
            with temporary.open("wb") as file:
                _reserve(file.fileno(), want.nbytes)
                np.save(file, want)
            temporary.replace(path)
        return
    (path,) = paths
    temporary = _unfinished(path)
    _fill_mapped(temporary, (rows, *first.shape[1:]), of, step)
    temporary.replace(path)


def _unfinished(path: Path) -> Path:
    """Make a file that becomes `path` when it is whole.

    Each writer has its own: to truncate a file that another worker has mapped ends that worker by SIGBUS.
    """
    descriptor, name = tempfile.mkstemp(".part", f"{path.stem}-", path.parent)
    os.close(descriptor)
    return Path(name)


def _fill_mapped(path: Path, shape: Shape, of: Callable[[slice], Any], step: int) -> None:
    """Write a reference slice by slice. The file is no longer mapped at the end: Windows renames none that is."""
    import numpy as np

    whole = np.lib.format.open_memmap(path, "w+", np.dtype(np.float64), shape)
    with path.open("rb+") as file:
        _reserve(file.fileno(), path.stat().st_size)

    def part_of(start: int) -> None:
        whole[start : start + step] = of(slice(start, start + step))

    # Other processes see it through the same pages: nothing waits for a disk.
    in_slices(part_of, shape[0], step)


def _reserve(descriptor: int, size: int) -> None:
    """Take room on the disk before it is written through memory: a full disk would end the process by SIGBUS there, and
    NumPy tells no reason. Raises OSError."""
    reserve = getattr(os, "posix_fallocate", None)  # Linux has it
    if reserve is None or not size:
        return
    try:
        reserve(descriptor, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise


def widened(array: Array) -> Array:
    """A copy in float64; ids and text as they are."""
    return array.astype(array.dtype if array.dtype.kind in "iu" else "float64")


def on_host(op: Op, inputs: Sequence[Array]) -> Any:
    """What the op's expression makes of host arrays."""
    import numpy as np

    return op.expr(np, *inputs)


def judge_alone(op: Op, precision: str, inputs: Sequence[Array], results: Sequence[Array]) -> list[Check]:
    """What the float64 reference of these very inputs, widened, says of each result."""
    import numpy as np

    checks = []
    with np.errstate(all="ignore"):
        wants = each((op.reference or op.expr)(np, *inputs))
        for operand, got, want in zip(op.outputs, results, wants, strict=True):
            tolerance = op.judged(operand)
            scale = None if tolerance.scale is None else np.asarray(tolerance.scale(np, *inputs))
            checks.append(judge(tolerance, precision, got, np.asarray(want, np.float64), scale))
    return checks


def compare(op: Op, precision: str, got: Array, want: Array, scale: Array | None) -> Check:
    """What `judge` says of an op's only output."""
    return judge(op.tolerance, precision, got, want, scale)


def judge(tolerance: Tolerance, precision: str, got: Array, want: Array, scale: Array | None) -> Check:
    """Every element of `got` against the reference: |got - want| <= units * u(precision) * scale.

    Two limits of the dtype count as right: below its smallest normal number rounding is absolute, so a scale
    under that is raised to it; and an infinity stands for whatever rounds past its largest number.
    The error of an element is |got - want| / scale; it is 0 where both are equal (infinities too) or both
    NaN, and infinite where either is NaN. A non-finite error is reported as None.
    """
    import numpy as np

    limit = tolerance.units * UNIT_ROUNDOFF[precision]
    past = OVERFLOW[precision] * (1 - UNIT_ROUNDOFF[precision] / 2) / (1 + limit)
    spread = None if scale is None else np.ravel(np.broadcast_to(scale, want.shape))
    got_flat, want_flat = np.ravel(got), np.ravel(want)

    def worst_of(start: int) -> tuple[float, int]:
        part = slice(start, start + SLICE)
        values, wanted = got_flat[part].astype(np.float64), want_flat[part]
        size = np.abs(wanted) if spread is None else spread[part]
        size = np.maximum(size, SMALLEST_NORMAL[precision])
        with np.errstate(all="ignore"):
            error = np.abs(values - wanted) / size
            largest = error.max()
        if not largest <= limit:  # too large, infinite or NaN: what counts as right after all?
            error = _errors(values, wanted, size)
            error[np.isinf(values) & (np.sign(values) * wanted >= past)] = 0.0
        index = int(np.argmax(error))
        return float(error[index]), start + index

    found = in_slices(worst_of, want_flat.size)
    worst, where = max(found, key=lambda pair: pair[0], default=(0.0, 0))
    shape = np.shape(want)
    place = [int(i) for i in np.unravel_index(where, shape)] if shape and want_flat.size else []
    ok = got_flat.size == want_flat.size and worst <= limit
    return Check(
        ok=ok, max_error=worst if np.isfinite(worst) else None, limit=limit,
        scale="value" if scale is None else "terms", index=place,
    )  # fmt: skip


def judge_choices(tolerance: Tolerance, precision: str, got: Array, inputs: Sequence[Array]) -> Check:
    """What the float64 reference says of choices: by how far each falls short of the best, and how many do."""
    import msgspec
    import numpy as np

    assert tolerance.shortfall is not None
    error = np.asarray(tolerance.shortfall(np, got, *map(widened, inputs)))
    check = judge(tolerance, precision, error, np.zeros(error.shape), np.ones(error.shape))
    return msgspec.structs.replace(check, differing=int(np.count_nonzero(error)))


def same_bytes(first: Array, second: Array) -> bool:
    """Whether two arrays of one shape and dtype hold the same bytes; a NaN equals itself, and 0 is not -0."""
    import numpy as np

    if first.shape != second.shape:
        return False
    word = np.uint64 if first.nbytes % 8 == 0 else np.uint8
    a, b = np.ravel(first).view(word), np.ravel(second).view(word)

    def same(start: int) -> bool:
        return np.array_equal(a[start : start + SLICE], b[start : start + SLICE])

    return all(in_slices(same, a.size))


def _errors(got: Array, want: Array, scale: Array) -> Array:
    import numpy as np

    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        error = np.abs(got - want) / scale
    error[~np.isfinite(error)] = np.inf
    error[same] = 0.0
    return error
