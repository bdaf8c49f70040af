"""Check that a backend keeps the contract of `gpubench.backends.contract`, for our tests and for authors of
backends.

`suite(BACKEND, "mine:0").findings` is empty if every case that the device accepts gives the right result, and
if transfers, memory and clocks do what the contract promises. `python -m gpubench.measure.conformance NAME`
checks an op or a backend.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec

from gpubench import backends, kernels
from gpubench.backends import contract
from gpubench.backends.contract import Backend, Buffer, Launch, Session, Transfers, protocols
from gpubench.backends.contract.protocols import FreshMemory, SharesBuffers
from gpubench.backends.shared.host import random_inputs, repeat_values
from gpubench.base.errors import (
    BackendError,
    BackendUnavailable,
    DeviceOutOfMemory,
    GpubenchError,
    RequiredUnavailable,
    require_choice,
    suggest,
)
from gpubench.base.messages import Reason
from gpubench.kernels.contract.op import Array, Dtype, Implementation, Op
from gpubench.measure.worker.timer import device_seconds, wall_s
from gpubench.measure.worker.workspace import Workspace, gate, kind_of, refusal
from gpubench.result.case import DTYPES, IMPLEMENTATIONS, Case

# Size 1, sizes around that of a workgroup, and sizes that are no multiple of any tile or vector width.
VECTOR_SIZES = (1, 3, 255, 257, 1000, 1025)
MATRIX_SIZES = (1, 3, 17, 65, 130)
# More than all staging buffers hold together, and no multiple of their size.
LARGE_BYTES = (64 << 20) + 12
# The values of a transfer repeat after this prime number, since drawing all of them would take too long.
PERIOD = 70_001
# A launch this long is far above the step of every device clock; shorter ones are mostly launch overhead.
LONG_LAUNCH_S = 5e-5
# A case of the author's check takes a few seconds at most, even in a library without fast code for it.
MOST_FLOPS = 1e9
REUSES = 12
# No device has this much memory: such a limit means "none".
_UNLIMITED = 1 << 60


# The seed of the inputs, and how they are drawn (`shared.host.random_inputs`).
Inputs = tuple[int, str]


class Finding(msgspec.Struct, frozen=True):
    """One promise that a check found broken."""

    what: str  # the promise of the contract
    device: str  # the id of the device
    op: str  # the name of the op; empty if the finding is not about an op
    detail: str  # the behaviour that breaks the promise


class Report(msgspec.Struct, frozen=True):
    """The result of a suite."""

    findings: list[Finding]  # the broken promises
    checked: list[str]  # ids of the cases that were checked
    refused: dict[str, str]  # why a case, device or backend was refused, by its id

    def add(self, other: Report) -> None:
        """Add everything that the report `other`, of another device, has."""
        self.findings.extend(other.findings)
        self.checked.extend(other.checked)
        self.refused.update(other.refused)


def usual_sizes(op: Op) -> Sequence[int]:
    """Return the sizes at which `suite` tries the op. They are small, and some are no multiple of a tile."""
    return MATRIX_SIZES if op.group == "matrix" else VECTOR_SIZES


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the suite."""

    sizes: Callable[[Op], Sequence[int]] = usual_sizes  # returns the sizes at which an op is tried
    seeds: Sequence[int] = (1, 2)  # the seeds of the inputs
    kinds: Sequence[str] = ("random",)  # kinds of random inputs (`shared.host.random_inputs`)
    around: bool = True  # whether transfers, memory and the clock are tried, too
    exhaust: bool = False  # whether more memory than the device has is requested, too


