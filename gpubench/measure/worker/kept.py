"""Child side: what stays prepared between steps, and the search for a case that changed an input of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpubench import kernels
from gpubench.backends.contract import Session
from gpubench.kernels.contract.op import Op
from gpubench.measure import protocol
from gpubench.measure.plan import MEMORY_SHARE, UNKNOWN_MEMORY_BYTES, needs
from gpubench.measure.worker import functions
from gpubench.measure.worker.operands import ChangedInput, Operands, SharedInputs, shared_bytes, weights_of
from gpubench.measure.worker.parts import Times
from gpubench.measure.worker.timer import Timed, Timer
from gpubench.measure.worker.workspace import CheckedLaunch, Workspace
from gpubench.result.case import GANG, Case, SeriesKey
from gpubench.result.run import Device

# What a CPU's worker may keep of the memory that the planner's guard allows: references and other workers need some.
_HOST_SHARE = 0.5


def kept_bytes(device: Device, host_bytes: int | None) -> int:
    """Return how many bytes a device may hold by the planner's guard. `host_bytes`: the share of the host's memory that
    this worker may use. A split and a gang keep nothing: their memory is that of other devices."""
    if device.composed or device.backend == GANG:
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
        self.checked: dict[str, CheckedLaunch] = {}  # by form, or by case where a case is cut
        self.parts: dict[str, Times] = {}  # by form
        self.tuned_s: dict[str, float] = {}  # by form: seconds of trials that no case has told yet
        self.cuts: dict[str, float | str] = {}  # by case of two sides: what runs where
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
        for timer in self.timers.values():
            timer.release()
        if self._workspace is not None:
            self._workspace.release()


class Kept:
    """The workloads of an open device, the last used last, and the inputs that they share. Those of the step that is
    under way stay."""

    def __init__(self, session: Session, opening: protocol.Open) -> None:
        self.session, self.opening = session, opening
        device = session.device
        self._drawn = opening.seed, opening.inputs
        self._scratch = Path(opening.scratch)
        self._weights = weights_of(session, *self._drawn)
        self._shared = SharedInputs(*self._drawn, shared_bytes(device))
        self._operands: dict[SeriesKey, Operands] = {}
        self._most_bytes = kept_bytes(device, opening.host_bytes)
        self._workloads: dict[str, PreparedWorkload] = {}
        self._cases: dict[str, PreparedWorkload] = {}  # by the id of a case with a timer
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
        workload = self._workloads.pop(case.workload, None)
        if workload is None:
            announce("inputs")
            workload = PreparedWorkload(None) if op.overhead is not None else self._make(op, case)
        self._workloads[case.workload] = self._cases[case.id] = workload
        self._in_use.add(case.workload)
        return workload

    def known(self, case: Case) -> PreparedWorkload | None:
        """Return the workload of a case, if it is there."""
        return self._workloads.get(case.workload)

    def of_case(self, case_id: str) -> PreparedWorkload:
        """Return the workload of a case that was prepared."""
        return self._cases[case_id]

    def make_room(self, most_bytes: int) -> bool:
        """Release idle workloads, those first that were used longest ago, until all others fit. Returns False if there
        was none to release."""
        idle = [name for name, known in self._workloads.items() if name not in self._in_use and known.holds]
        for name in idle:
            if sum(known.bytes for known in self._workloads.values()) <= most_bytes:
                break
            self.release(name)
        return bool(idle)

    def release(self, name: str) -> None:
        """Release a workload with all that is built on it."""
        self.suspects.look()
        self.suspects.passed.clear()
        workload = self._workloads.pop(name)
        self._cases = {case_id: other for case_id, other in self._cases.items() if other is not workload}
        workload.release()

    def release_all(self) -> None:
        """Release every workload."""
        for name in list(self._workloads):
            self.release(name)

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
        session, operands = functions.session_of(self.session, op), self._operands[case.series]
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
