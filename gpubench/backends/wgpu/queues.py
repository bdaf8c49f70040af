"""The queue of a wgpu device. Functions of wgpu-native, not of wgpu-py, record and submit commands and wait for
them.

wgpu-py makes Python objects for each encoder, pass and command buffer, and checks for errors after each call.
Without that, the host needs 30 to 50 us less for an empty launch (docs/decisions, 6). wgpu-py's wait sleeps, and
wakes up 30 to 100 us after the device is done (on the host of an H200). So here the host polls the device for a
while, as CUDA's own wait does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpubench.backends.wgpu.programs import WgpuLaunch, encode
from gpubench.base.errors import BackendError, DeviceLost, DeviceOutOfMemory

# Seconds to wait for a report that another thread may receive, if two threads wait at the same time.
TOLD_S = 1.0
# Seconds of polling. After a longer wait, a late wake-up adds at most a twentieth, and the CPU can do other work.
ASK_S = 2e-3


@contextlib.contextmanager
def vendor_errors() -> Iterator[None]:
    """Turn the exceptions that wgpu raises in the `with` block into BackendError, DeviceOutOfMemory or DeviceLost.
    Code outside this folder knows none of wgpu's exceptions."""
    import wgpu

    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise DeviceOutOfMemory(first_line(error)) from error
    except wgpu.GPUValidationError as error:
        raise BackendError(str(error), reason="validation-error") from error
    except (wgpu.GPUInternalError, RuntimeError) as error:
        raise DeviceLost(first_line(error)) from error


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Library(NamedTuple):
    """The functions of wgpu-native, as wgpu-py 0.32 offers them."""

    lib: Any  # functions of the library
    checked: Any  # the same functions, which raise the errors that wgpu-native reports
    ffi: Any  # types of the library
    worked: Any  # callback for the end of work, with the number of the wait as its argument
    mapped: Any  # callback for the end of a mapping


# For each copy: source buffer, offset, target buffer, offset, and number of bytes.
Copies = Sequence[tuple[Any, int, Any, int, int]]

_numbers = itertools.count(1)
done: dict[int, bool] = {}  # by the number of a wait that has ended: whether it succeeded


@functools.cache
def library() -> Library:
    """Return the functions of wgpu-native."""
    from wgpu.backends.wgpu_native import _api, ffi, lib

    def callback(kind: str, success: int) -> Any:
        def note(status: int, message: Any, number: Any, unused: Any) -> None:
            done[int(ffi.cast("uintptr_t", number))] = status == success

        return ffi.callback(f"void({kind}, WGPUStringView, void *, void *)", note)

    worked = callback("WGPUQueueWorkDoneStatus", lib.WGPUQueueWorkDoneStatus_Success)
    mapped = callback("WGPUMapAsyncStatus", lib.WGPUMapAsyncStatus_Success)
    return Library(lib, _api.libf, ffi, worked, mapped)


