"""Child side: an open device, and how it carries out what the parent asks of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from gpubench import kernels
from gpubench.backends.contract import Backend, Launch, Session
from gpubench.backends.contract.protocols import AssignsStages, Splits
from gpubench.backends.shared.blocks import Flush
from gpubench.backends.shared.choices import TrialsNeeded, without_trials
from gpubench.backends.shared.host import on_first_cpu, settle
from gpubench.backends.shared.memory import open_in_place
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.base.plugins import wings
from gpubench.curves.stats import median
from gpubench.detect.facts import parse_list
from gpubench.functions import loading
from gpubench.kernels.contract.op import Op
from gpubench.measure import protocol
from gpubench.measure.plan import MEMORY_SHARE, UNKNOWN_MEMORY_BYTES, count_sets, needs
from gpubench.measure.worker import functions, hardware, timer
from gpubench.measure.worker.hardware import OverheadTimer, overhead_hash
from gpubench.measure.worker.operands import ChangedInput, Operands, SharedInputs, shared_bytes, weights_of
from gpubench.measure.worker.parts import Times, time_parts, time_sides
from gpubench.measure.worker.pipeline import PipelineTimer
from gpubench.measure.worker.timer import Timed, Timer
from gpubench.measure.worker.workspace import CheckedLaunch, Workspace, choose, gate, refusal
from gpubench.result.case import DEVICE_GROUP, STREAMED, Case, SeriesKey
from gpubench.result.run import Device, Parts
from gpubench.result.store import cache

Made = TypeVar("Made")
# What a CPU's worker may keep of the memory that the planner's guard allows: references and other workers need some.
_HOST_SHARE = 0.5


def kept_bytes(device: Device, host_bytes: int | None) -> int:
    """Return how many bytes a device may hold by the planner's guard. `host_bytes`: the share of the host's memory that
    this worker may use. A split and a device group keep nothing: their memory is that of other devices."""
    if device.composed or device.backend == DEVICE_GROUP:
        return 0
    on_host = device.kind in ("cpu", "software")
    usable = host_bytes if on_host else device.usable_bytes
    share = MEMORY_SHARE * (_HOST_SHARE if on_host else 1.0)
    return int(share * (UNKNOWN_MEMORY_BYTES if usable is None else usable))


class PreparedWorkload:
    """Op, size and dtype on an open device, with all that is built for their cases."""

    def __init__(self, workspace: Workspace | None, size: int = 0) -> None:
        self._workspace = workspace
        self.bytes = size
        self.checked: dict[str, CheckedLaunch] = {}  # by implementation, or by case where a case is split
        self.parts: dict[str, Times] = {}  # by implementation
        self.tuned_s: dict[str, float] = {}  # by implementation: seconds of trials that no case has told yet
        self.splits: dict[str, float | str] = {}  # by case of two sides: what runs where
        self.timers: dict[str, Timed] = {}  # by case

    @property
    def workspace(self) -> Workspace:
        """Inputs, buffers and reference; calls of a session have none."""
        assert self._workspace is not None
        return self._workspace

    @property
    def holds(self) -> bool:
        """Whether it has inputs and buffers."""
        return self._workspace is not None

    def set_timer(self, case_id: str, timer: Timed) -> None:
        """Sample the case by this timer from now on."""
        if case_id in self.timers:
            self.timers[case_id].release()
        self.timers[case_id] = timer

    def release(self) -> None:
        """Give all memory back."""
        for timed in self.timers.values():
            timed.release()
        if self._workspace is not None:
            self._workspace.release()


class Kept:
    """The workloads of an open device, the last used last, and the inputs that they share. Those of the step that is
    under way stay."""

    def __init__(self, session: Session, opening: protocol.Open) -> None:
        self.session, self.opening = session, opening
        device = session.device
        self._drawn = opening.seed, opening.inputs
        self._page_locked = opening.page_locked and device.kind != "cpu"
        self._scratch = Path(opening.scratch)
        self._weights = weights_of(session, *self._drawn)
        self._shared = SharedInputs(*self._drawn, shared_bytes(device))
        self._operands: dict[SeriesKey, Operands] = {}
        self._most_bytes = kept_bytes(device, opening.host_bytes)
        self._workloads: dict[str, PreparedWorkload] = {}
        self._cases: dict[str, PreparedWorkload] = {}  # by the id of a case with a timer
        self._in_place: dict[str, Session] = {}  # by the memory that its operands lie in
        self._in_use: set[str] = set()
        self._finished = True
        self.suspects = Suspects()

    def begin(self) -> None:
        """A step may begin: what the last one used is idle, if that was finished."""
        if self._finished:
            self._in_use, self._finished = set(), False
            if not self._most_bytes:
                self.make_room(0)

    def end(self) -> None:
        """The step under way is being finished."""
        self._finished = True

    def workload(self, op: Op, case: Case, announce: Callable[[str], None]) -> PreparedWorkload:
        """Return the workload of a case, from now on in use."""
        name = case.prepared_with
        workload = self._workloads.pop(name, None)
        if workload is None:
            announce("inputs")
            workload = PreparedWorkload(None) if op.overhead is not None else self._make(op, case)
        self._workloads[name] = self._cases[case.id] = workload
        self._in_use.add(name)
        return workload

    def find(self, case: Case) -> PreparedWorkload | None:
        """Return the workload of a case, if it is there."""
        return self._workloads.get(case.prepared_with)

    def of_case(self, case_id: str) -> PreparedWorkload:
        """Return the workload of a case that was prepared."""
        return self._cases[case_id]

    def make_room(self, most_bytes: int) -> bool:
        """Release idle workloads, those first that were used longest ago, until all others fit. Returns False if there
        was none to release."""
        idle = [
            name for name, workload in self._workloads.items() if name not in self._in_use and workload.holds
        ]
        for name in idle:
            if sum(workload.bytes for workload in self._workloads.values()) <= most_bytes:
                break
            self.release(name)
        return bool(idle)

    def with_room(self, make: Callable[[], Made]) -> Made:
        """Return what `make` makes. Where memory does not do, idle workloads are released, and it tries once more."""
        try:
            return make()
        except DeviceOutOfMemory:
            if not self.make_room(0):
                raise
            return make()

    def release(self, name: str) -> None:
        """Release a workload with all that is built on it."""
        self.suspects.look()
        self.suspects.passed.clear()
        workload = self._workloads.pop(name)
        self._cases = {case_id: other for case_id, other in self._cases.items() if other is not workload}
        workload.release()

    def release_all(self) -> None:
        """Release every workload, and the host memory of calls in place."""
        for name in list(self._workloads):
            self.release(name)
        while self._in_place:
            self._in_place.popitem()[1].close()

    def session_of(self, op: Op, case: Case) -> Session:
        """Return the session that runs the case. Raises Unsupported if the device has no such memory of the host."""
        if case.memory is None:
            return functions.session_of(self.session, op)
        if case.memory not in self._in_place:
            self._in_place[case.memory] = open_in_place(self.session, case.memory)
        return self._in_place[case.memory]

    def forget_buffers(self) -> None:
        """Have what ops share lie in memory that is allocated anew."""
        self._shared.forget_buffers()

    def _make(self, op: Op, case: Case) -> PreparedWorkload:
        """Make a workload, once there is room for it. Those of other ops let go of what they hold on the host."""
        for name, other in self._workloads.items():
            if other.holds and name not in self._in_use and other.workspace.case.series != case.series:
                other.workspace.rest()
        size = needs(op, case.params, case.dtype)[1]
        self.make_room(self._most_bytes - size)
        operands_of, workspace_of = functions.kinds_of(op)
        if case.series not in self._operands:
            # An op of another package may do what it likes to its inputs.
            shared = self._shared if op.name in kernels.names() else None
            self._operands[case.series] = operands_of(op, *self._drawn, self._scratch, self._weights, shared)
        session, operands = self.session_of(op, case), self._operands[case.series]
        operands.page_locked = self._page_locked
        return PreparedWorkload(workspace_of(session, op, case, *self._drawn, self._scratch, operands), size)


class Suspects:
    """The cases that were sampled since their shared inputs were compared last, and those that changed one."""

    def __init__(self) -> None:
        self._sampled: dict[str, Timer] = {}
        self._guilty: set[str] = set()
        self.passed: set[int] = set()  # launches whose output was checked after all samples so far

    def add(self, timed: Timed, case_id: str) -> None:
        """Note that a case is about to be sampled."""
        self.passed.clear()
        if isinstance(timed, Timer):
            self._sampled[case_id] = timed

    def look(self) -> None:
        """Compare the inputs of what was sampled. Where one was changed, run each case alone to find who does that; if
        none does it again, all of them are held to have done it."""
        sampled, self._sampled = self._sampled, {}
        workspaces = {id(timed.workspace): timed.workspace for timed in sampled.values()}.values()
        if not [workspace for workspace in workspaces if workspace.restore_inputs()]:
            return
        guilty = set()
        for case_id, timed in sampled.items():
            timed.seconds(1)
            if timed.workspace.restore_inputs():
                guilty.add(case_id)
        self._guilty |= guilty or sampled.keys()

    def judge(self, case_id: str) -> None:
        """Raise ChangedInput if the case changed an input that it shares."""
        self.look()
        if case_id in self._guilty:
            self._guilty.discard(case_id)
            raise ChangedInput


# ---------------------------------------------------------------- the CPU that a block begins on


class CpuTurns:
    """CPUs like the one that this thread is on, each once before any comes again.

    Each block of a GPU begins on another one, so that blocks are observations of their own: where CPUs run at two
    speeds, as those of a virtual machine do, a thread that stays where it is meets one of them for a second and more
    (docs/decisions/0020-blocks-begin-on-other-cpus.md). A kernel of the CPU runs on threads of a pool, where a thread
    that is moved takes the CPU of another one: it is left alone.

    The order follows from `seed`, another one every time: in one order alone a case could meet the same CPU in each of
    its rounds. `alike` are the lists of the machine (`0-7,16-23`) whose members have the same cores or the same memory
    beside them: to leave them would change what is measured."""

    def __init__(self, alike: Sequence[str], seed: str) -> None:
        self._allowed = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set[int]()
        here = current_cpu()
        own = [members for members in map(parse_list, alike) if here in members]
        self._cpus = sorted(self._allowed.intersection(*own)) if here is not None else []
        self._random = random.Random(seed)
        self._next: list[int] = []

    def next(self) -> None:
        """Move this thread to the next CPU, then leave it to the system again: who else comes there may drive it away.
        Nothing happens on a system that moves no threads, or with one CPU."""
        if len(self._cpus) < 2:
            return
        cpu = self._draw()
        with contextlib.suppress(OSError):  # it went offline, or the allowed ones changed
            os.sched_setaffinity(0, {cpu})
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._allowed)

    def _draw(self) -> int:
        if len(self._next) < 2:  # the last one stays, so that none comes twice in a row
            last = self._next
            fresh = self._random.sample(self._cpus, len(self._cpus))
            if last and fresh[-1] == last[0]:
                fresh.reverse()
            self._next = [*fresh, *last]
        return self._next.pop()


def current_cpu() -> int | None:
    """Return the CPU that this thread runs on. Returns None where the C library does not tell."""
    try:
        cpu = int(ctypes.CDLL(None).sched_getcpu())
    except (OSError, AttributeError, TypeError):
        return None
    return cpu if cpu >= 0 else None


# ---------------------------------------------------------------- requests

# The GPU's share of a split until the parent names one.
EVEN = 0.5


class OpenDevice:
    """An open session, and what the parent asks of it."""

    def __init__(
        self, session: Session, used: Sequence[Backend], opening: protocol.Open, announce: Callable[[str], None]
    ) -> None:
        self._session, self._backends, self._announce = session, used, announce
        self._kept = Kept(session, opening)
        self._flush = None if opening.flush_bytes is None else Flush(session, opening.flush_bytes)
        gpu = session.device.kind == "gpu"
        self._turns = CpuTurns(opening.alike, f"{opening.device_id} {opening.since}") if gpu else None
        self._since, self._sample_s, self._host_bytes = opening.since, opening.sample_s, opening.host_bytes

    def measure_overhead(self, request: protocol.MeasureOverhead) -> protocol.MeasuredOverhead:
        self._announce("overhead")
        overhead = timer.measure_overhead(self._session)
        step_s, cost_s = timer.clock_facts(self._session.clock)
        self._sample_s = timer.sample_target_s(self._sample_s, median(overhead), step_s, cost_s)
        return protocol.MeasuredOverhead(
            id=request.id, overhead_s=overhead, clock_step_s=step_s, clock_cost_s=cost_s
        )

    def measure_peaks(self, request: protocol.MeasurePeaks) -> protocol.MeasuredPeaks:
        """After all cases: what they hold of the device's memory goes back first."""
        self._kept.release_all()
        self._announce("peaks")
        return protocol.MeasuredPeaks(id=request.id, peaks=hardware.measure_peaks(self._session, request.peaks))

    def load(self, request: protocol.Load) -> None:
        """Make inputs now, and the reference, so that other workers find it."""
        self._kept.begin()
        workspace = self._workload(request.case).workspace
        if request.reference:
            self._announce("reference")
            workspace.make_reference()

    def build(self, request: protocol.Build) -> protocol.Undecided | None:
        case = request.case
        try:
            if not self._is_ahead(case):
                return None
            with without_trials():
                self._check(self._workload(case), case, case.implementation_id)
        except TrialsNeeded:
            return protocol.Undecided(id=request.id)
        except (BackendError, MemoryError):
            pass
        return None

    def choose(self, request: protocol.Choose) -> None:
        case = request.case
        with contextlib.suppress(BackendError, MemoryError):
            workload = self._workload(case)
            self._kept.suspects.look()
            with workload.workspace.guard_inputs():
                workload.tuned_s[case.implementation_id] = choose(workload.workspace, case, self._announce)

    def _is_ahead(self, case: Case) -> bool:
        """Return whether it can be built before it is prepared. What is split is checked at each split."""
        op, workload = self._op(case.op), self._kept.find(case)
        session = self._kept.session_of(op, case)
        built = workload is not None and case.implementation_id in workload.checked
        return not (session.device.composed or built or refusal(session, op, case) is not None)

    def prepare(self, request: protocol.Prepare) -> protocol.Prepared:
        case, op = request.case, self._op(request.case.op)
        self._announce("supports")
        session = self._kept.session_of(op, case)
        refused = refusal(session, op, case)
        if refused is not None:
            raise Unsupported(refused.detail, hint=refused.hint, reason=refused.reason)
        if op.overhead is not None:
            return self._prepare_overhead(op, request)
        workload = self._workload(case)
        workspace = workload.workspace
        split = self._split(workload, request)
        checked, tune_s = self._right(workload, case, split)
        tune_s += workload.tuned_s.pop(case.implementation_id, 0.0)
        timed = self._timer(workload, case, checked.launch)
        alone: Mapping[str, float | str] = workspace.sides if isinstance(split, str) else {}
        pieces = session.pieces(case) if isinstance(split, float) and isinstance(session, Splits) else None
        timed.split = split if alone or isinstance(pieces, int) else None
        if isinstance(pieces, int):
            timed.gpu_pieces, alone = pieces, {"cpu": 0.0, "gpu": 1.0}
            timed.verify_alone(alone)
        if request.time_it:
            timed.calibrate(request, self._sample_s, self._announce)
            timed.calibrate_at(alone, self._sample_s)
        # Two sides load a weight when a stage reads it.
        loads = session.device.kind != "cpu" and not session.device.composed
        size, load_s = workspace.loading() if loads else (0, None)
        built = Parts(
            session=request.session, compile_s=checked.compile_s, first_launch_s=checked.first_launch_s,
            weights_s=load_s, weights_bytes=size or None,
        )  # fmt: skip
        part_samples = request.part_samples if request.time_it else 0
        if split is None and session.device.backend != DEVICE_GROUP:
            parts = replace(built, **self._time_parts(workload, timed, part_samples))
        else:
            explained = split is None or (isinstance(split, float) and request.split is not None)
            parts = replace(built, stage_s=self._time_sides(timed, part_samples if explained else 0))
        return protocol.Prepared(
            id=request.id, check=checked.check, op_hash=workspace.op_hash, kernel=checked.launch.kernel_name,
            kernel_hash=op.digest or checked.launch.kernel_hash, tune_s=tune_s,
            answer=workspace.answer_samples() if op.digest else None,
            lacks=session.lacks, notes=list(cache.notes()), blas=op.by_blas(case.backend, case.implementation,
            case.dtype),
            flops=op.flops(case.params), bytes=op.bytes(case.params, case.dtype), parts=parts,
            output_bytes=workspace.output_bytes, input_bytes=workspace.input_bytes, split=split,
            staging=checked.launch.staging or timed.staging,
            sets=len(timed.sets) if isinstance(timed, PipelineTimer) else UNSET,
            one_piece=pieces if isinstance(pieces, str) else UNSET,
        )  # fmt: skip

    def _split(self, workload: PreparedWorkload, request: protocol.Prepare) -> float | str | None:
        """Return what runs where of a case of two sides, as asked for or as before. Returns None if it has one."""
        case, session = request.case, workload.workspace.session
        chosen = request.split if request.split is not None else workload.splits.get(case.id)
        split: float | str | None = None
        if workload.workspace.sides and isinstance(session, AssignsStages):
            split = chosen if isinstance(chosen, str) else workload.workspace.sides["gpu"]
        elif session.device.composed and isinstance(session, Splits):
            share = chosen if isinstance(chosen, float) else EVEN
            split = session.divide(workload.workspace.op, case, share)
        if split is not None and workload.splits.get(case.id) != split:
            workload.splits[case.id] = split
            # Each regime has a share of its own, and so a launch.
            workload.checked.pop(case.id, None)
        return split

    def _right(
        self, workload: PreparedWorkload, case: Case, split: float | str | None
    ) -> tuple[CheckedLaunch, float]:
        """Return the launch of the case, checked, and the seconds of choosing kernels now. A stage assignment comes
        behind both sides alone, which are timed beside it."""
        if not isinstance(split, str):
            return self._check(workload, case, case.implementation_id if split is None else case.id)
        session, tune_s = workload.workspace.session, 0.0
        assert isinstance(session, AssignsStages)
        for assignment in dict.fromkeys((*workload.workspace.sides.values(), split)):
            session.assign(assignment)
            checked, took_s = self._check(workload, case, f"{case.implementation_id} {assignment}")
            tune_s += took_s
        return checked, tune_s

    def _check(self, workload: PreparedWorkload, case: Case, name: str) -> tuple[CheckedLaunch, float]:
        if name in workload.checked:
            return workload.checked[name], 0.0
        self._kept.suspects.look()  # what others changed is not this one's fault
        checked = self._kept.with_room(lambda: gate(workload.workspace, case, self._announce))
        workload.checked[name] = checked
        return checked, checked.tune_s

    def _timer(self, workload: PreparedWorkload, case: Case, launch: Launch) -> Timer:
        """Return what samples the launch: the timer of before, if it is the same launch."""
        timed = workload.timers.get(case.id)
        if not isinstance(timed, Timer) or timed.launch is not launch:
            timed = self._make_timer(workload.workspace, case, launch)
            timed.flush = self._flush
            workload.set_timer(case.id, timed)
        return timed

    def _make_timer(self, workspace: Workspace, case: Case, launch: Launch) -> Timer:
        """Make a timer. One with buffers of its own takes the place of idle workloads, if there is no other room."""
        if case.regime != STREAMED:
            return Timer(workspace, case, launch)
        most = count_sets(workspace.op, case, workspace.session.device, self._host_bytes)
        return self._kept.with_room(lambda: PipelineTimer(workspace, case, launch, most))

    def _time_sides(self, timed: Timer, count: int) -> dict[str, list[float]]:
        """Return what the sides of a split cost each other, at its share; what each rank of a device group takes for
        its own."""
        if not count:
            return {}
        self._announce("parts")
        return time_sides(timed, count)

    def _prepare_overhead(self, op: Op, request: protocol.Prepare) -> protocol.Prepared:
        """Prepare it as any other case: checked, then calibrated. What is timed is a call of the session."""
        case = request.case
        workload = self._workload(case)
        kind = wings.for_op("timers", op) or OverheadTimer
        timed: OverheadTimer = kind(self._session, op, case, self._kept.opening)
        workload.set_timer(case.id, timed)
        self._announce("check")
        check = timed.verify()
        if request.time_it and not timed.single:
            timed.calibrate(request, self._sample_s, self._announce)
        return protocol.Prepared(
            id=request.id, check=check, op_hash=overhead_hash(op), kernel_hash=None, flops=op.flops(case.params),
            bytes=op.bytes(case.params, case.dtype), parts=Parts(session=request.session),
            staging=timed.staging, kernel=timed.kernel,
        )  # fmt: skip

    def _workload(self, case: Case) -> PreparedWorkload:
        return self._kept.workload(self._op(case.op), case, self._announce)

    def _time_parts(self, workload: PreparedWorkload, timed: Timer, count: int) -> dict[str, Any]:
        """Time the parts once per implementation: they do not depend on the regime. The CPU has none.

        A case that makes such calls itself notes the steps of its samples, and the parent asks no other for them.
        """
        timed.steps = None
        if not count or timed.session.device.kind == "cpu" or timed.case.memory:
            return {}
        if isinstance(timed, PipelineTimer):
            self._announce("parts")
            return {"stage_s": timed.stage_times(count)}
        if timed.case.regime == "transfer-always":
            timed.steps = {}
            return {}
        if timed.case.implementation_id not in workload.parts:
            self._announce("parts")
            workload.parts[timed.case.implementation_id] = time_parts(timed, count)
        return workload.parts[timed.case.implementation_id]

    def sample(self, request: protocol.Sample) -> protocol.Sampled:
        self._announce("sample")
        workload = self._kept.of_case(request.case_id)
        timed = workload.timers[request.case_id]
        self._kept.suspects.add(timed, request.case_id)
        if self._turns is not None:
            self._turns.next()
        on_cpu = self._session.device.kind == "cpu" or self._session.device.composed
        with on_first_cpu() if on_cpu else contextlib.nullcontext():
            sampled = timer.sample_block(timed, request, self._since, self._sample_s)
        split = workload.splits.get(request.case_id)
        block = replace(
            sampled.block,
            gpu_share=split if isinstance(split, float) else None,
            assignment=split if isinstance(split, str) else UNSET,
        )
        if on_cpu and not any(backend.scripted_time for backend in self._backends):
            settle()
        return replace(sampled, block=block)

    def work(self, request: protocol.Work) -> protocol.Worked:
        self._announce("sample")
        timed = self._timer_of(request.case_id)
        self._kept.suspects.add(timed, request.case_id)
        return timer.work(timed, request)

    def time_stages(self, request: protocol.TimeStages) -> protocol.TimedStages:
        self._announce("stages")
        workload = self._kept.of_case(request.case_id)
        timed, workspace = workload.timers[request.case_id], workload.workspace
        if request.assignment_times:
            assignment_times = workspace.assign_stages(timed, request.session, request.limit_s)
            return protocol.TimedStages(id=request.id, assignment_times=assignment_times)
        times = workspace.time_stages(timed, request.session, request.limit_s)
        return protocol.TimedStages(id=request.id, times=times)

    def finish(self, request: protocol.Finish) -> protocol.Done | None:
        """Check what the last launch left, and what one more delivers. Regimes with data on the device share a launch:
        it is checked once."""
        timed, suspects = self._timer_of(request.case_id), self._kept.suspects
        self._kept.end()
        suspects.judge(request.case_id)
        launch = timed.resident_launch
        if launch is not None and id(launch) in suspects.passed:
            return None
        self._announce("check")
        workload = self._kept.of_case(request.case_id)
        notes = workload.workspace.require_fresh(request.limit_s) if workload.holds else []
        timed.verify()
        if launch is not None:
            suspects.passed.add(id(launch))
        return protocol.Done(id=request.id, notes=notes)

    def reallocate(self, request: protocol.Reallocate) -> None:
        """Have what comes next lie in memory that is allocated anew."""
        self._announce("release")
        self._kept.release_all()
        self._kept.forget_buffers()

    def close(self) -> None:
        """Free everything."""
        self._kept.release_all()
        if self._flush is not None:
            self._flush.close()
        self._session.close()

    def _timer_of(self, case_id: str) -> Timed:
        return self._kept.of_case(case_id).timers[case_id]

    def _op(self, name: str) -> Op:
        return equip(name, self._backends)


def equip(name: str, used: Sequence[Backend]) -> Op:
    """Return the op with the kernels that backends bring along."""
    op = loading.load(name) if "." in name else kernels.load_without_trial(name)
    for backend in used:
        op = op.with_kernels(backend.name, backend.kernels.get(name, ()))
    return op
