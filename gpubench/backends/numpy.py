"""NumPy: the CPU, always there, and the baseline of every speedup.

Its device clock is None: the wall clock is its clock. Transfers are plain copies; only `resident` runs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpubench.backends._block_threads import BlockThreads
from gpubench.backends._host import host_dtype, no_kernel, no_overhead, tuned_kernel, usable_cpus
from gpubench.errors import BackendError, BackendUnavailable, DeviceOutOfMemory, Unsupported
from gpubench.model.backend import Buffer
from gpubench.model.case import Case
from gpubench.model.kernel import Limits
from gpubench.model.op import Array, Dtype, Form, Op, Shape
from gpubench.model.result import Device
from gpubench.model.session import Blas


class NumpyLaunch:
    """A prepared call. The library form returns a fresh array each time; `output` is the last one."""

    def __init__(self, function: Callable[[], Array], kernel_hash: str | None) -> None:
        self._function = function
        self.output: Buffer = None
        self.kernel_hash = kernel_hash

    def __call__(self) -> None:
        """Run once."""
        self.output = self._function()


class NumpySession:
    """The CPU as one worker sees it, with a fixed number of threads."""

    def __init__(self, device: Device, threads: int | None) -> None:
        import numpy as np
        from threadpoolctl import ThreadpoolController

        self._np = np
        self.device = device
        self.threads = threads or usable_cpus()
        self._controller = ThreadpoolController()
        self._limit = self._controller.limit(limits=self.threads)
        self.blas = _blas(self._controller)
        self.limits = Limits(max_buffer_bytes=2**62, max_binding_bytes=2**62, float16=True, float64=True)
        self._blocks = BlockThreads(self.threads)

    def supports(self, op: Op, case: Case) -> BackendError | None:
        """Every op has a library form; a tuned form only where the op declares one."""
        if op.overhead is not None:
            return no_overhead(op, case, self.device, self.limits)
        if case.dtype not in op.dtypes or case.dtype == "bfloat16":
            return Unsupported(f"{op.name} has no {case.dtype} on numpy", reason="no-dtype")
        if case.form == "tuned" and (refusal := no_kernel(op, case)):
            return refusal
        if case.regime != "resident":
            return Unsupported("the CPU's data is already at home", reason="no-transfer")
        return None

    def host_array(self, shape: Shape, dtype: Dtype, form: Form) -> Array:
        """An ordinary pageable array."""
        return self.allocate(shape, dtype)

    def allocate(self, shape: Shape, dtype: Dtype) -> Buffer:
        """A C-contiguous array. Raises DeviceOutOfMemory."""
        try:
            return self._np.empty(shape, host_dtype(dtype))
        except MemoryError as error:
            raise DeviceOutOfMemory(str(error)) from error

    def free(self, buffer: Buffer) -> None:
        """Nothing to give back: the array goes with its last reference."""

    def upload(self, buffer: Buffer, host: Array) -> None:
        """Copy in."""
        self._np.copyto(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        """Copy out."""
        self._np.copyto(host, buffer)

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> NumpyLaunch:
        """The plain expression, or the best kernel writing into `output`, be it the library call itself."""
        np = self._np
        if case.form == "library":
            version = hashlib.sha256(f"numpy {np.__version__}".encode()).hexdigest()[:12]
            return NumpyLaunch(lambda: op.expr(np, *inputs), version)
        kernel = op.kernel(self.device.backend, case.dtype, case.variant) or tuned_kernel(op, case)
        run = kernel.build(np, self._blocks, case.params)

        def call() -> Array:
            run(inputs, output)
            return output

        return NumpyLaunch(call, None)

    def run(self, launch: NumpyLaunch, repeat: int = 1) -> None:
        """Run to the end: NumPy is synchronous. Invalid values are results, not warnings."""
        with self._np.errstate(all="ignore"):
            for _ in range(repeat):
                launch()

    def use_threads(self, count: int | None) -> None:
        """Compute with so many threads from now on (None: all): another thread needs a core."""
        count = count or self.threads
        if count != self._blocks.threads:
            self._blocks.threads = count
            self._controller.limit(limits=count)

    def sync(self) -> None:
        """Nothing is ever pending."""

    def time(self, launch: NumpyLaunch, repeat: int = 1, *, cold: bool = False) -> float | None:
        """None: there is no clock beside the wall clock."""
        return None

    def empty_launch(self) -> NumpyLaunch:
        """A call that does nothing."""
        return NumpyLaunch(lambda: None, None)

    def clock(self) -> float:
        """The host's monotonic clock, in seconds."""
        return time.perf_counter()

    def close(self) -> None:
        """Stop the block threads and lift the thread limit."""
        self._blocks.close()
        self._limit.restore_original_limits()


def _blas(controller: Any) -> Blas | None:
    for library in controller.info():
        if library.get("user_api") == "blas":
            return Blas(
                library=str(library["internal_api"]),
                version=library.get("version"),
                kernel=library.get("architecture"),
            )
    return None


class NumpyBackend:
    """One device: the CPUs this process may use."""

    name = "numpy"
    forms: tuple[Form, ...] = ("library", "tuned")

    def devices(self) -> list[Device]:
        """The CPU. Raises BackendUnavailable if NumPy itself cannot be imported."""
        try:
            import numpy as np
        except ImportError as error:
            raise BackendUnavailable(f"NumPy cannot be imported: {error}", hint="pip install numpy") from error
        return [
            Device(id="numpy:0", backend="numpy", kind="cpu", name="CPU", api="host", driver=np.__version__)
        ]

    def open(self, device_id: str, threads: int | None = None) -> NumpySession:
        """Open the CPU with `threads` threads (None: all usable ones)."""
        return NumpySession(self.devices()[0], threads)


BACKEND = NumpyBackend()
