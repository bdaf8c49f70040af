"""The host side that every backend shares: seeded inputs, sentinels, float64 reference, full comparison, threads.

NumPy is imported inside the functions: only workers call them.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from gpubench.errors import Unsupported
from gpubench.model.backend import Session
from gpubench.model.case import Case
from gpubench.model.kernel import Kernel, Limits
from gpubench.model.op import OVERFLOW, SMALLEST_NORMAL, UNIT_ROUNDOFF, Array, Dtype, Op, Params, Range, Shape
from gpubench.model.result import Check, Device

# Comparing in slices keeps the float64 temporaries small beside the arrays themselves.
SLICE = 1 << 18
_ODD = 0.6180339887  # the sentinel where NaN is a right answer: a number that no op gives by design
_LOOK_S = 0.0005
_THREADS = "/proc/self/task"
_MOST_CHECKERS = 16


Result = TypeVar("Result")

_bound: int | None = None


def bound_cpus(count: int | None) -> None:
    """Count no more than so many CPUs as usable by this process (None: no bound): its affinity tells nothing of the
    quota of a control group, which stops all threads of a group once it is used up."""
    global _bound
    _bound = count


def usable_cpus() -> int:
    """CPUs that this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, _bound or found)


def spin_briefly() -> None:
    """Threads of an OpenMP or OpenBLAS that is loaded after this spin for half a millisecond while they wait, not for 4
    to 9, or 120, when they take the cores from whatever comes next: another BLAS, the driver of a GPU. Launches in a
    row still find them awake."""
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2^20 cycles


def settle(limit_s: float = 0.25) -> None:
    """Return once no other thread of this process spins: where `spin_briefly` came too late, OpenBLAS's and OpenMP's do
    so for up to 0.2 s after a call, on cores that the next thing to be timed needs."""
    end = time.monotonic() + limit_s
    while others_run() and time.monotonic() < end:
        time.sleep(_LOOK_S)


def others_run() -> bool:
    """Whether a thread beside the caller runs, or would if it had a core.

    Where the system does not tell the state of threads, processor time says so, in a short sleep of the caller. That
    misses a thread that spins while it waits for a core, which it does most of the time on a busy machine.
    """
    if os.path.isdir(_THREADS):
        own = str(threading.get_native_id())
        return any(_is_running(name) for name in os.listdir(_THREADS) if name != own)
    busy, began = time.process_time(), time.monotonic()
    time.sleep(_LOOK_S)
    return time.process_time() - busy >= (time.monotonic() - began) / 2


def _is_running(thread: str) -> bool:
    """By Linux' state of the thread, which follows its name in parentheses."""
    try:
        with open(f"{_THREADS}/{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):  # it has ended
        return False


def in_slices(function: Callable[[int], Result], count: int, step: int = SLICE) -> list[Result]:
    """`function` of the start of each slice of `count` elements, on all CPUs: NumPy lets go of the interpreter lock
    inside each call."""
    starts = range(0, count, step)
    if len(starts) <= 1:
        return [function(start) for start in starts]
    with ThreadPoolExecutor(min(_MOST_CHECKERS, usable_cpus())) as pool:
        return list(pool.map(function, starts))


def copying_threads() -> int:
    """How many threads copy between the caller's arrays and staging memory: more than eight gain little."""
    return min(8, usable_cpus())


def bytes_of(host: Array) -> Array:
    """The array's own memory as bytes (0-d arrays included)."""
    return host.reshape(-1).view("uint8")


def aligned(shape: Shape, dtype: Any) -> Array:
    """A C-contiguous array that begins at a cache line, as streaming stores and whole vectors need it."""
    import numpy as np

    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(kind).reshape(shape)


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
    """One C-contiguous array per input, the same bytes on every backend: seeded by op, operand, shape beside the size,
    dtype and seed. Values follow each other in the order of memory, so that a larger size begins with a smaller one.

    `kind` zeros, ones or normal overrides what an operand says of its values; of those, normal leaves a Range alone.
    """
    import numpy as np

    if kind in ("zeros", "ones"):
        fill = 0 if kind == "zeros" else 1
        return [np.full(x.shape(params), fill, host_dtype(dtype)) for x in op.inputs]
    beside = sorted((name, value) for name, value in params.items() if name != "n")
    arrays = []
    for operand in op.inputs:
        array = np.empty(operand.shape(params), host_dtype(dtype))
        drawn = "normal" if kind == "normal" and not isinstance(operand.values, Range) else operand.values
        _fill(array, drawn, f"{op.name} {operand.name} {beside} {dtype} {seed}", wide=dtype == "float64")
        arrays.append(array)
    return arrays


# Each so many values are drawn by a generator of their own: on all CPUs, and the same whatever the array's size.
_DRAWN = 1 << 20


def _fill(array: Array, drawn: str | Range, key: str, *, wide: bool) -> None:
    import numpy as np

    flat = array.reshape(-1)

    def fill(start: int) -> None:
        digest = hashlib.sha256(f"{key} {start}".encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], "little")))
        part = flat[start : start + _DRAWN]
        kind: Any = np.float64 if wide else np.float32
        values: Any
        if isinstance(drawn, Range) and drawn.whole:
            values = generator.integers(int(drawn.low), int(drawn.high), part.size)
        elif drawn == "normal":
            values = generator.standard_normal(part.size, dtype=kind)
        else:
            low, high = (drawn.low, drawn.high) if isinstance(drawn, Range) else (-1, 1)
            values = generator.random(part.size, dtype=kind)
            values *= high - low
            values += low
        part[:] = values

    in_slices(fill, flat.size, _DRAWN)


