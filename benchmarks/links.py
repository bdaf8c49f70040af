"""Compare gpubench's measurement of the link of two GPUs with a plain script that checks nothing.

Run: python benchmarks/links.py (two GPUs, CuPy and NCCL; half a minute)

The script uses CuPy's peer copy and NCCL's all-reduce. gpubench and the script take their samples in turns, in
one process. The output has the GB/s of both (for an all-reduce the bus bandwidth). It also has the quartiles of
the ratio gpubench / plain script over the turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from gpubench import backends, kernels
from gpubench.backends.cupy.links import FLOAT32, SUM, nccl_binding
from gpubench.multi.device_group import CollectiveTimer
from gpubench.result.case import Case

DEVICE_GROUP = "group:cupy:0+1"
SIZES = tuple(mib << 20 for mib in (1, 16, 256, 1024))
TURNS, SAMPLE_S = 40, 0.005


class PlainLinks:
    """The links as a short script would use them: two devices, a stream and two buffers on each, and a
    communicator."""

    def __init__(self, cupy: Any, nccl: Any) -> None:
        self.cupy, self.nccl = cupy, nccl
        self.streams, self.buffers = [], []
        for device in (0, 1):
            with cupy.cuda.Device(device):
                self.streams.append(cupy.cuda.Stream(non_blocking=True))
                self.buffers.append([cupy.ones(max(SIZES) // 4, dtype="float32") for _ in range(2)])
        self.communicators = nccl.NcclCommunicator.initAll([0, 1])

    def p2p(self, size: int) -> None:
        source, target = self.buffers[0][0], self.buffers[1][1]
        self.cupy.cuda.runtime.memcpyPeerAsync(
            target.data.ptr, 1, source.data.ptr, 0, size, self.streams[0].ptr
        )

    def allreduce(self, size: int) -> None:
        self.nccl.groupStart()
        for communicator, (sent, got), stream in zip(
            self.communicators, self.buffers, self.streams, strict=True
        ):
            communicator.allReduce(sent.data.ptr, got.data.ptr, size // 4, FLOAT32, SUM, stream.ptr)
        self.nccl.groupEnd()

    def seconds(self, call: Callable[[int], None], size: int, repeat: int) -> float:
        """Return the mean seconds of one exchange. `call` starts an exchange of `size` bytes, and each of the
        `repeat` exchanges is waited for on both devices."""
        start = time.perf_counter()
        for _ in range(repeat):
            call(size)
            for stream in self.streams:
                stream.synchronize()
        return (time.perf_counter() - start) / repeat


def main() -> None:
    import cupy

    session = backends.load("group").open(DEVICE_GROUP)
    plain = PlainLinks(cupy, nccl_binding())
    print(f"{'':12}{'MiB':>6}{'plain GB/s':>12}{'gpubench GB/s':>15}{'ratio':>8}  quartiles")
    for name in ("p2p", "allreduce"):
        op, call = kernels.load(name), getattr(plain, name)
        for size in SIZES:
            case = Case(name, op.group, {"n": size, "ranks": 2}, "float32", "library", "resident", DEVICE_GROUP)
            own = CollectiveTimer(session, op, case)
            own.verify()
            plain.seconds(call, size, 5)
            repeat = max(1, round(SAMPLE_S / plain.seconds(call, size, 5)))
            pairs = [(plain.seconds(call, size, repeat), own.seconds(repeat)) for _ in range(TURNS)]
            own.release()
            low, middle, high = statistics.quantiles([other / mine for other, mine in pairs], n=4)
            rates = [size / statistics.median(side) / 1e9 for side in zip(*pairs, strict=True)]
            print(
                f"{name:12}{size >> 20:6}{rates[0]:12.1f}{rates[1]:15.1f}{middle:8.3f}  {low:.3f}-{high:.3f}",
                flush=True,
            )
    session.close()


if __name__ == "__main__":
    main()
