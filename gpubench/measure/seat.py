"""One case at its worker: prepared, asked, stopped; whatever goes wrong becomes the case's outcome."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpubench.measure import protocol
from gpubench.measure.aim import MAIN, Aim
from gpubench.measure.crew import DeviceGone
from gpubench.measure.events import CaseDone
from gpubench.measure.runtime import Runtime
from gpubench.measure.stopping import estimate, settled_block
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

SHORTEST_DEADLINE_S = 1.0
# Before what was throttled is taken again: three tries for each case and session (measurement.md section 6).
PAUSES_S = (0.05, 0.25, 1.0)


class Seat:
    """One case while its workload is measured: its clock, its kept samples, whether its worker knows it."""

    def __init__(self, case: Case, settings: Settings, *, device_clock: bool, aim: Aim = MAIN) -> None:
        self.case = case
        self.aim = aim
        self.device_clock = device_clock and aim.explains
        self.left_s = settings.case_timeout_s
        self.kept: list[float] = []
        self._taken: list[float] = []
        self._unthrottled: list[float] = []
        self._least = settings.min_samples
        self.pauses_s = list(PAUSES_S)
        self.warm_hz: list[float] = []
        self.prepared: protocol.Prepared | None = None
        self.worker: Worker | None = None
        self.fraction: float | None = None
        self.over = False
        self.number = 0
        self.sampling_s = 0.0
        self.block_s = 0.0

    @property
    def unsettled(self) -> bool:
        """Whether this is a split whose share is still to be found."""
        return self.prepared is not None and self.prepared.fraction is not None and self.fraction is None

    def add(self, block: Block) -> None:
        """Count the samples of a block: all of the session, where too few of them would be left by throttling."""
        used = block.wall_s[block.warmup :]
        self._taken += used
        self._unthrottled += [x for i, x in enumerate(used, block.warmup) if str(i) not in block.discarded]
        enough = len(self._unthrottled) >= self._least
        self.kept = self._unthrottled if enough or self.pauses_s else self._taken


def prepare(runtime: Runtime, seat: Seat, *, first: bool) -> None:
    """Bring the case to its worker. A refusal is a Skip, a breakage a Failure; both end the case."""
    known = runtime.recorder.outcome(seat.case.id)
    earlier = settled_block(known) if isinstance(known, Measurement) else None
    block = earlier or runtime.repeats.get(seat.case.id)
    if seat.fraction is None and block is not None:
        seat.fraction = block.fraction

    def request(worker: Worker) -> protocol.Request:
        seat.worker = worker
        return protocol.Prepare(
            id=worker.next_id, case=seat.case, session=runtime.session,
            repeat=block.repeat if block else None, hot_repeat=block.hot_repeat if block else None,
            time_it=not runtime.check_only, device_clock=seat.device_clock,
            part_samples=protocol.PART_SAMPLES if seat.aim.explains else 0, fraction=seat.fraction,
        )  # fmt: skip

    reply = exchange(runtime, seat, request)
    if isinstance(reply, protocol.Prepared):
        seat.prepared = reply
        if first:
            _enter(runtime, seat, reply)


def _enter(runtime: Runtime, seat: Seat, reply: protocol.Prepared) -> None:
    case = seat.case
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
    if seat.aim.explains and not seat.unsettled:
        runtime.recorder.add_parts(case.id, reply.parts)


def stop(runtime: Runtime, seat: Seat, reason: StopReason) -> None:
    """The case needs no more samples in this session, or gets none; too few of them are a failure."""
    if seat.over:
        return
    seat.over = True
    if seat.aim.phase == "estimate":
        return  # of a case that the main phase measured, this is not what ended its sampling
    if reason == "timeout" and len(seat.kept) < runtime.settings.min_samples:
        detail = f"{len(seat.kept)} of {runtime.settings.min_samples} samples within the case's time limit"
        hint = "raise --case-timeout or choose smaller --sizes"
        end(runtime, seat, _failure(seat.case, "timeout", detail, hint=hint, phase="sample"))
        return
    runtime.recorder.stop(seat.case.id, Stop(session=runtime.session, reason=reason))
    runtime.recorder.save()


def exchange_prepared(
    runtime: Runtime, seat: Seat, request: Callable[[Worker], protocol.Request]
) -> protocol.Reply | None:
    """As `exchange`; a case whose worker died under a neighbour is first prepared on the new one."""
    if not runtime.crew.holds(seat.case.device_id, seat.worker):
        seat.prepared = None
        prepare(runtime, seat, first=False)
        if seat.prepared is None:
            return None
    return exchange(runtime, seat, request)


def exchange(
    runtime: Runtime, seat: Seat, request: Callable[[Worker], protocol.Request]
) -> protocol.Reply | None:
    """One request for this case; None once whatever went wrong has become the case's outcome."""
    began = time.monotonic()
    try:
        worker = runtime.crew.worker(seat.case.device_id)
        reply = worker.ask(request(worker), max(seat.left_s, SHORTEST_DEADLINE_S))
    except DeviceGone as gone:
        end(runtime, seat, _skip(seat.case, gone.reason, gone.detail, gone.hint))
        return None
    except WorkerGone as gone:
        runtime.crew.drop(seat.case.device_id)
        tail = gone.stderr_tail or None
        end(runtime, seat, _failure(seat.case, gone.reason, gone.detail, phase=gone.phase, stderr_tail=tail))
        return None
    finally:
        seat.left_s -= time.monotonic() - began
    if isinstance(reply, (protocol.Refused, protocol.Broke)):
        _refused(runtime, seat, reply)
        return None
    return reply


def _refused(runtime: Runtime, seat: Seat, reply: protocol.Refused | protocol.Broke) -> None:
    if isinstance(reply, protocol.Refused):
        end(runtime, seat, _skip(seat.case, reply.reason, reply.detail, reply.hint))
        return
    if reply.fatal:
        runtime.crew.drop(seat.case.device_id)
    end(
        runtime, seat,
        _failure(
            seat.case, reply.reason, reply.detail, hint=reply.hint or None, phase=reply.phase, check=reply.check
        ),
    )  # fmt: skip


def end(runtime: Runtime, seat: Seat, outcome: Outcome) -> None:
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
    announce(runtime, seat)


def announce(runtime: Runtime, seat: Seat) -> None:
    """Tell whoever watches what became of the case in this session."""
    outcome = runtime.recorder.outcome(seat.case.id)
    assert outcome is not None
    measured = isinstance(outcome, Measurement) and bool(seat.kept)
    typical, precision = estimate(seat.kept) if measured else (None, None)
    progress = runtime.progress
    progress.finished += 1
    runtime.sink(
        CaseDone(
            outcome, seat.number, progress.cases, runtime.session, typical, precision, progress.remaining()
        )
    )


def _missed(skip: Skip, session: int) -> RunWarning:
    return RunWarning(
        code="few-sessions", id=skip.id, session=session,
        message=f"session {session + 1} lacks this case: {skip.detail}", hint=skip.hint or "run it again",
    )  # fmt: skip


def _skip(case: Case, reason: str, detail: str, hint: str = "") -> Skip:
    return Skip(id=case.id, case=case, reason=reason, detail=detail, hint=hint or None)


def _failure(case: Case, reason: str, detail: str, **more: object) -> Failure:
    return Failure(id=case.id, case=case, reason=reason, detail=detail, **more)  # type: ignore[arg-type]
