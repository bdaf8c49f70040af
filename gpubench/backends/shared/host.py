"""Helpers of all backends on the host: threads, arrays, seeded inputs, and reasons why a case cannot run.

Functions import NumPy inside, because only workers call them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gpubench.backends.contract import Buffer, HostCall, Launch, Session, StageReading
from gpubench.backends.contract.protocols import Steps
from gpubench.base import allowed_cpus
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.kernels.contract.kernel import Kernel, Limits
from gpubench.kernels.contract.op import (
    Array,
    Dtype,
    Given,
    Ids,
    Made,
    Op,
    Operand,
    Overhead,
    Params,
    Range,
    Shape,
    Stored,
    Values,
    each,
)
from gpubench.result.case import TF32, Case

# Elements of a slice. The temporaries of a slice fit into the caches.
SLICE = 1 << 18
_LOOK_S = 0.0005
_THREADS = "/proc/self/task"
_MOST_CHECKERS = 16
# Value of OMP_PROC_BIND with which each thread stays on one CPU.
_BOUND = "true"


Result = TypeVar("Result")

_bound: int | None = None


def bound_cpus(count: int | None) -> None:
    """Set the largest number of CPUs that count as usable in this process; None removes the bound. A control group
    may limit CPU time, which the CPU affinity does not show."""
    global _bound
    _bound = count


def usable_cpus() -> int:
    """Return how many CPUs the calling thread may use, at most the bound of `bound_cpus`."""
    count = len(allowed_cpus()) or os.cpu_count() or 1
    return min(count, _bound or count)


def set_up_threads() -> None:
    """Set variables for libraries that are loaded later: waiting threads of OpenMP and OpenBLAS soon stop
    spinning, and each OpenMP thread gets a CPU of its own. Variables that the user has set stay."""
    # Threads spin just long enough to be awake for the next launch. By default they take cores from the next
    # work, such as another BLAS or a GPU's driver.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2^20 cycles
    # Two threads on one CPU would wait for each other in every launch.
    os.environ.setdefault("OMP_PROC_BIND", _BOUND)


@contextlib.contextmanager
def on_all_cpus() -> Iterator[None]:
    """Restore the CPU affinity of the calling thread after the `with` block. An OpenMP that is loaded in the block
    binds this thread to one CPU, and thereby all threads and processes that the thread starts later."""
    cpus = allowed_cpus()
    try:
        yield
    finally:
        _bind(cpus)


@contextlib.contextmanager
def on_first_cpu() -> Iterator[None]:
    """If OpenMP binds its threads to CPUs, keep the calling thread on the first of its CPUs in the `with` block. Do
    not start a thread in the block: it would be bound to that CPU, too."""
    cpus = allowed_cpus() if os.environ.get("OMP_PROC_BIND") == _BOUND else frozenset[int]()
    _bind(set(sorted(cpus)[:1]))
    try:
        yield
    finally:
        _bind(cpus)


def _bind(cpus: Set[int]) -> None:
    if cpus:
        with contextlib.suppress(OSError):  # a CPU that was taken away meanwhile
            os.sched_setaffinity(0, cpus)


def settle(limit_s: float = 0.25) -> None:
    """Wait until no other thread of this process runs, at most `limit_s` seconds. Threads of OpenBLAS and OpenMP
    may spin for a while after a call, on cores that the next timing needs."""
    end = time.perf_counter() + limit_s
    while others_run() and time.perf_counter() < end:
        time.sleep(_LOOK_S)


def others_run() -> bool:
    """Return whether another thread of this process runs or waits for a core.

    If the system does not report the state of threads, the processor time during a short sleep of the caller
    decides. On a busy machine this may miss threads that spin, because they mostly wait for a core.
    """
    if os.path.isdir(_THREADS):
        own = str(threading.get_native_id())
        return any(_is_running(name) for name in os.listdir(_THREADS) if name != own)
    clock = _processor_clock()
    busy, began = clock(), time.perf_counter()
    time.sleep(_LOOK_S)
    return clock() - busy >= (time.perf_counter() - began) / 2


def _processor_clock() -> Callable[[], float]:
    """Return a clock of this process's processor time in seconds."""
    import ctypes

    library = getattr(ctypes, "WinDLL", None)
    if sys.platform != "win32" or library is None:
        return time.process_time
    # `process_time` moves in steps of 1/64 s on Windows, so cycles are counted, as if at 1 GHz, which is slower
    # than any CPU.
    query = library("kernel32").QueryProcessCycleTime
    count, this_process = ctypes.c_uint64(), ctypes.c_void_p(-1)

    def read() -> float:
        query(this_process, ctypes.byref(count))
        return count.value / 1e9

    return read


