"""Child side: an open device that carries out the parent's requests."""

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
from gpubench.base import allowed_cpus
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
# A CPU's worker keeps workloads in this share of the memory that a plan may fill. References and other workers
# need the rest.
_HOST_SHARE = 0.5


def kept_bytes(device: Device, host_bytes: int | None) -> int:
    """Return how many bytes of workloads the device may keep. `host_bytes` is the host memory that this worker
    may use. A composed device or a device group keeps nothing, since its memory belongs to other devices."""
    if device.composed or device.backend == DEVICE_GROUP:
        return 0
    on_host = device.kind in ("cpu", "software")
    usable = host_bytes if on_host else device.usable_bytes
    share = MEMORY_SHARE * (_HOST_SHARE if on_host else 1.0)
    return int(share * (UNKNOWN_MEMORY_BYTES if usable is None else usable))


class PreparedWorkload:
    """A workload on an open device: its data, and its launches and timers by case."""

    def __init__(self, workspace: Workspace | None, size: int = 0) -> None:
        self._workspace = workspace
        self.bytes = size
        self.checked: dict[str, CheckedLaunch] = {}  # by implementation, or by case where a case is split
        self.parts: dict[str, Times] = {}  # by implementation
        self.tuned_s: dict[str, float] = {}  # by implementation: seconds of trials that were not reported yet
        self.splits: dict[str, float | str] = {}  # by case on two sides: GPU share or stage assignment
        self.timers: dict[str, Timed] = {}  # by case

    @property
    def workspace(self) -> Workspace:
        """The inputs, buffers and reference. An overhead has none, since it times calls of the session."""
        assert self._workspace is not None
        return self._workspace

    @property
    def holds(self) -> bool:
        """Whether it has inputs and buffers."""
        return self._workspace is not None

    def set_timer(self, case_id: str, timer: Timed) -> None:
        """Set the timer of the case, and release its earlier timer."""
        if case_id in self.timers:
            self.timers[case_id].release()
        self.timers[case_id] = timer

    def release(self) -> None:
        """Free the memory of the timers and of the workspace."""
        for timed in self.timers.values():
            timed.release()
        if self._workspace is not None:
            self._workspace.release()


