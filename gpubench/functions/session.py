"""Child side: a session that runs a user's function on any objects. Also the function's expected result, and
the allowed errors of its other results."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

from gpubench.backends.contract import Launch, Session, WrappedSession
from gpubench.backends.contract.protocols import CoreClock, LaunchClock, Splits
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.functions.declare import GPU_LIBRARIES, UserFunction, gpu_library, libraries, without_arguments
from gpubench.functions.loading import (
    Unreadable,
    bind_library,
    change_input,
    columns,
    differences,
    is_floating,
    is_tensor,
    leaves,
    nudge,
    on_host,
    plain,
    where,
    widen,
)
from gpubench.kernels.contract.op import UNIT_ROUNDOFF, Array, Op, Shape, Stored
from gpubench.result.case import Case

_LACKS = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")


class ObjectBuffer:
    """A buffer for any object. As the result of a call it lets timers treat a value of any type as one result."""

    value: Any = None  # the object on the device, or a result
    host: Any = None  # the input on the host from which the value was made


class CallSession(WrappedSession, LaunchClock, CoreClock):
    """A session that runs a user's function on a device. Its buffers hold any objects instead of arrays."""

    def __init__(self, inner: Session, function: UserFunction) -> None:
        super().__init__(inner)
        self.function = function
        self._to_device = _mover(inner, function)
        self._wait = _device_wait(inner)
        self._idle: list[ObjectBuffer] = []
        # The launches by case and input buffers. Without this cache, each call would also build its launch.
        self._launches: dict[tuple[int, ...], tuple[Case, Launch]] = {}

    @property
    def lacks(self) -> str | None:  # type: ignore[override]
        """The reason why the device's session is slower than it could be, or None."""
        return self._inner.lacks

    def core_hz(self) -> float | None:
        """Return the clock of the device's cores in hertz, or None if the device's session cannot tell it."""
        return self._inner.core_hz() if isinstance(self._inner, CoreClock) else None

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Return why this session cannot run the case, or None if it can. It runs only the library implementation,
        and only on a device whose arrays the function takes."""
        device, function = self._inner.device, self.function
        if case.implementation != "library" or case.variant is not None:
            return Unsupported(
                f"{op.name} has no {case.implementation_id} implementation of its own",
                reason="no-implementation",
            )
        if self._to_device is None:
            return Unsupported(
                f"{device.backend} has no arrays that a function takes", reason="no-implementation"
            )
        if function.gpu is not None and device.kind == "cpu" and device.backend not in ("numpy", "fake"):
            return Unsupported(
                "of a pair the CPU's program is measured once, as numpy's", reason="no-implementation"
            )
        if device.kind == "cpu" and case.regime != "resident":
            return Unsupported("the CPU's data is already at home", reason="no-transfer")
        return None

    def allocate(self, shape: Shape, dtype: Stored) -> ObjectBuffer:
        """Return an empty buffer, for an object of any shape and dtype."""
        return self._idle.pop() if self._idle else ObjectBuffer()

    def free(self, buffer: ObjectBuffer) -> None:
        """Drop the object. A later call of `allocate` may return the same buffer."""
        buffer.value = buffer.host = None
        self._idle.append(buffer)

    def upload(self, buffer: ObjectBuffer, host: Any) -> None:
        """Move an input to the device. Raises a BackendError if that fails. On CuPy, raises Unsupported if the
        input of a pair becomes a tensor, because the backend torch measures such a pair."""
        assert self._to_device is not None
        with Translated(self.function):
            buffer.value, buffer.host = change_input(self.function, self._to_device, host), plain(host)
        if self.function.gpu is not None and self._inner.device.backend == "cupy" and is_tensor(buffer.value):
            raise Unsupported(
                "the GPU's program takes tensors: the backend torch measures it", reason="no-implementation"
            )

    def refill(self, buffer: ObjectBuffer, host: Any) -> None:
        """Write an input into the array that the buffer holds. Replace the held object instead if it is no array
        of this shape, is read-only, or shares its memory with the input on the host."""
        # If `to_gpu` returned a view, writing to it would change the earlier input, which is needed again.
        before, own = buffer.value, shares_memory(buffer.value, buffer.host)
        self.upload(buffer, host)
        is_array = any(
            hasattr(before, name) for name in ("__array_interface__", "data_ptr", "__cuda_array_interface__")
        )
        if is_array and not own and before.shape == getattr(buffer.value, "shape", None):
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                before[...] = buffer.value
                buffer.value = before

    def download(self, buffer: Any, host: ObjectBuffer) -> None:
        """Wait for the whole device, then move a result to the host, by `to_cpu` or `loading.on_host`. Raises a
        BackendError if that fails. On PyTorch, raises Unsupported if a function for all libraries returns
        arrays of NumPy."""
        host.value = None
        self.sync()
        with Translated(self.function):
            # The scripted device stores its results in arrays.
            result = buffer.array.item() if hasattr(buffer, "array") else buffer
            host.value = self._fetch(result.value)
        shared = self._inner.device.backend == "torch" and self.function.gpu is None
        if shared and any(hasattr(x, "__array__") and not is_tensor(x) for _, x in leaves(result.value)):
            raise Unsupported("it computes with NumPy, not with the array library", reason="bad-function")

    def _fetch(self, result: Any) -> Any:
        if self.function.to_cpu is not None and self._inner.device.kind != "cpu":
            return self.function.to_cpu(result)
        if isinstance(result, int | float):  # first, because a long list has many of them
            return result
        result = columns(result)
        if isinstance(result, tuple | list):
            kind = tuple if isinstance(result, tuple) else list
            return kind(map(self._fetch, result))
        if isinstance(result, dict):
            return {key: self._fetch(item) for key, item in result.items()}
        try:
            return on_host(result)
        except Unreadable:
            if self.function.same is None:
                raise
            return result

    def sync(self) -> None:
        """Wait for the whole device, because the function may have used any stream."""
        self._inner.sync()
        self._wait()

    def compile(self, op: Op, case: Case, inputs: Sequence[ObjectBuffer], output: None) -> Launch:
        """Return a launch. Each of its calls passes the objects that `inputs` hold then to the function. The same
        case and buffers give the same launch."""
        key = (id(case), *map(id, inputs))
        owner, launch = self._launches.get(key, (None, None))
        if launch is None or owner is not case:
            launch = self._build(op, case, list(inputs))
            self._launches[key] = case, launch
        return launch

    def _build(self, op: Op, case: Case, inputs: list[ObjectBuffer]) -> Launch:
        function, on_cpu = self.function, self._inner.device.kind == "cpu"
        program = function.cpu if function.gpu is not None and on_cpu else function.gpu
        tensors = self._inner.device.backend == "torch"
        if tensors and not on_cpu:
            program = program_on(function, self._inner.device.id.partition(":")[2])
        translated = Translated(function)
        last = ObjectBuffer()

        def expr(xp: Any, *_: Any) -> Any:
            nonlocal last
            last.value = None  # free the memory of the last result for the next call
            last = ObjectBuffer()
            arguments = [holder.value for holder in inputs]
            with translated:
                result = (program or bind_library(function, xp))(*arguments)
                if function.wait is not None:
                    function.wait(result)
            last.value = result
            return last

        # The programs of a pair switch gradients off themselves.
        if tensors and (function.gradients or function.gpu is not None):
            import torch

            expr = torch.enable_grad()(expr)
        bound = msgspec.structs.replace(
            op, expr=expr, library={self._inner.device.backend: expr}, inputs=(), calls=None
        )
        launch: Launch = self._inner.compile(bound, case, [], None)
        if on_cpu and (function.gpu is not None or (function.of_numpy and not tensors)):
            launch.kernel_name = program_library(function, [holder.value for holder in inputs])
        elif function.gpu is not None and GPU_LIBRARIES.get(library := gpu_library(function.gpu)) is None:
            launch.kernel_name = library or None
        return launch

    def time(self, launch: Launch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """Return the device seconds of `repeat` calls, after flushing caches if `cold` is true. Return None for a
        device without a clock, and for a pair, which may use streams that the clock does not see."""
        if self.function.gpu is not None or not isinstance(self._inner, LaunchClock):
            return None
        return self._inner.time(launch, repeat, cold=cold)


def shares_memory(value: Any, host: Any) -> bool:
    """Tell whether an object is `host` or a view of it."""
    import numpy as np

    try:
        return bool(np.may_share_memory(np.asarray(value), np.asarray(host)))
    except (TypeError, ValueError, RuntimeError):  # only the GPU can read it
        return False


def program_library(function: UserFunction, inputs: Sequence[Any]) -> str | None:
    """Return the name of the library that the CPU program uses. The program's own package, the packages
    that it uses and those of `inputs` are searched in this order. Return None if only NumPy is found, and the
    function's name if nothing is."""
    program = without_arguments(function.original)
    module = getattr(program, "__module__", None) or ""
    file, package = getattr(sys.modules.get(module), "__file__", None) or "", module.partition(".")[0]
    # These are no libraries: Python's own modules, NumPy and the user's package.
    own = {"", "numpy", "gpubench", *sys.stdlib_module_names, package * ("-packages" not in file)}
    of_inputs = (type(value).__module__.partition(".")[0] for value in inputs)
    names = [package, *libraries(program), *of_inputs]
    other = next((name for name in names if name not in own), None)
    return other or (None if "numpy" in names else function.name)


