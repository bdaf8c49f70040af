"""The host side that every backend shares: seeded inputs, poison, float64 reference, full comparison.

NumPy is imported inside the functions: only workers call them.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpubench.errors import Unsupported
from gpubench.model.case import Case
from gpubench.model.kernel import Kernel, Limits
from gpubench.model.op import OVERFLOW, SMALLEST_NORMAL, UNIT_ROUNDOFF, Array, Dtype, Op, Params, Shape
from gpubench.model.result import Check, Device

# Comparing in slices keeps the float64 temporaries small beside the arrays themselves.
_SLICE = 1 << 18
_ODD = 0.6180339887  # poison where NaN is a right answer: a number that no op gives by design
_MOST_CHECKERS = 16


def usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def copying_threads() -> int:
    """How many threads copy between the caller's arrays and staging memory: more than eight gain little."""
    return min(8, usable_cpus())


def bytes_of(host: Array) -> Array:
    """The array's own memory as bytes (0-d arrays included)."""
    return host.reshape(-1).view("uint8")


def host_dtype(dtype: Dtype) -> Any:
    """The NumPy dtype of host arrays; bfloat16, which NumPy itself does not have, is ml_dtypes' own."""
    import numpy as np

    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def calls_library(op: Op, case: Case) -> bool:
    """Whether the case runs the expression, and each launch returns a fresh array: the library form, and a tuned one
    where nothing is better."""
    kernel = op.kernel(case.backend, case.dtype, case.variant)
    return case.form == "library" or (kernel is not None and kernel.library)


def no_kernel(op: Op, case: Case) -> Unsupported | None:
    """Why `op` has no tuned kernel of its own for this case, or None: none written, no such variant, a library call."""
    kernel = op.kernel(case.backend, case.dtype, case.variant)
    if kernel is not None and not kernel.repeats_library(case.regime):
        return None
    if kernel is not None:
        why = f"the best {op.name} on {case.backend} is the library call"
    else:
        name = case.variant or "tuned"
        why = f"{op.name} has no {name} kernel for {case.dtype} on {case.backend}"
    return Unsupported(why, reason="no-implementation")


def tuned_kernel(op: Op, case: Case) -> Kernel:
    """The kernel that this case runs. Raises Unsupported where `no_kernel` says so."""
    refusal = no_kernel(op, case)
    if refusal is not None:
        raise refusal
    kernel = op.kernel(case.backend, case.dtype, case.variant)
    assert kernel is not None
    return kernel


def no_overhead(op: Op, case: Case, device: Device, limits: Limits) -> Unsupported | None:
    """Why a device has no such overhead, or None: a CPU, a form that is like another one, too many bytes."""
    assert op.overhead is not None
    if device.kind == "cpu":
        return Unsupported(f"{op.name} is a cost of GPUs; a CPU does without", reason="no-implementation")
    if case.form not in op.overhead.forms:
        return Unsupported(f"{op.name} has no {case.form} form of its own", reason="no-implementation")
    if case.dtype not in op.dtypes:
        return Unsupported(f"{op.name} is declared for {', '.join(op.dtypes)}", reason="no-dtype")
    if case.params["n"] > limits.max_buffer_bytes:
        why = f"{case.params['n']} bytes; a buffer of {device.id} holds at most {limits.max_buffer_bytes}"
        return Unsupported(why, reason="limit")
    return None


def random_inputs(op: Op, params: Params, dtype: Dtype, seed: int, kind: str = "random") -> list[Array]:
    """One C-contiguous array per input, the same bytes on every backend: seeded by op, size, dtype, seed.

    "uniform" draws from [-1, 1), "normal" with mean 0 and deviation 1; `kind` zeros or ones overrides both.
    """
    import numpy as np

    if kind != "random":
        fill = 0 if kind == "zeros" else 1
        return [np.full(x.shape(params), fill, host_dtype(dtype)) for x in op.inputs]
    key = f"{op.name} {sorted(params.items())} {dtype} {seed}".encode()
    digest = hashlib.sha256(key).digest()
    generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], "little")))
    wide: Any = np.float64 if dtype == "float64" else np.float32
    arrays = []
    for operand in op.inputs:
        shape = operand.shape(params)
        if operand.values == "normal":
            values = generator.standard_normal(shape, dtype=wide)
        else:
            values = generator.random(shape, dtype=wide)
            values *= 2
            values -= 1
        arrays.append(np.ascontiguousarray(values, dtype=host_dtype(dtype)))
    return arrays


def random_bytes(array: Array, key: str) -> None:
    """Fill a C-contiguous array with random bytes, the same for the same key."""
    import numpy as np

    generator = np.random.Generator(
        np.random.SFC64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little"))
    )
    whole = array.reshape(-1).view(np.uint8)
    for start in range(0, whole.size, 4 * _SLICE):
        part = whole[start : start + 4 * _SLICE]
        part[:] = np.frombuffer(generator.bytes(part.size), np.uint8)


