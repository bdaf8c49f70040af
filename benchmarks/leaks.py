"""Find leaks: launch each implementation of each op many times, open each device many times, and compare the
resources.

    python benchmarks/leaks.py --launches 10000 --openings 200 --backends cupy,wgpu,numpy

Each device is tested in a separate process. A row shows the resources after a warm-up and at the end. It is a
leak (exit code 1) if a resource grew in both halves by more than half its tolerance (benchmarks/leak_traces.py).
The device memory is that of all NVIDIA GPUs together, so other programs on them count, too. A row that takes
longer than --limit ends early and shows a smaller count.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script has its own folder there instead

from benchmarks import leak_traces
from gpubench import backends, kernels
from gpubench.backends.contract import Backend
from gpubench.base.errors import BackendUnavailable
from gpubench.kernels.contract.op import Op
from gpubench.result.case import IMPLEMENTATIONS

MIB = 1 << 20
# The largest number of bytes that a launch reads and writes. It is smaller on a CPU, whose launches take as
# long as they compute.
BYTES, CPU_BYTES = 1 << 20, 1 << 16
ROW = "{:<22} {:>7}  {:>15}  {:>15}  {:>9}  {:>9}  {}"


def main() -> int:
    """Trace every available device of the backends. Return 1 if there is a leak or if a named device is not
    available."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=10_000, help="per op and implementation; 0: none")
    parser.add_argument("--openings", type=int, default=200, help="per device; 0: none")
    parser.add_argument(
        "--backends", default="cupy,wgpu,numpy", help="those that are not there are named and left out"
    )
    parser.add_argument("--device", help="one device, in this process")
    parser.add_argument("--ops", help="names, separated by commas; all that compute")
    parser.add_argument("--limit", type=float, default=4.0, help="seconds per op and implementation")
    parser.add_argument("--open-limit", type=float, default=60.0, help="seconds for the openings of a device")
    options = parser.parse_args()
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # else Vulkan loaders write to stderr
    return _one(options) if options.device else _each(options)


def _each(options: argparse.Namespace) -> int:
    worst = 0
    for device_id in _device_ids(options.backends.split(",")):
        again = [sys.executable, __file__, *sys.argv[1:], "--device", device_id]
        worst = max(worst, abs(subprocess.run(again, check=False).returncode))
    print("leaks" if worst else "no leaks")
    return min(worst, 1)


def _device_ids(names: list[str]) -> Iterator[str]:
    """Yield the id of one device for each backend, kind and name, because equal devices leak alike."""
    for name in names:
        try:
            devices = backends.load(name).devices()
        except BackendUnavailable as error:
            print(f"{name} is not here: {error.detail}")
            continue
        yield from {(device.kind, device.name): device.id for device in reversed(devices)}.values()


def _one(options: argparse.Namespace) -> int:
    backend = backends.load(options.device.partition(":")[0])
    device_bytes = _device_memory()
    began, count, leaking = time.perf_counter(), 0, 0
    print(f"\n{options.device}")
    print(ROW.format("what", "count", "device MiB", "RSS MiB", "handles", "threads", ""))
    with tempfile.TemporaryDirectory() as folder:
        for trace in _traces(options, backend, Path(folder), device_bytes):
            print(_row(trace), flush=True)
            count, leaking = count + 1, leaking + bool(trace.leaks())
    print(f"{options.device}: {count} rows, {leaking} with a leak, {time.perf_counter() - began:.0f} s")
    return 1 if leaking else 0


def _traces(
    options: argparse.Namespace, backend: Backend, folder: Path, device_bytes: leak_traces.DeviceBytes | None
) -> Iterator[leak_traces.Trace]:
    if options.openings:
        repeats = leak_traces.Repeats(options.openings, options.open_limit, device_bytes)
        yield leak_traces.openings(backend, options.device, kernels.load("sum"), folder, repeats)
    if not options.launches:
        return
    session = backend.open(options.device)
    for name in options.ops.split(",") if options.ops else kernels.computing_ops():
        op = kernels.load(name)
        n = _size(op, cpu=session.device.kind == "cpu")
        for implementation in IMPLEMENTATIONS:
            case = leak_traces.resident_case(session, op, n, implementation)
            if session.supports(op, case) is None:
                repeats = leak_traces.Repeats(options.launches, options.limit, device_bytes)
                yield leak_traces.launches(session, op, case, folder, repeats)
    session.close()


def _size(op: Op, *, cpu: bool) -> int:
    """Return the largest power of two from 16 to 64 K at which the op's operands fit, or else 16."""
    most, sizes = CPU_BYTES if cpu else BYTES, [1 << power for power in range(16, 3, -1)]
    return next((n for n in sizes if op.held_bytes({"n": n}, "float32") <= most), sizes[-1])


class _Memory(ctypes.Structure):
    """The struct nvmlMemory_t (NVML API reference)."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _device_memory() -> leak_traces.DeviceBytes | None:
    """Return a function that returns the memory in use on all NVIDIA GPUs, or None without NVML."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    handles = [ctypes.c_void_p() for _ in range(count.value)]
    for index, handle in enumerate(handles):
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            return None

    def used_bytes() -> int:
        memories = [_Memory() for _ in handles]
        for handle, memory in zip(handles, memories, strict=True):
            nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return sum(memory.used for memory in memories)

    return used_bytes


def _row(trace: leak_traces.Trace) -> str:
    first, last = trace.first, trace.last
    device = (
        "-" if first.device_bytes is None else _span(first.device_bytes / MIB, (last.device_bytes or 0) / MIB)
    )
    return ROW.format(
        trace.what, trace.count, device, _span(first.rss_bytes / MIB, last.rss_bytes / MIB),
        f"{first.handles} {last.handles}", f"{first.threads} {last.threads}",
        "LEAK: " + "; ".join(trace.leaks()) if trace.leaks() else "",
    ).rstrip()  # fmt: skip


def _span(first: float, last: float) -> str:
    return f"{first:.1f} {last:.1f}"


if __name__ == "__main__":
    sys.exit(main())
