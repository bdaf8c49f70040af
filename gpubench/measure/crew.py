"""The workers of one session: one per device, opened on first use, replaced when they die."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from gpubench.measure import protocol
from gpubench.measure.telemetry import of_session
from gpubench.measure.workers import Worker, WorkerGone
from gpubench.model.machine import Machine, cpu_cache_bytes
from gpubench.model.result import (
    UNKNOWN_CACHE_BYTES,
    Device,
    DeviceClock,
    Settings,
)
from gpubench.model.session import Ceiling, SessionRecord, WorkerRecord

OPEN_DEADLINE_S = 60.0
SHORT_DEADLINE_S = 5.0
# Beside the time for the ceilings themselves: large arrays on a slow host, kernels that are built.
CEILING_DEADLINE_S = 30.0
# Two failed starts in a row make a device unavailable (architecture: nothing is retried silently).
FAILED_STARTS = 2


class DeviceGone(Exception):
    """The device cannot be opened: what is left of it is skipped with this reason."""

    def __init__(self, reason: str, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.hint = hint


class Crew:
    """Hands out the worker of a device and counts what went wrong. `gone` outlives the session."""

    def __init__(
        self, settings: Settings, scratch: Path, gone: dict[str, DeviceGone], devices: Sequence[Device] = (),
        machine: Machine | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._scratch = scratch
        self._gone = gone
        self._since = time.monotonic()
        self._workers: dict[str, Worker] = {}
        self._failed: dict[str, int] = {}
        self._ever_opened: set[str] = set()
        self.records: list[WorkerRecord] = []
        self.clocks: dict[str, DeviceClock] = {}
        self._ceilings: list[Ceiling] = []
        caches = cpu_cache_bytes(machine or Machine()) or UNKNOWN_CACHE_BYTES
        self._flush_bytes = 2 * caches if settings.cache == "cold" else None
        self.telemetry = of_session(devices, machine or Machine(), self._since)

    def worker(self, device_id: str) -> Worker:
        """The open worker of this device. Raises DeviceGone."""
        if device_id in self._gone:
            raise self._gone[device_id]
        while device_id not in self._workers:
            try:
                self._workers[device_id] = self._start(device_id)
                self._failed[device_id] = 0
            except WorkerGone as gone:
                self._failed[device_id] = self._failed.get(device_id, 0) + 1
                if self._failed[device_id] >= FAILED_STARTS:
                    self._give_up(device_id, DeviceGone("device-lost", gone.detail, gone.stderr_tail[-300:]))
        return self._workers[device_id]

    def open_all(self, device_ids: Iterable[str]) -> None:
        """Open every device before the first case: starting a worker is no part of any workload's time."""
        for device_id in device_ids:
            # A device that is gone is remembered: each of its cases becomes a Skip with the reason.
            with contextlib.suppress(DeviceGone):
                self.worker(device_id)

    def measure_ceilings(self, wanted: Mapping[str, protocol.Wanted]) -> None:
        """Ask each device for its ceilings. A device that breaks over it gets a fresh worker, and no ceiling."""
        for device_id, what in wanted.items():
            deadline_s = CEILING_DEADLINE_S + what.limit_s * (what.memory + len(what.compute))
            try:
                worker = self.worker(device_id)
                request = protocol.MeasureCeilings(id=worker.next_id, wanted=what)
                reply = worker.ask(request, deadline_s)
            except DeviceGone:
                continue
            except WorkerGone as gone:
                self.drop(device_id)
                self._ceilings.append(Ceiling(device_id=device_id, reason=gone.detail))
                continue
            if isinstance(reply, protocol.Ceilings):
                self._ceilings += reply.ceilings
            else:
                self._ceilings.append(Ceiling(device_id=device_id, reason=getattr(reply, "detail", "")))

    def holds(self, device_id: str, worker: Worker | None) -> bool:
        """True if this very worker still drives the device."""
        return worker is not None and self._workers.get(device_id) is worker

    def drop(self, device_id: str) -> None:
        """The worker is dead or must not be used again; the next request gets a fresh one."""
        worker = self._workers.pop(device_id, None)
        if worker is not None:
            worker.kill()

    def release(self, workload: str) -> dict[str, str]:
        """Free the workload on every worker that is alive. Returns what became of those that were not."""
        ended = {}
        for device_id, worker in list(self._workers.items()):
            try:
                worker.ask(protocol.Release(id=worker.next_id, workload=workload), SHORT_DEADLINE_S)
            except WorkerGone as gone:
                self.drop(device_id)
                ended[device_id] = gone.detail
        return ended

    def entered(self, record: SessionRecord) -> SessionRecord:
        """The session's record with what its workers and its gauge have told so far."""
        return msgspec.structs.replace(
            record,
            workers=list(self.records),
            ceilings=list(self._ceilings),
            telemetry=self.telemetry.records(),
        )

    def close(self) -> None:
        """End all workers."""
        self.telemetry.close()
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def kill(self) -> None:
        """End all workers at once, as an interrupt does."""
        self.telemetry.close()
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()

    def _start(self, device_id: str) -> Worker:
        worker = Worker(self._settings.threads)
        request = protocol.Open(
            id=worker.next_id, device_id=device_id, threads=self._settings.threads, seed=self._settings.seed,
            inputs=self._settings.inputs, scratch=str(self._scratch), since=self._since,
            autotune=self._settings.autotune, flush_bytes=self._flush_bytes,
        )  # fmt: skip
        try:
            reply = worker.ask(request, OPEN_DEADLINE_S)
        except WorkerGone:
            worker.kill()
            raise
        if isinstance(reply, protocol.Opened):
            self.records.append(reply.record)
            if reply.device.clock is not None:
                self.clocks[device_id] = reply.device.clock
            self._ever_opened.add(device_id)
            return worker
        worker.close()
        reason = "device-lost" if device_id in self._ever_opened else getattr(reply, "reason", "unavailable")
        self._give_up(device_id, DeviceGone(reason, getattr(reply, "detail", ""), getattr(reply, "hint", "")))
        raise self._gone[device_id]

    def _give_up(self, device_id: str, gone: DeviceGone) -> None:
        self._gone[device_id] = gone
        raise gone
