"""One block of one case: its device is read beside it, and what was throttled is taken again, within bounds."""

from __future__ import annotations

import time

import msgspec

from gpubench.measure import protocol
from gpubench.measure.runtime import Runtime
from gpubench.measure.seat import Seat, exchange_prepared
from gpubench.measure.throttling import judged, usual_clock, warm_clocks
from gpubench.measure.workers import Worker
from gpubench.model.result import Block, Settings
from gpubench.stats import median

LARGEST_BLOCK = 5


def take(runtime: Runtime, seat: Seat, number: int, position: int) -> bool:
    """Sample the case once in this round; its blocks go to the recorder. False: the case is over.

    A block with throttled samples is followed, after a pause, by one that takes as many again, as long as the
    case has tries left in this session.
    """
    samples = min(LARGEST_BLOCK, _wanted(seat, runtime.settings))
    while True:
        began = time.monotonic()
        block = _block(runtime, seat, number, position, samples)
        if block is None:
            return False
        runtime.recorder.add_block(seat.case.id, block)
        seat.add(block)
        seat.block_s = time.monotonic() - began
        samples = len(block.discarded)
        if not samples or not seat.pauses_s or runtime.out_of_budget() or seat.left_s <= 0:
            return True
        pause_s = seat.pauses_s.pop(0)
        time.sleep(pause_s)
        seat.left_s -= pause_s


def warmup_s(runtime: Runtime, seat: Seat) -> float:
    """Seconds of work before a block: a GPU's clock fell while another device measured, a CPU has no need."""
    return 0.0 if runtime.device_kind(seat.case.device_id) == "cpu" else runtime.settings.warmup_s


def _block(runtime: Runtime, seat: Seat, number: int, position: int, samples: int) -> Block | None:
    """What the worker sampled, judged by what was read meanwhile. A CPU case is timed beside no reading."""
    case, cpu = seat.case, runtime.device_kind(seat.case.device_id) == "cpu"

    def request(worker: Worker) -> protocol.Request:
        return protocol.Sample(
            id=worker.next_id, case_id=case.id, session=runtime.session, round=number, position=position,
            samples=samples, warmup_s=warmup_s(runtime, seat),
            limit_s=max(0.0, min(seat.left_s, runtime.left_s())),
        )  # fmt: skip

    if cpu:
        reply, readings = exchange_prepared(runtime, seat, request), []
    else:
        telemetry = runtime.crew.telemetry
        telemetry.watch(case.device_id)
        reply = exchange_prepared(runtime, seat, request)
        readings = telemetry.rest()
    if not isinstance(reply, protocol.Sampled):
        return None
    runtime.recorder.extend_parts(case.id, runtime.session, reply.parts)
    block = msgspec.structs.replace(reply.block, phase=seat.aim.phase)
    if readings:
        seat.warm_hz = usual_clock(seat.warm_hz, warm_clocks(block, reply.times_s, readings))
    return judged(block, reply.times_s, readings, median(seat.warm_hz) if seat.warm_hz else None)


def _wanted(seat: Seat, settings: Settings) -> int:
    """Samples until the case may stop for the first time, and no more than it may have."""
    if seat.aim.samples is None:
        return max(1, min(settings.min_samples, settings.max_samples - len(seat.kept)))
    return max(1, seat.aim.samples - len(seat.kept))
