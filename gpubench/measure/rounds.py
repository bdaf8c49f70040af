"""One workload in one session: prepare its cases, sample them in interleaved rounds, check again, release."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec

from gpubench import stats
from gpubench.measure import protocol
from gpubench.measure.crew import Crew, DeviceGone
from gpubench.measure.events import BlockDone, CaseDone, CaseStarted, Sink
from gpubench.measure.plan import Workload
from gpubench.measure.recorder import Recorder
from gpubench.measure.workers import Worker, WorkerGone
from gpubench.model.case import Case
from gpubench.model.result import (
    Block,
    Failure,
    Measurement,
    Outcome,
    RunWarning,
    Settings,
    Skip,
    Stop,
    StopReason,
)

LARGEST_BLOCK = 5
SHORTEST_DEADLINE_S = 1.0


class Progress:
    """Counts for whoever watches: cases begun, finished and planned, and the time that is left."""

    def __init__(self, cases: int, sessions: int, remaining: Callable[[], float | None]) -> None:
        self.number = 0
        self.finished = 0
        self.cases = cases
        self.sessions = sessions
        self.remaining = remaining


class Runtime(msgspec.Struct, frozen=True):
    """What measuring a workload needs from the run around it."""

    crew: Crew
    recorder: Recorder
    settings: Settings
    sink: Sink
    progress: Progress
    session: int
    out_of_budget: Callable[[], bool]
    device_kind: Callable[[str], str]
    check_only: bool = False
    left_s: Callable[[], float] = lambda: float("inf")


class _Seat:
    """One case while its workload is measured: its clock, its kept samples, whether its worker knows it."""

    def __init__(self, case: Case, limit_s: float, *, device_clock: bool) -> None:
        self.case = case
        self.device_clock = device_clock
        self.left_s = limit_s
        self.kept: list[float] = []
        self.prepared: protocol.Prepared | None = None
        self.worker: Worker | None = None
        self.over = False
        self.number = 0
        self.sampling_s = 0.0
        self.block_s = 0.0


def measure(runtime: Runtime, workload: Workload) -> float:
    """Measure every case of the workload that has not failed before. Outcomes go to the recorder.

    Returns the seconds that choosing kernels took: they come once per device, not with each size.
    """
    seats = [
        _Seat(case, runtime.settings.case_timeout_s, device_clock=workload.device_clock)
        for case in workload.cases
        if not isinstance(runtime.recorder.outcome(case.id), (Failure, Skip))
    ]
    for seat in seats:
        if runtime.out_of_budget():
            seat.over = True
            continue
        runtime.progress.number += 1
        seat.number = runtime.progress.number
        progress = runtime.progress
        runtime.sink(
            CaseStarted(
                seat.case.id,
                progress.number,
                progress.cases,
                runtime.session,
                progress.sessions,
                progress.remaining(),
            )  # fmt: skip
        )
        _prepare(runtime, seat, first=True)
    if not runtime.check_only:
        _rounds(runtime, workload, seats)
    for seat in seats:
        _finish(runtime, seat)
    for device_id, detail in runtime.crew.release(workload.key).items():
        runtime.recorder.warn(_restarted(device_id, detail, runtime.session))
    return sum(seat.prepared.tune_s for seat in seats if seat.prepared is not None)


def _prepare(runtime: Runtime, seat: _Seat, *, first: bool) -> None:
    """Bring the case to its worker. A refusal is a Skip, a breakage a Failure; both end the case."""
    known = runtime.recorder.outcome(seat.case.id)
    block = known.blocks[0] if isinstance(known, Measurement) and known.blocks else None

    def request(worker: Worker) -> protocol.Request:
        seat.worker = worker
        return protocol.Prepare(
            id=worker.next_id, case=seat.case, session=runtime.session,
            repeat=block.repeat if block else None, hot_repeat=block.hot_repeat if block else None,
            time_it=not runtime.check_only, device_clock=seat.device_clock,
        )  # fmt: skip

    reply = _exchange(runtime, seat, request)
    if isinstance(reply, protocol.Prepared):
        seat.prepared = reply
        if first:
            _enter(runtime, seat.case, reply)


def _enter(runtime: Runtime, case: Case, reply: protocol.Prepared) -> None:
    if not isinstance(runtime.recorder.outcome(case.id), Measurement):
        runtime.recorder.put(
            Measurement(
                id=case.id,
                case=case,
                flops=reply.flops,
                bytes=reply.bytes,
                op_hash=reply.op_hash,
                kernel_hash=reply.kernel_hash,
                kernel=reply.kernel,
                check=reply.check,
                staging=reply.staging,
            )  # fmt: skip
        )
    runtime.recorder.add_parts(case.id, reply.parts)


def _rounds(runtime: Runtime, workload: Workload, seats: list[_Seat]) -> None:
    """Blocks in an order seeded per round, every second round reversed, until each case may stop."""
    settings = runtime.settings
    shuffle = random.Random(f"{settings.seed} {runtime.session} {workload.key}")
    order: list[_Seat] = []
    number = 0
    while active := [s for s in seats if s.prepared is not None and not s.over]:
        if settings.order == "sequential":
            order = active[:1]
        elif number % 2:
            order = [s for s in reversed(order) if not s.over]
        else:
            order = shuffle.sample(active, len(active))
        for position, seat in enumerate(order):
            if runtime.out_of_budget():
                _stop(runtime, seat, "budget")
            elif not seat.over:
                _sample(runtime, seat, number, position)
        if any(not seat.over for seat in active):
            runtime.recorder.save()
        number += 1


def _sample(runtime: Runtime, seat: _Seat, number: int, position: int) -> None:
    settings, case = runtime.settings, seat.case
    if len(seat.kept) >= settings.min_samples and seat.block_s > seat.left_s:
        _stop(runtime, seat, "timeout")  # a block that its deadline kills would take the good samples with it
        return
    warmup_s = 0.0 if runtime.device_kind(case.device_id) == "cpu" else settings.warmup_s

    def request(worker: Worker) -> protocol.Request:
        return protocol.Sample(
            id=worker.next_id, case_id=case.id, session=runtime.session, round=number, position=position,
            samples=min(LARGEST_BLOCK, settings.min_samples), warmup_s=warmup_s,
            limit_s=max(0.0, min(seat.left_s, runtime.left_s())),
        )  # fmt: skip

    began = time.monotonic()
    reply = _exchange_prepared(runtime, seat, request)
    if not isinstance(reply, protocol.Sampled):
        return
    runtime.recorder.add_block(case.id, reply.block)
    seat.kept += kept_samples(reply.block)
    seat.block_s = time.monotonic() - began
    seat.sampling_s += max(0.0, seat.block_s - warmup_s)
    progress = runtime.progress
    estimate, precision = _estimate(seat.kept)
    runtime.sink(
        BlockDone(
            case.id,
            seat.number,
            progress.cases,
            runtime.session,
            progress.sessions,
            estimate,
            precision,
            len(seat.kept),
            progress.remaining(),
        )  # fmt: skip
    )
    reason = stop_reason(seat.kept, seat.sampling_s, seat.left_s, settings)
    if reason is not None:
        _stop(runtime, seat, reason)


def kept_samples(block: Block) -> list[float]:
    """Samples that count: not warm-up, not discarded; all of them if discarding left too few."""
    used = list(enumerate(block.wall_s))[block.warmup :]
    kept = [value for i, value in used if str(i) not in block.discarded]
    return kept if kept or not used else [value for _, value in used]


def stop_reason(kept: list[float], sampling_s: float, left_s: float, settings: Settings) -> StopReason | None:
    """Precision first, then the limits (measurement.md section 5, step 7); None: go on."""
    if left_s <= 0:
        return "timeout"
    if len(kept) < settings.min_samples:
        return None
    precision = _estimate(kept)[1]
    if precision is not None and precision <= settings.precision:
        return "precision"
    if len(kept) >= settings.max_samples:
        return "max-samples"
    return "max-time" if sampling_s >= settings.max_time_s else None


def _estimate(kept: list[float]) -> tuple[float, float | None]:
    if not kept:
        return 0.0, None
    middle = stats.median(kept)
    low, high = stats.median_interval(kept)
    return middle, (high - low) / 2 / middle if middle > 0 and len(kept) > 1 else None


def _stop(runtime: Runtime, seat: _Seat, reason: StopReason) -> None:
    if seat.over:
        return
    seat.over = True
    if reason == "timeout" and len(seat.kept) < runtime.settings.min_samples:
        detail = f"{len(seat.kept)} of {runtime.settings.min_samples} samples within the case's time limit"
        hint = "raise --case-timeout or choose smaller --sizes"
        _end(runtime, seat, _failure(seat.case, "timeout", detail, hint=hint, phase="sample"))
        return
    runtime.recorder.stop(seat.case.id, Stop(session=runtime.session, reason=reason))
    runtime.recorder.save()


def _finish(runtime: Runtime, seat: _Seat) -> None:
    """The correctness gate once more, on the output that the last launch left."""
    if seat.prepared is None or not isinstance(runtime.recorder.outcome(seat.case.id), Measurement):
        return
    # Sampling may have used up the case's time. What it found is right or wrong whatever the clock says.
    seat.left_s = max(seat.left_s, runtime.settings.case_timeout_s)
    reply = _exchange_prepared(
        runtime, seat, lambda worker: protocol.Finish(id=worker.next_id, case_id=seat.case.id)
    )
    if isinstance(reply, protocol.Done):
        _announce(runtime, seat)


def _exchange_prepared(
    runtime: Runtime, seat: _Seat, request: Callable[[Worker], protocol.Request]
) -> protocol.Reply | None:
    """As `_exchange`; a case whose worker died under a neighbour is first prepared on the new one."""
    if not runtime.crew.holds(seat.case.device_id, seat.worker):
        seat.prepared = None
        _prepare(runtime, seat, first=False)
        if seat.prepared is None:
            return None
    return _exchange(runtime, seat, request)


def _exchange(
    runtime: Runtime, seat: _Seat, request: Callable[[Worker], protocol.Request]
) -> protocol.Reply | None:
    """One request for this case; None once whatever went wrong has become the case's outcome."""
    began = time.monotonic()
    try:
        worker = runtime.crew.worker(seat.case.device_id)
        reply = worker.ask(request(worker), max(seat.left_s, SHORTEST_DEADLINE_S))
    except DeviceGone as gone:
        _end(runtime, seat, _skip(seat.case, gone.reason, gone.detail, gone.hint))
        return None
    except WorkerGone as gone:
        runtime.crew.drop(seat.case.device_id)
        tail = gone.stderr_tail or None
        _end(runtime, seat, _failure(seat.case, gone.reason, gone.detail, phase=gone.phase, stderr_tail=tail))
        return None
    finally:
        seat.left_s -= time.monotonic() - began
    if isinstance(reply, (protocol.Refused, protocol.Broke)):
        _refused(runtime, seat, reply)
        return None
    return reply


