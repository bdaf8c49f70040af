"""Parent side: which devices exist, asked of short-lived workers, all backends at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from gpubench.measure import protocol
from gpubench.measure.workers import Worker, WorkerGone
from gpubench.model.result import Device

DEADLINE_S = 20.0


class Listing(msgspec.Struct, frozen=True):
    """What one backend answered: devices, or why there are none."""

    backend: str
    devices: tuple[Device, ...] = ()
    forms: tuple[str, ...] = ()
    version: str | None = None
    reason: str | None = None
    detail: str = ""
    hint: str = ""


def list_devices(backends: Sequence[str], deadline_s: float = DEADLINE_S) -> list[Listing]:
    """One listing per backend, in the given order. Never raises: absence is an answer."""
    if not backends:
        return []
    with ThreadPoolExecutor(len(backends)) as pool:
        return list(pool.map(lambda name: _ask(name, deadline_s), backends))


def _ask(backend: str, deadline_s: float) -> Listing:
    with Worker() as worker:
        try:
            reply = worker.ask(protocol.ListDevices(id=worker.next_id, backend=backend), deadline_s)
        except WorkerGone as gone:
            return Listing(backend, reason=gone.reason, detail=gone.detail, hint=gone.stderr_tail[-200:])
    match reply:
        case protocol.Devices():
            return Listing(backend, tuple(reply.devices), tuple(reply.forms), reply.library_version)
        case protocol.Refused() | protocol.Broke():
            return Listing(backend, reason=reply.reason, detail=reply.detail, hint=reply.hint)
    return Listing(backend, reason="error", detail=f"unexpected answer {type(reply).__name__}")
