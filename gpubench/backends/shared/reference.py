"""The check of an output: sentinels, the float64 reference, the comparison of every element with it, and inputs
that make every term of a sum count.

Functions import NumPy inside, because only workers call them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.backends.shared.host import SLICE, copy, host_dtype, in_slices, repeat_values
from gpubench.base import disk, hash_text
from gpubench.base.errors import BackendError
from gpubench.kernels.contract.op import (
    OVERFLOW,
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Array,
    Op,
    Operand,
    Shape,
    Split,
    Stored,
    Tolerance,
    each,
)
from gpubench.result.case import Case
from gpubench.result.run import Check

# Sentinels that no right output contains: a number for outputs that may contain NaN, a value that is no id, and
# a byte that is no ASCII character.
_ODD = 0.6180339887
_NO_ID = -(2**31)
_NO_LETTER = 255


class Oddities(NamedTuple):
    """The infinities and NaNs in a reference."""

    first: int | None = None  # flat index of the first infinity or NaN; None if there is none
    nan: bool = False  # whether there is a NaN


def sentinel_for(odd: Oddities) -> float:
    """Return a number that no right output contains: NaN, or _ODD if the reference contains NaN."""
    return _ODD if odd.nan else float("nan")


def not_finite(answer: Reference, inputs: Sequence[Array]) -> list[int] | None:
    """Return the index of the first infinity or NaN in a reference; the index of a single number is []. Returns
    None if all values are finite, or if an input contains an infinity or NaN, too."""
    import numpy as np

    first = answer.odd.first
    if first is None or not all(np.isfinite(x).all() for x in inputs):
        return None
    return [int(i) for i in np.unravel_index(first, np.shape(answer.want))]


def sentinels(shape: Shape, dtype: Stored, value: float = float("nan")) -> Array:
    """Return an array filled with `sentinel_of`. An output begins as such an array, so that an element that no
    launch writes fails its check."""
    import numpy as np

    array = np.empty(shape, host_dtype(dtype))
    fill(array, sentinel_of(dtype, value))
    return array


def sentinel_of(dtype: str, value: float = math.nan) -> float:
    """Return the sentinel for an output of this dtype. For int32 it is no possible id, for uint8 no letter, and
    for any other dtype it is `value`."""
    return {"int32": _NO_ID, "uint8": _NO_LETTER}.get(dtype, value)


def fill(array: Array, value: float) -> None:
    """Write the value into every element of a C-contiguous array."""
    flat = array.reshape(-1)

    def one(start: int) -> None:
        flat[start : start + SLICE] = value

    in_slices(one, flat.size)


ANSWER_SAMPLES = 16  # elements of each output that a file stores


LARGEST = 1e99  # the largest number of a result file, and 1 / the smallest one


def samples_of(outputs: Iterable[Array]) -> list[float]:
    """Return at most ANSWER_SAMPLES elements of each numeric output as float64, evenly spaced over the output.
    Complex numbers give their real parts, and bfloat16 gives nothing. NaN becomes 0. A number that a result
    file cannot store becomes the nearest one that it can."""
    import numpy as np

    samples: list[float] = []
    for output in outputs:
        flat = np.ravel(output)
        if flat.dtype.kind in "biufc" and flat.size:
            places = np.linspace(0, flat.size - 1, min(ANSWER_SAMPLES, flat.size)).astype(np.int64)
            values = np.nan_to_num(flat[places].real.astype(np.float64)).clip(-LARGEST, LARGEST)
            samples += np.where(np.abs(values) < 1 / LARGEST, 0.0, values).tolist()
    return samples


def storable(error: float) -> float | None:
    """Return an error as a result file stores it: infinity, NaN and too large numbers become None, too small
    numbers become 0."""
    return (error if error * LARGEST > 1 else 0.0) if error < LARGEST else None


class Reference(NamedTuple):
    """The float64 reference of one output."""

    want: Array  # values, in float64
    scale: Array | None  # scale of the tolerance; None means |want|
    odd: Oddities  # infinities and NaNs of the reference

    def beginning(self, rows: int) -> Reference:
        """Return the reference of the first `rows` rows."""
        want, scale = self.want[:rows], self.scale
        if scale is not None and scale.ndim and scale.shape[0] == self.want.shape[0]:
            scale = scale[:rows]
        first = self.odd.first
        inside = first is not None and first < want.size
        return Reference(want, scale, self.odd if inside else Oddities())


def references(op: Op, inputs: list[Array], folder: Path, key: str) -> tuple[Reference, ...]:
    """Return the float64 reference of each output, from memory-mapped files in `folder`. The first worker
    writes the files, and the other workers read them. `key` identifies the workload and its inputs. Raises
    BackendError if the files cannot be written."""
    import numpy as np

    name = hash_text(key, 16)
    wants = [folder / f"{name}-want{i}.npy" for i in range(len(op.outputs))]
    dtype = next((array.dtype.name for array in inputs if array.dtype.kind not in "iu"), "float64")
    scales = {
        i: (folder / f"{name}-scale{i}.npy", scale)
        for i, output in enumerate(op.outputs)
        if (scale := _spread(op.tolerance_of(output), dtype)) is not None
    }
    try:
        if not wants[-1].exists():
            for file, scale in scales.values():
                _publish([file], scale, op, inputs, None)
            join = op.split.join if isinstance(op.split, Split) else None
            _publish(wants, op.exact(), op, inputs, join)
    except OSError as error:
        for begun in folder.glob(f"{name}-*.part"):  # smaller cases may still find room
            with contextlib.suppress(OSError):
                begun.unlink()
        raise BackendError(
            f"the temporary folder {folder.parent} does not take the reference of this case: {disk.reason(error)}",
            hint=disk.remedy(error, "name another folder in TMPDIR"),
        ) from error
    return tuple(
        Reference(
            np.load(file, mmap_mode="r"),
            np.load(scales[i][0], mmap_mode="r") if i in scales else None,
            msgspec.json.decode(_odd_file(file).read_bytes(), type=Oddities),
        )
        for i, file in enumerate(wants)
    )


def _odd_file(want: Path) -> Path:
    return want.with_suffix(".json")


def _spread(tolerance: Tolerance, dtype: str) -> Callable[..., Array] | None:
    """Return the function that computes the scale of a tolerance, including its slack, or None if it has no
    scale."""
    scale, slack, u = tolerance.scale, tolerance.slack, UNIT_ROUNDOFF[dtype]
    if scale is None or slack is None:
        return scale
    # So `units * u * scale`, the allowed error, includes the slack.
    return lambda xp, *inputs: scale(xp, *inputs) + slack(xp, u, *inputs) / (tolerance.units * u)


def _publish(
    paths: Sequence[Path], function: Callable[..., Any], op: Op, inputs: list[Array], join: str | None
) -> None:
    """Write each result of `function` in float64 to its file. A file appears only when it is complete."""
    import numpy as np

    def compute_wide(xp: Any, *parts: Array) -> Array:
        return xp.asarray(function(xp, *map(widen, parts)), xp.float64)

    # If the op can be sliced, all CPUs work on slices, whose float64 copies stay in the caches.
    rows, step, of = _cut(compute_wide, op, inputs, join)
    if rows > step and join is None and (first := of(0)).shape[:1] == (step,):
        _write(paths[0], (rows, *first.shape[1:]), of, rows, step)
        return
    # Overflow and invalid values are legal results here; the comparison judges them.
    with np.errstate(all="ignore"):
        if rows > step and join is not None:
            results = getattr(np, join).reduce(in_slices(of, rows, step))
        else:
            results = function(np, *_widen_all(inputs))
    for path, array in zip(paths, each(results), strict=True):
        flat = np.ravel(array)
        _write(path, np.shape(array), partial(_slice_of, flat), flat.size, SLICE)


def _slice_of(flat: Array, start: int) -> Array:
    return flat[start : start + SLICE]


def _cut(
    function: Callable[..., Array], op: Op, inputs: Sequence[Array], join: str | None
) -> tuple[int, int, Callable[[int], Array]]:
    """Return the number of rows, the rows in a slice, and the function that computes the slice from a row on."""
    import numpy as np

    axes = _axes(op, join)
    rows = inputs[0].shape[axes[0]] if axes else 0
    step = max(1, SLICE * rows // max(1, inputs[0].size)) if axes else 1

    def of(start: int) -> Array:
        part = slice(start, start + step)
        parts = (x[(slice(None),) * axis + (part,)] for x, axis in zip(inputs, axes, strict=True))
        with np.errstate(all="ignore"):  # each thread has its own
            return function(np, *parts)

    # No rows: the op cannot be computed slice by slice.
    return rows, step, of


def _axes(op: Op, join: str | None) -> tuple[int, ...]:
    """Return the axis along which each input is sliced, or an empty tuple if the op cannot be sliced."""
    split = None if callable(op.split) or op.more_outputs else op.split
    if split is None or split.join != join or {x.name for x in op.inputs} != set(split.axes):
        return ()
    return tuple(split.axes[x.name] for x in op.inputs)


def _widen_all(inputs: Sequence[Array]) -> list[Array]:
    """Return float64 copies of whole inputs, made on all CPUs. Ids and text keep their dtype."""
    import numpy as np

    wide = [np.empty_like(x, x.dtype if x.dtype.kind in "iu" else np.float64) for x in inputs]
    for source, target in zip(inputs, wide, strict=True):
        copy(source, target)
    return wide


def _new_part(path: Path) -> Path:
    """Make a temporary file, which becomes `path` when it is complete."""
    # Each writer has its own file. Truncating a shared file would end, by SIGBUS, workers that have mapped it.
    descriptor, name = tempfile.mkstemp(".part", f"{path.stem}-", path.parent)
    os.close(descriptor)
    return Path(name)


def _write(path: Path, shape: Shape, of: Callable[[int], Array], count: int, step: int) -> None:
    """Write a reference slice by slice, and a second file with its Oddities."""
    temporary, note = _new_part(path), _new_part(path)
    note.write_bytes(msgspec.json.encode(_fill_file(temporary, shape, of, count, step)))
    note.replace(_odd_file(path))
    temporary.replace(path)


def _fill_file(path: Path, shape: Shape, of: Callable[[int], Array], count: int, step: int) -> Oddities:
    """Write the reference to the file and return its Oddities."""
    import numpy as np

    # The file is unmapped at the end, since Windows cannot rename a mapped file.
    whole = np.lib.format.open_memmap(path, "w+", np.dtype(np.float64), shape)
    with path.open("rb+") as file:
        _reserve(file.fileno(), path.stat().st_size)
    flat, size = whole.reshape(-1), math.prod(shape) // max(1, count)

    def part_of(start: int) -> Oddities:
        part, begin = np.ravel(of(start)), start * size
        flat[begin : begin + part.size] = part
        finite = np.isfinite(part)
        if finite.all():
            return Oddities()
        return Oddities(begin + int(np.argmin(finite)), bool(np.isnan(part).any()))

    # Other processes see it through the same pages: nothing waits for a disk.
    parts = in_slices(part_of, count, step)
    return Oddities(
        min((part.first for part in parts if part.first is not None), default=None),
        any(part.nan for part in parts),
    )


def _reserve(descriptor: int, size: int) -> None:
    """Reserve disk space before the file is written through memory, if the system can."""
    # Without it, a full disk would end the process by SIGBUS.
    try:
        getattr(os, "posix_fallocate", lambda *_: None)(descriptor, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise


def widen(array: Array) -> Array:
    """Return a copy in float64. Ids and text keep their dtype."""
    return array.astype(array.dtype if array.dtype.kind in "iu" else "float64")


def on_host(op: Op, inputs: Sequence[Array]) -> Any:
    """Apply the op's expression to host arrays."""
    import numpy as np

    return op.expr(np, *inputs)