class Kept:
    """The workloads that an open device keeps, in the order of their last use, and the inputs that they share.
    Workloads of the current step are not released to make room."""

    def __init__(self, session: Session, opening: protocol.Open) -> None:
        self.session, self.opening = session, opening
        device = session.device
        self._drawn = opening.seed, opening.inputs
        self._page_locked = opening.page_locked and device.kind != "cpu"
        self._scratch = Path(os.fsdecode(opening.scratch))
        self._weights = weights_of(session, *self._drawn)
        self._shared = SharedInputs(*self._drawn, shared_bytes(device))
        self._operands: dict[SeriesKey, Operands] = {}
        self._most_bytes = kept_bytes(device, opening.host_bytes)
        self._workloads: dict[str, PreparedWorkload] = {}
        self._in_place: dict[str, Session] = {}  # by the memory that its operands lie in
        self._in_use: set[str] = set()
        self._finished = True
        self.suspects = Suspects()

    def begin(self) -> None:
        """Begin a new step if the last one has ended. The workloads of the last step may then be released."""
        if self._finished:
            self._in_use, self._finished = set(), False
            if not self._most_bytes:
                self.make_room(0)

    def end(self) -> None:
        """Mark the current step as finished."""
        self._finished = True

    def workload(self, op: Op, case: Case, announce: Callable[[str], None]) -> PreparedWorkload:
        """Return the workload of a case, which is made if needed, and mark it as in use."""
        name = case.prepared_with
        workload = self._workloads.pop(name, None)
        if workload is None:
            announce("inputs")
            workload = PreparedWorkload(None) if op.overhead is not None else self._make(op, case)
        self._workloads[name] = workload
        self._in_use.add(name)
        return workload

    def find(self, case: Case) -> PreparedWorkload | None:
        """Return the workload with which the case is prepared, or None if there is none."""
        return self._workloads.get(case.prepared_with)

    def of_case(self, case_id: str) -> PreparedWorkload:
        """Return the workload of a case that was prepared. Raises KeyError for another case."""
        return {name: workload for workload in self._workloads.values() for name in workload.timers}[case_id]

    def make_room(self, most_bytes: int) -> bool:
        """Release idle workloads, least recently used first, until the rest takes at most `most_bytes`. Returns
        False if none was idle."""
        idle = [
            name for name, workload in self._workloads.items() if name not in self._in_use and workload.holds
        ]
        for name in idle:
            if sum(workload.bytes for workload in self._workloads.values()) <= most_bytes:
                break
            self.release(name)
        return bool(idle)

    def with_room(self, make: Callable[[], Made]) -> Made:
        """Return `make()`. If it raises DeviceOutOfMemory, release all idle workloads and try once more."""
        try:
            return make()
        except DeviceOutOfMemory:
            if not self.make_room(0):
                raise
            return make()

    def release(self, name: str) -> None:
        """Check the inputs of the cases that were sampled, then release a workload."""
        self.suspects.look()
        self.suspects.passed.clear()
        self._workloads.pop(name).release()

    def release_all(self) -> None:
        """Release every workload, and the host memory of calls in place."""
        for name in list(self._workloads):
            self.release(name)
        while self._in_place:
            self._in_place.popitem()[1].close()

    def session_of(self, op: Op, case: Case) -> Session:
        """Return the session that runs the case. Raises Unsupported if the device cannot use the case's kind of
        host memory."""
        if case.memory is None:
            return functions.session_of(self.session, op)
        if case.memory not in self._in_place:
            self._in_place[case.memory] = open_in_place(self.session, case.memory)
        return self._in_place[case.memory]

    def forget_buffers(self) -> None:
        """Forget the shared buffers, so that ops get newly allocated buffers from now on."""
        self._shared.forget_buffers()

    def _make(self, op: Op, case: Case) -> PreparedWorkload:
        """Make a workload, after releasing idle ones until it fits."""
        # The host arrays of idle workloads are made again if they are needed.
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
    """The cases that were sampled since the shared inputs were last compared. If an input differs, one of them
    has changed it."""

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
        """Compare the inputs of the sampled cases, restore changed ones, and find the cases that changed
        them."""
        sampled, self._sampled = self._sampled, {}
        workspaces = {id(timed.workspace): timed.workspace for timed in sampled.values()}.values()
        if not [workspace for workspace in workspaces if workspace.restore_inputs()]:
            return
        guilty = set()
        # Each case runs alone. If none of them changes an input again, all are guilty.
        for case_id, timed in sampled.items():
            timed.seconds(1)
            if timed.workspace.restore_inputs():
                guilty.add(case_id)
        self._guilty |= guilty or sampled.keys()

    def judge(self, case_id: str) -> None:
        """Compare the inputs if needed. Raises ChangedInput if this case has changed a shared input."""
        self.look()
        if case_id in self._guilty:
            self._guilty.discard(case_id)
            raise ChangedInput


# ---------------------------------------------------------------- the CPU that a block begins on


class CpuTurns:
    """The CPUs of the same kind as the one of this thread, in random order, each once before any comes again.

    Each block of a GPU begins on another CPU, so that blocks are independent
    (docs/decisions/0020-blocks-begin-on-other-cpus.md). `alike` are lists of CPUs (`0-7,16-23`) with the same
    cores or memory node. The turns stay within each list that has the present CPU.
    """

    def __init__(self, alike: Sequence[str], seed: str) -> None:
        self._allowed = allowed_cpus()
        here = current_cpu()
        own = [members for members in map(parse_list, alike) if here in members]
        self._cpus = sorted(self._allowed.intersection(*own)) if here is not None else []
        self._random = random.Random(seed)
        self._next: list[int] = []

    def next(self) -> None:
        """Move this thread to the next CPU, then allow all CPUs again. Does nothing with a single CPU, or on a
        system that cannot move threads."""
        if len(self._cpus) < 2:
            return
        cpu = self._draw()
        with contextlib.suppress(OSError):  # it went offline, or the allowed ones changed
            os.sched_setaffinity(0, {cpu})
        with contextlib.suppress(OSError):  # another thread may need that CPU
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
    """Return the number of the CPU that this thread runs on, or None if the C library does not report it."""
    try:
        cpu = int(ctypes.CDLL(None).sched_getcpu())
    except (OSError, AttributeError, TypeError):
        return None
    return cpu if cpu >= 0 else None


