"""Child side: an open device, and how it carries out what the parent asks of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

import gpubench.kernels
from gpubench.backends.contract import Backend, Launch, Session
from gpubench.backends.contract.protocols import Places, Splits
from gpubench.backends.shared.blocks import Flush
from gpubench.backends.shared.choices import TrialsNeeded, without_trials
from gpubench.backends.shared.host import on_first_cpu, settle
from gpubench.base.errors import BackendError, DeviceOutOfMemory, Unsupported
from gpubench.base.plugins import wings
from gpubench.curves.stats import median
from gpubench.functions import loading
from gpubench.kernels.contract.op import Op
from gpubench.measure import protocol
from gpubench.measure.worker import ceilings, functions, timer
from gpubench.measure.worker.cpu_turns import CpuTurns
from gpubench.measure.worker.kept import Kept, PreparedWorkload
from gpubench.measure.worker.overheads import OverheadTimer, overhead_hash
from gpubench.measure.worker.parts import time_parts, time_sides
from gpubench.measure.worker.workspace import CheckedLaunch, choose, gate, refusal
from gpubench.result.case import GANG, Case
from gpubench.result.run import Parts
from gpubench.result.store import cache

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
        self._since, self._sample_s = opening.since, opening.sample_s

    def measure_overhead(self, request: protocol.MeasureOverhead) -> protocol.MeasuredOverhead:
        self._announce("overhead")
        overhead = timer.measure_overhead(self._session)
        step_s, cost_s = timer.clock_facts(self._session.clock)
        self._sample_s = timer.sample_target_s(self._sample_s, median(overhead), step_s, cost_s)
        return protocol.MeasuredOverhead(
            id=request.id, overhead_s=overhead, clock_step_s=step_s, clock_cost_s=cost_s
        )

    def measure_ceilings(self, request: protocol.MeasureCeilings) -> protocol.Ceilings:
        """After all cases: what they hold of the device's memory goes back first."""
        self._kept.release_all()
        self._announce("ceilings")
        return protocol.Ceilings(id=request.id, ceilings=ceilings.measure(self._session, request.wanted))

    def load(self, request: protocol.Load) -> None:
        """Make inputs now, and the reference, so that other workers find it."""
        self._kept.begin()
        workspace = self._workload(request.case).workspace
        if request.reference:
            self._announce("reference")
            workspace.make_reference()

    def build(self, request: protocol.Build) -> protocol.Undecided | None:
        case = request.case
        if not self._is_ahead(case):
            return None
        try:
            with without_trials():
                self._gated(self._workload(case), case, case.form_id)
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
            with workload.workspace.inputs_kept():
                workload.tuned_s[case.form_id] = choose(workload.workspace, case, self._announce)

    def _is_ahead(self, case: Case) -> bool:
        """Return whether it can be built before it is prepared. What is cut is checked at each cut."""
        op, workload = self._op(case.op), self._kept.known(case)
        session = functions.session_of(self._session, op)
        built = workload is not None and case.form_id in workload.checked
        return not (session.device.composed or built or refusal(session, op, case) is not None)

    def prepare(self, request: protocol.Prepare) -> protocol.Prepared:
        case = request.case
        op = self._op(case.op)
        session = functions.session_of(self._session, op)
        self._announce("supports")
        refused = refusal(session, op, case)
        if refused is not None:
            raise Unsupported(refused.detail, hint=refused.hint, reason=refused.reason)
        if op.overhead is not None:
            return self._prepare_overhead(op, request)
        workload = self._workload(case)
        workspace = workload.workspace
        cut = self._cut(workload, request)
        checked, tune_s = self._right(workload, case, cut)
        tune_s += workload.tuned_s.pop(case.form_id, 0.0)
        timed = self._timer(workload, case, checked.launch)
        if isinstance(cut, str):
            timed.placement = cut
        if request.time_it:
            timed.calibrate(request, self._sample_s, self._announce)
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
            parts = msgspec.structs.replace(built, **self._time_parts(workload, timed, part_samples))
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

    def _cut(self, workload: PreparedWorkload, request: protocol.Prepare) -> float | str | None:
        """Return what runs where of a case of two sides, as asked for or as before. Returns None if it has one."""
        case, session = request.case, workload.workspace.session
        asked = request.cut if request.cut is not None else workload.cuts.get(case.id)
        cut: float | str | None = None
        if workload.workspace.sides and isinstance(session, Places):
            cut = asked if isinstance(asked, str) else workload.workspace.sides["gpu"]
        elif session.device.composed and isinstance(session, Splits):
            share = asked if isinstance(asked, float) else EVEN
            cut = session.divide(workload.workspace.op, case, share)
        if cut is not None and workload.cuts.get(case.id) != cut:
            workload.cuts[case.id] = cut
            # Each regime has a share of its own, and so a launch.
            workload.checked.pop(case.id, None)
        return cut

    def _right(
        self, workload: PreparedWorkload, case: Case, cut: float | str | None
    ) -> tuple[CheckedLaunch, float]:
        """Return the launch of the case, checked, and the seconds of choosing kernels now. A placement comes behind
        both sides alone, which are timed beside it."""
        if not isinstance(cut, str):
            return self._gated(workload, case, case.form_id if cut is None else case.id)
        session, tune_s = workload.workspace.session, 0.0
        assert isinstance(session, Places)
        for placement in dict.fromkeys((*workload.workspace.sides.values(), cut)):
            session.place(placement)
            checked, took_s = self._gated(workload, case, f"{case.form_id} {placement}")
            tune_s += took_s
        return checked, tune_s

    def _gated(self, workload: PreparedWorkload, case: Case, name: str) -> tuple[CheckedLaunch, float]:
        if name in workload.checked:
            return workload.checked[name], 0.0
        self._kept.suspects.look()  # what others changed is not this one's fault
        try:
            checked = gate(workload.workspace, case, self._announce)
        except DeviceOutOfMemory:
            if not self._kept.make_room(0):
                raise
            checked = gate(workload.workspace, case, self._announce)
        workload.checked[name] = checked
        return checked, checked.tune_s

    def _timer(self, workload: PreparedWorkload, case: Case, launch: Launch) -> timer.Timer:
        """Return what samples the launch: the timer of before, if it is the same launch."""
        timed = workload.timers.get(case.id)
        if not isinstance(timed, timer.Timer) or timed.launch is not launch:
            timed = timer.Timer(workload.workspace, case, launch)
            timed.flush = self._flush
            workload.set_timer(case.id, timed)
        return timed

    def _time_sides(self, timed: timer.Timer, count: int) -> dict[str, list[float]]:
        """Return what the sides of a split cost each other, at its share; what each rank of a gang takes for its
        own."""
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

    def _time_parts(self, workload: PreparedWorkload, timed: timer.Timer, count: int) -> dict[str, list[float]]:
        """Time the parts once per form: they do not depend on the regime. The CPU has none.

        A case that makes such calls itself notes the steps of its samples, and the parent asks no other for them.
        """
        timed.steps = None
        if not count or timed.session.device.kind == "cpu":
            return {}
        if timed.case.regime == "transfer-always":
            timed.steps = {}
            return {}
        if timed.case.form_id not in workload.parts:
            self._announce("parts")
            workload.parts[timed.case.form_id] = time_parts(timed, count)
        return workload.parts[timed.case.form_id]

    def sample(self, request: protocol.Sample) -> protocol.Sampled:
        self._announce("sample")
        workload = self._kept.of_case(request.case_id)
        timed = workload.timers[request.case_id]
        self._kept.suspects.add(timed, request.case_id)
        if self._turns is not None:
            self._turns.next()
        on_cpu = self._session.device.kind == "cpu"
        with on_first_cpu() if on_cpu else contextlib.nullcontext():
            sampled = timer.sample_block(timed, request, self._since, self._sample_s)
        cut = workload.cuts.get(request.case_id)
        block = msgspec.structs.replace(
            sampled.block,
            fraction=cut if isinstance(cut, float) else None,
            placement=cut if isinstance(cut, str) else UNSET,
        )
        if on_cpu and not any(backend.scripted_time for backend in self._backends):
            settle()
        return msgspec.structs.replace(sampled, block=block)

    def work(self, request: protocol.Work) -> protocol.Worked:
        self._announce("sample")
        timed = self._timed(request.case_id)
        self._kept.suspects.add(timed, request.case_id)
        return timer.work(timed, request)

    def time_stages(self, request: protocol.TimeStages) -> protocol.TimedStages:
        self._announce("stages")
        workload = self._kept.of_case(request.case_id)
        timed, workspace = workload.timers[request.case_id], workload.workspace
        if request.placing:
            placing = workspace.assign_stages(timed, request.session, request.limit_s)
            return protocol.TimedStages(id=request.id, placing=placing)
        times = workspace.time_stages(timed, request.session, request.limit_s)
        return protocol.TimedStages(id=request.id, times=times)

    def finish(self, request: protocol.Finish) -> protocol.Done | None:
        """Check what the last launch left, and what one more delivers. Regimes with data on the device share a launch:
        it is checked once."""
        timed, suspects = self._timed(request.case_id), self._kept.suspects
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

    def _timed(self, case_id: str) -> timer.Timed:
        return self._kept.of_case(case_id).timers[case_id]

    def _op(self, name: str) -> Op:
        return equipped(name, self._backends)


def equipped(name: str, used: Sequence[Backend]) -> Op:
    """Return the op with the kernels that backends bring along."""
    op = loading.load(name) if "." in name else gpubench.kernels.load_untried(name)
    for backend in used:
        op = op.with_kernels(backend.name, backend.kernels.get(name, ()))
    return op
