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
from gpubench.measure.worker.operands import Operands, weights_of
from gpubench.measure.worker.shared import ChangedInput, SharedInputs, shared_bytes
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import Workspace
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


class Kept:
    """The workspaces of an open device by workload, the last used last, and the inputs that they share. `release` lets
    go of one with all that is built on it. Those of the step that is under way stay."""

    def __init__(self, session: Session, opening: protocol.Open, release: Callable[[str], None]) -> None:
        self.session, self.opening = session, opening
        device = session.device
        self._drawn = opening.seed, opening.inputs
        self._scratch = Path(opening.scratch)
        self._weights = weights_of(session, *self._drawn)
        self.shared = SharedInputs(*self._drawn, shared_bytes(device))
        self._operands: dict[SeriesKey, Operands] = {}
        self._most_bytes, self._release = kept_bytes(device, opening.host_bytes), release
        self._workspaces: dict[str, Workspace] = {}
        self._bytes: dict[str, int] = {}
        self._in_use: set[str] = set()
        self._finished = True

    @property
    def workloads(self) -> list[str]:
        """All of them."""
        return list(self._workspaces)

    def begin(self) -> None:
        """A step may begin: what the last one used is idle, if that was finished."""
        if self._finished:
            self._in_use, self._finished = set(), False
            if not self._most_bytes:
                self.make_room(0)

    def end(self) -> None:
        """The step under way is being finished."""
        self._finished = True

    def workspace(self, op: Op, case: Case, announce: Callable[[str], None]) -> Workspace:
        """The workspace of the case's workload, from now on in use."""
        workspace = self._workspaces.pop(case.workload, None)
        if workspace is None:
            announce("inputs")
            workspace = self._make(op, case)
        self._workspaces[case.workload] = workspace
        self._in_use.add(case.workload)
        return workspace

    def make_room(self, most_bytes: int) -> bool:
        """Release idle workspaces, those first that were used longest ago, until all others fit; False: there was none
        to release."""
        idle = [workload for workload in self._workspaces if workload not in self._in_use]
        for workload in idle:
            if sum(self._bytes[name] for name in self._workspaces) <= most_bytes:
                break
            self._release(workload)
        return bool(idle)

    def drop(self, workload: str) -> None:
        """Release the buffers of a workspace, if there is one."""
        workspace = self._workspaces.pop(workload, None)
        if workspace is not None:
            del self._bytes[workload]
            workspace.release()

    def _make(self, op: Op, case: Case) -> Workspace:
        """A workspace, once there is room for it. Those of other ops let go of what they hold on the host."""
        for workload, other in self._workspaces.items():
            if workload not in self._in_use and other.case.series != case.series:
                other.rest()
        size = needs(op, case.params, case.dtype)[1]
        self.make_room(self._most_bytes - size)
        operands_of, workspace_of = functions.kinds_of(op)
        if case.series not in self._operands:
            # An op of another package may do what it likes to its inputs.
            shared = self.shared if op.name in kernels.names() else None
            self._operands[case.series] = operands_of(op, *self._drawn, self._scratch, self._weights, shared)
        session, operands = functions.session_of(self.session, op), self._operands[case.series]
        workspace = workspace_of(session, op, case, *self._drawn, self._scratch, operands)
        self._bytes[case.workload] = size
        return workspace


class Suspects:
    """The cases that were sampled since their shared inputs were compared last, and those that changed one."""

    def __init__(self) -> None:
        self._sampled: dict[str, Timer] = {}
        self._guilty: set[str] = set()

    def add(self, timed: object, case_id: str) -> None:
        """Note that a case is about to be sampled."""
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