def _is_running(thread: str) -> bool:
    """Return whether Linux reports the thread as running."""
    try:
        with open(f"{_THREADS}/{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):  # it has ended
        return False


def in_slices(
    function: Callable[[int], Result], count: int, step: int = SLICE, most: int = _MOST_CHECKERS
) -> list[Result]:
    """Cut `count` elements into slices of `step`. Call `function` with the start of each slice, on at most `most`
    threads, and return the results in order."""
    starts = range(0, count, step)
    if len(starts) <= 1:
        return [function(start) for start in starts]
    return list(_checkers(min(most, usable_cpus())).map(function, starts))


@functools.cache
def _checkers(count: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads. It is kept, because starting threads takes as long as a slice."""
    return ThreadPoolExecutor(count, thread_name_prefix="gpubench-check")


if hasattr(os, "register_at_fork"):  # a fork has none of its parent's threads
    os.register_at_fork(after_in_child=_checkers.cache_clear)


def copy(source: Array, target: Array) -> None:
    """Copy `source` into `target`, which has the same shape and dtype. If both are C-contiguous, several threads
    copy a large array."""
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        target[...] = source
        return
    values, places = source.reshape(-1), target.reshape(-1)

    def one(start: int) -> None:
        places[start : start + SLICE] = values[start : start + SLICE]

    in_slices(one, values.size)


def copying_threads() -> int:
    """Return how many threads copy between the caller's arrays and staging memory. More than eight gain little."""
    return min(8, usable_cpus())


def bytes_of(host: Array) -> Array:
    """Return a view of the array's memory as a flat array of bytes."""
    return host.reshape(-1).view("uint8")


def aligned_array(shape: Shape, dtype: Any) -> Array:
    """Return a C-contiguous array that begins at a cache line, as streaming stores and whole vectors need it."""
    import numpy as np

    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(kind).reshape(shape)


def host_dtype(dtype: Stored) -> Any:
    """Return the NumPy dtype of host arrays. bfloat16 comes from ml_dtypes, because NumPy lacks it."""
    import numpy as np

    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def calls_library(op: Op, case: Case) -> bool:
    """Return whether each launch of the case is a library call: the library implementation is one, and a tuned
    implementation may be one."""
    kernel = op.kernel(case.backend, case.dtype, case.variant)
    return case.implementation == "library" or (kernel is not None and kernel.library)


def trial_params(op: Op, params: Params) -> Params:
    """Return small params at which an op is tried: each of `params`, but at most 2. Returns `params` itself if
    the op does not fit such params."""
    small = {name: min(value, 2) for name, value in params.items()}
    return small if op.fits(small) is None else params


def no_kernel(op: Op, case: Case) -> Unsupported | None:
    """Return the reason why the case has no tuned kernel of its own, or None if it has one. The op may have no
    kernel or no such variant, or its kernel may be the library call."""
    try:
        tuned_kernel(op, case)
    except Unsupported as refusal:
        return refusal
    return None


def tuned_kernel(op: Op, case: Case) -> Kernel:
    """Return the kernel that this case runs. Raises Unsupported with the reason of `no_kernel`."""
    kernel = op.kernel(case.backend, case.dtype, case.variant)
    if kernel is None:
        name = case.variant or "tuned"
        why = f"{op.name} has no {name} kernel for {case.dtype} on {case.backend}"
    elif kernel.repeats_library(case.regime):
        why = f"the best {op.name} on {case.backend} is the library call"
    else:
        return kernel
    raise Unsupported(why, reason="no-implementation")


def allocate_outputs(session: Session, op: Op, case: Case, inputs: Sequence[Buffer] = ()) -> Buffer:
    """Return a buffer for the output, or a tuple of buffers for several outputs. With `inputs`, an output that
    updates an input has the buffer of that input. Raises DeviceOutOfMemory, and frees the other buffers then."""
    updated = op.updated if inputs else {}
    taken: list[Buffer] = []
    try:
        for i, operand in enumerate(op.outputs):
            form = operand.form(case.params, case.dtype)
            taken.append(inputs[updated[i]] if i in updated else session.allocate(*form))
    except DeviceOutOfMemory:
        for i, buffer in enumerate(taken):
            if i not in updated:
                session.free(buffer)
        raise
    return tuple(taken) if op.more_outputs else taken[0]


def named_buffers(op: Op, inputs: Sequence[Buffer], output: Buffer) -> dict[str, Buffer]:
    """Return the buffers by the names of their operands."""
    return {x.name: buffer for x, buffer in zip(op.operands, (*inputs, *each(output)), strict=True)}


def in_order(
    steps: Sequence[tuple[Any, Buffer]], output: Buffer, copyto: Callable[[Buffer, Buffer], None]
) -> Callable[[], Buffer]:
    """Return a function that runs the launches of a chain in order, copies the result of each library call to its
    place, and returns `output`."""

    def call() -> Buffer:
        for launch, target in steps:
            launch()
            for made, place in zip(each(launch.output), each(target), strict=True):
                if made is not place:
                    copyto(place, made)
        return output

    return call


def clock_calls(
    session: Session, calls: Sequence[Callable[[], None]], behind: Callable[[], None] = lambda: None
) -> list[float]:
    """Make the calls one after the other, and call `behind` after each. Return the seconds of each call, including
    `behind`, by the session's host clock."""
    readings = [session.clock()]
    for call in calls:
        call()
        behind()
        readings.append(session.clock())
    return [after - before for before, after in itertools.pairwise(readings)]


def read_stages(
    session: Session,
    steps: Steps,
    launches: Sequence[Launch],
    timed: Callable[[Any], StageReading | None] | None,
) -> StageReading | None:
    """Time the steps of a chain: the host's clock times steps on the host, and `timed(launches)` times the others.
    If `timed` is None, the host's clock times each launch with its wait. Returns None if `timed` returns
    None."""
    hosts = [launch for launch, _ in steps if isinstance(launch, HostCall)]
    if timed is None:
        waited = clock_calls(
            session, [*hosts, *(partial(session.run, launch) for launch in launches)], session.sync
        )
        return StageReading(waited, sum(waited), "waited")
    before = clock_calls(session, hosts)
    session.sync()
    reading = timed(launches)
    return reading and StageReading([*before, *reading.steps_s], sum(before) + reading.span_s, reading.clock)


class SingleDevice(Session):
    """A session on one device. It refuses overheads, dtypes and transfers that the device does not have.
    Subclasses refuse further cases by `_refuse`."""

    has_bfloat16 = True

    def supports(self, op: Op, case: Case) -> BackendError | None:
        if op.overhead is not None:
            return self._refuse_overhead(op.overhead, op, case)
        if case.dtype not in op.dtypes or (case.dtype == "bfloat16" and not self.has_bfloat16):
            return Unsupported(f"{op.name} has no {case.dtype} on {self.device.backend}", reason="no-dtype")
        if self.device.kind == "cpu" and case.regime != "resident":
            return Unsupported("the CPU's data is already at home", reason="no-transfer")
        return self._refuse(op, case)

    @abstractmethod
    def _refuse(self, op: Op, case: Case) -> BackendError | None:
        """Return why this device cannot run the case, or None if it can."""

    def _refuse_overhead(self, overhead: Overhead, op: Op, case: Case) -> Unsupported | None:
        """Return why an overhead cannot run here, or None if it can."""
        if self.device.kind == "cpu":
            return Unsupported(f"{op.name} is a cost of GPUs; a CPU does without", reason="no-implementation")
        if case.implementation not in overhead.implementations:
            return Unsupported(
                f"{op.name} has no {case.implementation} implementation of its own", reason="no-implementation"
            )
        if case.dtype not in op.dtypes:
            return Unsupported(f"{op.name} is declared for {', '.join(op.dtypes)}", reason="no-dtype")
        limit = self.limits.max_buffer_bytes
        if case.n > limit:
            why = f"{case.params['n']} bytes; a buffer of {self.device.id} holds at most {limit}"
            return Unsupported(why, reason="limit")
        return None


# Tensor cores take TF32 since the Ampere generation (CUDA C++ programming guide, compute capability 8.x).
FIRST_MAJOR = 8


def no_tf32(op: Op, case: Case, major: int, minor: int) -> Unsupported | None:
    """Return why this case cannot run in TF32 on a device of compute capability `major`.`minor`. Returns None
    if it can, or if the case does not ask for TF32."""
    if case.implementation != "library" or case.variant is None:
        return None
    if case.variant != TF32 or case.backend not in op.tf32 or case.dtype != "float32":
        why = f"{case.backend} has no {case.variant} {op.name} in {case.dtype}"
        return Unsupported(why, reason="no-implementation")
    if major < FIRST_MAJOR:
        return Unsupported(
            f"TF32 needs compute capability {FIRST_MAJOR}.0; this device has {major}.{minor}", reason="no-tf32"
        )
    return None


def refuse_size(op: Op, case: Case, limits: Limits) -> Unsupported | None:
    """Return an error if the operands together take more than `limits.max_buffer_bytes` bytes, otherwise None."""
    size, limit = op.held_bytes(case.params, case.dtype), limits.max_buffer_bytes
    if size <= limit:
        return None
    return Unsupported(f"the operands take {size} bytes; the device has {limit}", reason="limit")


def random_inputs(op: Op, params: Params, dtype: Dtype, seed: int, kind: str = "random") -> list[Array]:
    """Return the array that `random_input` draws for each input."""
    return [random_input(op, operand, params, dtype, seed, kind) for operand in op.inputs]


def repeat_values(values: Array, count: int) -> Array:
    """Return an array of `count` values, in which `values` are repeated."""
    import numpy as np

    return np.resize(values, count)


def random_input(op: Op, operand: Operand, params: Params, dtype: Dtype, seed: int, kind: str) -> Array:
    """Return a C-contiguous array of the operand's values, with the same bytes for every backend. `kind` says how
    they are drawn: `random` as the operand declares, `zeros`, `ones`, or `normal`, which replaces only uniform
    values."""
    import numpy as np

    shape, drawn = operand.shape(params), operand.values
    if isinstance(drawn, Made):
        made: Array = drawn.make(params, dtype, seed)
        return made
    array = np.empty(shape, host_dtype(operand.stored_dtype(dtype)))
    if isinstance(drawn, Given):
        array[:] = np.frombuffer(drawn.make(params), array.dtype).reshape(shape)
        return array
    # `zeros` and `ones` keep ids in their range.
    if kind == "ones" and isinstance(drawn, Ids) and drawn.below(params) == 1:
        kind = "zeros"
    beside = sorted((name, value) for name, value in params.items() if name != "n")
    # An activation of a larger size begins with the values of a smaller size, in the order of memory.
    key = f"{op.name} {operand.name} {beside if operand.role == 'activation' else shape} {dtype} {seed}"
    _draw(array, _of_kind(drawn, kind), key, params, wide=dtype == "float64")
    return array


def _of_kind(drawn: Values, kind: str) -> Any:
    """Return the rule by which an operand's values are drawn: the declared rule, or the user's `kind`."""
    return kind if kind in ("zeros", "ones") or (kind == "normal" and drawn == "uniform") else drawn


def is_plain(operand: Operand) -> bool:
    """Return whether the operand is an activation in the dtype of the case, with values that are drawn one by one
    and independently of the op."""
    alike = isinstance(operand.values, Range) or operand.values in (
        "uniform",
        "normal",
        "relu",
        "ones",
        "zeros",
    )
    return operand.role == "activation" and operand.dtype is None and alike


def plain_values(drawn: Values, number: int, count: int, dtype: Dtype, seed: int, kind: str) -> Array:
    """Draw a flat array of `count` values. A shorter array has the same first bytes. `number` distinguishes inputs
    of one op that are drawn alike. `kind` is as in `random_input`."""
    import numpy as np

    array = np.empty(count, host_dtype(dtype))
    key = f"plain {number} {drawn} {dtype} {seed}"
    _draw(array, _of_kind(drawn, kind), key, {}, wide=dtype == "float64")
    return array


# One generator draws this many values. So all CPUs can draw, and values do not depend on the size of the array.
_DRAWN = 1 << 20


def _draw(array: Array, drawn: str | Range | Ids | Given, key: str, params: Params, *, wide: bool) -> None:
    """Fill the array by the rule `drawn`. `key` is the seed; `wide` draws in float64."""
    if drawn in ("ones", "zeros"):
        array.fill(1 if drawn == "ones" else 0)
        return
    terms = array.shape[0] if array.ndim < 3 else math.prod(array.shape[1:])
    kind = "float64" if wide else "float32"

    def values(generator: Any, size: int) -> Array:
        if isinstance(drawn, Ids):
            return generator.integers(0, drawn.below(params), size)
        if isinstance(drawn, Range) and drawn.whole:
            return generator.integers(int(drawn.low), int(drawn.high), size)
        if isinstance(drawn, Range) or drawn == "uniform":
            low, high = (drawn.low, drawn.high) if isinstance(drawn, Range) else (-1, 1)
            drawn_values = generator.random(size, dtype=kind)
            drawn_values *= high - low
            drawn_values += low
            return drawn_values
        drawn_values = generator.standard_normal(size, dtype=kind)
        if drawn == "fan-in":
            drawn_values /= math.sqrt(terms)
        elif drawn == "relu":
            drawn_values[drawn_values < 0] = 0
        return drawn_values

    _fill(array, values, key)
    if drawn == "probabilities":
        _normalise(array)


def _fill(array: Array, values: Callable[[Any, int], Array], key: str) -> None:
    import numpy as np

    flat = array.reshape(-1)

    def fill(start: int) -> None:
        digest = hashlib.sha256(f"{key} {start}".encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], "little")))
        part = flat[start : start + _DRAWN]
        part[:] = values(generator, part.size)

    in_slices(fill, flat.size, _DRAWN)


def _normalise(array: Array) -> None:
    """Replace each row by its softmax, in place."""
    import numpy as np

    rows = array.reshape(-1, array.shape[-1])

    def part_of(start: int) -> None:
        part = rows[start : start + step]
        powers = np.exp(part.astype(np.float64))
        part[:] = powers / powers.sum(axis=-1, keepdims=True)

    step = max(1, SLICE // rows.shape[1])
    in_slices(part_of, len(rows), step)


def random_bytes(array: Array, key: str) -> None:
    """Fill a C-contiguous array with random bytes. The same key gives the same bytes."""
    import numpy as np

    def values(generator: Any, size: int) -> Array:
        return np.frombuffer(generator.bytes(size), np.uint8)

    _fill(bytes_of(array), values, key)
