"""The child process that drives one device: `python -m gpubench.measure.worker`.

A loop over requests on stdin. Its replies go to a private copy of stdout: descriptor 1 is pointed at stderr,
so that a library that prints cannot break the protocol. End-of-file on stdin ends the process at once.
"""

from __future__ import annotations

import inspect
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

import gpubench.backends
import gpubench.kernels
from gpubench.backends._flush import Flush
from gpubench.errors import BackendError, BackendUnavailable, DeviceLost, DeviceOutOfMemory, Unsupported
from gpubench.measure import ceilings, protocol, sampling
from gpubench.measure.checking import Gated, Material, Wrong, gate
from gpubench.measure.overheads import OverheadCycle, overhead_hash
from gpubench.measure.parts import time_parts
from gpubench.model.backend import Backend, Session
from gpubench.model.case import Case
from gpubench.model.op import Op
from gpubench.model.result import Check, Parts
from gpubench.model.session import WorkerRecord

RECORDED = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CUPY_TF32",
    "WGPU_BACKEND_TYPE",
)  # fmt: skip
# The GPU's share of a split until the parent names one.
EVEN = 0.5


class Worker:
    """One open session and what is prepared on it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._session: Session | None = None
        self._materials: dict[str, Material] = {}
        self._cycles: dict[str, sampling.Cycle | OverheadCycle] = {}
        self._opening: protocol.Open | None = None
        self._gated: dict[tuple[str, str], Gated] = {}
        self._parts: dict[tuple[str, str], dict[str, list[float]]] = {}
        self._shares: dict[str, float] = {}
        self._flush: Flush | None = None
        self._phase: str | None = None
        self._since = 0.0
        self._seed, self._inputs, self._scratch = 1, "random", Path()
        self._overhead_s = self._clock_step_s = self._clock_cost_s = 0.0

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """Carry out one request; every exception becomes a reply."""
        try:
            return self._carry_out(request)
        except (BackendUnavailable, Unsupported, DeviceOutOfMemory) as error:
            return protocol.Refused(id=request.id, reason=error.reason, detail=error.detail, hint=error.hint)
        except Wrong as error:
            return self._broke(request.id, error, check=error.check)
        except BackendError as error:
            return self._broke(request.id, error, fatal=isinstance(error, DeviceLost))
        except MemoryError as error:
            return protocol.Refused(id=request.id, reason="out-of-memory", detail=f"host memory: {error}")

    def _carry_out(self, request: protocol.Request) -> protocol.Reply:
        match request:
            case protocol.ListDevices():
                return self._list(request)
            case protocol.Open():
                return self._open(request)
            case protocol.MeasureCeilings():
                self._announce("ceilings")
                found = ceilings.measure(self._opened(), request.wanted)
                return protocol.Ceilings(id=request.id, ceilings=found)
            case protocol.Prepare():
                return self._prepare(request)
            case protocol.Sample():
                return self._sample(request)
            case protocol.Finish():
                self._announce("check")
                self._cycles[request.case_id].verify()
            case protocol.Release():
                self._release(request.workload)
            case protocol.Close():
                self._close()
        return protocol.Done(id=request.id)

    def unforeseen(self, request: protocol.Request, error: Exception) -> protocol.Reply:
        """Anything else is a defect: it costs the case and is shown with its type."""
        detail = f"{type(error).__name__}: {error}"
        return protocol.Broke(id=request.id, reason="error", detail=detail[:2000], phase=self._phase)

    def _broke(
        self, number: int, error: BackendError, *, check: Check | None = None, fatal: bool = False
    ) -> protocol.Broke:
        return protocol.Broke(
            id=number, reason=error.reason, detail=error.detail[:2000], hint=error.hint, phase=self._phase,
            check=check, fatal=fatal,
        )  # fmt: skip

    def _announce(self, phase: str) -> None:
        self._phase = phase
        self._out.write(protocol.encode(protocol.Phase(name=phase)))
        self._out.flush()

    def _list(self, request: protocol.ListDevices) -> protocol.Devices:
        self._announce("devices")
        backend = gpubench.backends.load(request.backend)
        devices, version = backend.devices(), _version(request.backend)
        return protocol.Devices(
            id=request.id, devices=devices, forms=list(backend.forms), library_version=version
        )

    def _open(self, request: protocol.Open) -> protocol.Opened:
        self._announce("open")
        self._opening = request
        self._seed, self._inputs, self._scratch = request.seed, request.inputs, Path(request.scratch)
        self._since = request.since
        start = time.perf_counter()
        backend = gpubench.backends.load(request.device_id.partition(":")[0])
        session = backend.open(request.device_id, request.threads, **_open_options(backend, request))
        open_s = time.perf_counter() - start
        self._session = session
        if request.flush_bytes is not None:
            self._flush = Flush(session, request.flush_bytes)
        self._announce("overhead")
        overhead = sampling.measure_overhead(session)
        self._clock_step_s, self._clock_cost_s = sampling.clock_facts(session.clock)
        self._overhead_s = sorted(overhead)[len(overhead) // 2]
        record = WorkerRecord(
            device_id=request.device_id, threads=session.threads, blas=session.blas,
            env={name: os.environ[name] for name in RECORDED if name in os.environ},
            clock_step_s=self._clock_step_s, clock_cost_s=self._clock_cost_s, open_s=open_s, overhead_s=overhead,
        )  # fmt: skip
        return protocol.Opened(id=request.id, device=session.device, record=record)

    def _prepare(self, request: protocol.Prepare) -> protocol.Prepared:
        case, session = request.case, self._opened()
        op = gpubench.kernels.load(case.op)
        self._announce("supports")
        refusal = session.supports(op, case)
        if refusal is not None:
            raise (
                refusal
                if isinstance(refusal, Unsupported)
                else Unsupported(refusal.detail, hint=refusal.hint, reason=refusal.reason)
            )
        if op.overhead is not None:
            return self._prepare_overhead(op, request)
        material = self._material(case)
        key = (case.workload, case.form_id)
        share = self._divided(op, request)
        if share is not None:  # each regime has a share of its own, and so a launch
            key = (case.workload, case.id)
            if self._shares.get(case.id) != share:
                self._shares[case.id] = share
                self._gated.pop(key, None)
        fresh = key not in self._gated
        if fresh:
            self._gated[key] = gate(material, case, self._announce)
        gated = self._gated[key]
        cycle = sampling.Cycle(material, case, gated.launch)
        cycle.flush = self._flush
        if request.time_it:
            self._calibrate(cycle, request)
        self._cycles[case.id] = cycle
        built = Parts(session=request.session, compile_s=gated.compile_s, first_launch_s=gated.first_launch_s)
        part_samples = request.part_samples if request.time_it else 0
        if share is None:
            parts = msgspec.structs.replace(built, **self._time_parts(cycle, part_samples))
        else:
            sides = self._time_sides(cycle, part_samples if request.fraction is not None else 0)
            parts = msgspec.structs.replace(built, stage_s=sides)
        staging = getattr(gated.launch, "staging", cycle.transfers.staging)
        return protocol.Prepared(
            id=request.id, check=gated.check, op_hash=material.op_hash, kernel_hash=gated.launch.kernel_hash,
            kernel=getattr(gated.launch, "kernel_name", None), tune_s=gated.tune_s if fresh else 0.0,
            flops=op.flops(case.params), bytes=op.bytes(case.params, case.dtype), parts=parts,
            repeat=cycle.repeat, hot_repeat=cycle.hot_repeat, staging=staging, fraction=share,
        )  # fmt: skip

    def _divided(self, op: Op, request: protocol.Prepare) -> float | None:
        """The GPU's share of a case that is split here, as asked for or as before; None: it is not split."""
        divide = getattr(self._opened(), "divide", None)
        if divide is None:
            return None
        before = self._shares.get(request.case.id, EVEN)
        share: float = divide(op, request.case, before if request.fraction is None else request.fraction)
        return share

    def _time_sides(self, cycle: sampling.Cycle, count: int) -> dict[str, list[float]]:
        """What the sides of a split cost each other, at its share."""
        if not count:
            return {}
        self._announce("parts")
        return sampling.time_sides(cycle, count)

    def _prepare_overhead(self, op: Op, request: protocol.Prepare) -> protocol.Prepared:
        """As any other case: checked, then calibrated. What is timed is a call of the session."""
        case, opening = request.case, self._opening
        assert opening is not None
        self._announce("inputs")
        cycle = OverheadCycle(self._opened(), op, case, opening)
        self._cycles[case.id] = cycle
        self._announce("check")
        check = cycle.verify()
        if request.time_it and not cycle.single:
            self._calibrate(cycle, request)
        return protocol.Prepared(
            id=request.id, check=check, op_hash=overhead_hash(op), kernel_hash=None, flops=op.flops(case.params),
            bytes=op.bytes(case.params, case.dtype), parts=Parts(session=request.session), repeat=cycle.repeat,
            hot_repeat=None, staging=cycle.staging,
        )  # fmt: skip

    def _material(self, case: Case) -> Material:
        if case.workload not in self._materials:
            self._announce("inputs")
            self._materials[case.workload] = Material(
                self._opened(), gpubench.kernels.load(case.op), case, self._seed, self._inputs, self._scratch
            )
        return self._materials[case.workload]

    def _calibrate(self, cycle: sampling.Cycle | OverheadCycle, request: protocol.Prepare) -> None:
        """Find the repeat counts, or take those of an earlier session. An overhead has the wall clock alone."""
        self._announce("calibrate")
        if request.repeat is not None:
            cycle.repeat = max(1, request.repeat // (request.case.calls or 1))
            if isinstance(cycle, sampling.Cycle):
                cycle.hot_repeat = request.hot_repeat
            return
        if not isinstance(cycle, sampling.Cycle) or cycle.flush is None:
            cycle.repeat = sampling.calibrate(cycle, self._overhead_s, self._clock_step_s, self._clock_cost_s)
        if isinstance(cycle, sampling.Cycle) and cycle.case.regime == "resident" and request.device_clock:
            cycle.hot_repeat = sampling.calibrate_hot(cycle)

    def _time_parts(self, cycle: sampling.Cycle, count: int) -> dict[str, list[float]]:
        """Once per workload and form: the parts do not depend on the regime. The CPU has none.

        A case that makes such calls itself takes them apart beside its samples.
        """
        if not count or cycle.session.device.kind == "cpu":
            return {}
        if cycle.case.regime == "transfer-always":
            cycle.in_parts = True
            return {}
        key = (cycle.case.workload, cycle.case.form_id)
        if key not in self._parts:
            self._announce("parts")
            self._parts[key] = time_parts(cycle, count)
        return self._parts[key]

    def _sample(self, request: protocol.Sample) -> protocol.Sampled:
        self._announce("sample")
        taken = sampling.sample_block(
            self._cycles[request.case_id], session=request.session, round_=request.round,
            position=request.position, samples=request.samples, warmup_s=request.warmup_s,
            limit_s=request.limit_s, since=self._since,
        )  # fmt: skip
        block = msgspec.structs.replace(taken.block, fraction=self._shares.get(request.case_id))
        return protocol.Sampled(id=request.id, block=block, times_s=taken.times_s, parts=taken.parts)

    def _release(self, workload: str) -> None:
        self._announce("release")
        for case_id in [c for c, cycle in self._cycles.items() if cycle.case.workload == workload]:
            self._cycles.pop(case_id).release()
            self._shares.pop(case_id, None)
        for known in (self._parts, self._gated):
            for key in [key for key in known if key[0] == workload]:
                del known[key]
        material = self._materials.pop(workload, None)
        if material is not None:
            material.release()

    def _close(self) -> None:
        for workload in {cycle.case.workload for cycle in self._cycles.values()} | set(self._materials):
            self._release(workload)
        if self._flush is not None:
            self._flush.close()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _opened(self) -> Session:
        if self._session is None:
            raise BackendUnavailable("no device is open")
        return self._session


def _open_options(backend: Backend, request: protocol.Open) -> dict[str, bool]:
    """`autotune=False` for a backend that knows the word: one that does not has nothing to tune."""
    if request.autotune or "autotune" not in inspect.signature(backend.open).parameters:
        return {}
    return {"autotune": False}


def _version(backend: str) -> str | None:
    """The version of the library, which listing its devices has imported."""
    return getattr(sys.modules.get(backend), "__version__", None)


def _read_requests(stream: BinaryIO, into: queue.Queue[bytes]) -> NoReturn:
    for line in stream:
        into.put(line)
    os._exit(0)  # the parent is gone: no orphan keeps a device


def main() -> int:
    """Serve requests until `close` or end-of-file."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    worker = Worker(out)
    while True:
        request = protocol.decode_request(requests.get())
        try:
            reply = worker.answer(request)
        except Exception as error:
            reply = worker.unforeseen(request, error)
        out.write(protocol.encode(reply))
        out.flush()
        if isinstance(request, protocol.Close):
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
