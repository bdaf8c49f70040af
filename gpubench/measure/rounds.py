"""Workloads in one session: prepare their cases, sample them in interleaved rounds, check again, release."""

from __future__ import annotations

import random
import time

from gpubench.measure import protocol
from gpubench.measure.aim import MAIN, Aim
from gpubench.measure.blocks import take, warmup_s
from gpubench.measure.events import BlockDone, CaseStarted
from gpubench.measure.plan import Workload
from gpubench.measure.runtime import Runtime
from gpubench.measure.seat import Seat, announce, exchange_prepared, prepare, stop
from gpubench.measure.stopping import estimate, stop_reason
from gpubench.measure.sweeping import sweep
from gpubench.model.result import Failure, Measurement, RunWarning, Skip


def measure(runtime: Runtime, *workloads: Workload, aim: Aim = MAIN) -> float:
    """Measure every case of the workloads that has not failed before, all of them interleaved.

    Outcomes go to the recorder. Returns the seconds that choosing kernels took: they come once per device, not
    with each size.
    """
    seats = [
        Seat(case, runtime.settings, device_clock=workload.device_clock, aim=aim)
        for workload in workloads
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
        prepare(runtime, seat, first=True)
    if not runtime.check_only:
        for seat in seats:
            if seat.unsettled and not seat.over:
                sweep(runtime, seat)
        _rounds(runtime, workloads[0].key if workloads else "", seats)
    for seat in seats:
        _finish(runtime, seat)
    for workload in workloads:
        for device_id, detail in runtime.crew.release(workload.key).items():
            runtime.recorder.warn(_restarted(device_id, detail, runtime.session))
    return sum(seat.prepared.tune_s for seat in seats if seat.prepared is not None)


def _rounds(runtime: Runtime, key: str, seats: list[Seat]) -> None:
    """Blocks in an order seeded per round, every second round reversed, until each case may stop."""
    settings = runtime.settings
    shuffle = random.Random(f"{settings.seed} {runtime.session} {key}")
    order: list[Seat] = []
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
                stop(runtime, seat, "budget")
            elif not seat.over:
                _sample(runtime, seat, number, position)
        if any(not seat.over for seat in active):
            runtime.recorder.save()
        number += 1


def _sample(runtime: Runtime, seat: Seat, number: int, position: int) -> None:
    settings, case = runtime.settings, seat.case
    if len(seat.kept) >= settings.min_samples and seat.block_s > seat.left_s:
        stop(runtime, seat, "timeout")  # a block that its deadline kills would take the good samples with it
        return
    began = time.monotonic()
    if not take(runtime, seat, number, position):
        return
    seat.sampling_s += max(0.0, time.monotonic() - began - warmup_s(runtime, seat))
    progress = runtime.progress
    typical, precision = estimate(seat.kept)
    runtime.sink(
        BlockDone(
            case.id,
            seat.number,
            progress.cases,
            runtime.session,
            progress.sessions,
            typical,
            precision,
            len(seat.kept),
            progress.remaining(),
        )  # fmt: skip
    )
    reason = stop_reason(seat.kept, seat.sampling_s, seat.left_s, settings, wanted=seat.aim.samples)
    if reason is not None:
        stop(runtime, seat, reason)


def _finish(runtime: Runtime, seat: Seat) -> None:
    """The correctness gate once more, on the output that the last launch left."""
    if seat.prepared is None or not isinstance(runtime.recorder.outcome(seat.case.id), Measurement):
        return
    # Sampling may have used up the case's time. What it found is right or wrong whatever the clock says.
    seat.left_s = max(seat.left_s, runtime.settings.case_timeout_s)
    reply = exchange_prepared(
        runtime, seat, lambda worker: protocol.Finish(id=worker.next_id, case_id=seat.case.id)
    )
    if isinstance(reply, protocol.Done):
        announce(runtime, seat)


def _restarted(device_id: str, detail: str, session: int) -> RunWarning:
    """It died between two cases: no case is to blame, and none is lost."""
    return RunWarning(
        code="worker-restarted", session=session, message=f"{device_id}: {detail}; a fresh worker goes on",
        hint="free some memory, or look at the system's log",
    )  # fmt: skip
