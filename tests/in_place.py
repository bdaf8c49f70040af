"""A case whose data stays in host memory, checked and timed as the worker does it."""

from gpubench import kernels
from gpubench.measure.worker.timer import Timer
from gpubench.measure.worker.workspace import gate, kind_of
from gpubench.result.case import IN_PLACE, Case


def timer_in_place(session, memory, name, params, implementation, folder):
    """The timer of a case that has passed the gate; the caller releases its workspace."""
    op = kernels.load(name)
    case = Case(op.name, op.group, params, "float32", implementation, f"{IN_PLACE}-{memory}", session.device.id)
    within = session.in_place(memory)
    assert within.supports(op, case) is None
    workspace = kind_of(op)(within, op, case, 1, "random", folder)
    return Timer(workspace, case, gate(workspace, case, lambda phase: None).launch)


def verify_in_place(*arguments):
    """Time the case and check what its path delivers; memory goes back."""
    timer = timer_in_place(*arguments)
    assert timer.seconds(3) > 0
    timer.verify()
    timer.workspace.release()
    timer.session.close()
