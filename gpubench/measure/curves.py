"""What a run knows of an op's curves so far: times by size, form and device, and the ratios of both sides.

Pure functions of what was measured; they choose sizes and never answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpubench import break_even, stats
from gpubench.break_even import Crossing, Sides
from gpubench.measure.plan import Series
from gpubench.model.case import GANG, Case
from gpubench.model.op import Ladder
from gpubench.model.result import Block, Measurement, Outcome

Slot = tuple[str, str, str]  # device id, form (variants take no part in the search), regime id
Curve = tuple[str, str]  # device id, regime id
# Slot -> session -> seconds per launch, a value for each block.
Row = Mapping[Slot, Mapping[int, Sequence[float]]]
Rows = Mapping[int, Row]  # by size


def slot(case: Case) -> Slot:
    """Device, form and regime of a case."""
    return (case.device_id, case.form, case.regime_id)


def rows(outcomes: Iterable[Outcome], series: Series) -> Rows:
    """What was measured of a series, splits, gangs and variants apart: they are measured for their own sake."""
    found: dict[int, dict[Slot, dict[int, list[float]]]] = {}
    for outcome in outcomes:
        case = outcome.case
        if (
            not isinstance(outcome, Measurement)
            or case.op != series.op.name
            or case.variant
            or case.shared_with
            or case.backend == GANG
        ):
            continue
        if case.dtype == series.dtype and case.params == series.params(case.params["n"]):
            sessions: dict[int, list[float]] = {}
            for block in outcome.blocks:
                if block.phase == "main" and (middle := _middle(block)) is not None:
                    sessions.setdefault(block.session, []).append(middle)
            if sessions:
                found.setdefault(case.params["n"], {})[slot(case)] = sessions
    return found


def _middle(block: Block) -> float | None:
    used = block.wall_s[block.warmup :]
    kept = [value for i, value in enumerate(used, block.warmup) if str(i) not in block.discarded] or used
    return stats.median(kept) if kept else None


def seconds(sessions: Mapping[int, Sequence[float]]) -> float:
    """The typical time of a slot at one size."""
    return stats.median([value for blocks in sessions.values() for value in blocks])


def growth(low: Row, high: Row, device_id: str) -> float | None:
    """How many times as long launches of the device take in `high` as in `low`, by the slots that both have: the least;
    None without one."""
    both = [s for s in low.keys() & high.keys() if s[0] == device_id]
    return min((seconds(high[s]) / seconds(low[s]) for s in both), default=None)


def fastest(row: Row, slots: Iterable[Slot]) -> Slot | None:
    """Of these slots the one with the least time; None where none was measured."""
    return min((s for s in slots if s in row), key=lambda s: seconds(row[s]), default=None)


def curves(known: Rows, cpu: Collection[str], without: Collection[str] = ()) -> list[Curve]:
    """Each device and regime that may cross the CPU, but for the devices `without`."""
    found = {
        (s[0], s[2]): None for row in known.values() for s in row if s[0] not in cpu and s[0] not in without
    }
    return list(found)


def pairs(known: Rows, curve: Curve, cpu: Collection[str]) -> dict[int, tuple[Slot, Slot]]:
    """By size the fastest form of the CPU and of the curve, where both sides were measured."""
    found = {}
    for n, row in sorted(known.items()):
        base = fastest(row, [s for s in row if s[0] in cpu])
        case = fastest(row, [s for s in row if (s[0], s[2]) == curve])
        if base is not None and case is not None:
            found[n] = (base, case)
    return found


def ratios(known: Rows, curve: Curve, cpu: Collection[str]) -> dict[int, float]:
    """Fastest CPU form over the curve's fastest form, by size; above 1 the curve wins."""
    return {
        n: seconds(known[n][base]) / seconds(known[n][case])
        for n, (base, case) in pairs(known, curve, cpu).items()
    }


def timings(known: Rows, curve: Curve, cpu: Collection[str]) -> dict[int, dict[int, Sides]]:
    """By size and session the blocks of the pair that competes there, for `break_even.local_crossing`."""
    found = {}
    for n, (base, case) in pairs(known, curve, cpu).items():
        ours, theirs = known[n][base], known[n][case]
        found[n] = {session: (ours[session], theirs[session]) for session in ours.keys() & theirs.keys()}
    return found


