"""The child process that drives one device: `python -m gpubench.measure.worker.main`.

A loop over requests on stdin. Its replies are framed messages on a private copy of stdout; what libraries print
goes to stderr. End-of-file on stdin ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import msgspec
from msgspec import UNSET

import gpubench.backends
import gpubench.kernels
from gpubench.backends.contract import Backend, Launch, Preloads, Session
from gpubench.backends.contract.protocols import Foresees, Places, Splits
from gpubench.backends.shared.blocks import Flush
from gpubench.backends.shared.choices import TrialsNeeded, without_trials
from gpubench.backends.shared.host import bound_cpus, on_all_cpus, on_first_cpu, set_up_threads, settle
from gpubench.base.child_main import Messages
from gpubench.base.errors import (
    NO_MEMORY,
    BackendError,
    BackendUnavailable,
    DeviceLost,
    DeviceOutOfMemory,
    Unsupported,
    limit_reached,
)
from gpubench.base.messages import REASONS
from gpubench.base.plugins import EARLIER, described, wings
from gpubench.curves.stats import median
from gpubench.functions import loading
from gpubench.kernels.contract.op import Op
from gpubench.measure import protocol
from gpubench.measure.worker import ceilings, functions, timer
from gpubench.measure.worker.cpu_turns import CpuTurns
from gpubench.measure.worker.kept import Kept, Suspects
from gpubench.measure.worker.listing import list_devices, name_reason, refusal_of
from gpubench.measure.worker.overheads import OverheadTimer, overhead_hash
from gpubench.measure.worker.parts import time_parts, time_sides
from gpubench.measure.worker.workspace import CheckedLaunch, Workspace, Wrong, choose, gate, refusal
from gpubench.result.case import GANG, Case
from gpubench.result.run import Check, Parts, WorkerRecord
from gpubench.result.store import cache

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

RECORDED = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CUPY_TF32",
    "WGPU_BACKEND_TYPE",
)  # fmt: skip
# The GPU's share of a split until the parent names one.
EVEN = 0.5


class DeviceWorker:
    """One open session and what is prepared on it."""

    def __init__(self, messages: SupportsWrite[bytes]) -> None:
        self._messages = messages
        self._backends: list[Backend] = []
        self._kept: Kept | None = None
        self._suspects = Suspects()
        self._timers: dict[str, timer.Timer | OverheadTimer] = {}
        self._checked: dict[tuple[str, str], CheckedLaunch] = {}
        self._parts: dict[tuple[str, str], dict[str, list[float]]] = {}
        self._tuned_s: dict[tuple[str, str], float] = {}  # of trials that no case has told yet
        self._cuts: dict[str, float | str] = {}  # what runs where of the cases of two sides
        self._verified: set[int] = set()  # launches whose output was checked after all samples so far
        self._flush: Flush | None = None
        self._phase: str | None = None
        self._turns: CpuTurns | None = None
        self._since = 0.0
        self._sample_s = 0.0

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """Carry out one request; every exception becomes a reply."""
        try:
            return self._carry_out(request)
        except (BackendUnavailable, Unsupported, DeviceOutOfMemory) as error:
            return refusal_of(request.id, error)
        except Wrong as error:
            return self._broke(request.id, error, check=error.check)
        except BackendError as error:
            return self._broke(request.id, error, fatal=isinstance(error, DeviceLost))
        except MemoryError as error:
            return protocol.Refused(
                id=request.id, reason="out-of-memory", detail=f"host memory: {str(error) or NO_MEMORY}"
            )

    def _carry_out(self, request: protocol.Request) -> protocol.Reply:
        methods: dict[type, Callable[[Any], protocol.Reply | None]] = {
            protocol.ListDevices: self._list,
            protocol.Preload: self._preload,
            protocol.Open: self._open,
            protocol.MeasureOverhead: self._measure_overhead,
            protocol.MeasureCeilings: self._measure_ceilings,
            protocol.Load: self._load,
            protocol.Build: self._build,
            protocol.Choose: self._choose,
            protocol.Prepare: self._prepare,
            protocol.Sample: self._sample,
            protocol.Work: self._work,
            protocol.TimeStages: self._time_stages,
            protocol.Place: self._place,
            protocol.Finish: self._finish,
            protocol.Reallocate: lambda _: self._reallocate(),
            protocol.Close: lambda _: self._close(),
        }
        return methods[type(request)](request) or protocol.Done(id=request.id)

    def unforeseen(self, request: protocol.Request, error: BaseException) -> protocol.Reply:
        """Anything else is a defect, or a limit of the system: it costs the case and is shown with its type."""
        limit = limit_reached(error)
        detail = f"{described(error)}: {limit}" if limit else described(error)
        return protocol.Broke(id=request.id, reason="error", detail=detail, phase=self._phase)

    def _broke(
        self, number: int, error: BackendError, *, check: Check | None = None, fatal: bool = False
    ) -> protocol.Broke:
        reason, detail = name_reason(error)
        return protocol.Broke(
            id=number, reason=reason, detail=detail[:2000], hint=error.hint, phase=self._phase, check=check, fatal=fatal
        )  # fmt: skip

    def _announce(self, phase: str) -> None:
        self._phase = phase
        self._messages.write(protocol.encode(protocol.Phase(name=phase)))

    def _preload(self, request: protocol.Preload) -> None:
        backend = gpubench.backends.load(request.backend)
        if isinstance(backend, Preloads):
            backend.preload()

    def _list(self, request: protocol.ListDevices) -> protocol.Devices:
        self._announce("devices")
        return list_devices(request)

    def _open(self, request: protocol.Open) -> protocol.Opened:
        self._announce("open")
        cache.fall_back_to(Path(request.scratch) / "cache")
        self._since = request.since
        bound_cpus(request.cpus)
        start = time.perf_counter()
        # Of a device that is composed of another one (`hybrid:cupy:0`) both backends may bring kernels.
        used = [gpubench.backends.load(name) for name in gpubench.backends.names_of(request.device_id)]
        self._backends = used
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
            once_s = session.foresee([self._op(name) for name in request.ops], request.dtypes)
        if session.device.kind == "gpu":
            self._turns = CpuTurns(request.alike, f"{request.device_id} {request.since}")
        self._kept = Kept(session, request, self._release)
        if request.flush_bytes is not None:
            self._flush = Flush(session, request.flush_bytes)
        self._sample_s = request.sample_s
        record = WorkerRecord(
            device_id=request.device_id, threads=session.threads, blas=session.blas,
            env={name: value for name, value in os.environ.items() if name in RECORDED or name.startswith("NCCL_")},
            open_s=open_s,
        )  # fmt: skip
        return protocol.Opened(id=request.id, device=session.device, record=record, once_s=once_s)

    def _measure_overhead(self, request: protocol.MeasureOverhead) -> protocol.MeasuredOverhead:
        self._announce("overhead")
        session = self._opened()
        overhead = timer.measure_overhead(session)
        step_s, cost_s = timer.clock_facts(session.clock)
        self._sample_s = timer.sample_target_s(self._sample_s, median(overhead), step_s, cost_s)
        return protocol.MeasuredOverhead(
            id=request.id, overhead_s=overhead, clock_step_s=step_s, clock_cost_s=cost_s
        )

    def _measure_ceilings(self, request: protocol.MeasureCeilings) -> protocol.Ceilings:
        """After all cases: what they hold of the device's memory goes back first."""
        self._free_all()
        self._announce("ceilings")
        return protocol.Ceilings(id=request.id, ceilings=ceilings.measure(self._opened(), request.wanted))

    def _load(self, request: protocol.Load) -> None:
        """Inputs now, and the reference, so that other workers find it."""
        self._prepared().begin()
        workspace = self._workspace(request.case)
        if request.reference:
            self._announce("reference")
            workspace.make_reference()

    def _build(self, request: protocol.Build) -> protocol.Undecided | None:
        case = request.case
        if not self._is_ahead(case):
            return None
        try:
            with without_trials():
                self._gated(self._workspace(case), case, case.form_id)
        except TrialsNeeded:
            return protocol.Undecided(id=request.id)
        except (BackendError, MemoryError):
            pass
        return None

    def _choose(self, request: protocol.Choose) -> None:
        case = request.case
        with contextlib.suppress(BackendError, MemoryError):
            workspace = self._workspace(case)
            self._suspects.look()
            with workspace.inputs_kept():
                self._tuned_s[case.workload, case.form_id] = choose(workspace, case, self._announce)

    def _is_ahead(self, case: Case) -> bool:
        """Whether it can be built before it is prepared. What is cut is checked at each cut."""
        op = self._op(case.op)
        session = functions.session_of(self._opened(), op)
        known = (case.workload, case.form_id) in self._checked
        return not (session.device.composed or known or refusal(session, op, case) is not None)

    def _prepare(self, request: protocol.Prepare) -> protocol.Prepared:
        case = request.case
        op = self._op(case.op)
        session = functions.session_of(self._opened(), op)
        self._announce("supports")
        refused = refusal(session, op, case)
        if refused is not None:
            raise (
                refused
                if isinstance(refused, Unsupported)
                else Unsupported(refused.detail, hint=refused.hint, reason=refused.reason)
            )
        if op.overhead is not None:
            return self._prepare_overhead(op, request)
        workspace = self._workspace(case)
        cut = self._cut(workspace, request)
        checked, tune_s = self._right(workspace, case, cut)
        tune_s += self._tuned_s.pop((case.workload, case.form_id), 0.0)
        timed = self._timer(workspace, case, checked.launch)
        if isinstance(cut, str):
            timed.placement = cut
        if request.time_it:
            self._calibrate(timed, request)
        if isinstance(cut, str) and request.time_it:
            timed.calibrate_at(workspace.sides, self._sample_s)
        # Two sides load a weight when a stage reads it.
        loads = session.device.kind != "cpu" and not session.device.composed
        size, load_s = workspace.loading() if loads else (0, None)
        built = Parts(
            session=request.session, compile_s=checked.compile_s, first_launch_s=checked.first_launch_s,
            weights_s=load_s, weights_bytes=size or None,
        )  # fmt: skip
        part_samples = request.part_samples if request.time_it else 0
        if session.device.backend == GANG:
            parts = msgspec.structs.replace(built, stage_s=self._time_sides(timed, part_samples))
        elif cut is None:
            parts = msgspec.structs.replace(built, **self._time_parts(timed, part_samples))
        else:
            wanted = isinstance(cut, float) and request.cut is not None
            sides = self._time_sides(timed, part_samples if wanted else 0)
            parts = msgspec.structs.replace(built, stage_s=sides)
        return protocol.Prepared(
            id=request.id, check=checked.check, op_hash=workspace.op_hash, kernel=checked.launch.kernel_name,
            kernel_hash=op.digest or checked.launch.kernel_hash, tune_s=tune_s,
            lacks=session.lacks, notes=list(cache.notes()), blas=op.by_blas(case.backend, case.form, case.dtype),
            flops=op.flops(case.params), bytes=op.bytes(case.params, case.dtype), parts=parts,
            output_bytes=workspace.output_bytes, input_bytes=workspace.input_bytes, cut=cut,
            staging=checked.launch.staging or timed.transfers.staging,
        )  # fmt: skip

    def _cut(self, workspace: Workspace, request: protocol.Prepare) -> float | str | None:
        """What runs where of a case of two sides, as asked for or as before; None: it has one."""
        case, op = request.case, workspace.op
        asked = request.cut if request.cut is not None else self._cuts.get(case.id)
        session = workspace.session
        cut: float | str | None = None
        if workspace.sides and isinstance(session, Places):
            cut = asked if isinstance(asked, str) else workspace.sides["gpu"]
        elif isinstance(session, Splits):
            cut = session.divide(op, case, asked if isinstance(asked, float) else EVEN)
        if cut is not None and self._cuts.get(case.id) != cut:
            self._cuts[case.id] = cut
            # Each regime has a share of its own, and so a launch.
            self._checked.pop((case.workload, case.id), None)
        return cut

    def _right(self, workspace: Workspace, case: Case, cut: float | str | None) -> tuple[CheckedLaunch, float]:
        """The launch of the case, checked, and the seconds of choosing kernels now. A placement comes behind both
        sides alone, which are timed beside it."""
        name = case.form_id if cut is None else case.id
        if not isinstance(cut, str):
            return self._gated(workspace, case, name)
        tune_s = 0.0
        for placement in dict.fromkeys((*workspace.sides.values(), cut)):
            assert isinstance(workspace.session, Places)
            workspace.session.place(placement)
            checked, took_s = self._gated(workspace, case, f"{case.form_id} {placement}")
            tune_s += took_s
        return checked, tune_s

    def _gated(self, workspace: Workspace, case: Case, name: str) -> tuple[CheckedLaunch, float]:
        key = (case.workload, name)
        if key in self._checked:
            return self._checked[key], 0.0
        self._suspects.look()  # what others changed is not this one's fault
        try:
            checked = gate(workspace, case, self._announce)
        except DeviceOutOfMemory:
            if not self._prepared().make_room(0):
                raise
            checked = gate(workspace, case, self._announce)
        self._checked[key] = checked
        return checked, checked.tune_s

    def _timer(self, workspace: Workspace, case: Case, launch: Launch) -> timer.Timer:
        """What samples the launch: the timer of before, if it is the same launch."""
        timed = self._timers.get(case.id)
        if not isinstance(timed, timer.Timer) or timed.launch is not launch:
            if timed is not None:
                timed.release()
            timed = self._timers[case.id] = timer.Timer(workspace, case, launch)
            timed.flush = self._flush
        return timed

    def _time_sides(self, timed: timer.Timer, count: int) -> dict[str, list[float]]:
        """What the sides of a split cost each other, at its share; what each rank of a gang takes for its own."""
        if not count:
            return {}
        self._announce("parts")
        return time_sides(timed, count)

    def _prepare_overhead(self, op: Op, request: protocol.Prepare) -> protocol.Prepared:
        """As any other case: checked, then calibrated. What is timed is a call of the session."""
        case, session = request.case, self._opened()
        self._announce("inputs")
        kind = wings.for_op("timers", op) or OverheadTimer
        timed: OverheadTimer = kind(session, op, case, self._prepared().opening)
        self._timers[case.id] = timed
        self._announce("check")
        check = timed.verify()
        if request.time_it and not timed.single:
            self._calibrate(timed, request)
        return protocol.Prepared(
            id=request.id, check=check, op_hash=overhead_hash(op), kernel_hash=None, flops=op.flops(case.params),
            bytes=op.bytes(case.params, case.dtype), parts=Parts(session=request.session),
            staging=timed.staging, kernel=timed.kernel,
        )  # fmt: skip

    def _workspace(self, case: Case) -> Workspace:
        return self._prepared().workspace(self._op(case.op), case, self._announce)

    def _calibrate(self, timed: timer.Timer | OverheadTimer, request: protocol.Prepare) -> None:
        """Set the repeat counts: those of an earlier session, or what other sizes predict, which the first block
        corrects. Only an overhead and the device's clock are tried."""
        if request.repeat is not None:
            timed.repeat = max(1, request.repeat // (request.case.calls or 1))
        if not isinstance(timed, timer.Timer):
            if request.repeat is None:
                self._announce("calibrate")
                timed.repeat = timer.calibrate(timed, self._sample_s)
            return
        if request.repeat is not None:
            timed.settled, timed.hot_repeat = True, request.hot_repeat
            timer.keep_queue(timed)
            return
        if request.expected_s is not None and timed.flush is None:
            timed.repeat = timer.count(self._sample_s, request.expected_s * (request.case.calls or 1))
        if timed.case.queued and request.device_clock:
            self._announce("calibrate")
            timed.hot_repeat = timer.calibrate_hot(timed)

    def _time_parts(self, timed: timer.Timer, count: int) -> dict[str, list[float]]:
        """Once per workload and form: the parts do not depend on the regime. The CPU has none.

        A case that makes such calls itself notes the steps of its samples, and the parent asks no other for them.
        """
        timed.steps = None
        if not count or timed.session.device.kind == "cpu":
            return {}
        if timed.case.regime == "transfer-always":
            timed.steps = {}
            return {}
        key = (timed.case.workload, timed.case.form_id)
        if key not in self._parts:
            self._announce("parts")
            self._parts[key] = time_parts(timed, count)
        return self._parts[key]

    def _sample(self, request: protocol.Sample) -> protocol.Sampled:
        self._announce("sample")
        timed = self._timers[request.case_id]
        self._verified.clear()
        self._suspects.add(timed, request.case_id)
        if self._turns is not None:
            self._turns.next()
        on_cpu = self._opened().device.kind == "cpu"
        with on_first_cpu() if on_cpu else contextlib.nullcontext():
            sampled = timer.sample_block(timed, request, self._since, self._sample_s)
        cut = self._cuts.get(request.case_id)
        block = msgspec.structs.replace(
            sampled.block,
            fraction=cut if isinstance(cut, float) else None,
            placement=cut if isinstance(cut, str) else UNSET,
        )
        if on_cpu and not any(one.scripted_time for one in self._backends):
            settle()
        return msgspec.structs.replace(sampled, block=block)

    def _work(self, request: protocol.Work) -> protocol.Worked:
        self._announce("sample")
        self._verified.clear()
        self._suspects.add(self._timers[request.case_id], request.case_id)
        return timer.work(self._timers[request.case_id], request)

    def _time_stages(self, request: protocol.TimeStages) -> protocol.TimedStages:
        self._announce("stages")
        timed = self._timers[request.case_id]
        times = (
            timed.workspace.time_stages(timed, request.session, request.limit_s)
            if isinstance(timed, timer.Timer)
            else None
        )
        return protocol.TimedStages(id=request.id, times=times)

    def _place(self, request: protocol.Place) -> protocol.TimedPlacing:
        self._announce("stages")
        timed = self._timers[request.case_id]
        placing = (
            timed.workspace.assign_stages(timed, request.session, request.limit_s)
            if isinstance(timed, timer.Timer)
            else None
        )
        return protocol.TimedPlacing(id=request.id, placing=placing)

    def _finish(self, request: protocol.Finish) -> None:
        """What the last launch left, and what one more delivers. Regimes with data on the device share a launch: it is
        checked once."""
        timed = self._timers[request.case_id]
        self._prepared().end()
        self._suspects.judge(request.case_id)
        launch = id(timed.launch) if isinstance(timed, timer.Timer) and timed.case.resident else None
        if launch in self._verified:
            return
        self._announce("check")
        timed.verify()
        if launch is not None:
            self._verified.add(launch)

    def _release(self, workload: str) -> None:
        self._suspects.look()
        self._verified.clear()
        for case_id in [c for c, timed in self._timers.items() if timed.case.workload == workload]:
            self._timers.pop(case_id).release()
            self._cuts.pop(case_id, None)
        for known in (self._parts, self._checked, self._tuned_s):
            for key in [key for key in known if key[0] == workload]:
                del known[key]
        self._prepared().drop(workload)

    def _reallocate(self) -> None:
        """Have what comes next lie in memory that is allocated anew."""
        self._announce("release")
        self._free_all()
        self._prepared().shared.forget_buffers()

    def _free_all(self) -> None:
        kept = self._kept.workloads if self._kept else []
        for workload in {*kept, *(timed.case.workload for timed in self._timers.values())}:
            self._release(workload)

    def _close(self) -> None:
        self._free_all()
        if self._flush is not None:
            self._flush.close()
        if self._kept is not None:
            self._kept.session.close()
            self._kept = None

    def _op(self, name: str) -> Op:
        """The op with the kernels that the backend brings along."""
        op = loading.load(name) if "." in name else gpubench.kernels.load_untried(name)
        for backend in self._backends:
            op = op.with_kernels(backend.name, backend.kernels.get(name, ()))
        return op

    def _opened(self) -> Session:
        return self._prepared().session

    def _prepared(self) -> Kept:
        if self._kept is None:
            raise BackendUnavailable("no device is open")
        return self._kept


def _line(reply: protocol.Reply) -> bytes:
    """The reply as it is sent. Raises BackendError where a backend handed over what the parent could not read."""
    try:
        line = protocol.encode(reply)
        protocol.decode_reply(line)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise BackendError(f"the backend handed over what no message can hold: {described(error)}") from error
    return line


def _read_requests(stream: BinaryIO, into: queue.Queue[bytes]) -> NoReturn:
    for line in stream:
        into.put(line)
    os._exit(0)  # the parent is gone: no orphan keeps a device


def main() -> int:
    """Serve requests until `close` or end-of-file."""
    set_up_threads()  # before any library is loaded
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    messages = Messages()
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
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
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
