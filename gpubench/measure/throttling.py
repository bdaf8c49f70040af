"""Which samples were taken while the device was slowed down (measurement.md section 6): pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.measure.readings import Reading
from gpubench.model.result import Block
from gpubench.stats import median

# In the words of nvidia-smi: too hot, or too little power. `sw_power_cap` is a large GPU's normal state under a
# matrix product, and other reasons tell of settings, not of a fault.
SLOWED = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"})
POWER_CAP = "sw_power_cap"
SLOW_SHARE = 0.75


def judged(
    block: Block, times_s: Sequence[float], readings: Sequence[Reading], usual_hz: float | None
) -> Block:
    """The block with throttled samples discarded, all reasons that were read, and the clock of each used sample, unless
    the device counted it itself.

    `times_s` are the times at which the block began and at which each entry of `wall_s` ended, on the clock of the
    readings. A sample is judged by the readings during it, else by the one nearest to it. `usual_hz` is the SM clock
    of the case's warm-up; None: the clock alone tells nothing.
    """
    if not readings:
        return block
    discarded, clocks = dict(block.discarded), []
    for index in range(block.warmup, len(block.wall_s)):
        near = _near(times_s[index], times_s[index + 1], readings)
        clocks.append(median([r.clock_hz for r in near if r.clock_hz] or [0.0]))
        if any(slowed(reading, usual_hz) for reading in near):
            discarded[str(index)] = "throttled"
    return msgspec.structs.replace(
        block, discarded=discarded, clock_hz=block.clock_hz or (clocks if all(clocks) and clocks else None),
        throttle=sorted({word for reading in readings for word in reading.throttle}),
    )  # fmt: skip


def slowed(reading: Reading, usual_hz: float | None) -> bool:
    """True for heat, lack of power, or a clock far below the usual one that the power cap does not explain."""
    if SLOWED.intersection(reading.throttle):
        return True
    if usual_hz is None or not reading.clock_hz or POWER_CAP in reading.throttle:
        return False
    return reading.clock_hz < SLOW_SHARE * usual_hz


def warm_clocks(block: Block, times_s: Sequence[float], readings: Sequence[Reading]) -> list[float]:
    """The SM clocks read during the block's warm-up; if there are none, the first one that was read at all.

    The reading before the first launch does not count beside others: an idle device lowers its clock.
    """
    known = [reading for reading in readings if reading.clock_hz]
    warm = [r.clock_hz for r in known if r.clock_hz and times_s[0] < r.t_s <= times_s[block.warmup]]
    return warm or [r.clock_hz for r in known[:1] if r.clock_hz]


def usual_clock(known: Sequence[float], fresh: Sequence[float]) -> list[float]:
    """The warm-up clocks of a case with those of one more block, unless these were slow themselves."""
    if known and fresh and median(fresh) < SLOW_SHARE * median(known):
        return list(known)
    return [*known, *fresh]


def _near(begin_s: float, end_s: float, readings: Sequence[Reading]) -> list[Reading]:
    inside = [reading for reading in readings if begin_s <= reading.t_s <= end_s]
    return inside or [min(readings, key=lambda reading: _distance(reading.t_s, begin_s, end_s))]


def _distance(t_s: float, begin_s: float, end_s: float) -> float:
    return max(begin_s - t_s, t_s - end_s, 0.0)