def exact(op: Op, np: Any, *inputs: Array) -> Any:
    """Return the float64 results of an op. If it has no matrix products and can be sliced, all CPUs compute
    slices, whose temporaries stay in the caches."""
    rows, step, of = _cut(op.exact(), op, inputs, None)
    if op.blas or rows <= step:
        return op.exact()(np, *inputs)
    return np.concatenate(in_slices(of, rows, step))


def judge_alone(op: Op, precision: str, inputs: Sequence[Array], results: Sequence[Array]) -> list[Check]:
    """Compare each result with a float64 reference, which is computed here from the same inputs. `precision` is
    as in `judge`."""
    import numpy as np

    checks = []
    with np.errstate(all="ignore"):
        wants = each(exact(op, np, *inputs))
        for operand, got, want in zip(op.outputs, results, wants, strict=True):
            tolerance = op.tolerance_of(operand)
            scale = None if tolerance.scale is None else np.asarray(tolerance.scale(np, *inputs))
            checks.append(judge(tolerance, precision, got, np.asarray(want, np.float64), scale))
    return checks


Probe = tuple[list[Array], Callable[[Array], Check]]


def probes(op: Op, case: Case, drawn: Sequence[Array]) -> Iterator[Probe]:
    """Yield sets of inputs that make every term of an op's sums count, each with a function that judges the first
    output. `drawn` has the usual inputs. An op without `terms` and `probe` yields nothing."""
    import numpy as np

    # The tolerance of bfloat16 finds a missing term, and allows fast algorithms to round whole numbers.
    if op.probe is not None:
        inputs, want = op.probe(np, case.params)
        pairs = zip(inputs, drawn, strict=True)
        whole = [usual if x is None else x.astype(usual.dtype) for x, usual in pairs]
        yield whole, lambda got: judge(Tolerance(8), "bfloat16", got, want, None)
    if op.terms is None:
        return
    whole, alone = term_inputs(op, case)

    def compare(got: Array) -> Check:
        return judge_alone(op, "bfloat16", alone, [got])[0]

    yield whole, compare
    # An input for a maximum tests only the place of its largest term. So that place is the last, and then the 4th,
    # 16th, 64th, ... term from the end.
    if isinstance(op.split, Split) and op.split.join == "maximum":
        terms = whole[0]
        for place in {max(0, len(terms) - 4**k) for k in range(1, len(terms).bit_length() // 2 + 2)}:
            terms[terms == _JOINED] = -_JOINED
            terms[place] = _JOINED
            yield whole, compare


_JOINED = 3  # the sum of all terms
_TERM_BLOCK = 251  # terms whose sum is 0; a prime number, so that no piece of a kernel ends where a block does
_PERIOD = 65_537  # random signs and terms repeat after about this many, because drawing all takes too long


def term_inputs(op: Op, case: Case) -> tuple[list[Array], list[Array]]:
    """Return two lists of inputs with the same right outputs. In the first list every term counts; in the second
    only one term is not 0. A term that is left out or added twice changes a sum by at least 1, which is more
    than the tolerance in every dtype."""
    import numpy as np

    assert op.terms is not None
    axes, generator = op.terms(case.params), np.random.default_rng(case.n)

    def signs(count: int) -> Array:
        drawn = generator.integers(0, 2, min(count, _PERIOD), np.int8)
        return repeat_values(2 * drawn - 1, count)

    def blocks(rows: int, half: int, end: tuple[int, ...]) -> Array:
        values = generator.integers(1, 5, (rows, half), np.int8) * signs(rows * half).reshape(rows, half)
        ends = np.broadcast_to(np.array(end, np.int8), (rows, len(end)))
        return np.concatenate((values, -np.roll(values, half // 3, -1), ends), -1).ravel()

    first, *others = (x for x in op.inputs if x.name in axes and x.name not in op.zero_terms)
    count = first.shape(case.params)[axes[first.name]]
    rest = (count - 1) % _TERM_BLOCK + 1
    # Terms are whole numbers from 1 to 4 with random signs, and their sum is 3 or -3. Partial sums are so small
    # that they are exact.
    balanced = blocks(_PERIOD // _TERM_BLOCK, _TERM_BLOCK // 2 - 1, (1, 2, -3))
    last = blocks(1, (rest - 1) // 2, (_JOINED,) if rest % 2 else (1, _JOINED - 1))
    terms = np.concatenate((repeat_values(balanced, count - rest), last))
    # For an op that takes the largest term, it is the last term, after negative ones.
    if isinstance(op.split, Split) and op.split.join == "maximum":
        terms[:-1], terms[-1] = -np.abs(terms[:-1]), _JOINED
    along = {x.name: signs(count) for x in others}
    along[first.name] = functools.reduce(np.multiply, along.values(), terms)

    def draw(operand: Operand) -> tuple[Array, Array]:
        shape, stored = operand.form(case.params, case.dtype)
        if operand.name not in axes:
            return (np.ones(shape, host_dtype(stored)),) * 2
        single = _JOINED if operand is first else int(operand.name in along)
        axis, vectors, both = axes[operand.name], [signs(side) for side in shape], []
        for vectors[axis] in (along.get(operand.name, 0 * terms), np.array([single], np.int8)):
            both.append(functools.reduce(np.multiply.outer, vectors).astype(host_dtype(stored)))
        return both[0], both[1]

    whole, alone = zip(*map(draw, op.inputs), strict=True)
    return list(whole), list(alone)


def judge(
    tolerance: Tolerance, precision: str, got: Array, want: Array, scale: Array | None,
    errors: BlockErrors | None = None,
) -> Check:  # fmt: skip
    """Compare every element of `got` with the reference `want`: |got - want| <= units * u(precision) * scale.
    `precision` is a key of `UNIT_ROUNDOFF`, and a `scale` of None means |want|. Results that differ only by the
    dtype's limits (overflow, subnormal numbers) are right, too. `errors` replaces NumPy in the first pass."""
    import numpy as np

    limit = tolerance.units * UNIT_ROUNDOFF[precision]
    # An infinity is right for a value that rounds to more than the largest number.
    past = OVERFLOW[precision] * (1 - UNIT_ROUNDOFF[precision] / 2) / (1 + limit)
    # Rounding is absolute below the smallest normal number, so a smaller scale is raised to it.
    smallest = SMALLEST_NORMAL[precision]
    # A device may compute with 0 instead of subnormal numbers, except in float16, whose subnormal numbers are
    # normal in float32.
    flushed = 0.0 if precision == "float16" else smallest
    spread = None if scale is None else np.ravel(np.broadcast_to(scale, want.shape))
    got_flat, want_flat = np.ravel(got), np.ravel(want)

    def worst_of(start: int) -> tuple[float, int]:
        part = slice(start, start + BLOCK)
        values, answer = got_flat[part].astype(np.float64), want_flat[part]
        size = np.maximum(np.abs(answer) if spread is None else spread[part], smallest)
        error = _errors(values, answer, size)
        with np.errstate(invalid="ignore"):
            overflow = np.isinf(values) & (np.sign(values) * answer >= past)
            error[overflow | (np.abs(values - answer) <= flushed)] = 0.0
        index = int(np.argmax(error))
        return float(error[index]), start + index

    same_size = got_flat.size == want_flat.size
    suspects = list(range(0, want_flat.size, BLOCK))
    if same_size and len(suspects) > 1:
        # A first pass finds the largest error of each block. A second pass looks again at blocks beyond the limit,
        # and at the block with the largest error within the limit.
        largest = None if errors is None else errors(got_flat, want_flat, spread, smallest)
        largest = _block_errors(got_flat, want_flat, spread, smallest) if largest is None else largest
        within = largest <= limit
        beyond = np.flatnonzero(~within)  # too large, infinite or NaN, which may be right all the same
        suspects = [int(i) * BLOCK for i in {*beyond, np.argmax(np.where(within, largest, -1.0))}]
    worsts = [worst_of(start) for start in suspects] if same_size else [(math.inf, 0)]
    worst, where = max(worsts, key=lambda pair: pair[0], default=(0.0, 0))
    shape = np.shape(want)
    place = [int(i) for i in np.unravel_index(where, shape)] if shape and want_flat.size else []
    return Check(
        ok=same_size and worst <= limit, max_error=storable(worst), limit=limit,
        scale="value" if scale is None else "terms", index=place,
    )  # fmt: skip


# Elements of a block. SLICE is a multiple of it.
BLOCK = 1 << 16
# Most threads that compare. More wait for the interpreter's lock, as several workers compare at the same time.
_COMPARERS = 8
# `JudgesBlocks.block_errors`. The error of a block is NaN if the error of any of its elements is NaN.
BlockErrors = Callable[[Array, Array, Array | None, float], Array | None]
_scratch = threading.local()


def _block_errors(got: Array, want: Array, scale: Array | None, smallest: float) -> Array:
    import numpy as np

    def largest(start: int) -> Array:
        if not hasattr(_scratch, "pair"):
            _scratch.pair = np.empty((2, SLICE))
        answer = want[start : start + SLICE]
        error, size = _scratch.pair[:, : answer.size]
        with np.errstate(all="ignore"):
            np.subtract(got[start : start + SLICE], answer, out=error, dtype=np.float64)
            np.abs(error, out=error)
            if scale is None:
                np.abs(answer, out=size)
            np.maximum(size if scale is None else scale[start : start + SLICE], smallest, out=size)
            np.divide(error, size, out=error)
        return np.maximum.reduceat(error, range(0, error.size, BLOCK))

    return np.concatenate(in_slices(largest, want.size, most=_COMPARERS))


def judge_choices(tolerance: Tolerance, precision: str, got: Array, inputs: Sequence[Array]) -> Check:
    """Judge an output of choices, such as indices. The error of a choice is how far its value falls short of the
    best value in float64, by the tolerance's `shortfall`. The check also counts the choices that are not the
    best."""
    import numpy as np

    assert tolerance.shortfall is not None
    error = np.asarray(tolerance.shortfall(np, got, *map(widen, inputs)))
    check = judge(tolerance, precision, error, np.zeros(error.shape), np.ones(error.shape))
    return msgspec.structs.replace(check, differing=int(np.count_nonzero(error)))


def same_bytes(first: Array, second: Array) -> bool:
    """Return whether two arrays of one dtype have the same shape and the same bytes. NaNs with equal bytes are
    the same, but 0 and -0 are not."""
    import numpy as np

    if first.shape != second.shape:
        return False
    word = np.uint64 if first.nbytes % 8 == 0 else np.uint8
    a, b = np.ravel(first).view(word), np.ravel(second).view(word)

    def same(start: int) -> bool:
        return np.array_equal(a[start : start + SLICE], b[start : start + SLICE])

    return all(in_slices(same, a.size, most=_COMPARERS))


def _errors(got: Array, want: Array, scale: Array) -> Array:
    import numpy as np

    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        error = np.abs(got - want) / scale
    error[~np.isfinite(error)] = np.inf
    error[same] = 0.0
    return error