def random_bytes(array: Array, key: str) -> None:
    """Fill a C-contiguous array with random bytes, the same for the same key."""
    import numpy as np

    generator = np.random.Generator(
        np.random.SFC64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little"))
    )
    whole = array.reshape(-1).view(np.uint8)
    for start in range(0, whole.size, 4 * SLICE):
        part = whole[start : start + 4 * SLICE]
        part[:] = np.frombuffer(generator.bytes(part.size), np.uint8)


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


def sentinels(shape: Shape, dtype: Dtype, value: float = float("nan")) -> Array:
    """An array of sentinels: what an output is filled with, so that an unwritten element fails the check."""
    import numpy as np

    array = np.empty(shape, host_dtype(dtype))
    fill(array, value)
    return array


def fill(array: Array, value: float) -> None:
    """Write the value into every element of a C-contiguous array."""
    flat = array.reshape(-1)

    def one(start: int) -> None:
        flat[start : start + SLICE] = value

    in_slices(one, flat.size)


def reference(op: Op, inputs: list[Array], folder: Path, key: str) -> tuple[Array, Array | None]:
    """The float64 answer and its tolerance scale, computed once per workload and shared by all workers.

    Both are memory-mapped files in `folder`; the second worker finds what the first one wrote.
    The scale is None where the tolerance is relative to |want|.
    """
    import numpy as np

    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    want_file, scale_file = folder / f"{name}-want.npy", folder / f"{name}-scale.npy"
    if not want_file.exists():
        if op.tolerance.scale is not None:
            _publish(scale_file, op.tolerance.scale, op, inputs)
        _publish(want_file, op.reference or op.expr, op, inputs)
    want = np.load(want_file, mmap_mode="r")
    return want, np.load(scale_file, mmap_mode="r") if op.tolerance.scale is not None else None


def _publish(path: Path, function: Callable[..., Array], op: Op, inputs: list[Array]) -> None:
    """The function of the inputs in float64, as a file that appears when it is whole.

    Where the op is cut along its first dimension, slice by slice on all CPUs: the copies in float64 stay in the caches.
    """
    import numpy as np

    def of(part: slice) -> Array:
        # Overflow and invalid values are legal results here; the comparison judges them.
        with np.errstate(all="ignore"):
            return np.asarray(function(np, *(x[part].astype(np.float64) for x in inputs)), np.float64)

    temporary = path.with_suffix(".part")
    rows = op.rows(inputs)
    step = max(1, SLICE // max(1, math.prod(inputs[0].shape[1:]))) if inputs else 1
    first = of(slice(0, step)) if rows > step else None
    if first is None or first.shape[:1] != (step,):
        with temporary.open("wb") as file:
            np.save(file, of(slice(None)))
    else:
        whole = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.float64), (rows, *first.shape[1:]))

        def part_of(start: int) -> None:
            whole[start : start + step] = of(slice(start, start + step))

        in_slices(part_of, rows, step)
        del whole
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


