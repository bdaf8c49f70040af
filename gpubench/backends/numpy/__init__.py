"""NumPy: the CPU, which is always there. The library implementation is the array expression. The tuned
implementation is NumPy in blocks, or the fastest of the expression and of kernels that numba compiles. The host
clock measures both, so there is no device clock. Transfers are plain copies, and the only regime is `resident`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpubench import __version__
from gpubench.backends.contract import Backend, Buffer, Call, Joins, Links, StageReading, protocols
from gpubench.backends.numpy import compiled
from gpubench.backends.numpy.compiled import NUMBA_THREADS, NumbaThreads
from gpubench.backends.shared.blocks import BlockThreads
from gpubench.backends.shared.choices import Choices, Trials, choose
from gpubench.backends.shared.host import (
    SingleDevice,
    aligned_array,
    calls_library,
    clock_calls,
    copy,
    host_dtype,
    in_order,
    named_buffers,
    on_first_cpu,
    settle,
    tuned_kernel,
    usable_cpus,
)
from gpubench.backends.shared.reference import fill
from gpubench.base import hash_text, load_library, processes
from gpubench.base.errors import BackendError, BackendUnavailable, DeviceOutOfMemory, Unsupported
from gpubench.base.installation import MAY_BE_SLOWED, NOT_AT_BEST, NUMBA_MISSING, REINSTALL, find_shadow
from gpubench.kernels.contract.kernel import Candidate, Limits, NumbaProgram
from gpubench.kernels.contract.op import Array, Dtype, Implementation, Op, Shape, Stored, each
from gpubench.result.case import Case
from gpubench.result.run import Blas, Device, DeviceKind
from gpubench.result.store.cache import user_cache

# Seconds that choosing the way to compute a case may take, and how many times as fast as the default another way
# must be. On an H200 host, 8 of 16 threads once won a trial by luck and were three times as slow in later runs.
TUNING_S, CLEARLY = 0.25, 1.05
# The name of a way that is always tried: numba computes some functions, such as log1p, element by element.
_PLAIN = "plain NumPy"


# Takes the inputs and the output. Returns a call that computes a case in one way.
Way = Callable[[Sequence[Buffer], Buffer], Callable[[], Array]]


class NumpySession(
    SingleDevice,
    protocols.Tunes,
    protocols.BuildsAhead,
    protocols.Foresees,
    protocols.Chains,
    protocols.TimesStages,
    protocols.HostReadable,
    protocols.SharesBuffers,
    protocols.JudgesBlocks,
    protocols.CpuThreads,
):
    """A session on the CPU. `threads` is fixed when it is opened; `use_threads` may let fewer of them compute."""

    has_bfloat16 = False

    def __init__(self, device: Device, threads: int | None, autotune: bool) -> None:
        import numpy as np
        from threadpoolctl import ThreadpoolController

        self._np = np
        self.device = device
        self.threads: int = threads or usable_cpus()
        self._controller = ThreadpoolController()
        self._limit = self._controller.limit(limits=self.threads, user_api="blas")
        self.blas = _blas(self._controller)
        self.limits = Limits(
            max_buffer_bytes=2**62,
            max_binding_bytes=2**62,
            float16=True,
            float64=True,
            multiprocessors=self.threads,
        )
        self._blocks = BlockThreads(self.threads, self._limit_blas)
        self._compiled: NumbaThreads | None = None
        self._why_not = ""  # why numba does not work, if it does not
        self._opened = processes.read_cpu_times()
        self._choices: Choices | None = None
        self._chosen: dict[str, str] = {}
        self._autotune = autotune

    def _refuse(self, op: Op, case: Case) -> BackendError | None:
        if case.implementation != "tuned":
            return None
        try:
            kernel = tuned_kernel(op, case)
        except Unsupported as refusal:
            return refusal
        if kernel.language == "numba":
            self._load_compiler()
            if self._compiled is None:  # the other way, the plain expression, is the library implementation
                return Unsupported(self._why_not, reason="not-compiled")
        return None

    def host_array(self, shape: Shape, dtype: Stored, implementation: Implementation) -> Array:
        return self.allocate(shape, dtype)

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        try:
            return aligned_array(shape, host_dtype(dtype))
        except MemoryError as error:
            raise DeviceOutOfMemory(str(error)) from error

    def upload(self, buffer: Buffer, host: Array) -> None:
        writable = buffer.flags.writeable
        buffer.flags.writeable = True  # launches do not write to a shared input
        copy(host, buffer)
        buffer.flags.writeable = writable

    def download(self, buffer: Buffer, host: Array) -> None:
        copy(buffer, host)

    def fill(self, buffer: Buffer, shape: Shape, dtype: Stored, value: float) -> None:
        fill(buffer, value)

    def memory(self, buffer: Buffer, shape: Shape, dtype: Stored) -> Array | None:
        fits = isinstance(buffer, self._np.ndarray) and buffer.shape == shape and buffer.flags.c_contiguous
        return buffer if fits and buffer.dtype == host_dtype(dtype) else None

    def beginning(self, buffer: Buffer, shape: Shape) -> Buffer:
        part = buffer[: math.prod(shape)].reshape(shape)
        part.flags.writeable = False
        return part

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Call:
        """Return a call that computes the case. For the library implementation it is the plain expression. For the
        tuned implementation it is the chosen way, or the likeliest way if none was chosen; it writes into
        `output`."""
        np = self._np
        if case.implementation == "library":
            version = hash_text(f"numpy {np.__version__}")
            return Call(partial(op.call("numpy"), np, *inputs), version)
        implementations = self._implementations(op, case, [*inputs, *each(output)])
        name = self._chosen.get(case.id, "")
        name = name if name in implementations else next(iter(implementations))
        launch = Call(implementations[name](inputs, output))
        launch.kernel_name = name
        return launch

    def build(self, cases: Sequence[tuple[Op, Case]]) -> None:
        for op, case in cases:
            if case.implementation == "tuned" and not calls_library(op, case):
                self._implementations(op, case, ())

    def chain(self, steps: protocols.Steps, output: Buffer) -> Call:
        """Return one call that makes all calls in order, and copies results of plain expressions to their
        places."""
        return Call(in_order(steps, output, self._np.copyto))

    def stage_times(self, steps: protocols.Steps) -> StageReading:
        """Time each step by the host's clock, because a call has ended when it returns."""
        calls = [self.chain([step], step[1]) for step in steps]
        with self._np.errstate(all="ignore"):
            seconds = clock_calls(self, calls)
        return StageReading(seconds, sum(seconds), "host")

    def foresee(self, ops: Sequence[Op], dtypes: Sequence[Dtype]) -> float:
        """Import numba and compile the kernels of each op for its largest size, for at most about AHEAD_S seconds.
        Returns the seconds of loading and compiling kernels, without the import. Returns 0 if the cache had all
        kernels."""
        candidates: list[Candidate] = []
        for op, dtype in itertools.product(ops, dtypes):
            kernel = op.kernel(self.device.backend, dtype)
            if kernel is not None and kernel.language == "numba" and kernel.candidates is not None:
                candidates += kernel.candidates({"n": op.sizes.high}, dtype, self.limits)
        if candidates:
            self._load_compiler()
        programs = [candidate.build() for candidate in candidates]
        return self._compiled.compile_ahead(programs) if self._compiled else 0.0

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        if (
            not self._autotune
            or case.implementation != "tuned"
            or case.id in self._chosen
            or calls_library(op, case)
        ):
            return
        implementations = self._implementations(op, case, inputs)
        if len(implementations) < 2:
            return

        def timer(name: str, output: Buffer) -> Callable[[int], float]:
            call = Call(implementations[name](inputs, output))

            def took(repeat: int) -> float:
                settle()  # threads of another candidate may still spin
                if repeat > 1:
                    self.run(call, 1)  # wakes the threads of this candidate, as earlier calls of a block do
                with on_first_cpu():
                    start = self.clock()
                    self.run(call, repeat)
                    return self.clock() - start

            return took

        trials = Trials(tuple(implementations), timer, TUNING_S, margin=CLEARLY, always=_PLAIN)
        name = choose(self, op, case, self._load_compiler(), trials)
        settle()
        if name is not None:
            self._chosen[case.id] = name

    def _load_compiler(self) -> Choices:
        """Import numba, unless that was tried before, and return the remembered choices."""
        if self._choices is None:
            try:
                self._compiled = NumbaThreads(self.threads)
                self._compiled.limit = min(self._blocks.threads, self._compiled.most)
                if variables := compiled.slowing_variables():
                    self.lacks = f"{MAY_BE_SLOWED}: {variables} may slow down its compiled kernels"
            except Exception as error:  # a broken numba: OSError, RuntimeError, its own
                self._why_not = _why_not_compiled(error)
                self.lacks = NOT_AT_BEST.format(self._why_not)
            self._choices = Choices(_description(self._compiled, self.threads), user_cache(), self._opened)
        return self._choices

    def _implementations(self, op: Op, case: Case, arrays: Sequence[Array]) -> dict[str, Way]:
        """Return the ways to compute the case on these arrays, by name, the likeliest first."""
        np = self._np
        kernel = op.kernel(self.device.backend, case.dtype, case.variant) or tuned_kernel(op, case)
        if kernel.language == "numpy":
            return {
                "NumPy in blocks": lambda inputs, output: partial(
                    _write, kernel.build(np, self._blocks, case.params), inputs, output
                )
            }
        ways: dict[str, Way] = {}
        self._load_compiler()
        whole = all(array.flags.c_contiguous for array in arrays)
        if whole and self._compiled is not None and kernel.candidates is not None:
            for candidate in kernel.candidates(case.params, case.dtype, self.limits):
                self._compiled.compile(candidate.build())
                ways[f"numba, {candidate.name}"] = partial(self._native, op, case.dtype, candidate)
        ways[_PLAIN] = partial(self._plain, op)
        return ways

    def _plain(self, op: Op, inputs: Sequence[Buffer], output: Buffer) -> Callable[[], Array]:
        """Return a call that computes the expression and copies the result to `output`."""
        compute = partial(op.call("numpy"), self._np, *inputs)

        def call() -> Array:
            for made, place in zip(each(compute()), each(output), strict=True):
                self._np.copyto(place, made)
            return output

        return call

    def _native(
        self, op: Op, dtype: Dtype, candidate: Candidate, inputs: Sequence[Buffer], output: Buffer
    ) -> Callable[[], Array]:
        assert self._compiled is not None
        program = candidate.build()
        assert isinstance(program, NumbaProgram)
        between = {name: self.allocate(shape, dtype) for name, shape in program.between.items()}
        arrays = {**named_buffers(op, inputs, output), **between, "out": each(output)[0]}
        run = self._compiled.launch(program, arrays)
        then = program.behind
        behind = then.build(self._np, self._blocks) if then else None
        operands = [arrays[name] for name in then.operands] if then else []

        def call() -> Array:
            run()
            if behind is not None:
                behind(operands, arrays["out"])
            return output

        return call

    def block_errors(self, got: Array, want: Array, scale: Array | None, smallest: float) -> Array | None:
        return None if self._compiled is None else self._compiled.block_errors(got, want, scale, smallest)

    def run(self, launch: Call, repeat: int = 1) -> None:
        """Run the launches to their end. Invalid values cause no warnings."""
        with self._np.errstate(all="ignore"):
            for _ in range(repeat):
                launch()

    def use_threads(self, count: int | None) -> None:
        count = count or self.threads
        if count != self._blocks.threads:
            self._blocks.threads = count
            self._controller.limit(limits=count, user_api="blas")
            if self._compiled is not None:
                self._compiled.limit = min(count, self._compiled.most)

    def _limit_blas(self, count: int) -> None:
        # Directly, because a context of threadpoolctl takes longer than a small product.
        for library in self._controller.lib_controllers:
            if library.user_api == "blas":
                library.set_num_threads(count)

    def sync(self) -> None:
        """Do nothing, because every call has ended when it returns."""

    def empty_launch(self) -> Call:
        return Call(lambda: None)

    def close(self) -> None:
        """End the threads of blocks, and lift the limit on BLAS threads."""
        self._blocks.close()
        self._limit.restore_original_limits()