class CurveState(NamedTuple):
    """What is known of where one curve crosses. `ends`: (largest size at which it loses, next one that was measured),
    None where it does not cross; `crossing` by the fit, None where that tells nothing."""

    ratios: Mapping[int, float]
    ends: tuple[int, int] | None
    crossing: Crossing | None

    def open(self, widest: float) -> bool:
        """Whether more sizes would tell the threshold more closely, and it is known less closely than high / low =
        `widest`, or by fewer than FEWEST_AROUND sizes near it, which do not tell how far sizes scatter. What
        MOST_AROUND sizes near it have not told is lost in the noise of a session."""
        if self.ends is None:
            return False
        found, place = self.crossing, self.place
        around = [n for n in self.ratios if place and place / AROUND <= n <= place * AROUND]
        if len(around) >= MOST_AROUND:
            return False
        if len(around) < FEWEST_AROUND:
            return True
        if not self.near or found is None or not found.low or not found.high:
            return True
        return bool(found.high > max(widest, found.apart**EXHAUSTED) * found.low)

    @property
    def near(self) -> bool:
        """Whether it is known roughly where the sides change, or that they do not."""
        return self.ends is None or self.ends[1] <= break_even.FARTHEST_ENDS * self.ends[0]

    @property
    def place(self) -> float | None:
        """The best guess of the threshold."""
        if self.ends is None:
            return None
        low, high = self.ends
        # Between its ends the crossing lies for sure only as far as both are: the fit may know better.
        if self.crossing is not None and low / STRETCH <= self.crossing.n <= high * STRETCH:
            return self.crossing.n
        x, y = [math.log(n) for n in self.ends], [math.log(self.ratios[n]) for n in self.ends]
        return math.exp(x[0] - y[0] * (x[1] - x[0]) / (y[1] - y[0])) if y[1] > y[0] else math.sqrt(low * high)


# Sessions that lie apart make the most of an interval this much wider, on a logarithmic axis, than they alone would.
EXHAUSTED = 1.15
AROUND, FEWEST_AROUND, MOST_AROUND = 4.0, 4, 7
STRETCH = 2.0
# Sizes around the best guess, by how much they lie off it, the most telling first. Of a threshold of which little is
# known the guess lies off by up to 1.5 in half of the curves of an H200, more often too high: on both sides of that.
WIDE_STEPS = (1 / 2.0, 2.0)
CLOSE_STEPS = (1 / 1.5, 1.5, 1.0, 1 / 2.2, 2.2)
# A size so far off the wanted one, by ratio, tells nearly as much.
SHARED = 1.45


def state_of(known: Rows, curve: Curve, cpu: Collection[str], overheads_s: Mapping[str, float]) -> CurveState:
    """The state of one curve; `overheads_s` is the time of an empty launch by device."""
    by_size = ratios(known, curve, cpu)
    ends = break_even.bracket(by_size)
    if ends is None:
        return CurveState(by_size, None, None)
    base, case = (
        stats.prior_of(seconds(known[ends[1]][one]), overheads_s.get(one[0], 0.0))
        for one in pairs(known, curve, cpu)[ends[1]]
    )
    local = break_even.local_crossing(timings(known, curve, cpu), (base, case))
    return CurveState(by_size, ends, None if local is None else local.crossing)


def asked(state: CurveState, ladder: Ladder, most: int) -> list[int]:
    """Up to `most` sizes of the ladder's grid that would tell more of where the curve crosses, the best first."""
    place = state.place
    if place is None or state.ends is None:
        return []
    steps = CLOSE_STEPS if state.near else WIDE_STEPS
    low, high = min(state.ratios), max(state.ratios)
    found = dict.fromkeys(ladder.snapped(place * step) for step in steps)
    return [n for n in found if low < n < high and n not in state.ratios][:most]


def shared(n: int, state: CurveState, others: Iterable[int]) -> int:
    """Of the sizes that other curves ask for the one next to `n` that tells this curve nearly as much, on the same side
    of its threshold; `n` where there is none. The times of the CPU, which most of a size goes to, serve all its curves.
    """
    place = state.place or n
    near = [
        m
        for m in others
        if max(m / n, n / m) <= SHARED and (m < place) == (n < place) and m not in state.ratios
    ]
    return min(near, key=lambda m: abs(math.log(m / n)), default=n)


def checks(state: CurveState, ladder: Ladder) -> list[int]:
    """Sizes above the threshold at which the curve may lose again: just past powers of two, where padded and tiled
    kernels do, between the threshold and the top of what was measured."""
    if state.ends is None:
        return []
    step = max(1, ladder.granule)
    first, last = math.ceil(math.log2(2 * state.ends[1])), math.ceil(math.log2(max(state.ratios))) - 1
    found = [(2**j // step + 1) * step for j in range(first, last + 1)]
    return [n for n in found if n not in state.ratios and n < max(state.ratios)]


def work(series: Series, n: int) -> int:
    """What a launch must do: the larger of its operations and its bytes."""
    params = series.params(n)
    if series.op.fits(params) is not None:
        return 0
    return max(series.op.flops(params), series.op.bytes(params, series.dtype))


class Pace:
    """What launches took, to know how many of the next size make a sample."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], dict[int, float]] = {}

    def note(self, case: Case, seconds: float) -> None:
        """A launch of the case took so long."""
        self._seconds.setdefault(self._curve(case), {})[case.params["n"]] = seconds

    def expected_s(self, case: Case) -> float | None:
        """By the straight line through the measured sizes around it, on logarithmic axes; None: it lies beyond them."""
        known = self._seconds.get(self._curve(case), {})
        n = case.params["n"]
        below, above = (
            max((m for m in known if m <= n), default=None),
            min((m for m in known if m >= n), default=None),
        )
        if below is None or above is None:
            return None
        share = math.log(n / below) / math.log(above / below) if above > below else 0.0
        return math.exp((1 - share) * math.log(known[below]) + share * math.log(known[above]))

    @staticmethod
    def _curve(case: Case) -> tuple[object, ...]:
        return (*case.series, case.form_id, case.regime_id, case.device_id)