def session_of(session: Session, op: Op) -> Session:
    """Return the session that runs an op: a CallSession for a user's function of any objects, the op's own session
    on a composed device, or else `session`."""
    if op.calls is not None:
        return CallSession(session, op.calls)
    return session.for_op(op) if session.device.composed and isinstance(session, Splits) else session


class Translated(contextlib.AbstractContextManager[None]):
    """A context manager that turns an exception of the user's code into a BackendError."""

    def __init__(self, function: UserFunction) -> None:
        self.function = function

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, BackendError) or not isinstance(error, Exception):
            return
        text = str(error)
        if isinstance(error, MemoryError) or re.search(r"out of memory|cannot allocate", text, re.IGNORECASE):
            raise DeviceOutOfMemory(text or "no memory") from error
        lacks = _LACKS.search(text)
        detail = (
            f"{lacks[1].removeprefix('array_api_compat.')} has no {lacks[2]}"
            if isinstance(error, AttributeError) and lacks
            else f"it raises {where(error, self.function).rstrip('.')}"
        )
        if "does not require grad" in text:
            detail += "; say gradients=True"
        elif "builtin_function_or_method" in text:
            detail += "; PyTorch's x.size is a method: write len(x) or x.shape"
        elif isinstance(error, TypeError) and self.function.gpu is not None and self.function.to_gpu is None:
            detail += "; say to_gpu= if the GPU's program takes other arrays"
        raise Unsupported(detail, reason="bad-function") from error


