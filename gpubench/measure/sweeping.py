"""The first session of a split case: a block at each share, then the share at which all sessions measure it."""

from __future__ import annotations

import msgspec

from gpubench.measure.aim import Aim
from gpubench.measure.blocks import LARGEST_BLOCK, take
from gpubench.measure.runtime import Runtime
from gpubench.measure.seat import Seat, prepare
from gpubench.measure.sweep import fastest, fractions, optimum
from gpubench.model.result import Measurement
from gpubench.stats import median

SWEEP = Aim("sweep", samples=LARGEST_BLOCK)


def sweep(runtime: Runtime, seat: Seat) -> None:
    """Try the shares and settle on one; each is checked before it is timed. What goes wrong ends the case.

    Each share has the case's time limit for itself. Out of budget, the best of those tried is taken, or the model's.
    """
    left_s = seat.left_s
    times: dict[float, float] = {}
    for share in (0.0, 1.0):
        _try(runtime, seat, share, times)
    if len(times) == 2:
        for share in fractions(times[0.0], times[1.0]):
            _try(runtime, seat, share, times)
    if seat.over:
        return
    seat.left_s = left_s
    best = fastest(times)
    if best is None and len(times) == 2:
        best = optimum(times[0.0], times[1.0])
    _settle(runtime, seat, best)


def _try(runtime: Runtime, seat: Seat, share: float, times: dict[float, float]) -> None:
    """One block at this share, unless rounding makes it one that was tried."""
    if seat.over or runtime.out_of_budget():
        return
    trial = Seat(seat.case, runtime.settings, device_clock=False, aim=SWEEP)
    trial.number, trial.fraction = seat.number, share
    prepare(runtime, trial, first=False)
    ready = trial.prepared
    found = ready.fraction if ready is not None else None
    fresh = found is not None and found not in times and take(runtime, trial, len(times), 0)
    if found is not None and fresh and trial.kept:  # the budget may end where all that was taken is throttled
        times[found] = median(trial.kept)
    seat.worker = trial.worker
    if trial.over:
        seat.over, seat.prepared = True, None


def _settle(runtime: Runtime, seat: Seat, share: float | None) -> None:
    """Prepare the case at its share (None: what it was prepared at), and enter what was checked there."""
    seat.fraction = share if share is not None or seat.prepared is None else seat.prepared.fraction
    prepare(runtime, seat, first=True)
    known, ready = runtime.recorder.outcome(seat.case.id), seat.prepared
    if isinstance(known, Measurement) and ready is not None:
        runtime.recorder.put(
            msgspec.structs.replace(
                known, check=ready.check, kernel_hash=ready.kernel_hash, kernel=ready.kernel
            )
        )
