"""The child process that drives one device: `python -m gpubench.measure.worker.main`.

It answers requests from stdin in a loop. Replies go to a private copy of stdout, and output of libraries goes
to stderr. End-of-file on stdin ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

import gpubench.backends
import gpubench.kernels
from gpubench.backends.contract import Session
from gpubench.backends.contract.protocols import Foresees
from gpubench.backends.shared.host import bound_cpus, on_all_cpus, set_up_threads
from gpubench.base.child_main import Messages, end, lines_of_parent
from gpubench.base.errors import (
    NO_MEMORY,
    BackendError,
    BackendUnavailable,
    DeviceLost,
    DeviceOutOfMemory,
    Unsupported,
    find_limit,
)
from gpubench.base.installation import find_shadow
from gpubench.base.messages import REASONS, Reason
from gpubench.base.plugins import EARLIER, error_text
from gpubench.functions.session import end_forks
from gpubench.measure import protocol
from gpubench.measure.worker.device import OpenDevice, equip
from gpubench.measure.worker.workspace import Wrong
from gpubench.result.run import Check, Device, WorkerRecord
from gpubench.result.store import cache

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

RECORDED = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CUPY_TF32",
    "WGPU_BACKEND_TYPE",
)  # fmt: skip


class DeviceWorker:
    """The answers to the parent's requests. It lists devices, opens one, and passes other requests to the open
    device."""

    def __init__(self, messages: SupportsWrite[bytes]) -> None:
        self._messages = messages
        self._phase: str | None = None
        self.device: OpenDevice | None = None

    def answer(self, request: protocol.WorkerRequest) -> protocol.Reply:
        """Carry out one request and return the reply. Expected errors become replies, too."""
        try:
            return self._carry_out(request)
        except (BackendUnavailable, Unsupported, DeviceOutOfMemory) as error:
            return protocol.Refused(id=request.id, **describe_error(error))
        except Wrong as error:
            return self._broke(request.id, error, check=error.check)
        except BackendError as error:
            return self._broke(request.id, error, fatal=isinstance(error, DeviceLost))
        except MemoryError as error:
            return protocol.Refused(
                id=request.id, reason="out-of-memory", detail=f"host memory: {str(error) or NO_MEMORY}"
            )

    def _carry_out(self, request: protocol.WorkerRequest) -> protocol.Reply:
        reply: protocol.Reply | None = None
        match request:
            case protocol.ListDevices():
                self.announce("devices")
                reply = list_devices(request)
            case protocol.Preload():
                gpubench.backends.load(request.backend).preload()
            case protocol.Open():
                reply = self._open(request)
            case protocol.Close():
                if self.device is not None:
                    self.device.close()
            case _:
                if self.device is None:
                    raise BackendUnavailable("no device is open")
                reply = _ASKED[type(request)](self.device, request)
        return reply or protocol.Done(id=request.id)

    def unforeseen(self, request: protocol.WorkerRequest, error: BaseException) -> protocol.Reply:
        """Return the reply to an error that nobody expected: a defect, or a limit of the system. The reply
        fails the case and names the type of the error."""
        detail = ": ".join(filter(None, (error_text(error), find_limit(error) or find_shadow(error))))
        return protocol.Broke(id=request.id, reason="error", detail=detail, phase=self._phase)

    def _broke(
        self, number: int, error: BackendError, *, check: Check | None = None, fatal: bool = False
    ) -> protocol.Broke:
        return protocol.Broke(id=number, phase=self._phase, check=check, fatal=fatal, **describe_error(error))

    def announce(self, phase: str) -> None:
        self._phase = phase
        self._messages.write(protocol.encode(protocol.Phase(name=phase)))

    def _open(self, request: protocol.Open) -> protocol.Opened:
        self.announce("open")
        cache.fall_back_to(Path(os.fsdecode(request.scratch)) / cache.RUN_CACHE)
        bound_cpus(request.cpus)
        start = time.perf_counter()
        # Of a device that is composed of another one (`hybrid:cupy:0`) both backends may bring kernels.
        used = [gpubench.backends.load(name) for name in gpubench.backends.names_of(request.device_id)]
        try:
            session = used[0].open(request.device_id, request.threads, autotune=request.autotune)
        except TypeError as error:
            if "abstract" not in str(error):
                raise
            raise BackendError(
                f"the backend {used[0].name} lacks what a session has to have: {error}{EARLIER}",
                hint=REASONS["bad-plugin"].remedy, reason="bad-plugin",
            ) from error  # fmt: skip
        open_s = time.perf_counter() - start
        if not isinstance(session, Session):
            raise BackendError(
                f"open of the backend {used[0].name} returns no Session but {type(session).__name__}"
            )
        once_s = 0.0
        if isinstance(session, Foresees):
            once_s = session.foresee([equip(name, used) for name in request.ops], request.dtypes)
        self.device = OpenDevice(session, used, request, self.announce)
        record = WorkerRecord(
            device_id=request.device_id, threads=session.threads, blas=session.blas,
            env={n: value for n, value in os.environ.items() if n in RECORDED or n.startswith("NCCL_")},
            open_s=open_s,
        )  # fmt: skip
        return protocol.Opened(id=request.id, device=session.device, record=record, once_s=once_s)


def list_devices(request: protocol.ListDevices) -> protocol.Devices:
    """Return the devices of a backend, or the reason why it has none. Raises BackendError if a device has the
    id of another backend."""
    backend = gpubench.backends.load(request.backend)
    devices, refused = list[Device](), {}
    try:
        devices = backend.host_devices() if request.host_only else backend.devices()
    except BackendUnavailable as error:
        refused = describe_error(error)
    for device in devices:
        if device.backend != request.backend or not re.fullmatch(rf"{request.backend}:\S+", device.id):
            raise BackendError(
                f"the backend {request.backend} lists {device.id!r} of {device.backend!r} as a device of its own",
                hint=f"a device of it has an id that begins with {request.backend}: and holds no blank",
            )
    # The clock of a composed device is that of its inner device.
    scripted = [
        d.id for d in devices if gpubench.backends.load(gpubench.backends.names_of(d.id)[-1]).scripted_time
    ]
    fields = {
        "backend": request.backend, "devices": devices, "implementations": backend.implementations,
        "version": _version(request.backend),
        "kernels": dict(backend.kernels), "default_devices": backend.default_devices, "yields_to": backend.yields_to,
        "scripted": scripted, **refused,
    }  # fmt: skip
    return protocol.Devices(
        id=request.id, listing=msgspec.convert(fields, protocol.Listing, from_attributes=True)
    )


def describe_error(error: BackendError) -> dict[str, Any]:
    """Return `reason`, `detail` and `hint` of an error. A reason that is not in the list of messages is
    put before the detail, and the reason of the error's class is returned instead."""
    shadow = find_shadow(error)
    reasons, detail = get_args(Reason), "; ".join(filter(None, (error.detail, shadow)))
    if error.reason not in reasons:
        detail = f"{error.reason}: {detail}"
    declared = (vars(kind).get("reason") for kind in type(error).__mro__)
    reason = next(word for word in (error.reason, *declared) if word in reasons)
    return {"reason": reason, "detail": detail[:2000], "hint": "" if shadow else error.hint}


