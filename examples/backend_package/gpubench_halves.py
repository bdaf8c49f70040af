"""halves: the CPU through NumPy, with an `add` of its own that computes one half of the array after the other."""

import numpy as np

from gpubench.backends.contract import Backend, Call, Session
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.kernel import Kernel, Limits
from gpubench.result.run import Device


def add_halves(a, b, out):
    middle = out.size // 2
    return np.concatenate([a[:middle] + b[:middle], a[middle:] + b[middle:]], out=out)


class HalvesSession(Session):
    device = Device(id="halves:0", backend="halves", kind="cpu", name="CPU in halves", api="host")
    limits = Limits(max_buffer_bytes=2**62, max_binding_bytes=2**62, float16=True, float64=True)

    def supports(self, op, case):
        has_implementation = case.implementation == "library" or op.kernel("halves", case.dtype)
        refusal = Unsupported(f"no {case.implementation} {op.name} in {case.dtype}", reason="no-implementation")
        return None if has_implementation and case.dtype in set(op.dtypes) - {"bfloat16"} else refusal

    def allocate(self, shape, dtype):
        return np.empty(shape, dtype)

    def upload(self, buffer, host):
        buffer[...] = host

    def download(self, buffer, host):
        host[...] = buffer

    def compile(self, op, case, ins, out):
        return Call(lambda: add_halves(*ins, out) if case.implementation == "tuned" else op.expr(np, *ins))

    def run(self, launch, repeat=1):
        for _ in range(repeat):
            launch()

    def sync(self): ...

    def close(self): ...

    def empty_launch(self):
        return Call(lambda: None)


class HalvesBackend(Backend):
    name, implementations, kinds = "halves", ("library", "tuned"), ("cpu",)
    kernels = {"add": (Kernel("halves", add_halves),)}

    def devices(self):
        return [HalvesSession.device]

    def open(self, device_id, threads=None, *, autotune=True):
        return HalvesSession()


BACKEND = HalvesBackend()
