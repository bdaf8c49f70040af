"""halves: the CPU through NumPy, with a tuned `add` of its own that computes one half of the array after the other.

All that a backend has to say, and one kernel that it brings along in a language of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpubench.backends.contract import Backend, Buffer, Launch, Session
from gpubench.base.errors import BackendError, Unsupported
from gpubench.kernels.contract.kernel import Kernel, Limits
from gpubench.kernels.contract.op import Array, Dtype, Form, Op, Shape
from gpubench.result.case import Case
from gpubench.result.run import Device, DeviceKind


def add_halves(np: Any) -> Callable[[Sequence[Array], Array], None]:
    """What `Kernel.build` makes is between the kernel and its backend."""

    def launch(inputs: Sequence[Array], output: Array) -> None:
        middle = output.size // 2
        for part in (slice(0, middle), slice(middle, None)):
            np.add(inputs[0][part], inputs[1][part], out=output[part])

    return launch


class Call(Launch):
    """A prepared call. The library form makes a fresh array each time."""

    def __init__(self, function: Callable[[], Array]) -> None:
        self.function = function


class HalvesSession(Session):
    """NumPy's arrays are the buffers, and every call is done when it returns."""

    def __init__(self, device: Device) -> None:
        import numpy as np

        self.np, self.device = np, device
        self.limits = Limits(max_buffer_bytes=2**62, max_binding_bytes=2**62, float16=True, float64=True)

    def supports(self, op: Op, case: Case) -> BackendError | None:
        if op.overhead is not None or (case.form == "tuned" and op.kernel("halves", case.dtype) is None):
            return Unsupported(f"halves has no {case.form} {op.name}", reason="no-implementation")
        if case.dtype not in op.dtypes or case.dtype == "bfloat16":
            return Unsupported(f"{op.name} has no {case.dtype} on halves", reason="no-dtype")
        return None

    def host_array(self, shape: Shape, dtype: Dtype, form: Form) -> Array:
        return self.np.empty(shape, dtype)

    def allocate(self, shape: Shape, dtype: Dtype) -> Buffer:
        return self.np.empty(shape, dtype)

    def upload(self, buffer: Buffer, host: Array) -> None:
        self.np.copyto(buffer, host)

    def download(self, buffer: Buffer, host: Array) -> None:
        self.np.copyto(host, buffer)

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Call:
        kernel = op.kernel("halves", case.dtype, case.variant)
        if case.form == "library" or kernel is None:
            return Call(lambda: op.expr(self.np, *inputs))
        run = kernel.build(self.np)

        def call() -> Array:
            run(inputs, output)
            return output

        return Call(call)

    def run(self, launch: Call, repeat: int = 1) -> None:
        with self.np.errstate(all="ignore"):
            for _ in range(repeat):
                launch.output = launch.function()

    def sync(self) -> None:
        pass

    def empty_launch(self) -> Call:
        return Call(lambda: None)


class HalvesBackend(Backend):
    """One device, and one kernel of its own."""

    name = "halves"
    forms: tuple[Form, ...] = ("library", "tuned")
    kinds: tuple[DeviceKind, ...] = ("cpu",)
    kernels = {"add": (Kernel("halves", add_halves),)}

    def devices(self) -> list[Device]:
        return [Device(id="halves:0", backend="halves", kind="cpu", name="CPU in halves", api="host")]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> HalvesSession:
        return HalvesSession(self.devices()[0])


BACKEND = HalvesBackend()