# ---------------------------------------------------------------- requests


class OpenDevice:
    """An open session that carries out the parent's requests."""

    def __init__(
        self, session: Session, used: Sequence[Backend], opening: protocol.Open, announce: Callable[[str], None]
    ) -> None:
        self._session, self._backends, self._announce = session, used, announce
        self.kept = Kept(session, opening)
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
        """Measure the peaks after all cases. First free the memory that the cases hold."""
        self.kept.release_all()
        self._announce("peaks")
        return protocol.MeasuredPeaks(id=request.id, peaks=hardware.measure_peaks(self._session, request.peaks))

    def load(self, request: protocol.Load) -> None:
        """Make the inputs of a case. If requested, also make the reference, which other workers then read."""
        self.kept.begin()
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
            self.kept.suspects.look()
            with workload.workspace.guard_inputs():
                workload.tuned_s[case.implementation_id] = choose(workload.workspace, case, self._announce)

    def _is_ahead(self, case: Case) -> bool:
        """Return whether to build the case before it is prepared."""
        op, workload = self._op(case.op), self.kept.find(case)
        session = self.kept.session_of(op, case)
        built = workload is not None and case.implementation_id in workload.checked
        # The launch of a split depends on the share.
        return not (session.device.composed or built or refusal(session, op, case) is not None)

    def prepare(self, request: protocol.Prepare) -> protocol.Prepared:
        case, op = request.case, self._op(request.case.op)
        self._announce("supports")
        session = self.kept.session_of(op, case)
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
        """Return the requested or current split of a case on two sides, or None for a case on one side."""
        case, session = request.case, workload.workspace.session
        chosen = request.split if request.split is not None else workload.splits.get(case.id)
        split: float | str | None = None
        if workload.workspace.sides and isinstance(session, AssignsStages):
            split = chosen if isinstance(chosen, str) else workload.workspace.sides["gpu"]
        elif session.device.composed and isinstance(session, Splits):
            share = chosen if isinstance(chosen, float) else 0.5  # until the parent sets one
            split = session.divide(workload.workspace.op, case, share)
        if split is not None and workload.splits.get(case.id) != split:
            workload.splits[case.id] = split
            # Each regime has a share of its own, and so a launch.
            workload.checked.pop(case.id, None)
        return split

    def _right(
        self, workload: PreparedWorkload, case: Case, split: float | str | None
    ) -> tuple[CheckedLaunch, float]:
        """Return the checked launch of the case, and the seconds spent on choosing kernels."""
        if not isinstance(split, str):
            return self._check(workload, case, case.implementation_id if split is None else case.id)
        session, tune_s = workload.workspace.session, 0.0
        assert isinstance(session, AssignsStages)
        # Each side alone is timed as well.
        for assignment in dict.fromkeys((*workload.workspace.sides.values(), split)):
            session.assign(assignment)
            checked, took_s = self._check(workload, case, f"{case.implementation_id} {assignment}")
            tune_s += took_s
        return checked, tune_s

    def _check(self, workload: PreparedWorkload, case: Case, name: str) -> tuple[CheckedLaunch, float]:
        if name in workload.checked:
            return workload.checked[name], 0.0
        self.kept.suspects.look()  # what others changed is not this one's fault
        checked = self.kept.with_room(lambda: gate(workload.workspace, case, self._announce))
        workload.checked[name] = checked
        return checked, checked.tune_s

    def _timer(self, workload: PreparedWorkload, case: Case, launch: Launch) -> Timer:
        """Return the timer of the case, a new one if its launch is new."""
        timed = workload.timers.get(case.id)
        if not isinstance(timed, Timer) or timed.launch is not launch:
            timed = self._make_timer(workload.workspace, case, launch)
            timed.flush = self._flush
            workload.set_timer(case.id, timed)
        return timed

    def _make_timer(self, workspace: Workspace, case: Case, launch: Launch) -> Timer:
        """Return a new timer, for which idle workloads are released if its buffers find no room."""
        if case.regime != STREAMED:
            return Timer(workspace, case, launch)
        most = count_sets(workspace.op, case, workspace.session.device, self._host_bytes)
        return self.kept.with_room(lambda: PipelineTimer(workspace, case, launch, most))

    def _time_sides(self, timed: Timer, count: int) -> dict[str, list[float]]:
        """Return the seconds of each part of a split or a device group, up to `count` times."""
        if not count:
            return {}
        self._announce("parts")
        return time_sides(timed, count)

    def _prepare_overhead(self, op: Op, request: protocol.Prepare) -> protocol.Prepared:
        """Prepare a case of an overhead (a call of the session): check it, then find its repeat count."""
        case = request.case
        workload = self._workload(case)
        kind = wings.for_op("timers", op) or OverheadTimer
        timed: OverheadTimer = kind(self._session, op, case, self.kept.opening)
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
        return self.kept.workload(self._op(case.op), case, self._announce)

    def _time_parts(self, workload: PreparedWorkload, timed: Timer, count: int) -> dict[str, Any]:
        """Return the seconds of the parts of a launch, or an empty dict if they are not timed."""
        timed.steps = None
        if not count or timed.session.device.kind == "cpu" or timed.case.memory:
            return {}
        if isinstance(timed, PipelineTimer):
            self._announce("parts")
            return {"stage_s": timed.stage_times(count)}
        if timed.case.regime == "transfer-always":
            timed.steps = {}  # its samples give the steps
            return {}
        if timed.case.implementation_id not in workload.parts:  # parts do not depend on the regime
            self._announce("parts")
            workload.parts[timed.case.implementation_id] = time_parts(timed, count)
        return workload.parts[timed.case.implementation_id]

    def sample(self, request: protocol.Sample) -> protocol.Sampled:
        self._announce("sample")
        workload = self.kept.of_case(request.case_id)
        timed = workload.timers[request.case_id]
        self.kept.suspects.add(timed, request.case_id)
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
        self.kept.suspects.add(timed, request.case_id)
        return timer.work(timed, request)

    def time_stages(self, request: protocol.TimeStages) -> protocol.TimedStages:
        self._announce("stages")
        workload = self.kept.of_case(request.case_id)
        timed, workspace = workload.timers[request.case_id], workload.workspace
        if request.assignment_times:
            assignment_times = workspace.assign_stages(timed, request.session, request.limit_s)
            return protocol.TimedStages(id=request.id, assignment_times=assignment_times)
        times = workspace.time_stages(timed, request.session, request.limit_s)
        return protocol.TimedStages(id=request.id, times=times)

    def finish(self, request: protocol.Finish) -> protocol.Done | None:
        """Check the inputs, the output of the last launch, and the output of one more launch. Raises Wrong and
        ChangedInput. Returns None if a case with the same launch was checked since the last sample."""
        timed, suspects = self._timer_of(request.case_id), self.kept.suspects
        self.kept.end()
        suspects.judge(request.case_id)
        launch = timed.resident_launch
        if launch is not None and id(launch) in suspects.passed:
            return None
        self._announce("check")
        workload = self.kept.of_case(request.case_id)
        notes = workload.workspace.require_fresh(request.limit_s) if workload.holds else []
        timed.verify()
        if launch is not None:
            suspects.passed.add(id(launch))
        return protocol.Done(id=request.id, notes=notes)

    def reallocate(self, request: protocol.Reallocate) -> None:
        """Free all memory, so that later cases use newly allocated memory."""
        self._announce("release")
        self.kept.release_all()
        self.kept.forget_buffers()

    def close(self) -> None:
        """Free all memory and close the session."""
        self.kept.release_all()
        if self._flush is not None:
            self._flush.close()
        self._session.close()

    def _timer_of(self, case_id: str) -> Timed:
        return self.kept.of_case(case_id).timers[case_id]

    def _op(self, name: str) -> Op:
        return equip(name, self._backends)


def equip(name: str, used: Sequence[Backend]) -> Op:
    """Return the op of this name with the kernels that these backends bring."""
    op = loading.load(name) if "." in name else kernels.load_without_trial(name)
    for backend in used:
        op = op.with_kernels(backend.name, backend.kernels.get(name, ()))
    return op