def _write(run: Callable[..., None], inputs: Sequence[Buffer], output: Buffer) -> Array:
    run(inputs, output)
    return output


def _why_not_compiled(error: Exception) -> str:
    """Return the reason why numba does not work."""
    variables = compiled.foreign_variables()
    if isinstance(error, ModuleNotFoundError) and error.name in ("numba", "llvmlite"):
        return NUMBA_MISSING
    if isinstance(error, compiled.NumbaUnusable):
        return str(error)
    causes = (find_shadow(error), variables and f"{variables} is set")
    return "; ".join([f"numba does not load: {compiled.one_line(error)}", *filter(None, causes)])


def _description(numba: NumbaThreads | None, threads: int) -> str:
    """Return a text with everything that a choice depends on: the processor, the threads and the libraries."""
    import numpy as np

    native = numba.described if numba else "no numba"
    return f"{threads} threads | numpy {np.__version__} | {native} | gpubench {__version__}"


def _blas(controller: Any) -> Blas | None:
    for library in controller.info():
        if library.get("user_api") == "blas":
            return Blas(
                library=str(library["internal_api"]),
                version=library.get("version"),
                kernel=library.get("architecture"),
            )
    return None


class NumpyBackend(Backend, Joins):
    """A backend with one device: the CPUs that this process may use."""

    name = "numpy"
    implementations: tuple[Implementation, ...] = ("library", "tuned")
    kinds: tuple[DeviceKind, ...] = ("cpu",)

    def devices(self) -> list[Device]:
        try:
            np, _ = map(load_library, ("numpy", "threadpoolctl"))
            from threadpoolctl import ThreadpoolController  # noqa: F401  (before 3.0 there is none)
        except ImportError as error:
            raise BackendUnavailable(
                f"NumPy with threadpoolctl cannot be imported: {error}", hint=REINSTALL
            ) from error
        return [
            Device(id="numpy:0", backend="numpy", kind="cpu", name="CPU", api="host", driver=np.__version__)
        ]

    def preload(self) -> None:
        """Import NumPy. Also import numba if its number of threads is already known."""
        with contextlib.suppress(Exception):  # the number is unknown, or the session tells what is wrong
            self.devices()
            compiled.preload(int(os.environ[NUMBA_THREADS]))

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> NumpySession:
        """Open the CPU with `threads` threads; None means one for each usable CPU. Each rank of a device group opens
        the CPU, and the ranks take turns."""
        return NumpySession(self.devices()[0], threads, autotune)

    def joinable(self) -> list[Device]:
        """Return an empty list, because ranks in host memory are not devices. The number of ranks names a device
        group in host memory (`group:numpy:4`)."""
        return []

    def links(self, ordinals: Sequence[int], word: str = "") -> Links:
        """Return the links of a device group in host memory, with one rank for each ordinal."""
        from gpubench.backends.shared.sides import HostLinks

        return HostLinks(len(ordinals))


BACKEND = NumpyBackend()
