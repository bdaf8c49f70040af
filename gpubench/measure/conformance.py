"""Does a backend keep the contract of `model.backend`? For our tests and for authors of other backends.

    from gpubench.measure import conformance
    for finding in conformance.suite(BACKEND, "mine:0").findings:
        print(finding)

No finding means: every case that the device does not refuse is right, and everything around it holds.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from gpubench import kernels
from gpubench.backends._host import random_inputs
from gpubench.errors import BackendError, DeviceOutOfMemory
from gpubench.measure.checking import Material, gate
from gpubench.model.backend import Backend, Buffer, Session
from gpubench.model.case import DTYPES, FORMS, Case
from gpubench.model.op import Array, Dtype, Form, Op

# 1, below and above a workgroup, no multiple of any tile or vector width.
VECTOR_SIZES = (1, 3, 255, 257, 1000, 1025)
MATRIX_SIZES = (1, 3, 17, 65, 130)
# Bytes of a round trip: not a multiple of 4 (WebGPU's unit), and just above two chunks of 32 MiB.
LARGE_BYTES = (64 << 20) + 12
# A launch this long is far above the step of every device clock; shorter ones are mostly launch overhead.
LONG_LAUNCH_S = 2e-4
REUSES = 12
# No device has this much memory: such a limit means "none".
_UNLIMITED = 1 << 60


class Finding(msgspec.Struct, frozen=True):
    """One broken promise: `what` was promised, and in `detail` what happened instead."""

    what: str
    device: str
    op: str
    detail: str


class Report(msgspec.Struct, frozen=True):
    """The findings, the ids of the cases that were checked, and the reasons of those that were refused."""

    findings: list[Finding]
    checked: list[str]
    refused: dict[str, str]


def usual_sizes(op: Op) -> Sequence[int]:
    """Small and awkward."""
    return MATRIX_SIZES if op.group == "matrix" else VECTOR_SIZES


def suite(
    backend: Backend,
    device_id: str,
    ops: Iterable[Op] | None = None,
    *,
    sizes: Callable[[Op], Sequence[int]] = usual_sizes,
    seeds: Sequence[int] = (1, 2),
    exhaust: bool = False,
    clock: bool = True,
) -> Report:
    """Open the device and try everything. Raises BackendUnavailable if it cannot be opened.

    `exhaust` asks for more memory than the device has; `clock` compares its clock with the wall's.
    """
    chosen = [kernels.load(name) for name in kernels.names()] if ops is None else list(ops)
    session = backend.open(device_id)
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        trial = _Trial(session, device_id, Path(folder))
        try:
            trial.idle()
            trial.transfers()
            trial.memory(exhaust=exhaust)
            for op in chosen:
                trial.op(op, sizes(op), seeds)
            if clock:
                trial.device_clock(kernels.load("matmul"))
        finally:
            for _ in range(2):
                with trial.promise("close is idempotent and never raises"):
                    session.close()
        return Report(trial.findings, trial.checked, trial.refused)


class _Trial:
    def __init__(self, session: Session, device_id: str, folder: Path) -> None:
        self.session = session
        self.device_id = device_id
        self.folder = folder
        self.findings: list[Finding] = []
        self.checked: list[str] = []
        self.refused: dict[str, str] = {}

    def expect(self, kept: bool, what: str, detail: str = "", op: str = "") -> None:
        if not kept:
            self.findings.append(Finding(what, self.device_id, op, detail))

    @contextlib.contextmanager
    def promise(self, what: str, op: str = "") -> Iterator[None]:
        """Whatever is raised inside breaks the promise."""
        try:
            yield
        except Exception as error:
            self.expect(False, what, f"{type(error).__name__}: {error}", op)

    # ------------------------------------------------------------- around the ops

    def idle(self) -> None:
        session = self.session
        with self.promise("sync returns when nothing was enqueued"):
            session.sync()
            session.sync()
        with self.promise("an empty launch runs"):
            before = session.clock()
            session.run(session.empty_launch(), 3)
            session.sync()
            self.expect(session.clock() >= before, "the host clock is monotonic")
        self.expect(isinstance(session.throttled(), bool), "throttled says yes or no")
        for form in FORMS:
            array = session.host_array((3, 5), "float32", form)
            right = array.shape == (3, 5) and array.dtype == "float32" and array.flags["C_CONTIGUOUS"]
            self.expect(right, "host_array is C-contiguous, of the shape and dtype asked for", form)

    def transfers(self) -> None:
        for dtype in ("float32", "float64", "float16"):
            with self.promise(f"upload and download of {dtype}"):
                self.round_trip(dtype, (1, 3, 255, 257, 1000, 1025, 70_001))
        with self.promise("upload and download of more than one staging buffer"):
            self.round_trip("float32", (LARGE_BYTES // 4,))
            self.round_trip("float16", (LARGE_BYTES // 2 + 1,))

    def round_trip(self, dtype: Dtype, counts: Sequence[int]) -> None:
        """All buffers are filled before the first is read: one that overlaps another loses its data."""
        hosts = [self.values(dtype, count) for count in counts]
        buffers = [self.session.allocate(host.shape, dtype) for host in hosts]
        for buffer, host in zip(buffers, hosts, strict=True):
            self.session.upload(buffer, host)
        self.session.sync()
        for buffer, host in zip(buffers, hosts, strict=True):
            same = (self.fetch(buffer, host) == host).all()
            self.expect(bool(same), "what comes back is what was sent", f"{host.size} x {dtype}")
            self.session.free(buffer)

    def values(self, dtype: Dtype, count: int) -> Array:
        return random_inputs(kernels.load("copy"), {"n": count}, dtype, seed=count)[0]

    def fetch(self, buffer: Buffer, like: Array) -> Array:
        landing = like.copy()
        landing.fill(-7)
        self.session.download(buffer, landing)
        return landing

    def memory(self, *, exhaust: bool) -> None:
        known = self.session.device.usable_bytes
        count = (known // 8 if known else LARGE_BYTES) // 4
        with self.promise("memory that was freed is used again"):
            for _ in range(REUSES):
                self.session.free(self.session.allocate((count,), "float32"))
        most = self.session.limits.max_buffer_bytes
        if not exhaust or most >= _UNLIMITED:
            return
        copy, params = kernels.load("copy"), {"n": most // 4 + 64}
        with self.promise("more than a buffer may hold is refused, or out of memory"):
            refusal = self.session.supports(copy, self.case(copy, params["n"], "float32", FORMS[-1]))
            if refusal is None:
                with contextlib.suppress(DeviceOutOfMemory):
                    self.session.allocate((params["n"],), "float32")
                    self.expect(False, "more than a buffer may hold is refused", f"{params['n']} x float32")
        with self.promise("the session is usable after that"):
            self.round_trip("float32", (1000,))

    # ------------------------------------------------------------- ops

    def case(self, op: Op, n: int, dtype: Dtype, form: Form) -> Case:
        return Case(op.name, op.group, {"n": n}, dtype, form, "resident", self.device_id)

    def op(self, op: Op, sizes: Sequence[int], seeds: Sequence[int]) -> None:
        for dtype in DTYPES:
            for n in sizes:
                forms = [form for form in FORMS if self.supported(op, self.case(op, n, dtype, form))]
                for seed in seeds if forms else ():
                    with self.material(op, self.case(op, n, dtype, forms[0]), seed) as material:
                        for form in forms:
                            self.launch(material, self.case(op, n, dtype, form), seed)

    def supported(self, op: Op, case: Case) -> bool:
        with self.promise("supports answers and does not raise", op.name):
            refusal = self.session.supports(op, case)
            if refusal is None:
                self.expect(case.dtype in op.dtypes, "a dtype that the op does not declare is refused", case.id)
                return case.dtype in op.dtypes
            told = isinstance(refusal, BackendError) and bool(refusal.reason and refusal.detail)
            self.expect(told, "a refusal is a BackendError with a reason and a sentence", case.id, op.name)
            self.refused[case.id] = getattr(refusal, "reason", "")
        return False

    @contextlib.contextmanager
    def material(self, op: Op, case: Case, seed: int) -> Iterator[Material]:
        """Inputs and reference of one workload, given back at the end."""
        with self.promise("a supported case can be prepared", op.name):
            material = Material(self.session, op, case, seed, "random", self.folder)
            try:
                yield material
            finally:
                material.release()
                for file in self.folder.iterdir():
                    file.unlink()

    def launch(self, material: Material, case: Case, seed: int) -> None:
        """Right over a poisoned output; the same when run again; inputs as they were."""
        name, where = case.op, f"{case.id}, seed {seed}"
        with self.promise(f"a supported case is right: {where}", name):
            launch = gate(material, case, lambda phase: None).launch
            self.checked.append(case.id)
            first = material.landing.tobytes()
            self.session.run(launch, 2)
            self.session.download(launch.output, material.landing)
            self.expect(material.landing.tobytes() == first, "a launch is idempotent", where, name)
            for buffer, host in zip(material.buffers, material.inputs, strict=True):
                same = self.fetch(buffer, host).tobytes() == host.tobytes()
                self.expect(same, "a launch leaves its inputs alone", where, name)

    # ------------------------------------------------------------- the device's clock

    def device_clock(self, op: Op) -> None:
        """On the first size of the op's ladder whose launch is long enough; nothing without a clock."""
        for n in op.sizes.sizes():
            forms: list[Form] = [f for f in FORMS if self.supported(op, self.case(op, n, "float32", f))]
            if not forms:
                return
            case = self.case(op, n, "float32", forms[0])
            with self.material(op, case, seed=1) as material:
                long_enough = self.clocked(material, case)
            if long_enough:
                return

    def clocked(self, material: Material, case: Case) -> bool:
        """True once there is nothing more to learn from a longer launch."""
        session, launch = self.session, gate(material, case, lambda phase: None).launch
        once, cold = session.time(launch), session.time(launch, cold=True)
        if session.device.clock is None:
            self.expect(once is None and cold is None, "without a clock there is no device time", case.id)
            return True
        for seconds in (once, cold):
            self.expect(
                seconds is None or seconds > 0, "device time is None or above 0", f"{seconds} {case.id}"
            )
        if once is None or once < LONG_LAUNCH_S:
            return False
        single = median([session.time(launch) or 0.0 for _ in range(5)])
        ten = [session.time(launch, 10) or 0.0 for _ in range(5)]
        wall = [self.wall(lambda: session.run(launch, 10)) for _ in range(5)]
        ratio = median(ten) / single if single else 0.0
        self.expect(
            3 < ratio < 30, "ten launches take about ten times as long as one", f"{ratio:.1f} {case.id}"
        )
        # Not one sample against another: on a shared machine either may be held up.
        limit = 1.2 * max(wall) + session.device.clock.step_s
        self.expect(min(ten) <= limit, "device time is at most wall time", f"{min(ten)} > {limit} {case.id}")
        return True

    def wall(self, enqueue: Callable[[], None]) -> float:
        start = self.session.clock()
        enqueue()
        self.session.sync()
        return self.session.clock() - start
