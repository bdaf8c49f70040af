"""Does a backend keep the contract of `model.backend`? For our tests and for authors of other backends:
`conformance.suite(BACKEND, "mine:0").findings` is empty if every case that the device does not refuse is right,
and everything around it holds.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from gpubench import kernels
from gpubench.backends._host import random_inputs
from gpubench.errors import BackendError, DeviceOutOfMemory
from gpubench.measure import leaks
from gpubench.measure.checking import Material, gate
from gpubench.measure.staging import transfers_of
from gpubench.model.backend import Backend, Buffer, Session
from gpubench.model.case import DTYPES, FORMS, Case
from gpubench.model.op import Array, Dtype, Form, Op

# 1, around a workgroup, no multiple of any tile or vector width.
VECTOR_SIZES = (1, 3, 255, 257, 1000, 1025)
MATRIX_SIZES = (1, 3, 17, 65, 130)
# Above all staging buffers that take turns, with a remainder.
LARGE_BYTES = (64 << 20) + 12
# A launch this long is far above the step of every device clock; shorter ones are mostly launch overhead.
LONG_LAUNCH_S = 5e-5
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
    backend: Backend, device_id: str, ops: Iterable[Op] | None = None, *,
    sizes: Callable[[Op], Sequence[int]] = usual_sizes, seeds: Sequence[int] = (1, 2),
    around: bool = True, exhaust: bool = False, launches: int = 0, openings: int = 0,
) -> Report:  # fmt: skip
    """Open the device, try `ops` (None: all that compute) and, with `around`, transfers, memory and the clock.

    `exhaust` also asks for more memory than there is. After `launches` of each op in each form, and after
    `openings` of the device, nothing may be left behind. Raises BackendUnavailable if it cannot be opened.
    """
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        trial = _Trial(backend.open(device_id), device_id, Path(folder))
        try:
            if around:
                trial.idle()
                trial.transfers()
                trial.ways()
                trial.memory(exhaust)
                trial.device_clock(kernels.load("matmul"))
            if openings:
                trial.openings(backend, openings)
            for op in map(kernels.load, kernels.computed()) if ops is None else ops:
                trial.op(op, sizes(op), seeds)
                if launches:
                    trial.leaves_nothing(op, max(sizes(op)), launches)
        finally:
            for _ in range(2):
                with trial.promise("close is idempotent and never raises"):
                    trial.session.close()
        return trial.report


class _Trial:
    def __init__(self, session: Session, device_id: str, folder: Path) -> None:
        self.session, self.device_id, self.folder = session, device_id, folder
        self.report = Report([], [], {})

    def expect(self, kept: bool, what: str, detail: str, op: str = "") -> None:
        if not kept:
            self.report.findings.append(Finding(what, self.device_id, op, detail))

    @contextlib.contextmanager
    def promise(self, what: str, op: str = "") -> Iterator[None]:
        """Whatever is raised inside breaks the promise."""
        try:
            yield
        except Exception as error:
            self.expect(False, what, f"{type(error).__name__}: {error}", op)

    def case(self, op: Op, n: int, dtype: Dtype, form: Form) -> Case:
        return Case(op.name, op.group, {"n": n}, dtype, form, "resident", self.device_id)

    # Around the ops: nothing enqueued, transfers, memory.

    def idle(self) -> None:
        session = self.session
        with self.promise("empty launches and syncs return, and the host clock is monotonic"):
            session.sync()
            before = session.clock()
            session.run(session.empty_launch(), 3)
            session.sync()
            self.expect(session.clock() >= before, "the host clock is monotonic", str(before))
        for form in FORMS:
            array = session.host_array((3, 5), "float32", form)
            right = array.shape == (3, 5) and array.dtype == "float32" and array.flags["C_CONTIGUOUS"]
            self.expect(right, "host_array is C-contiguous, of the shape and dtype asked for", form)

    def transfers(self) -> None:
        for dtype in ("float32", "float64", "float16"):
            self.round_trip(dtype, (1, 3, 255, 257, 1000, 1025, 70_001))
        self.round_trip("float32", (LARGE_BYTES // 4,))
        self.round_trip("float16", (LARGE_BYTES // 2 + 1,))

    def round_trip(self, dtype: Dtype, counts: Sequence[int]) -> None:
        """All buffers are filled before the first is read: one that overlaps another loses its data."""
        copy = kernels.load("copy")
        hosts = [random_inputs(copy, {"n": count}, dtype, seed=count)[0] for count in counts]
        with self.promise(f"upload and download of {dtype}"):
            buffers = [self.session.allocate(host.shape, dtype) for host in hosts]
            for buffer, host in zip(buffers, hosts, strict=True):
                self.session.upload(buffer, host)
            self.session.sync()
            for buffer, host in zip(buffers, hosts, strict=True):
                same = bool((self.fetch(buffer, host) == host).all())
                self.expect(same, "what comes back is what was sent", f"{host.size} x {dtype}")
                self.session.free(buffer)

    def ways(self) -> None:
        """What a session may offer beside its own calls: a way to move data in each form, memory past the pool."""
        for form in FORMS:
            with self.promise(f"upload and download in the {form} form"):
                for count in (1, 257, 70_001, LARGE_BYTES // 4):
                    self.sent_and_fetched(form, count)
        fresh = getattr(self.session, "allocate_fresh", None)
        if fresh is not None:
            with self.promise("memory past the pool holds what was sent to it"):
                host = random_inputs(kernels.load("copy"), {"n": 70_001}, "float32", seed=1)[0]
                buffer = fresh(host.shape, "float32")
                self.session.upload(buffer, host)
                self.session.sync()
                self.expect(
                    bool((self.fetch(buffer, host) == host).all()), "what comes back is what was sent", "fresh"
                )
                self.session.free_fresh(buffer)  # type: ignore[attr-defined]

    def sent_and_fetched(self, form: Form, count: int) -> None:
        """From the caller's own array and from the session's, which the caller may change once `sync` has returned."""
        way, own = (
            transfers_of(self.session, form),
            random_inputs(kernels.load("copy"), {"n": count}, "float32", seed=count),
        )
        theirs = self.session.host_array((count,), "float32", form)
        theirs[:] = own[0]
        for host, kind in ((own[0], "an ordinary array"), (theirs, "a host array")):
            buffer, landing = self.session.allocate(host.shape, "float32"), host.copy()
            way.upload(buffer, host)
            self.session.sync()
            landing.fill(-7)
            way.download(buffer, landing)
            theirs_too = self.session.host_array((count,), "float32", form)
            theirs_too.fill(-7)
            way.download(buffer, theirs_too)
            same = bool((landing == own[0]).all()) and bool((theirs_too == own[0]).all())
            self.expect(same, "what comes back is what was sent", f"{form}: {count} x float32 from {kind}")
            self.session.free(buffer)

    def fetch(self, buffer: Buffer, like: Array) -> Array:
        landing = like.copy()
        landing.fill(-7)
        self.session.download(buffer, landing)
        return landing

    def memory(self, exhaust: bool) -> None:
        known = self.session.device.usable_bytes
        with self.promise("memory that was freed is used again"):
            for _ in range(REUSES):
                self.session.free(self.session.allocate((known // 32 if known else LARGE_BYTES,), "float32"))
        most = self.session.limits.max_buffer_bytes
        if exhaust and most < _UNLIMITED:
            with self.promise("more than a buffer may hold is refused, or out of memory"):
                copy, shape = kernels.load("copy"), (most // 4 + 64,)
                form = next(f for f in FORMS if self.supported(copy, self.case(copy, 1, "float32", f)))
                if self.session.supports(copy, self.case(copy, shape[0], "float32", form)) is None:
                    with contextlib.suppress(DeviceOutOfMemory):
                        self.session.allocate(shape, "float32")
                        self.expect(
                            False, "more than a buffer may hold is out of memory", f"{shape[0]} x float32"
                        )
            self.round_trip("float32", (1000,))

    # Ops: every form and dtype that is not refused.

    def op(self, op: Op, sizes: Sequence[int], seeds: Sequence[int]) -> None:
        for dtype in DTYPES:
            for n in sizes:
                cases = [c for c in (self.case(op, n, dtype, form) for form in FORMS) if self.supported(op, c)]
                for seed in seeds if cases else ():
                    self.with_material(op, cases[0], seed, partial(self.launches, cases, seed))

    def supported(self, op: Op, case: Case) -> bool:
        with self.promise("supports answers and does not raise", op.name):
            refusal = self.session.supports(op, case)
            if refusal is None:
                self.expect(case.dtype in op.dtypes, "an undeclared dtype is refused", case.id, op.name)
                return case.dtype in op.dtypes
            told = isinstance(refusal, BackendError) and bool(refusal.reason and refusal.detail)
            self.expect(told, "a refusal is a BackendError with a reason and a sentence", case.id, op.name)
            self.report.refused[case.id] = getattr(refusal, "reason", "")
        return False

    def with_material(self, op: Op, case: Case, seed: int, use: Callable[[Material], bool]) -> bool:
        """What `use` makes of the workload's inputs and reference; True if they cannot be prepared."""
        with self.promise(f"a supported case can be prepared: {case.id}", op.name):
            material = Material(self.session, op, case, seed, "random", self.folder)
            used = use(material)
            material.release()
            for file in self.folder.iterdir():
                file.unlink()
            return used
        return True

    def launches(self, cases: Sequence[Case], seed: int, material: Material) -> bool:
        for case in cases:
            self.launch(case, seed, material)
        return True

    def launch(self, case: Case, seed: int, material: Material) -> None:
        """Right over a poisoned output; the same when run again; inputs as they were."""
        where, name = f"{case.id}, seed {seed}", case.op
        with self.promise(f"a supported case is right: {where}", name):
            launch = gate(material, case, lambda phase: None).launch
            self.report.checked.append(case.id)
            first = material.landing.tobytes()
            self.session.run(launch, 2)
            self.session.download(launch.output, material.landing)
            self.expect(material.landing.tobytes() == first, "a launch is idempotent", where, name)
            for buffer, host in zip(material.buffers, material.inputs, strict=True):
                same = self.fetch(buffer, host).tobytes() == host.tobytes()
                self.expect(same, "a launch leaves its inputs alone", where, name)

    # What is left behind.

    def openings(self, backend: Backend, count: int) -> None:
        """Beside the open one: a second context of the same process."""
        with self.promise("a device can be opened and closed again and again"):
            trace = leaks.openings(backend, self.device_id, kernels.load("sum"), self.folder, count)
            self.expect(not trace.leaks(), "openings leave nothing behind", "; ".join(trace.leaks()))

    def leaves_nothing(self, op: Op, n: int, count: int) -> None:
        """In each form; in one dtype."""
        for case in [self.case(op, n, "float32", form) for form in FORMS]:
            if self.supported(op, case):
                with self.promise(f"a supported case can be launched again and again: {case.id}", op.name):
                    trace = leaks.launches(self.session, op, case, self.folder, count)
                    detail = f"{'; '.join(trace.leaks())}: {case.id}"
                    self.expect(not trace.leaks(), "launches leave nothing behind", detail, op.name)

    # The device's clock.

    def device_clock(self, op: Op) -> None:
        """At the first size of the op's ladder whose launch is long enough."""
        for n in op.sizes.sizes():
            case = next(
                (c for c in (self.case(op, n, "float32", f) for f in FORMS) if self.supported(op, c)), None
            )
            if case is None:
                return
            if self.with_material(op, case, 1, partial(self.clocked, case)):
                return

    def clocked(self, case: Case, material: Material) -> bool:
        """True once a longer launch would teach nothing more."""
        session, launch = self.session, gate(material, case, lambda phase: None).launch
        once, cold = session.time(launch), session.time(launch, cold=True)
        if session.device.clock is None:
            self.expect(once is None and cold is None, "without a clock there is no device time", case.id)
            return True
        right = all(seconds is None or seconds > 0 for seconds in (once, cold))
        self.expect(right, "device time is None or above 0", f"{once}, cold {cold}: {case.id}")
        if once is None or once < LONG_LAUNCH_S:
            return not right
        single = median([session.time(launch) or 0.0 for _ in range(5)])
        ten = [session.time(launch, 10) or 0.0 for _ in range(5)]
        wall = [self.wall(lambda: session.run(launch, 10)) for _ in range(5)]
        in_range = 3 * single < median(ten) < 30 * single
        self.expect(in_range, "ten launches take about ten times as long as one", f"{single}, {ten}: {case.id}")
        # The shortest against the longest: on a shared machine any of them may be held up.
        limit = 1.2 * max(wall) + session.device.clock.step_s
        self.expect(min(ten) <= limit, "device time is at most wall time", f"{min(ten)} > {limit}: {case.id}")
        return True

    def wall(self, enqueue: Callable[[], None]) -> float:
        start = self.session.clock()
        enqueue()
        self.session.sync()
        return self.session.clock() - start
