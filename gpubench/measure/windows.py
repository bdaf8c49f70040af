"""Windows of sizes around break-evens, in which fresh timings are taken (measurement.md section 10, steps 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpubench import stats, threshold
from gpubench.measure.plan import Scope, Series, Workload, workload
from gpubench.measure.search import Curve, Slot
from gpubench.measure.stopping import kept_samples
from gpubench.model.case import Case, beside_size
from gpubench.model.op import Op
from gpubench.model.result import Measurement, Outcome

Row = Mapping[Slot, Sequence[float]]  # slot -> seconds per launch
Samples = Mapping[int, Row]  # by size
# Fewer samples a side, size and session say nothing of a crossing (gpubench/crossing.py); one block is 5.
LEAST_SAMPLES, BLOCK_SAMPLES = 3, 5


class Window(msgspec.Struct, frozen=True):
    """The sizes around one curve's break-even, the forms that compete there (of the CPU and of the device), and how
    many timings of each form a session takes at each size."""

    series: Series
    sizes: tuple[int, ...]
    slots: tuple[Slot, ...]
    samples: int

    def workloads(self, scope: Scope) -> tuple[Workload, ...]:
        """What is measured: the competing forms alone, at each size."""
        found = []
        for n in self.sizes:
            whole = workload(self.series, n, scope)
            cases = tuple(c for c in whole.cases if c.variant is None and slot(c) in self.slots)
            if len(cases) == len(self.slots):  # one side alone tells nothing
                found.append(msgspec.structs.replace(whole, cases=cases, skips=(), device_clock=False))
        return tuple(found)


def slot(case: Case) -> Slot:
    """Device, form and regime of a case."""
    return (case.device_id, case.form, case.regime_id)


def search_samples(outcomes: Iterable[Outcome], series: Series) -> Samples:
    """What was measured of a series, but for its fresh timings: those are for the estimate alone."""
    found: dict[int, dict[Slot, list[float]]] = {}
    for outcome in outcomes:
        case = outcome.case
        if (
            not isinstance(outcome, Measurement)
            or case.op != series.op.name
            or case.variant
            or case.shared_with
        ):
            continue  # variants and splits are no contenders: they are measured for their own sake
        if case.dtype == series.dtype and case.params == series.params(case.params["n"]):
            kept = [v for block in outcome.blocks if block.phase != "estimate" for v in kept_samples(block)]
            if kept:
                found.setdefault(case.params["n"], {})[slot(case)] = kept
    return found


def pair(samples: Samples, curve: Curve, cpu: Collection[str]) -> tuple[Slot, Slot] | None:
    """(form of the CPU, form of the device) that are fastest at the ends of the curve's bracket; None without one."""
    ends = threshold.bracket(middle_ratios(samples, curve, cpu))
    if ends is None:
        return None
    rows = [samples[n] for n in ends]
    sides = (
        [s for s in rows[0] if s[0] in cpu and s in rows[1]],
        [s for s in rows[0] if (s[0], s[2]) == curve and s in rows[1]],
    )
    if not all(sides):
        return None
    base, case = (
        min(side, key=lambda s: math.fsum(math.log(_middle(row[s])) for row in rows)) for side in sides
    )
    return base, case


def middle_ratios(samples: Samples, curve: Curve, cpu: Collection[str]) -> dict[int, float]:
    """Fastest CPU form over the curve's fastest form by medians, at the sizes that have both."""
    found = {}
    for n, row in samples.items():
        base = [_middle(values) for slot, values in row.items() if slot[0] in cpu]
        case = [_middle(values) for slot, values in row.items() if (slot[0], slot[2]) == curve]
        if base and case:
            found[n] = min(base) / min(case)
    return found


def around(series: Series, samples: Samples, curve: Curve, cpu: Collection[str], fresh: int) -> Window | None:
    """The window around the curve's bracket for `fresh` timings of each side; None without a bracket."""
    slots = pair(samples, curve, cpu)
    ends = threshold.bracket(middle_ratios(samples, curve, cpu))
    if slots is None or ends is None:
        return None
    base, case = slots
    sides = {
        n: (row[base], row[case])
        for n, row in samples.items()
        if base in row and case in row and series.op.fits(series.params(n)) is None
    }
    ladder = series.ladder
    sizes = threshold.window(sides, *ends, fresh, granule=ladder.granule, least=ladder.low, most=ladder.high)
    return Window(series, sizes, slots, max(LEAST_SAMPLES, fresh // len(sizes)))


def timings(samples: Samples, slots: Collection[Slot], most: Mapping[int, int]) -> int:
    """Timings of both sides that the search has taken; of a size in `most` no more than so many a side count."""
    return sum(
        min(len(row[s]), most.get(n, len(row[s]))) for n, row in samples.items() for s in slots if s in row
    )


def of_outcomes(outcomes: Iterable[Outcome], ops: Mapping[str, Op], cpu: Collection[str]) -> tuple[Window, ...]:
    """The windows whose fresh timings a file holds, for other sessions to repeat."""
    bases: dict[tuple[str, int], set[Slot]] = {}
    cases: dict[tuple[str, Slot], dict[int, int]] = {}
    curves: dict[str, Series] = {}
    for outcome in outcomes:
        taken = _fresh_samples(outcome)
        if not taken or outcome.case.op not in ops:
            continue
        case = outcome.case
        series = Series(ops[case.op], case.dtype, dict(beside_size(case.params)))
        curves[series.key] = series
        if case.device_id in cpu:
            bases.setdefault((series.key, case.params["n"]), set()).add(slot(case))
        else:
            cases.setdefault((series.key, slot(case)), {})[case.params["n"]] = taken
    found = []
    for (key, contender), sizes in cases.items():
        common = set.intersection(*(bases.get((key, n), set()) for n in sizes))
        if common:
            slots = (*sorted(common), contender)
            found.append(Window(curves[key], tuple(sorted(sizes)), slots, max(sizes.values())))
    return tuple(found)


def _fresh_samples(outcome: Outcome) -> int:
    """The most fresh timings that any session took of a case."""
    if not isinstance(outcome, Measurement):
        return 0
    by_session: dict[int, int] = {}
    for block in outcome.blocks:
        if block.phase == "estimate":
            by_session[block.session] = by_session.get(block.session, 0) + len(kept_samples(block))
    return max(by_session.values(), default=0)


def _middle(values: Sequence[float]) -> float:
    return stats.median(values)
