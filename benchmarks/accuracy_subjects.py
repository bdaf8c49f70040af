"""The kernels that `benchmarks/accuracy.py` measures, on arrays that all tools share, and gpubench's own
readings."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from benchmarks.accuracy_record import Clock, Reading
from gpubench import kernels
from gpubench.backends.contract import Buffer, Launch, Session
from gpubench.backends.cupy.launches import CudaLaunch
from gpubench.measure import protocol
from gpubench.measure.worker import timer
from gpubench.measure.worker.workspace import Workspace
from gpubench.result.case import Case
from gpubench.result.run import Device

SIZES = {
    "add": tuple(1 << power for power in range(12, 29, 2)),
    "matmul": (64, 128, 256, 512, 1024, 2048, 4096, 8192),
}
# A reading is the median of this many blocks, each with two samples on the device clock.
BLOCKS = 3
BLOCK = protocol.Sample(
    id=0, case_id="", session=0, round=0, position=0, samples=2, warmup_s=0.02 / BLOCKS, limit_s=2.0
)
SINGLES = 5


class OnDevice(Workspace):
    """A workspace with inputs from the device itself: nothing is copied, and no float64 reference is computed."""

    def __init__(self, session: Session, case: Case, buffers: list[Buffer]) -> None:
        self.session, self.case, self.buffers = session, case, buffers
        self.op = kernels.load(case.op)
        self.outputs: dict[str, Buffer] = {}


class Subject(NamedTuple):
    """One kernel of one library."""

    op: str  # name of the op
    n: int  # size of the op
    library: str  # library that made the kernel
    call: Callable[[], Any]  # enqueues a launch
    cycle: timer.Timer  # samples it as gpubench does


def case_of(op: str, n: int, device: Device) -> Case:
    """Return the plain case of the library implementation, as gpubench would measure it."""
    declared = kernels.load(op)
    return Case(op, declared.group, {"n": n}, "float32", "library", device.resident_regime, device.id)


SAMPLE_S = 0.005


def calibrate(session: Session, case: Case, buffers: list[Buffer], launch: Launch) -> timer.Timer:
    """Return a timer for the case, with the repeat counts that a worker would choose."""
    cycle = timer.Timer(OnDevice(session, case, buffers), case, launch)
    step_s, cost_s = timer.clock_facts(session.clock)
    overhead_s = statistics.median(timer.measure_overhead(session))
    cycle.repeat = timer.calibrate(cycle, timer.sample_target_s(SAMPLE_S, overhead_s, step_s, cost_s))
    cycle.hot_repeat = timer.calibrate_hot(cycle)
    timer.keep_queue(cycle)
    return cycle


def inputs_of(session: Session, op: str, n: int) -> list[Buffer]:
    """Return inputs of the op on the device, drawn from [-1, 1) as in a run of gpubench."""
    import cupy

    case, draw = case_of(op, n, session.device), cupy.random.default_rng(n)
    return [
        2 * draw.random(operand.shape(case.params), dtype=cupy.float32) - 1
        for operand in kernels.load(op).inputs
    ]


def library_launch(session: Session, op: str, n: int, buffers: list[Buffer]) -> CudaLaunch:
    """Return the launch of the plain CuPy expression on these buffers, after one run."""
    launch = cast(
        "CudaLaunch", session.compile(kernels.load(op), case_of(op, n, session.device), buffers, None)
    )
    launch()
    session.sync()
    return launch


def cupy_subject(session: Session, op: str, n: int) -> Subject:
    """Return the library implementation of the op on CuPy arrays."""
    buffers = inputs_of(session, op, n)
    launch = library_launch(session, op, n, buffers)
    return Subject(op, n, "cupy", launch, calibrate(session, case_of(op, n, session.device), buffers, launch))


def torch_subject(session: Session, other: Subject) -> Subject:
    """Return the PyTorch op on the arrays of `other`, launched on the stream that the CuPy session times."""
    import torch

    case, buffers = other.cycle.case, other.cycle.workspace.buffers
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.from_dlpack(buffer) for buffer in buffers)
    out = torch.empty_like(a)
    call = partial(torch.add if other.op == "add" else torch.mm, a, b, out=out)
    launch = CudaLaunch(call, None)
    launch()
    session.sync()
    same(other, out)
    return Subject(other.op, other.n, "torch", call, calibrate(session, case, buffers, launch))


def same(other: Subject, out: Any) -> None:
    """Raise ValueError if the two libraries computed different results."""
    import cupy

    want, got = other.cycle.launch.output, cupy.from_dlpack(out)
    worst, scale = float(abs(want - got).max()), float(abs(want).max())
    if not worst <= 1e-4 * scale:
        raise ValueError(f"{other.op} {other.n}: cupy and torch differ by {worst:.3g} of {scale:.3g}")


def reading(subject: Subject) -> Reading:
    """Return the median seconds per launch on each clock (hot, cold, wall and single), sampled as gpubench
    does. Clocks without a sample are left out."""
    cycle = subject.cycle
    blocks = [
        timer.sample_block(cycle, msgspec.structs.replace(BLOCK, round=number), since=0.0).block
        for number in range(BLOCKS)
    ]
    singles = [timer.device_seconds(cycle.session, cycle.launch, 1) for _ in range(SINGLES)]
    seconds: dict[Clock, list[float]] = {
        "hot": [x for block in blocks for x in block.device_hot_s or ()],
        "cold": [x for block in blocks for x in block.device_cold_s or ()],
        "wall": [x for block in blocks for x in block.wall_s[block.warmup :]],
        "single": [x for x in singles if x is not None],
    }
    return {clock: statistics.median(values) for clock, values in seconds.items() if values}


def floors(session: Session) -> dict[str, float]:
    """Return the device seconds of launches without work. The measured time of a kernel includes such a part."""
    empty = cast("CudaLaunch", session.empty_launch())
    nothing = CudaLaunch(lambda: None, None)

    def of(launch: Launch, repeat: int = 1, *, cold: bool = False) -> float:
        values = [timer.device_seconds(session, launch, repeat, cold=cold) for _ in range(31)]
        return statistics.median(x for x in values if x is not None) / repeat

    readings = {"nothing": of(nothing), "nothing, cold": of(nothing, cold=True)}
    readings |= {"empty": of(empty), "empty, cold": of(empty, cold=True)}
    return readings | {
        f"empty x {repeat}": of(empty, repeat) for repeat in (2, 16, 256, 512, 768, 1024, 1536, 2048)
    }