def _refused(runtime: Runtime, seat: _Seat, reply: protocol.Refused | protocol.Broke) -> None:
    if isinstance(reply, protocol.Refused):
        _end(runtime, seat, _skip(seat.case, reply.reason, reply.detail, reply.hint))
        return
    if reply.fatal:
        runtime.crew.drop(seat.case.device_id)
    _end(
        runtime, seat,
        _failure(
            seat.case, reply.reason, reply.detail, hint=reply.hint or None, phase=reply.phase, check=reply.check
        ),
    )  # fmt: skip


def _end(runtime: Runtime, seat: _Seat, outcome: Outcome) -> None:
    """The case is over. What earlier sessions measured outlives a device that is not to be had in this one."""
    seat.over = True
    seat.prepared = None
    known = runtime.recorder.outcome(seat.case.id)
    earlier = isinstance(known, Measurement) and any(b.session < runtime.session for b in known.blocks)
    if isinstance(outcome, Skip) and earlier:
        runtime.recorder.warn(_missed(outcome, runtime.session))
    else:
        runtime.recorder.put(outcome)
    runtime.recorder.save()
    _announce(runtime, seat)


def _announce(runtime: Runtime, seat: _Seat) -> None:
    outcome = runtime.recorder.outcome(seat.case.id)
    assert outcome is not None
    measured = isinstance(outcome, Measurement) and bool(seat.kept)
    estimate, precision = _estimate(seat.kept) if measured else (None, None)
    progress = runtime.progress
    progress.finished += 1
    runtime.sink(
        CaseDone(
            outcome, seat.number, progress.cases, runtime.session, estimate, precision, progress.remaining()
        )
    )


def _restarted(device_id: str, detail: str, session: int) -> RunWarning:
    """It died between two cases: no case is to blame, and none is lost."""
    return RunWarning(
        code="worker-restarted", session=session, message=f"{device_id}: {detail}; a fresh worker goes on",
        hint="free some memory, or look at the system's log",
    )  # fmt: skip


def _missed(skip: Skip, session: int) -> RunWarning:
    return RunWarning(
        code="few-sessions", id=skip.id, session=session,
        message=f"session {session + 1} lacks this case: {skip.detail}", hint=skip.hint or "run it again",
    )  # fmt: skip


def _skip(case: Case, reason: str, detail: str, hint: str = "") -> Skip:
    return Skip(id=case.id, case=case, reason=reason, detail=detail, hint=hint or None)


def _failure(case: Case, reason: str, detail: str, **more: object) -> Failure:
    return Failure(id=case.id, case=case, reason=reason, detail=detail, **more)  # type: ignore[arg-type]