def end_forks() -> None:
    """End each process that a user's function forks from this one, once the function returns there. It would go on
    with our loop of calls."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: setattr(Translated, "__exit__", lambda *_: os._exit(0)))


def _mover(inner: Session, function: UserFunction) -> Callable[[Any], Any] | None:
    """Return the function that moves an input to the device, or None if no array library drives the device."""
    import numpy as np

    backend = inner.device.backend
    if function.to_gpu is not None and inner.device.kind != "cpu":
        return function.to_gpu
    if backend in ("numpy", "fake"):
        return deepcopy
    if backend == "torch":
        import torch

        place = inner.device.id.partition(":")[2]
        return lambda x: (
            torch.as_tensor(x).to(place, copy=place == "cpu")
            if isinstance(x, np.ndarray) or is_tensor(x)
            else x
        )
    if backend == "cupy":
        import cupy

        return lambda x: cupy.asarray(x) if isinstance(x, np.ndarray) else x
    return None


@functools.cache
def program_on(function: UserFunction, place: str) -> Callable[..., Any]:
    """Return a function's program for a GPU, which creates its tensors on the PyTorch device `place`. The first
    call runs the program twice."""
    import torch
    from torch.utils._device import DeviceContext, _device_constructors

    device, program = torch.device(place), function.gpu or bind_library(function, torch)
    # A default device makes each call of PyTorch slower, so a program that creates no tensor runs without one. A
    # trial with copies of the arguments shows whether it does; a trial that fails counts as yes.
    creates: bool | None = None  # whether the program creates tensors; None until the first call

    class Noted(DeviceContext):  # type: ignore[misc, no-untyped-call, unused-ignore]
        created = False

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.created = self.created or func in _device_constructors()
            return super().__torch_function__(func, types, args, kwargs)

    def creates_tensors(arguments: Sequence[Any]) -> bool:
        noted, compiles = Noted(device), "torch._dynamo" in sys.modules  # importing it takes seconds
        # The trial does not compile anything, because it would be compiled again for the call.
        with torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext(), noted:
            program(
                *(x.detach().clone().requires_grad_(x.requires_grad) if is_tensor(x) else x for x in arguments)
            )
        return noted.created

    def call(*arguments: Any) -> Any:
        nonlocal creates
        if creates is None:
            try:
                creates = creates_tensors(arguments)
            except Exception:  # such as no memory for the copies
                creates = True
        with device if creates else contextlib.nullcontext():
            return program(*arguments)

    return call


def _device_wait(inner: Session) -> Callable[[], None]:
    """Return a function that waits for all streams of a CuPy device, and does nothing on other backends."""
    if inner.device.backend == "cupy":
        import cupy

        return lambda: cupy.cuda.runtime.deviceSynchronize()
    return lambda: None


# ---------------------------------------------------------------- the answer


def answer(function: UserFunction, inputs: Sequence[Any], dtype: str) -> tuple[Any, Allowed]:
    """Return the expected result of the function for `inputs`, and the allowed relative errors. NumPy computes
    the result in float64. Of a function with a program of its own for the GPU, or with the option `same`, it is the
    result of the CPU program for the inputs as they are. Raises a BackendError if the function fails, and
    Unsupported if NumPy's error in the dtype is too large."""
    own, tolerance = _on_cpu(function, inputs, deepcopy), function.tolerance
    if function.same is not None:
        return own, Allowed(0.0, 0.0)
    # The CPU program of a pair may accept only one dtype.
    try:
        want = own if function.gpu is not None else _on_cpu(function, inputs, lambda x: deepcopy(widen(x)))
    except Unsupported as error:
        raise Unsupported(
            f"for the reference, with float64 inputs, {error}",
            hint="make weights inputs, by gpubench.stays(w), or of the dtype of the inputs", reason="bad-function",
        ) from error  # fmt: skip
    if tolerance is not None:
        return want, Allowed(tolerance, tolerance)
    allowed = allowed_error(want, own, dtype)
    if allowed.floating > 2 * MOST_ERROR:
        raise Unsupported(
            f"in {dtype} NumPy's own result is off by {50 * allowed.floating:.3g} % of what float64 gives",
            hint="say tolerance=, or measure it with --dtypes float64", reason="bad-function",
        )  # fmt: skip
    return want, allowed