def suite(
    backend: Backend, device_id: str, ops: Iterable[Op] | None = None, checks: Checks | None = None
) -> Report:
    """Open the device, run the checks on it and return a report. Without `ops`, the checks use those of a plain
    run. Raises BackendUnavailable if the device cannot be opened."""
    checks = checks or Checks()
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        trial = _Trial(backend.open(device_id, autotune=True), device_id, Path(folder))
        try:
            trial.contract(backend, Backend)
            trial.contract(trial.session, Session)
            trial.is_a(Launch, trial.session.empty_launch())
            for implementation in IMPLEMENTATIONS:
                trial.is_a(Transfers, trial.session.transfers(implementation))
            if checks.around:
                trial.idle()
                trial.transfers()
                trial.ways()
                trial.parts()
                trial.memory(checks.exhaust)
                trial.device_clock(kernels.load("matmul"))
            for op in map(kernels.load, kernels.usual()) if ops is None else ops:
                op = op.with_kernels(backend.name, backend.kernels.get(op.name, ()))
                sizes = checks.sizes(op)
                trial.op(op, sizes, [(seed, kind) for kind in checks.kinds for seed in checks.seeds])
        finally:
            for _ in range(2):
                with trial.promise("close is idempotent and never raises"):
                    trial.session.close()
        return trial.report


def _draw(count: int, dtype: Dtype = "float32") -> Array:
    """Return `count` values to transfer: PERIOD random ones, repeated."""
    period = random_inputs(kernels.load("copy"), {"n": min(count, PERIOD)}, dtype, seed=count)[0]
    return repeat_values(period, count)