def op_hash(op: Op) -> str:
    """Twelve digits that change when the op means something else: shapes, costs, inputs or reference.

    Built from behaviour, not from text, so that reformatting a file does not make results incomparable.
    """
    import numpy as np

    seen: list[str] = [op.name, str(op.tolerance.units)]
    for n in (1, 7, 96):
        params = {"n": n}
        seen += [f"{x.shape(params)}{x.values}" for x in (*op.inputs, op.output)]
        seen += [str(op.flops(params)), str(op.bytes(params, "float32"))]
    inputs = random_inputs(op, {"n": 7}, "float64", seed=0)
    with np.errstate(all="ignore"):
        answer = np.ravel(np.asarray((op.reference or op.expr)(np, *inputs), np.float64))
    seen += [f"{value:.9g}" for value in answer]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]


class Flush:
    """Caches emptied: the host's by writing twice as much as they hold, the device's by its own session.

    Call it before the clock starts. `host_bytes`: twice the CPU's last level of cache.

    Every thread writes its share, because the caches near the cores are their own.
    """

    def __init__(self, session: Session, host_bytes: int) -> None:
        import numpy as np

        self._session = session
        self._threads = session.threads or usable_cpus()
        self.written = np.zeros(host_bytes, np.uint8)
        self._pool = ThreadPoolExecutor(self._threads)

    def __call__(self) -> None:
        """Flush both sides and wait for it."""
        if self._session.device.kind != "cpu":
            self._session.flush()
            self._session.sync()
        share = -(-self.written.size // self._threads)
        list(self._pool.map(self._write, range(0, self.written.size, share), [share] * self._threads))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _write(self, start: int, size: int) -> None:
        self.written[start : start + size] += 1


Block = Callable[[int, int], None]


class BlockThreads:
    """The threads that run a tuned NumPy kernel's blocks, and that copy: they stay, and each takes the next block when
    it is free. `threads` in all: the caller's own, and others that start with the first launch that needs them.

    One wake-up per thread and launch. A future per block costs more than that: every hand-over of the interpreter's
    lock is a wait, and blocks of 64 Ki elements then copy at half the rate (measured with two cores).
    `limit_blas(count)` sets the threads of the BLAS that blocks may call.
    """

    def __init__(self, threads: int, limit_blas: Callable[[int], None] = lambda count: None) -> None:
        self.threads = threads
        self._limit_blas = limit_blas
        self._waiting: SimpleQueue[_Launch | None] = SimpleQueue()
        self._others: list[threading.Thread] = []

    def run(self, function: Block, length: int, grain: int) -> None:
        """`function(start, stop)` for slices of `grain` up to `length`; a single one stays on this thread.

        Raises what the first block to fail raised, when all threads are done.
        """
        launch = _Launch(function, length, grain)
        others = min(self.threads, -(-length // grain)) - 1
        while len(self._others) < others:
            thread = threading.Thread(
                target=self._serve, name=f"gpubench-block-{len(self._others)}", daemon=True
            )
            thread.start()
            self._others.append(thread)
        for _ in range(others):
            self._waiting.put(launch)
        launch.work()
        for _ in range(others):
            launch.finished.get()
        if launch.error is not None:
            raise launch.error

    def multiply(self, function: Block, length: int, grain: int) -> None:
        """The same for a function that multiplies: BLAS has one thread meanwhile. Two pools at once, each of as many
        threads as there are cores, take up to 13 times as long."""
        self._limit_blas(1)
        try:
            self.run(function, length, grain)
        finally:
            self._limit_blas(self.threads)

    def close(self) -> None:
        """End the threads; a later launch starts new ones."""
        for _ in self._others:
            self._waiting.put(None)
        for thread in self._others:
            thread.join()
        self._others = []

    def _serve(self) -> None:
        while (launch := self._waiting.get()) is not None:
            launch.work()
            launch.finished.put(None)
            del launch  # idle threads hold no arrays


class _Launch:
    """The blocks of one launch that nobody has taken yet."""

    def __init__(self, function: Block, length: int, grain: int) -> None:
        self.finished: SimpleQueue[None] = SimpleQueue()
        self.error: BaseException | None = None
        self._function, self._length, self._grain = function, length, grain
        self._starts = iter(range(0, length, grain))
        self._lock = threading.Lock()

    def work(self) -> None:
        """Take blocks until there are none."""
        try:
            while (start := self._next()) is not None:
                self._function(start, min(start + self._grain, self._length))
        except BaseException as error:  # handed to the caller of `run`
            self.error = self.error or error

    def _next(self) -> int | None:
        with self._lock:
            return next(self._starts, None)
