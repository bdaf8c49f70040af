"""The workers of a session: one per device, opened on first use and replaced when they die."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gpubench import backends, kernels
from gpubench.base import disk, processes
from gpubench.base.errors import name_limit
from gpubench.base.messages import Reason
from gpubench.measure import protocol
from gpubench.measure.budget import ENDLESS, Budget
from gpubench.measure.monitor import Monitor, find_targets
from gpubench.result.case import FUNCTIONS, Case
from gpubench.result.machine import Machine, cpu_cache_bytes
from gpubench.result.run import (
    UNKNOWN_CACHE_BYTES,
    Device,
    DeviceClock,
    Peak,
    Selection,
    SessionRecord,
    Settings,
    WorkerRecord,
)
from gpubench.result.store import cache

THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip


class WorkerGone(Exception):
    """Error: the worker crashed, or was killed at its deadline. `reason` is "worker-crashed" or "timeout".
    `phase` is the last phase that the worker announced, and `phase_s` the seconds from that announcement to
    the end of the worker."""

    def __init__(
        self, reason: Reason, detail: str, phase: str | None, stderr_tail: str, phase_s: float = 0.0
    ) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail
        self.phase, self.phase_s = phase, phase_s
        self.stderr_tail = stderr_tail


class Worker:
    """One worker process, which `close` ends. Raises WorkerGone if it cannot be started."""

    def __init__(self, threads: int | None = None) -> None:
        self._number = 0
        self.phase: str | None = None
        self._phase_since = time.monotonic()
        self._closing: protocol.Close | None = None
        counts = {} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads))
        try:
            self._child = processes.Child(
                processes.python("gpubench.measure.worker.main"), processes.environment(counts)
            )
        except OSError as error:
            raise WorkerGone(
                "worker-crashed", f"the worker cannot be started: {disk.reason(error)}", None, ""
            ) from error

    @property
    def next_id(self) -> int:
        """A new request number. Each access returns the next one."""
        self._number += 1
        return self._number

    def ask(self, request: protocol.WorkerRequest, deadline_s: float) -> protocol.Reply:
        """Send one request and wait for its reply. Raises WorkerGone, after which the worker is dead."""
        self.send(request)
        return self.wait(request, deadline_s)

    def send(self, request: protocol.WorkerRequest) -> None:
        """Send a request. Raises WorkerGone if the worker has ended."""
        try:
            self._child.write(protocol.encode(request))
        except OSError:
            raise self._crash() from None

    def wait(self, request: protocol.WorkerRequest, deadline_s: float) -> protocol.Reply:
        """Wait for the reply to a request that was sent. Raises WorkerGone, after which the worker is dead."""
        until = time.monotonic() + deadline_s
        while True:
            try:
                line = self._child.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                detail = f"no answer within {round(deadline_s, 1):g} s while in phase {self.phase or 'start'}"
                raise self._end("timeout", detail) from None
            if line is None:
                raise self._crash()
            try:
                message = protocol.decode_reply(line)
            except msgspec.DecodeError:
                raise self._end("worker-crashed", "the worker sent a message that cannot be read") from None
            if isinstance(message, protocol.Phase):
                self.phase, self._phase_since = message.name, time.monotonic()
            elif message.id == request.id:
                return message

    def ask_to_close(self) -> None:
        """Ask the worker to end by itself, without waiting. Never raises."""
        if self._closing is None and self._child.alive:
            self._closing = protocol.Close(id=self.next_id)
            with contextlib.suppress(WorkerGone):  # the wait tells the same
                self.send(self._closing)

    def close(self) -> None:
        """Ask the worker to end, and kill it if it does not. Never raises."""
        self.ask_to_close()
        if self._closing is not None and self._child.alive:
            with contextlib.suppress(WorkerGone):
                self.wait(self._closing, processes.KILL_AFTER_S + 3)
                self._child.wait(processes.KILL_AFTER_S)  # it has answered, and is on its way out
        self.kill()

    def kill(self) -> None:
        """Terminate the worker, and kill it after `KILL_AFTER_S` seconds if it still runs."""
        self._child.kill(processes.KILL_AFTER_S)

    def _crash(self) -> WorkerGone:
        """Return the error for a worker that closed its output."""
        status = self._child.wait(processes.KILL_AFTER_S)  # its own, from before it is killed
        how = "closed its output" if status is None else processes.ending(status)
        limit = name_limit(self._child.stderr_tail())
        detail = f"the worker {how} in phase {self.phase or 'start'}"
        return self._end("worker-crashed", f"{detail}: {limit}" if limit else detail)

    def _end(self, reason: Reason, detail: str) -> WorkerGone:
        self.kill()
        noise = self._child.noise()
        return WorkerGone(
            reason, f"{detail}; {noise}" if noise else detail, self.phase, self._child.stderr_tail(),
            time.monotonic() - self._phase_since,
        )  # fmt: skip


# Most workers of a backend that import at the same time. Each holds its libraries in memory.
AHEAD = 5


class Spare(NamedTuple):
    """A worker that imports the libraries of its backend before it is needed."""

    backend: str  # the name of the backend
    worker: Worker  # the process
    importing: protocol.Preload | None  # the request under way; None: all is imported

    def settle(self, limit_s: float) -> Spare:
        """Wait until all is imported, at most `limit_s` seconds. Raises WorkerGone."""
        if self.importing is not None:
            self.worker.wait(self.importing, limit_s)
        return self._replace(importing=None)


class Spares:
    """Workers that import libraries before they are needed. Each is used for one session."""

    def __init__(self) -> None:
        self._waiting: list[Spare] = []

    def keep(self, backend: str, worker: Worker) -> None:
        """Start the import of the backend's libraries in the worker, and keep the worker if it has not
        ended."""
        request = protocol.Preload(id=worker.next_id, backend=backend)
        with contextlib.suppress(WorkerGone):  # a new worker is started in its place
            worker.send(request)
            self._waiting.append(Spare(backend, worker, request))

    def keep_ahead(self, needed: Collection[str], sessions: int, cpus: int, threads: int | None) -> None:
        """Start workers that import for the `sessions` to come, all at the same time. Each of the `needed`
        backends then has up to AHEAD workers, but no more than `cpus`."""
        for backend in needed:
            for _ in range(min(sessions, cpus, AHEAD) - sum(x.backend == backend for x in self._waiting)):
                with contextlib.suppress(WorkerGone):  # one that is needed tells why
                    self.keep(backend, Worker(threads))

    def take(self, backend: str) -> Spare | None:
        """Return a worker of the backend, or None if there is none. The caller then owns the worker."""
        spare = next((spare for spare in self._waiting if spare.backend == backend), None)
        if spare is not None:
            self._waiting.remove(spare)
        return spare

    def keep_only(self, needed: Collection[str]) -> None:
        """End the workers of all other backends."""
        for spare in [spare for spare in self._waiting if spare.backend not in needed]:
            self._waiting.remove(spare)
            spare.worker.kill()

    def settle(self, limit_s: float) -> None:
        """Wait until all imports are done, as nothing may run during a measurement, at most `limit_s` seconds for
        each. Dead workers are dropped."""
        for spare in self._waiting[:]:
            self._waiting.remove(spare)
            with contextlib.suppress(WorkerGone):
                self._waiting.append(spare.settle(limit_s))

    def end(self) -> None:
        """End the workers that nobody took."""
        self.keep_only(())


# A first call of a user's function at a further size compiles if it takes longer than these seconds.
COMPILES_S = 1.0
OPEN_DEADLINE_S = 60.0
# With a time budget, a spare has the time left to import its libraries, but at least these seconds.
LEAST_IMPORT_S = 20.0
# Seconds in addition to those of the peaks: for large arrays on a slow host, and for kernels that are built.
PEAK_DEADLINE_S = 30.0
# Two failed starts in a row make a device unavailable.
FAILED_STARTS = 2


class Start(NamedTuple):
    """A worker that was asked to open a device."""

    worker: Worker  # the worker's process
    request: protocol.Open  # the request under way
    spare: Spare | None  # the spare that the worker was, if it was one


class DeviceGone(Exception):
    """Error: the device cannot be opened. Its remaining cases are skipped with this reason."""

    def __init__(self, reason: Reason, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.hint = hint


class Loss(NamedTuple):
    """A worker that ended before its cases were prepared."""

    gone: WorkerGone  # the error with the end of the worker
    case: Case | None  # the case that the worker was at; None if its request was about no case


Cases = Mapping[str, Sequence[Case]]  # the cases of a workload by device


class WorkerPool:
    """The workers of a session by device. `gone` contains the devices that cannot be opened. The caller
    keeps it for the next sessions."""

    def __init__(
        self, settings: Settings, scratch: Path, gone: dict[str, DeviceGone], devices: Sequence[Device],
        machine: Machine, spares: Spares | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._gone = gone
        since = time.perf_counter()
        self._spares = spares or Spares()
        self.once_s = 0.0
        self.losses: dict[str, Loss] = {}  # by device, until they are reported
        self.workers: dict[str, Worker] = {}
        self._starting: dict[str, Start] = {}
        self._import_s, self._scratch = OPEN_DEADLINE_S, scratch
        self._opened: dict[str, tuple[Worker, WorkerRecord]] = {}
        self._failed: dict[str, int] = {}
        self._ever_opened: set[str] = set()
        # The workers that built a function of the user's, with its op and dtype.
        self._called: set[tuple[Worker, str, str]] = set()
        self.records: list[WorkerRecord] = []
        self.clocks: dict[str, DeviceClock] = {}
        self._peaks: list[Peak] = []
        usable = machine.memory.usable_bytes.value
        caches = cpu_cache_bytes(machine) or UNKNOWN_CACHE_BYTES
        self._opening = protocol.Open(
            id=0, device_id="", threads=settings.threads, seed=settings.seed, inputs=settings.inputs,
            scratch=os.fsencode(scratch), since=since, autotune=settings.autotune, sample_s=settings.sample_s,
            page_locked=settings.page_locked is True,
            flush_bytes=2 * caches if settings.cache == "cold" else None,
            host_bytes=None if usable is None else usable // max(1, len(devices)),
            cpus=machine.cpu.available.value, alike=alike_cpus(machine),
        )  # fmt: skip
        self.monitor = Monitor(*find_targets(devices, machine), since)

    def worker(self, device_id: str) -> Worker:
        """Return the worker of this device, and open the device if needed. Raises DeviceGone if that is
        impossible."""
        if device_id in self._gone:
            raise self._gone[device_id]
        while device_id not in self.workers:
            try:
                if device_id not in self._opened:
                    self._opened[device_id] = self._start(device_id)
                worker, record = self._opened[device_id]
                self.records.append(self._measure(worker, record))
                self.workers[device_id] = worker
                self._failed[device_id] = 0
            except WorkerGone as gone:
                self._count(device_id, gone)
            # Not after an interrupt: what is open must still be found, and ended.
            self._opened.pop(device_id, None)
        return self.workers[device_id]

    def begin(self, device_ids: Sequence[str], selection: Selection | None = None) -> None:
        """Ask workers to open these devices, without waiting. `selection` names the ops and dtypes that will be
        measured on them."""
        if selection is not None and "tuned" in selection.implementations:
            self._opening = replace(self._opening, ops=selection.ops, dtypes=selection.dtypes)
        for device_id in device_ids:
            if device_id not in self._gone and device_id not in self._starting:
                with contextlib.suppress(WorkerGone):  # tried again, and counted, where it is waited for
                    self._starting[device_id] = self._asked_to_open(device_id)

    def open_all(
        self, device_ids: Sequence[str], selection: Selection | None = None, first: Sequence[Cases] = (),
        budget: Budget = ENDLESS,
    ) -> None:  # fmt: skip
        """Open all devices at the same time, then measure their overheads one after the other. A device that
        cannot be opened is entered in `gone`. While the last devices open, the cases `first` are built on the
        others."""
        self._import_s = min(OPEN_DEADLINE_S, max(LEAST_IMPORT_S, budget.left_s()))
        self.begin(device_ids, selection)
        self._spares.keep_only({_backend(device_id) for device_id in device_ids})
        # Backends that yield to another one may take long to import their libraries.
        late = [device_id for device_id in device_ids if yields_to_others(_backend(device_id))]
        early = [device_id for device_id in device_ids if device_id not in late]
        self._wait_until_open(early)
        if late and first:
            self._build_ahead(first, budget)
        self._wait_until_open(late)
        self._spares.settle(self._import_s)
        for device_id in device_ids:
            with contextlib.suppress(DeviceGone):
                self.worker(device_id)

    def _wait_until_open(self, device_ids: Sequence[str]) -> None:
        """Wait for those devices that were asked to open, and count failed starts."""
        for device_id in device_ids:
            with contextlib.suppress(DeviceGone):
                try:
                    if device_id in self._starting:
                        self._opened[device_id] = self._start(device_id)
                except WorkerGone as gone:
                    self._count(device_id, gone)

    def _build_ahead(self, first: Sequence[Cases], budget: Budget) -> None:
        """Build cases on the devices that are open so far."""
        self.workers = {device_id: worker for device_id, (worker, _) in self._opened.items()}
        self.load(first, budget, choosing=False)
        # Without those whose worker died, which are opened again later.
        self._opened = {name: opened for name, opened in self._opened.items() if name in self.workers}
        self.workers = {}

    def measure_peaks(self, requests: Mapping[str, protocol.PeakRequest]) -> None:
        """Have each device measure its peaks. A device whose worker dies has none, and gets a new worker."""
        for device_id, what in requests.items():
            deadline_s = PEAK_DEADLINE_S + what.limit_s * (what.memory + len(what.compute))
            try:
                worker = self.worker(device_id)
                request = protocol.MeasurePeaks(id=worker.next_id, peaks=what)
                reply = worker.ask(request, deadline_s)
            except DeviceGone:
                continue
            except WorkerGone as gone:
                self.drop(device_id)
                self._peaks.append(Peak(device_id=device_id, reason=gone.detail))
                continue
            if isinstance(reply, protocol.MeasuredPeaks):
                self._peaks += reply.peaks
            else:
                self._peaks.append(Peak(device_id=device_id, reason=getattr(reply, "detail", "")))

    def load(self, workloads: Sequence[Cases], budget: Budget = ENDLESS, *, choosing: bool = True) -> None:
        """Have the workers make the inputs, then build and check the cases, all at the same time. With
        `choosing`, devices choose kernels by trials, one after the other. The errors of a case are reported
        when it is prepared."""
        own = {
            (self.workers[device_id], case.op, case.dtype)
            for cases in workloads
            for device_id, chosen in cases.items()
            for case in chosen
            if case.group == FUNCTIONS and device_id in self.workers
        }
        # A user's function may compile at its first call in a worker, and at its first call at each size.
        began, first = time.monotonic(), own - self._called
        patience = budget.longest if own else budget
        self._called |= own
        if own and not first:  # inputs compile nothing, and the file is imported
            self._make_inputs(workloads, budget, reference=False)
        self._make_inputs(workloads, patience, reference=True)
        # A reference is there by now, so that no worker makes it twice.
        every: dict[str, list[Case]] = {}
        for cases in workloads:
            for device_id, chosen in cases.items():
                every.setdefault(device_id, []).extend(chosen)
        loaded = time.monotonic()
        undecided = self._build(every, patience)
        built = time.monotonic()
        if first:  # the time of making inputs is none of compiling
            ops, firsts = kernels.own(), [case for cases in workloads for case, *_ in [*cases.values()][:1]]
            began += sum(ops[case.op].inputs_s(case.params) for case in firsts if case.op in ops)
            budget.once_s += max(0.0, built - began)
        elif own and built - loaded > COMPILES_S:
            budget.once_s += built - loaded
        for device_id, case in [(name, case) for name in undecided for case in undecided[name]]:
            if device_id in self.workers and choosing and not budget.over:
                choice = protocol.Choose(id=self.workers[device_id].next_id, case=case)
                self._ask_all({device_id: [choice]}, budget)
        if choosing and not budget.over:
            self._build(undecided, budget)

    def _make_inputs(self, workloads: Sequence[Cases], budget: Budget, *, reference: bool) -> None:
        """Make the inputs of the workloads on all their devices, and with `reference` the reference of each
        workload."""
        requests: dict[str, list[protocol.WorkerRequest]] = {}
        for cases in workloads:
            firsts = [(name, chosen[0]) for name, chosen in cases.items() if name in self.workers]
            for place, (name, case) in enumerate(firsts):
                number = self.workers[name].next_id
                load = protocol.Load(id=number, case=case, reference=reference and not place)
                requests.setdefault(name, []).append(load)
        self._ask_all(requests, budget)

    def _build(self, cases: Cases, budget: Budget) -> dict[str, list[Case]]:
        """Build these cases at the same time, and return those whose kernels must be chosen by trials."""
        requests = {
            device_id: [protocol.Build(id=self.workers[device_id].next_id, case=case) for case in built]
            for device_id, built in cases.items()
            if device_id in self.workers
        }
        replies = self._ask_all(requests, budget)
        return {
            device_id: [
                request.case
                # A worker that died has not answered all.
                for request, reply in zip(built, replies[device_id], strict=False)
                if isinstance(reply, protocol.Undecided)
            ]
            for device_id, built in requests.items()
        }

    def _ask_all(
        self, requests: Mapping[str, Sequence[protocol.WorkerRequest]], budget: Budget
    ) -> dict[str, list[protocol.Reply]]:
        """Send the requests to the workers, and return the replies by device."""
        replies: dict[str, list[protocol.Reply]] = {}
        workers = [(device_id, self.workers[device_id], batch) for device_id, batch in requests.items()]
        for _, worker, batch in workers:
            with contextlib.suppress(WorkerGone):
                for request in batch:
                    worker.send(request)
        for device_id, worker, batch in workers:
            heard = replies.setdefault(device_id, [])
            try:
                for request in batch:
                    limit_s = min(self._settings.case_timeout_s, budget.patience_s)
                    heard.append(worker.wait(request, limit_s))
            except WorkerGone as gone:
                self.drop(device_id)
                self.losses[device_id] = Loss(gone, getattr(batch[len(heard)], "case", None))
        return replies

    def holds(self, device_id: str, worker: Worker | None) -> bool:
        """Return whether this worker still drives the device."""
        return worker is not None and self.workers.get(device_id) is worker

    def drop(self, device_id: str) -> None:
        """Discard the worker: it is dead or must not be used again. The next request starts a fresh one."""
        worker = self.workers.pop(device_id, None)
        if worker is not None:
            worker.kill()

    def reallocate(self, device_ids: Collection[str], budget: Budget) -> None:
        """Have the workers of these devices use newly allocated memory from now on."""
        requests = {
            device_id: [protocol.Reallocate(id=worker.next_id)]
            for device_id, worker in self.workers.items()
            if device_id in device_ids
        }
        self._ask_all(requests, budget)

    def take_losses(self, device_ids: Collection[str]) -> dict[str, Loss]:
        """Return the losses of these devices that were not reported yet, and forget them."""
        return {name: self.losses.pop(name) for name in sorted(device_ids) if name in self.losses}

    def enter_into(self, record: SessionRecord) -> SessionRecord:
        """Return the session's record with the records of its workers, its peaks and its telemetry so far."""
        workers, peaks = list(self.records), list(self._peaks)
        return replace(record, workers=workers, peaks=peaks, telemetry=self.monitor.records())

    def close(self) -> None:
        """End all workers at the same time, since giving back a GPU takes a while."""
        for worker in self.workers.values():
            worker.ask_to_close()
        self.monitor.close()
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def kill(self) -> None:
        """Kill all workers, as an interrupt requires."""
        self.monitor.close()
        self._spares.end()
        starting = (start.worker for start in self._starting.values())
        opened = (worker for worker, _ in self._opened.values())
        for worker in (*self.workers.values(), *starting, *opened):
            worker.kill()
        self.workers.clear()

    def _measure(self, worker: Worker, record: WorkerRecord) -> WorkerRecord:
        """Return the record with the overhead of an empty launch and the facts about the clock."""
        reply = worker.ask(protocol.MeasureOverhead(id=worker.next_id), OPEN_DEADLINE_S)
        if not isinstance(reply, protocol.MeasuredOverhead):
            return record  # its first case will tell what is wrong
        return replace(
            record,
            overhead_s=reply.overhead_s,
            clock_step_s=reply.clock_step_s,
            clock_cost_s=reply.clock_cost_s,
        )

    def _asked_to_open(self, device_id: str) -> Start:
        """Return a worker that was asked to open the device, a spare if there is one."""
        spare = self._spares.take(_backend(device_id))
        worker = spare.worker if spare else Worker(self._settings.threads)  # it dies with the calling thread
        request = replace(self._opening, id=worker.next_id, device_id=device_id)
        with contextlib.suppress(WorkerGone):  # waiting for it tells the same
            worker.send(request)
        return Start(worker, request, spare)

    def _start(self, device_id: str) -> tuple[Worker, WorkerRecord]:
        """Wait until the device is open, and return its worker and its record."""
        if device_id not in self._starting:
            self._starting[device_id] = self._asked_to_open(device_id)
        worker, request, spare = self._starting[device_id]
        try:
            if spare is not None:
                spare.settle(self._import_s)
            reply = worker.wait(request, OPEN_DEADLINE_S)
        except WorkerGone as gone:
            del self._starting[device_id]
            worker.kill()
            # A spare may have died, or hang, in its import, which is no failed start of the device.
            hangs = gone.reason == "timeout"
            if spare is None or (hangs and gone.phase == "open"):
                raise
            if hangs:
                self._spares.end()  # they hang, too
                with contextlib.suppress(OSError):  # the mark tells the next worker what not to import
                    folder = self._scratch / cache.RUN_CACHE
                    folder.mkdir(0o755, exist_ok=True)
                    (folder / cache.LOADING.format(_backend(device_id))).write_text("hangs")
            return self._start(device_id)
        del self._starting[device_id]
        if isinstance(reply, protocol.Opened):
            if reply.device.clock is not None:
                self.clocks[device_id] = reply.device.clock
            self._ever_opened.add(device_id)
            self.once_s = max(self.once_s, reply.once_s)
            return worker, reply.record
        worker.close()
        lost = device_id in self._ever_opened
        reason: Reason = "device-lost" if lost else getattr(reply, "reason", "unavailable")
        hint = getattr(reply, "hint", "")
        raise self._give_up(device_id, DeviceGone(reason, getattr(reply, "detail", ""), hint))

    def _count(self, device_id: str, gone: WorkerGone) -> None:
        """Count a failed start of the device, and raise DeviceGone after FAILED_STARTS in a row."""
        self._failed[device_id] = self._failed.get(device_id, 0) + 1
        if self._failed[device_id] >= FAILED_STARTS:
            raise self._give_up(device_id, DeviceGone("device-lost", gone.detail, gone.stderr_tail[-300:]))

    def _give_up(self, device_id: str, gone: DeviceGone) -> DeviceGone:
        self._gone[device_id] = gone
        return gone


def alike_cpus(machine: Machine) -> list[str]:
    """Return the lists of CPUs that are alike, such as `0-7,16-23`. The lists are first those of each kind of
    core, then those of each memory node."""
    kinds = [kind.cpus for kind in machine.cpu.kinds.value or ()]
    nodes = [node.cpus.value for node in machine.numa.nodes]
    return [cpus for cpus in (*kinds, *nodes) if cpus]


def yields_to_others(backend: str) -> bool:
    """Return whether the backend leaves a GPU to other backends that drive it, too."""
    facts = backends.facts(backend)
    return facts is not None and bool(facts.yields_to)


def _backend(device_id: str) -> str:
    return device_id.partition(":")[0]
