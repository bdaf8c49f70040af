"""Host memory that a CUDA device computes in: page-locked memory mapped into its address space, and managed memory.

With unified addressing a page-locked allocation has the same address on both sides, and the device reads it over the
link each time (CUDA C++ programming guide, section mapped memory). Pages of managed memory move to the side that
touches them; nothing is prefetched here (cudaMemPrefetchAsync), as a plain program does.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from gpubench.backends.contract import Buffer, HostMemory, Session
from gpubench.backends.cupy.launches import CudaLaunch
from gpubench.backends.shared.host import host_dtype
from gpubench.base.errors import Unsupported
from gpubench.kernels.contract.op import Array, Op, Shape, Stored
from gpubench.result.case import Case

# cudaDeviceAttr, and cudaHostAllocMapped (CUDA runtime API).
INTEGRATED, CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING, MANAGED_MEMORY, HOST_PAGE_TABLES = 18, 19, 41, 83, 100
HOST_ALLOC_MAPPED = 2
_NEEDS = {"mapped": (CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING), "managed": (MANAGED_MEMORY,)}


def is_unified(attribute: Callable[[int], int]) -> bool:
    """Whether the device's memory is the host's: an integrated GPU, or one that walks the host's page tables (Grace).
    `attribute` reads a cudaDeviceAttr; older runtimes raise for those they do not know."""

    def is_set(number: int) -> bool:
        try:
            return bool(attribute(number))
        except Exception:  # each version of the runtime has its own words for an attribute that it lacks
            return False

    return is_set(INTEGRATED) or is_set(HOST_PAGE_TABLES)


class CudaHostMemory(HostMemory):
    """A pool of CuPy's over memory of one kind. Library calls take their results from it, too."""

    def __init__(
        self, cupy: Any, ordinal: int, memory: str, guard: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._cupy, self._ordinal, self._guard = cupy, ordinal, guard
        attribute = cupy.cuda.runtime.deviceGetAttribute
        with guard():
            lacking = [number for number in _NEEDS[memory] if not attribute(number, ordinal)]
        if lacking:
            why = f"cupy:{ordinal} has no {memory} memory (its cudaDeviceAttr {lacking[0]} is 0)"
            raise Unsupported(why, reason="not-in-place")
        self._touches = memory == "managed"
        self._pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed if self._touches else self._lock_pages)
        self._bytes: dict[tuple[int, int], Array] = {}  # by address and size

    def _lock_pages(self, size: int) -> Any:
        """Return page-locked memory as CuPy's pools ask for it."""
        cuda = self._cupy.cuda
        locked = cuda.pinned_memory.PinnedMemory(size, HOST_ALLOC_MAPPED)
        return cuda.MemoryPointer(cuda.UnownedMemory(locked.ptr, size, locked, self._ordinal), 0)

    def allocate(self, shape: Shape, dtype: Stored) -> Buffer:
        with self._guard(), self._cupy.cuda.using_allocator(self._pool.malloc):
            return self._cupy.empty(shape, host_dtype(dtype))

    def hold(self, buffers: Sequence[Buffer], *, write: bool) -> list[Array]:
        """Read a byte of each managed page, which brings it to the host."""
        held = [self._on_host(buffer) for buffer in buffers]
        if self._touches:
            for array in held:
                array[:: mmap.PAGESIZE].max(initial=0)
        return held

    def _on_host(self, buffer: Buffer) -> Array:
        """Return the bytes of an array. Raises Unsupported if a library put its result elsewhere."""
        import numpy as np

        place = (buffer.data.ptr, buffer.nbytes)
        if place not in self._bytes:
            with self._guard():
                address = self._cupy.cuda.runtime.pointerGetAttributes(place[0]).hostPointer
            if not address or not buffer.flags.c_contiguous:
                why = "the library's result is no plain array of host memory"
                raise Unsupported(why, reason="not-in-place")
            memory = (ctypes.c_uint8 * place[1]).from_address(address)
            self._bytes[place] = np.frombuffer(memory, np.uint8)
        return self._bytes[place]

    def compile(
        self, session: Session, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer
    ) -> CudaLaunch:
        launch = session.compile(op, case, inputs, output)
        assert isinstance(launch, CudaLaunch)
        return launch if launch.steps is not None else CudaLaunch(partial(self._call, launch))

    def _call(self, launch: CudaLaunch) -> Buffer:
        """Do a library call whose arrays come from this pool."""
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            launch()
        return launch.output

    def forget(self) -> None:
        """Give idle memory back to the system."""
        self._bytes.clear()
        self._pool.free_all_blocks()