def poison_for(want: Array) -> float:
    """The value that no right answer holds: NaN; where the answer holds NaN itself, a number."""
    import numpy as np

    return _ODD if np.isnan(want).any() else float("nan")


def poisoned(shape: Shape, dtype: Dtype, value: float = float("nan")) -> Array:
    """An array of poison: what an output is filled with, so that an unwritten element fails the check."""
    import numpy as np

    return np.full(shape, value, host_dtype(dtype))


def reference(op: Op, inputs: list[Array], folder: Path, key: str) -> tuple[Array, Array | None]:
    """The float64 answer and its tolerance scale, computed once per workload and shared by all workers.

    Both are memory-mapped files in `folder`; the second worker finds what the first one wrote.
    The scale is None where the tolerance is relative to |want|.
    """
    import numpy as np

    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    want_file, scale_file = folder / f"{name}-want.npy", folder / f"{name}-scale.npy"
    if not want_file.exists():
        wide = [x.astype(np.float64) for x in inputs]
        # Overflow and invalid values are legal results here; the comparison judges them.
        with np.errstate(all="ignore"):
            if op.tolerance.scale is not None:
                _publish(scale_file, np.asarray(op.tolerance.scale(np, *wide), np.float64))
            _publish(want_file, np.asarray((op.reference or op.expr)(np, *wide), np.float64))
    want = np.load(want_file, mmap_mode="r")
    return want, np.load(scale_file, mmap_mode="r") if op.tolerance.scale is not None else None


def _publish(path: Path, array: Array) -> None:
    import numpy as np

    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)


def compare(op: Op, precision: str, got: Array, want: Array, scale: Array | None) -> Check:
    """Every element of `got` against the reference: |got - want| <= units * u(precision) * scale.

    Two limits of the dtype count as right: below its smallest normal number rounding is absolute, so a scale
    under that is raised to it; and an infinity stands for whatever rounds past its largest number.
    The error of an element is |got - want| / scale; it is 0 where both are equal (infinities too) or both
    NaN, and infinite where either is NaN. A non-finite error is reported as None.
    """
    import numpy as np

    limit = op.tolerance.units * UNIT_ROUNDOFF[precision]
    past = OVERFLOW[precision] * (1 - UNIT_ROUNDOFF[precision] / 2) / (1 + limit)
    spread = np.ravel(np.abs(want) if scale is None else np.broadcast_to(scale, want.shape))
    got_flat, want_flat = np.ravel(got), np.ravel(want)

    def worst_of(start: int) -> tuple[float, int]:
        part = slice(start, start + _SLICE)
        values, wanted = got_flat[part].astype(np.float64), want_flat[part]
        error = _errors(values, wanted, np.maximum(spread[part], SMALLEST_NORMAL[precision]))
        error[np.isinf(values) & (np.sign(values) * wanted >= past)] = 0.0
        index = int(np.argmax(error))
        return float(error[index]), start + index

    starts = range(0, want_flat.size, _SLICE)
    if len(starts) > 1:  # NumPy lets go of the interpreter lock inside each call
        with ThreadPoolExecutor(min(_MOST_CHECKERS, usable_cpus())) as pool:
            found = list(pool.map(worst_of, starts))
    else:
        found = [worst_of(start) for start in starts]
    worst, where = max(found, key=lambda pair: pair[0], default=(0.0, 0))
    shape = np.shape(want)
    place = [int(i) for i in np.unravel_index(where, shape)] if shape and want_flat.size else []
    ok = got_flat.size == want_flat.size and worst <= limit
    return Check(
        ok=ok, max_error=worst if np.isfinite(worst) else None, limit=limit,
        scale="value" if scale is None else "terms", index=place,
    )  # fmt: skip


def _errors(got: Array, want: Array, scale: Array) -> Array:
    import numpy as np

    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        error = np.abs(got - want) / scale
    error[~np.isfinite(error)] = np.inf
    error[same] = 0.0
    return error


def op_hash(op: Op) -> str:
    """Twelve digits that change when the op means something else: shapes, costs, inputs or reference.

    Built from behaviour, not from text, so that reformatting a file does not make results incomparable.
    """
    import numpy as np

    seen: list[str] = [op.name, str(op.tolerance.units)]
    for n in (1, 7, 96):
        params = {"n": n}
        seen += [str(x.shape(params)) + x.values for x in (*op.inputs, op.output)]
        seen += [str(op.flops(params)), str(op.bytes(params, "float32"))]
    inputs = random_inputs(op, {"n": 7}, "float64", seed=0)
    with np.errstate(all="ignore"):
        answer = np.ravel(np.asarray((op.reference or op.expr)(np, *inputs), np.float64))
    seen += [f"{value:.9g}" for value in answer]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]