def _version(backend: str) -> str | None:
    """Return the version of the imported module, else of the installed package, or None."""
    version = getattr(sys.modules.get(backend), "__version__", None)
    if version is None and backend in gpubench.backends.built_in():
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(backend)
    return None if version is None else str(version)


_ASKED: dict[type, Callable[[OpenDevice, Any], protocol.Reply | None]] = {
    protocol.MeasureOverhead: OpenDevice.measure_overhead, protocol.MeasurePeaks: OpenDevice.measure_peaks,
    protocol.Load: OpenDevice.load, protocol.Build: OpenDevice.build, protocol.Choose: OpenDevice.choose,
    protocol.Prepare: OpenDevice.prepare, protocol.Sample: OpenDevice.sample, protocol.Work: OpenDevice.work,
    protocol.TimeStages: OpenDevice.time_stages, protocol.Finish: OpenDevice.finish,
    protocol.Reallocate: OpenDevice.reallocate,
}  # fmt: skip


def _line(reply: protocol.Reply) -> bytes:
    """Return the reply as one line that the parent can read, or raise BackendError."""
    try:
        line = protocol.encode(reply)
        protocol.decode_reply(line)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise BackendError(f"the backend handed over what no message can hold: {error_text(error)}") from error
    return line


def main() -> int:
    """Serve requests until `close` or end-of-file."""
    set_up_threads()  # before any library is loaded
    end_forks()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    messages = Messages()
    requests = lines_of_parent()
    worker = DeviceWorker(messages)
    while True:
        request = protocol.decode_request(requests.get())
        try:
            with on_all_cpus():
                line = _line(worker.answer(request))
        except BaseException as error:  # sys.exit of a library costs the case too
            line = protocol.encode(worker.unforeseen(request, error))
        messages.write(line)
        if isinstance(request, protocol.Close):
            end()


if __name__ == "__main__":
    sys.exit(main())
