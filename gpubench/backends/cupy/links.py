"""Links among CUDA devices: copies by the CUDA runtime, and collectives by NCCL, all in one process.

NCCL's environment variables are left as they are, since hosts set some of them for safety.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.backends.contract import Links
from gpubench.backends.cupy.launches import vendor_errors
from gpubench.base.errors import DeviceOutOfMemory, Unsupported
from gpubench.base.installation import install_command
from gpubench.kernels.contract.op import Array

# Constants of nccl.h.
FLOAT32, SUM, AVERAGE = 7, 0, 4
TYPES = {"float16": 6, "float32": FLOAT32, "float64": 8, "bfloat16": 9}
# For each collective: NCCL's call, and its argument after the type, an operation or the rank that sends.
CALLS: dict[str, tuple[Any, ...]] = {
    "allreduce": ("allReduce", SUM), "reducescatter": ("reduceScatter", SUM), "allgather": ("allGather",),
    "broadcast": ("broadcast", 0),
}  # fmt: skip


class CudaLinks(Links):
    """The links among CUDA devices, with one stream per device. The first collective starts NCCL, because plain
    copies do not need it."""

    def __init__(self, cupy: Any, ordinals: Sequence[int]) -> None:
        self.xp, self.ranks = cupy, len(ordinals)
        self._ordinals = list(ordinals)
        self._streams = []
        with vendor_errors():
            for ordinal in ordinals:
                with cupy.cuda.Device(ordinal):
                    self._streams.append(cupy.cuda.Stream(non_blocking=True))
            reached = [self._reach(a, b) for a, b in itertools.permutations(ordinals, 2)]
        self.copier = "peer copy" if all(reached) else "peer copy via host"
        self._communicators: list[Any] | None = None

    @property
    def library(self) -> str:  # type: ignore[override]
        """NCCL with its version, such as "nccl 2.27.3". Raises Unsupported if NCCL is not installed."""
        version = int(nccl_binding().get_version())
        return f"nccl {version // 10000}.{version // 100 % 100}.{version % 100}"

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        with vendor_errors(), _nccl_errors():
            yield

    @contextlib.contextmanager
    def on(self, rank: int) -> Iterator[None]:
        with vendor_errors(), self.xp.cuda.Device(self._ordinals[rank]), self._streams[rank]:
            yield

    def sync(self) -> None:
        for stream in self._streams:
            stream.synchronize()

    def fetch(self, array: Array) -> tuple[Any, Array]:
        import numpy

        return numpy, self.xp.asnumpy(array)

    def copy(self, pairs: Sequence[tuple[int, int]], sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Copy on the stream of the source. Without peer access the driver copies through host memory."""
        runtime, ordinals = self.xp.cuda.runtime, self._ordinals
        for source, target in pairs:
            runtime.memcpyPeerAsync(
                got[target].data.ptr, ordinals[target], sent[source].data.ptr, ordinals[source],
                sent[source].nbytes, self._streams[source].ptr,
            )  # fmt: skip

    def collect(self, name: str, sent: Sequence[Array], got: Sequence[Array]) -> None:
        """Enqueue the calls of all ranks as one NCCL group."""
        nccl, communicators = self._join()
        # Without a group the first rank would wait for the others for ever. No device is made current, because a
        # communicator knows its device, and the switch would take longer than the call.
        nccl.groupStart()
        try:
            for rank, communicator in enumerate(communicators):
                source, target, stream = sent[rank], got[rank], self._streams[rank].ptr
                if name == "alltoall":
                    part = source.size // self.ranks
                    for other in range(self.ranks):
                        at = other * part * source.itemsize
                        communicator.send(source.data.ptr + at, part, FLOAT32, other, stream)
                        communicator.recv(target.data.ptr + at, part, FLOAT32, other, stream)
                else:
                    call, *more = CALLS[name]
                    # If one of the two arrays has the shares of all ranks, NCCL expects the size of one share.
                    count = min(source.size, target.size)
                    getattr(communicator, call)(source.data.ptr, target.data.ptr, count, FLOAT32, *more, stream)
        finally:  # NCCL would add all later calls to an open group, and start none of them
            nccl.groupEnd()

    def average(self, buffers: Sequence[Sequence[Array]]) -> None:
        """Enqueue the means with NCCL on the default stream. The sessions use that stream, too, so no wait is
        needed between their work and the means."""
        nccl, communicators = self._join()
        nccl.groupStart()
        try:
            for communicator, own in zip(communicators, buffers, strict=True):
                for array in own:
                    place, kind = array.data.ptr, TYPES[array.dtype.name]
                    communicator.allReduce(place, place, array.size, kind, AVERAGE, 0)
        finally:
            nccl.groupEnd()

    def _join(self) -> tuple[Any, list[Any]]:
        """Return NCCL and the communicator of each rank."""
        nccl = nccl_binding()
        if self._communicators is None:
            self._communicators = nccl.NcclCommunicator.initAll(self._ordinals)
        return nccl, self._communicators

    def close(self) -> None:
        for communicator in self._communicators or ():
            with contextlib.suppress(Exception):
                communicator.destroy()
        self._communicators = None

    def _reach(self, source: int, target: int) -> bool:
        """Let the device `source` access the memory of `target`, and return whether it can."""
        runtime = self.xp.cuda.runtime
        if not runtime.deviceCanAccessPeer(source, target):
            return False
        with self.xp.cuda.Device(source):
            try:
                runtime.deviceEnablePeerAccess(target)
            except runtime.CUDARuntimeError as error:
                return "AlreadyEnabled" in str(error)
        return True


@functools.cache
def nccl_binding() -> Any:
    """Return CuPy's binding of NCCL. Raises Unsupported if NCCL is not installed."""
    for folder in _wheel_folders():
        with contextlib.suppress(OSError):  # no loader looks into the folder of NVIDIA's wheel
            ctypes.CDLL(f"{folder}/lib/libnccl.so.2", mode=ctypes.RTLD_GLOBAL)
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise no_nccl(str(error)) from error
    if not getattr(nccl, "available", True):
        raise no_nccl("CuPy finds no libnccl.so.2")
    return nccl


def _wheel_folders() -> Sequence[str]:
    with contextlib.suppress(ModuleNotFoundError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        return [] if spec is None else list(spec.submodule_search_locations or ())
    return []


def no_nccl(why: str) -> Unsupported:
    return Unsupported(
        f"collectives need NCCL: {why}",
        hint=f"{install_command('nccl13')}; for CUDA 12 the extra nccl12", reason="no-library",
    )  # fmt: skip


@contextlib.contextmanager
def _nccl_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The class of NCCL's errors is not imported, because plain copies do not need NCCL.
        if type(error).__name__ != "NcclError":
            raise
        if "memory" in str(error).lower():
            raise DeviceOutOfMemory(str(error)) from error
        raise Unsupported(f"NCCL: {error}", reason="unsupported") from error