def allow_condition(
    function: UserFunction, inputs: Sequence[Any], dtype: str, want: Any, allowed: Allowed
) -> Allowed:
    """Return the allowed errors, which are larger than `allowed` if the function is ill-conditioned: up to 256
    times the change of the result `want` when each input moves by one rounding, at most 1 %. This may call the
    function once more."""
    if function.tolerance is not None or not any(is_floating(plain(x)) for x in inputs):
        return allowed
    change = widen if function.gpu is None else deepcopy
    # NumPy solves equations in float64 in every dtype, so its own error tells nothing of their condition.
    try:
        moved = _on_cpu(function, inputs, lambda x: nudge(change(x), UNIT_ROUNDOFF[dtype]))
    except BackendError:  # such as a matrix that is singular now
        return allowed
    errors = [leaf.error for leaf in _discrepancies(moved, want, UNLIMITED) if not leaf.integers]
    change_of_all = max(filter(math.isfinite, errors), default=0.0)
    return allowed._replace(floating=max(allowed.floating, min(ROUNDINGS * change_of_all, MOST_ERROR)))


def _on_cpu(function: UserFunction, inputs: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """Return the result of the function on the CPU, for inputs to which `change` is applied."""
    import numpy as np

    changed = [change_input(function, change, x) for x in inputs]
    with np.errstate(all="ignore"), Translated(function):
        return function.cpu(*changed) if function.gpu is not None else function.cpu(np, *changed)


# ---------------------------------------------------------------- two results

# The allowed error is ROUNDINGS unit roundoffs, or TIMES_NUMPY times the error of NumPy in the dtype if that is
# larger. The first bound is at most MOST_ERROR. The second is at most MOST_ERROR, or twice the error of NumPy if
# that is larger. If the error of NumPy itself is above MOST_ERROR, a floating-point result in the dtype proves
# nothing.
ROUNDINGS, TIMES_NUMPY, MOST_ERROR = 256, 64, 0.01


class Discrepancy(NamedTuple):
    """The largest error of a result or of one of its arrays, and the place of that error."""

    error: float  # largest relative error; infinite if the results cannot be compared
    limit: float  # allowed error
    # index of the element with the largest error, or of the first wrong integer; empty if there is none
    place: list[int]
    words: str = ""  # fault in words, if no number expresses it
    integers: bool = False  # whether wrong elements are integers, such as counts or labels

    @property
    def right(self) -> bool:
        """Whether the result is as expected, up to the allowed error."""
        return not self.words and self.error <= self.limit


class Allowed(NamedTuple):
    """The allowed relative errors of results."""

    floating: float  # allowed error of each floating-point element
    integers: float  # allowed error of all counts or labels together


UNLIMITED = Allowed(math.inf, math.inf)


def allowed_error(want: Any, got: Any, dtype: str) -> Allowed:
    """Return the allowed errors of results in `dtype`, from the float64 result `want` and NumPy's own result
    `got` in this dtype. A floating-point element may be off by 256 roundings, at most 1 %. Integers must be
    equal. Errors of `got` itself raise these limits."""
    limit, integers = min(ROUNDINGS * UNIT_ROUNDOFF[dtype], MOST_ERROR), 0.0
    for leaf in _discrepancies(got, want, UNLIMITED):
        own = min(TIMES_NUMPY * leaf.error, max(MOST_ERROR, 2 * leaf.error))
        # Integers may differ, such as a count if a number lies on the edge of two bins.
        if math.isfinite(own) and leaf.integers:
            integers = max(integers, own)
        elif math.isfinite(own):
            limit = max(limit, own)
    return Allowed(limit, integers)


def compare(got: Any, want: Any, allowed: Allowed) -> Discrepancy:
    """Compare every element and return the largest discrepancy; a fault in words counts as the largest.

    The error of a floating-point element is |got - want| / (|want| + the root mean square of want's finite
    elements). The integers of an array have one error: the sum of |got - want| / the sum of |want| (at least 1).
    """
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
    kinds = {got.dtype.kind, want.dtype.kind}
    if kinds.isdisjoint("fc") or not kinds <= {*"biufc"}:
        return _compare_exactly(name, got, want, allowed.integers)
    values, expected = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want))
    same = (values == expected) | (np.isnan(values) & np.isnan(expected))  # a scaled complex infinity is NaN
    finite = np.isfinite(expected)
    largest = float(np.max(np.abs(expected[finite].view(np.float64)), initial=0.0)) or 1.0
    with np.errstate(all="ignore"):
        values, expected = values / largest, expected / largest  # else squares overflow or underflow
        mean = math.sqrt(float(np.mean(np.abs(expected[finite]) ** 2))) if finite.any() else 1.0
        error = np.abs(values - expected) / (np.abs(expected) + (mean or 1.0))
    error = np.where(same, 0.0, error)
    error = np.where(np.isfinite(error), error, math.inf)
    if not error.size:
        return Discrepancy(0.0, limit, [])
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    return Discrepancy(float(error[place]), limit, [int(i) for i in place])


def _compare_exactly(name: str, got: Array, want: Array, limit: float) -> Discrepancy:
    """Compare integers, texts, dates, or arrays of different kinds."""
    import numpy as np

    wrong = differences(got, want)
    if not wrong.any():
        return Discrepancy(0.0, limit, [])
    place = tuple(map(int, np.argwhere(wrong)[0])) if wrong.ndim else ()
    words = f"{name}{list(place) or ''} is {got[place]}, not {want[place]}"
    if not {got.dtype.kind, want.dtype.kind} <= {*"biu"}:
        return Discrepancy(math.inf, limit, list(place), words)
    total = float(np.abs(want.astype(np.float64)).sum())
    error = float(np.abs(got.astype(np.float64) - want).sum()) / max(total, 1.0)
    return Discrepancy(error, limit, list(place), words if error > limit else "", integers=True)
