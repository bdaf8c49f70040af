"""The links of two GPUs by gpubench beside a plain script: CuPy's peer copy and NCCL's all-reduce, nothing checked.

    gpubench run --ops p2p,allreduce --sizes 1m,16m,256m,1024m --devices gang:cupy:0+1 -o links.json
    python benchmarks/links.py links.json

Prints GB/s (bus bandwidth) of both and the ratio gpubench / plain. Needs two GPUs, CuPy and NCCL.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from gpubench import store
from gpubench.analysis.analyse import analyse
from gpubench.backends.cupy.links import FLOAT32, SUM, nccl_binding

WARM, SAMPLES, SAMPLE_S = 5, 20, 0.01


def rate(call: Callable[[], None], wait: Callable[[], None], sent: int) -> float:
    """Bytes per second of the median of some samples."""
    for _ in range(WARM):
        call()
        wait()
    start = time.perf_counter()
    call()
    wait()
    repeat = max(1, int(SAMPLE_S / (time.perf_counter() - start)))
    times = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
            wait()
        times.append((time.perf_counter() - start) / repeat)
    return sent / statistics.median(times)


def plain(sizes: list[int]) -> dict[tuple[str, int], float]:
    """Of a peer copy from GPU 0 to GPU 1, and of an all-reduce of both, whose bus bandwidth is its rate."""
    import cupy

    streams, buffers = [], []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            cupy.cuda.runtime.deviceEnablePeerAccess(1 - device)
            streams.append(cupy.cuda.Stream(non_blocking=True))
            buffers.append([cupy.ones(max(sizes) // 4, dtype="float32") for _ in range(2)])
    nccl = nccl_binding()
    communicators = nccl.NcclCommunicator.initAll([0, 1])

    def copy(size: int) -> None:
        source, target = buffers[0][0], buffers[1][1]
        cupy.cuda.runtime.memcpyPeerAsync(target.data.ptr, 1, source.data.ptr, 0, size, streams[0].ptr)

    def reduce(size: int) -> None:
        nccl.groupStart()
        for device in (0, 1):
            sent, got = buffers[device]
            with cupy.cuda.Device(device):
                communicators[device].allReduce(
                    sent.data.ptr, got.data.ptr, size // 4, FLOAT32, SUM, streams[device].ptr
                )
        nccl.groupEnd()

    def wait() -> None:
        for stream in streams:
            stream.synchronize()

    return {
        (name, size): rate(partial(call, size), wait, size)
        for name, call in (("p2p", copy), ("allreduce", reduce))
        for size in sizes
    }


def main(path: str) -> None:
    ours = {
        (row.case.op, n): n / row.time.estimate
        for row in analyse(store.load(path)).cases
        if row.time is not None
        and row.case.device_id == "gang:cupy:0+1"
        and row.case.op in ("p2p", "allreduce")
        for n in (row.case.params["n"],)
    }
    theirs = plain(sorted({n for _, n in ours}))
    print(f"{'':12}{'MiB':>6}{'plain GB/s':>12}{'gpubench GB/s':>15}{'ratio':>8}")
    for (op, n), own in ours.items():
        other = theirs[op, n]
        print(f"{op:12}{n >> 20:6}{other / 1e9:12.1f}{own / 1e9:15.1f}{own / other:8.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