class Queue:
    """The queue of an open device. Errors of commands are raised when their recording ends or when they are
    submitted. `asks` says whether to wait by polling, which takes the CPU from other work, and from a device that
    computes on the CPU."""

    def __init__(self, device: Any, native: Library, *, asks: bool) -> None:
        self._device, self.native, self._asks = device, native, asks
        self._lib, self._null = native.lib, native.ffi.NULL
        self._next: list[WgpuLaunch] = []
        self._own, self._queue = device._internal, device.queue._internal

    def record_next(self, launch: WgpuLaunch | None) -> None:
        """Have the next wait record one call of `launch` ahead, between its polls of the device. None means that it
        records nothing."""
        self._next = [launch] if self._asks and launch is not None else []

    def encode(self, compute: Any, launch: WgpuLaunch, repeat: int) -> None:
        """Record `repeat` launches into a pass that wgpu-py has opened."""
        encode(compute._internal, launch, repeat, (self._lib, self._null))

    def record(self, launch: WgpuLaunch, repeat: int) -> Any:
        """Return the commands of `repeat` launches in one pass."""
        *_, commands = self._recording([launch], repeat)
        return commands

    def recording(self, launch: WgpuLaunch) -> Iterator[Any]:
        """Record a launch slice by slice. Yield None after each slice, and in the end the commands."""
        return self._recording(launch.slices, 1)

    def _recording(
        self, slices: Sequence[WgpuLaunch], repeat: int, first: Copies = (), last: Copies = ()
    ) -> Iterator[Any]:
        """Record copies, a pass with all slices, and more copies. Yield None after each slice, then the commands."""
        lib = self._lib
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._own, self._null)
        try:
            self._encode_copies(encoder, first)
            if slices:
                compute = lib.wgpuCommandEncoderBeginComputePass(encoder, self._null)
                try:
                    for part in slices:
                        encode(compute, part, repeat, (lib, self._null))
                        yield None
                    lib.wgpuComputePassEncoderEnd(compute)
                finally:
                    lib.wgpuComputePassEncoderRelease(compute)
            self._encode_copies(encoder, last)
            commands = self._finish(encoder)
        finally:
            lib.wgpuCommandEncoderRelease(encoder)
        yield commands

    def submit(self, commands: Any) -> int:
        """Submit the commands. Returns the number of the submission, which `Mapping` takes."""
        listed = self.native.ffi.new("WGPUCommandBuffer[]", [commands])
        return int(self.native.checked.wgpuQueueSubmitForIndex(self._queue, 1, listed))

    def copy(self, source: Any, source_at: int, target: Any, target_at: int, size: int) -> int:
        """Submit a copy of `size` bytes, a multiple of four, from buffer to buffer. Returns the number of the
        submission."""
        return self.call([(source, source_at, target, target_at, size)])

    def call(self, first: Copies, launch: WgpuLaunch | None = None, last: Copies = ()) -> int:
        """Submit copies, a launch and more copies as one submission. Returns its number."""
        *_, commands = self._recording([launch] if launch is not None else [], 1, first, last)
        return self.submit(commands)

    def _encode_copies(self, encoder: Any, copies: Copies) -> None:
        for source, source_at, target, target_at, size in copies:
            self._lib.wgpuCommandEncoderCopyBufferToBuffer(
                encoder, source._internal, source_at, target._internal, target_at, size
            )

    def wait(self) -> None:
        """Wait until all submitted work is done."""
        # wgpu-py's `on_submitted_work_done` raises TypeError in wgpu 0.32 (pygfx/wgpu-py#834).
        number = next(_numbers)
        if self._asks:
            info = self.callback_info("WGPUQueueWorkDoneCallbackInfo *", self.native.worked, number)
            self._lib.wgpuQueueOnSubmittedWorkDone(self._queue, info[0])
        if not (self._ask(number) and done[number]):
            self._device._poll_wait()  # raises the error, if there is one
        done.pop(number, None)

    def await_mapping(self, number: int, behind: int | None = None) -> bool:
        """Wait until the library reports on mapping `number`, and return whether it succeeded. `behind` is the last
        submission to wait for; None means all."""
        if not self._ask(number):
            if behind is None:
                self._device._poll_wait()
            else:
                index = self.native.ffi.new("WGPUSubmissionIndex *", behind)
                self.native.checked.wgpuDevicePoll(self._own, True, index)
            until = time.perf_counter() + TOLD_S
            while number not in done and time.perf_counter() <= until:
                time.sleep(1e-4)
        return done.pop(number, False)

    def callback_info(self, kind: str, call: Any, number: int) -> Any:
        """Return a callback struct of the type `kind`. The library will call `call` with `number`, the number of
        the wait."""
        ffi = self.native.ffi
        fields = {"mode": self._lib.WGPUCallbackMode_AllowProcessEvents, "callback": call,
                 "userdata1": ffi.cast("void *", number)}  # fmt: skip
        return ffi.new(kind, fields)

    def _ask(self, number: int) -> bool:
        """Poll for at most ASK_S, and record ahead between polls. Return whether the end of wait `number` was
        reported."""
        poll, clock = self._lib.wgpuDevicePoll, time.perf_counter
        until = clock() + ASK_S
        launch: WgpuLaunch | None = None
        with contextlib.suppress(IndexError):  # if two threads wait, only one of them records
            launch = self._next.pop()
        while self._asks and number not in done and clock() <= until:
            poll(self._own, False, self._null)
            if launch is not None and number not in done:
                # After a failure the launch records its own call, and raises the error.
                more = False
                with contextlib.suppress(Exception):
                    more = launch.record_ahead(self.recording)
                launch = launch if more else None
        return number in done

    def _finish(self, encoder: Any) -> Any:
        """Return the commands of the encoder. They are released together with the Python object."""
        commands = self.native.checked.wgpuCommandEncoderFinish(encoder, self._null)
        return self.native.ffi.gc(commands, self._lib.wgpuCommandBufferRelease)


class Mapping:
    """A request to map the first `size` bytes of a staging buffer. The host may touch them from `sync_wait` to
    `close`. `behind` is the last submission that uses the buffer: `sync_wait` does not wait for later
    submissions."""

    def __init__(
        self, queue: Queue, staging: Any, size: int, *, write: bool, behind: int | None = None
    ) -> None:
        self._queue, self._number, self._behind = queue, next(_numbers), behind
        self._own, self._size, self._write = staging._internal, size, write
        lib = queue.native.lib
        mode = lib.WGPUMapMode_Write if write else lib.WGPUMapMode_Read
        info = queue.callback_info("WGPUBufferMapCallbackInfo *", queue.native.mapped, self._number)
        queue.native.checked.wgpuBufferMapAsync(self._own, mode, 0, size, info[0])

    def sync_wait(self) -> None:
        # wgpu-py would start a thread for each mapping.
        if not self._queue.await_mapping(self._number, self._behind):
            raise RuntimeError("a staging buffer could not be mapped")

    def memory(self) -> Any:
        """Return the mapped bytes as an array of uint8, which must not be used after `close`."""
        import numpy as np

        lib, ffi = self._queue.native.lib, self._queue.native.ffi
        get = lib.wgpuBufferGetMappedRange if self._write else lib.wgpuBufferGetConstMappedRange
        return np.frombuffer(ffi.buffer(get(self._own, 0, self._size), self._size), np.uint8)

    def close(self) -> None:
        self._queue.native.checked.wgpuBufferUnmap(self._own)