class _Trial:
    def __init__(self, session: Session, device_id: str, folder: Path) -> None:
        self.session, self.device_id, self.folder = session, device_id, folder
        self.report = Report([], [], {})

    def expect(self, holds: bool, what: str, detail: str, op: str = "") -> None:
        if not holds:
            self.report.findings.append(Finding(what, self.device_id, op, detail))

    @contextlib.contextmanager
    def promise(self, what: str, op: str = "") -> Iterator[None]:
        """If the `with` block raises an error, suppress it and record the promise `what` as broken."""
        try:
            yield
        except Exception as error:
            self.expect(False, what, f"{type(error).__name__}: {error}", op)

    def cases(self, op: Op, n: int, dtype: Dtype) -> Iterator[Case]:
        """Yield the cases that the device supports, at most one for each implementation."""
        for implementation in IMPLEMENTATIONS:
            regime = self.session.device.resident_regime
            case = Case(op.name, op.group, {"n": n}, dtype, implementation, regime, self.device_id)
            if self.supports(op, case):
                yield case

    # Names: a misspelt method would never be called.

    def is_a(self, base: type, thing: object) -> None:
        self.expect(
            isinstance(thing, base),
            f"a {base.__name__} derives from {base.__module__}.{base.__name__}",
            type(thing).__name__,
        )

    def contract(self, thing: object, base: type) -> None:
        """Check that `thing` is an instance of `base` without public methods outside the contract."""
        self.is_a(base, thing)
        names = sorted(
            {
                name
                for part in (vars(contract) | vars(protocols)).values()
                if isinstance(part, type)
                for name in dir(part)
            }
        )
        for name, value in inspect.getmembers_static(type(thing)):
            if callable(value) and not name.startswith("_") and name not in names:
                near = suggest(name, names) or "a method of its own begins with an underscore"
                self.expect(
                    False, f"a {base.__name__} has the methods of the contract alone", f"{name}: {near}"
                )

    # Around the ops: nothing enqueued, transfers, memory.

    def idle(self) -> None:
        session = self.session
        with self.promise("empty launches and syncs return, and the host clock is monotonic"):
            session.sync()
            before = session.clock()
            session.run(session.empty_launch(), 3)
            session.sync()
            self.expect(session.clock() >= before, "the host clock is monotonic", str(before))
        for implementation in IMPLEMENTATIONS:
            array = session.host_array((3, 5), "float32", implementation)
            right = array.shape == (3, 5) and array.dtype == "float32" and array.flags["C_CONTIGUOUS"]
            self.expect(right, "host_array is C-contiguous, of the shape and dtype asked for", implementation)

    def transfers(self) -> None:
        for dtype in ("float32", "float64", "float16"):
            self.round_trip(dtype, (1, 3, 255, 257, 1000, 1025, 70_001))
        self.round_trip("float32", (LARGE_BYTES // 4,))
        self.round_trip("float16", (LARGE_BYTES // 2 + 1,))

    def round_trip(self, dtype: Dtype, counts: Sequence[int]) -> None:
        """Upload one array for each of these numbers of elements to a new buffer, then check all buffers."""
        hosts = [_draw(count, dtype) for count in counts]
        with self.promise(f"upload and download of {dtype}"):
            buffers = [self.session.allocate(host.shape, dtype) for host in hosts]
            for buffer, host in zip(buffers, hosts, strict=True):
                self.session.upload(buffer, host)
            self.session.sync()  # if two buffers overlap, one of them has lost its data by now
            for buffer, host in zip(buffers, hosts, strict=True):
                self.comes_back(self.session, buffer, host, f"{host.size} x {dtype}")
                self.session.free(buffer)

    def ways(self) -> None:
        """Check transfers in each implementation, and memory outside the session's pool."""
        for implementation in IMPLEMENTATIONS:
            with self.promise(f"upload and download in the {implementation} implementation"):
                for count in (1, 257, 70_001, LARGE_BYTES // 4):
                    self.sent_and_fetched(implementation, count)
        session, host = self.session, _draw(70_001)
        with self.promise("memory past the pool holds what was sent to it"):
            if isinstance(session, FreshMemory):
                buffer = session.allocate_fresh(host.shape, "float32")
                session.upload(buffer, host)
                session.sync()
                self.comes_back(session, buffer, host, "fresh")
                session.free_fresh(buffer)

    def parts(self) -> None:
        """Check that the beginning of a buffer works as a buffer, as ops that share an input need."""
        session, host = self.session, _draw(70_001)
        if not isinstance(session, SharesBuffers):
            return
        with self.promise("a part of a buffer is its beginning"):
            buffer, part = session.allocate(host.shape, "float32"), host[:6000].reshape(60, 100)
            session.upload(buffer, host)
            session.sync()
            self.comes_back(session, session.beginning(buffer, part.shape), part, "60 x 100 of 70,001")
            session.free(buffer)

    def sent_and_fetched(self, implementation: Implementation, count: int) -> None:
        """Check transfers from and to the caller's own array and the session's host array."""
        way, own = self.session.transfers(implementation), _draw(count)
        pinned, landing = (self.session.host_array((count,), "float32", implementation) for _ in range(2))
        pinned[:] = own
        for host, kind in ((own, "an ordinary array"), (pinned, "a host array")):
            buffer = self.session.allocate(host.shape, "float32")
            detail = f"{implementation}: {count} from {kind}"
            way.upload(buffer, host)
            self.session.sync()
            for output in (own.copy(), landing):
                self.comes_back(way, buffer, own, detail, output)
            self.session.free(buffer)

    def comes_back(
        self, way: Session | Transfers, buffer: Buffer, host: Array, detail: str, output: Array = None, *,
        promise: str = "what comes back is what was sent",
    ) -> None:  # fmt: skip
        """Check that `way` downloads the values of `host` from the buffer, by default into a new array."""
        output = host.copy() if output is None else output
        output.fill(-7)
        way.download(buffer, output)
        self.expect(output.tobytes() == host.tobytes(), promise, detail)

    def memory(self, exhaust: bool) -> None:
        usable = self.session.device.usable_bytes
        with self.promise("memory that was freed is used again"):
            for _ in range(REUSES):
                self.session.free(self.session.allocate((usable // 32 if usable else LARGE_BYTES,), "float32"))
        most = self.session.limits.max_buffer_bytes
        if exhaust and most < _UNLIMITED:
            with self.promise("more than a buffer may hold is refused, or out of memory"):
                copy, shape = kernels.load("copy"), (most // 4 + 64,)
                case = msgspec.structs.replace(next(self.cases(copy, 1, "float32")), params={"n": shape[0]})
                if self.session.supports(copy, case) is None:
                    with contextlib.suppress(DeviceOutOfMemory):
                        self.session.allocate(shape, "float32")
                        self.expect(
                            False, "more than a buffer may hold is out of memory", f"{shape[0]} x float32"
                        )
            self.round_trip("float32", (1000,))

    # Ops: every implementation and dtype that is not refused.

    def op(self, op: Op, sizes: Sequence[int], inputs: Sequence[Inputs]) -> None:
        for dtype in DTYPES:
            for n in sizes:
                cases = list(self.cases(op, n, dtype))
                for drawn in inputs if cases else ():
                    self.with_workspace(op, cases[0], drawn, partial(self.launches, cases, drawn))

    def supports(self, op: Op, case: Case) -> bool:
        with self.promise("supports answers and does not raise", op.name):
            refused = refusal(self.session, op, case)
            if refused is None:
                self.expect(case.dtype in op.dtypes, "an undeclared dtype is refused", case.id, op.name)
                return case.dtype in op.dtypes
            sound = (
                isinstance(refused, BackendError)
                and refused.reason in get_args(Reason)
                and bool(refused.detail)
            )
            promise = "a refusal is a BackendError with a reason of the list of messages and a sentence"
            self.expect(sound, promise, case.id, op.name)
            self.report.refused[case.id] = refused.reason if sound else ""
        return False

    def with_workspace(self, op: Op, case: Case, drawn: Inputs, use: Callable[[Workspace], bool]) -> bool:
        """Return `use(workspace)` for a workspace of the case, or True after an error, which is recorded."""
        with self.promise(f"a supported case can be prepared: {case.id}", op.name):
            workspace = kind_of(op)(self.session, op, case, *drawn, self.folder)
            used = use(workspace)
            workspace.release()
            for file in self.folder.iterdir():
                file.unlink()
            return used
        return True

    def launches(self, cases: Sequence[Case], drawn: Inputs, workspace: Workspace) -> bool:
        for case in cases:
            self.launch(case, drawn, workspace)
        return True

    def launch(self, case: Case, drawn: Inputs, workspace: Workspace) -> None:
        """Check that the output is right, that two more runs repeat it, and that the inputs are unchanged."""
        where, name = f"{case.id}, {drawn[1]} inputs, seed {drawn[0]}", case.op
        with self.promise(f"a supported case is right: {where}", name):
            launch = gate(workspace, case, lambda phase: None).launch
            self.report.checked.append(case.id)
            workspace.fetch(launch.output, self.session)
            first = [array.tobytes() for array in workspace.host_outputs]
            self.session.run(launch, 2)
            workspace.fetch(launch.output, self.session)
            again = [array.tobytes() for array in workspace.host_outputs]
            self.expect(again == first, "a launch is idempotent", where, name)
            for buffer, host in zip(workspace.buffers, workspace.inputs, strict=True):
                self.comes_back(self.session, buffer, host, where, promise="a launch leaves its inputs alone")

    # The device's clock.

    def device_clock(self, op: Op) -> None:
        """Check the clock at the first size of the op's ladder whose launch is long enough."""
        for n in op.sizes.sizes():
            case = next(self.cases(op, n, "float32"), None)
            if case is None:
                return
            if self.with_workspace(op, case, (1, "random"), partial(self.check_clock, case)):
                return

    def check_clock(self, case: Case, workspace: Workspace) -> bool:
        """Check the device's clock by one case, and return False if a longer case has to be tried."""
        session, launch = self.session, gate(workspace, case, lambda phase: None).launch
        once, cold = device_seconds(session, launch, 1), device_seconds(session, launch, 1, cold=True)
        if session.device.clock is None:
            self.expect(once is None and cold is None, "without a clock there is no device time", case.id)
            return True
        right = all(seconds is None or seconds > 0 for seconds in (once, cold))
        self.expect(right, "device time is None or above 0", f"{once}, cold {cold}: {case.id}")
        if once is None or once < LONG_LAUNCH_S:
            return not right
        # In turns, and the shortest of each: on a busy machine five in a row may all be disturbed.
        turns = [tuple(device_seconds(session, launch, count) or 0.0 for count in (1, 10)) for _ in range(5)]
        single, ten = min(first for first, _ in turns), [ten for _, ten in turns]
        wall = [wall_s(session, launch, 10) for _ in range(5)]
        in_range = 3 * single < min(ten) < 30 * single
        self.expect(in_range, "ten launches take about ten times as long as one", f"{single}, {ten}: {case.id}")
        # The shortest against the longest: on a shared machine any of them may be held up.
        limit = 1.2 * max(wall) + session.device.clock.step_s
        self.expect(min(ten) <= limit, "device time is at most wall time", f"{min(ten)} > {limit}: {case.id}")
        return True


# ---------------------------------------------------------------- the author's command


def author_sizes(op: Op) -> list[int]:
    """Return the sizes at which an author's op is checked, from 1 to 2**20. Sizes that would take long are left
    out."""

    def fits(params: dict[str, int]) -> bool:
        small = op.held_bytes(params, "float64") <= LARGE_BYTES and op.flops(params) <= MOST_FLOPS
        return op.fits(params) is None and small

    return [n for n in (1, 1000, 1 << 10, 1 << 20) if fits({"n": n})]


def check_op(op: Op) -> Report:
    """Check the op in every implementation and dtype on every device, software adapters included. The inputs
    are those that the op declares, then normally distributed ones."""
    whole = Report([], [], {})
    checks = Checks(sizes=author_sizes, seeds=(1,), kinds=("random", "normal"), around=False)
    for name in backends.usual():
        try:
            whole.add(check_backend(backends.load(name), [op], checks))
        except BackendError as error:
            whole.refused[name] = error.detail
    return whole


def check_backend(backend: Backend, ops: Sequence[Op] | None = None, checks: Checks | None = None) -> Report:
    """Check each device of the backend by `suite`, which takes `ops` and `checks`. An unavailable device is
    listed as refused. Raises BackendUnavailable if the devices cannot be listed."""
    whole = Report([], [], {})
    for device in backend.devices():
        try:
            whole.add(suite(backend, device.id, ops, checks))
        except BackendUnavailable as error:
            whole.refused[device.id] = error.detail
        except BackendError as error:
            whole.findings.append(
                Finding("a device can be opened or is unavailable", device.id, "", error.detail)
            )
    return whole


def main(name: str) -> int:
    """Check the op or backend `name`, print the findings, and return the exit code. It is 0 if something was
    checked and nothing found, else 1. Raises UsageError for an unknown name, and RequiredUnavailable for a
    backend that cannot list its devices."""
    hidden = [name] if name in backends.hidden_names() else []
    ops = [*kernels.names(), *kernels.foreign()]
    require_choice(name, [*ops, *backends.names(), *backends.foreign(), *hidden], "NAME")
    for error in (kernels.find_namesakes() | backends.find_namesakes()).values():
        print(f"left out {error.message}: {error.why}")
    try:
        report = (
            check_op(kernels.load_without_trial(name)) if name in ops else check_backend(backends.load(name))
        )
    except BackendError as error:
        raise RequiredUnavailable(
            "unavailable", f"the backend {name} cannot be checked", why=error.detail, hint=error.hint or None
        ) from error
    for case_id in dict.fromkeys(report.checked):
        print(f"checked {case_id}")
    for text in dict.fromkeys(f"{re.sub('/n=[^/]*', '', key)}: {why}" for key, why in report.refused.items()):
        print(f"refused {text}")
    for finding in report.findings:
        print(f"found on {finding.device}: {finding.what}: {finding.detail}")
    print(f"{len(report.findings)} findings in {len(report.checked)} checks")
    return 1 if report.findings or not report.checked else 0


if __name__ == "__main__":
    try:
        sys.exit(main(" ".join(sys.argv[1:])))
    except GpubenchError as error:
        print(f"error: {error.message}\n  why: {error.why}\n  fix: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
