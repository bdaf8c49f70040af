"""The search for break-evens in a run's first session, and the windows of fresh timings around them.

The search asks for coarse sizes, brackets and fresh timings inside the budget. What it asks for next depends on what
was measured so far, so it hands out one step at a time. The order keeps verdicts first: every curve gets its coarse
sizes, then the gaps and ends that leave a verdict open, then the rest of the grid where it is cheap. Only then curves
are finished one by one, the cheapest first: bracket, window, estimate. A curve for which the budget does not do keeps
its measured sizes, and its break-even is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpubench import break_even, stats
from gpubench.measure import curves
from gpubench.measure.case_run import kept_samples
from gpubench.measure.curves import Curve, Slot
from gpubench.measure.plan import MAIN, Constraints, Purpose, Series, Workload, together, workload
from gpubench.measure.recorder import Recorder
from gpubench.model.case import Case, beside_size
from gpubench.model.op import Op
from gpubench.model.result import Measurement, Outcome

Row = Mapping[Slot, Sequence[float]]  # slot -> seconds per launch
Samples = Mapping[int, Row]  # by size
# Fewer samples a side, size and session say nothing of a crossing (gpubench/break_even.py); one block is 5.
LEAST_SAMPLES, BLOCK_SAMPLES = 3, 5


class Window(msgspec.Struct, frozen=True):
    """The sizes around one curve's break-even, the forms that compete there (of the CPU and of the device), and how
    many timings of each form a session takes at each size."""

    series: Series
    sizes: tuple[int, ...]
    slots: tuple[Slot, ...]
    samples: int

    def workloads(self, constraints: Constraints) -> tuple[Workload, ...]:
        """What is measured: the competing forms alone, at each size."""
        found = []
        for n in self.sizes:
            whole = workload(self.series, n, constraints)
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
    ends = break_even.bracket(middle_ratios(samples, curve, cpu))
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
    ends = break_even.bracket(middle_ratios(samples, curve, cpu))
    if slots is None or ends is None:
        return None
    base, case = slots
    sides = {
        n: (row[base], row[case])
        for n, row in samples.items()
        if base in row and case in row and series.op.fits(series.params(n)) is None
    }
    ladder = series.ladder
    sizes = break_even.window(sides, *ends, fresh, break_even.Grid(ladder.granule, ladder.low, ladder.high))
    return Window(series, sizes, slots, max(LEAST_SAMPLES, fresh // len(sizes)))


def timings(samples: Samples, slots: Collection[Slot], most: Mapping[int, int]) -> int:
    """Timings of both sides that the search has taken; of a size in `most` no more than so many a side count."""
    return sum(
        min(len(row[s]), most.get(n, len(row[s]))) for n, row in samples.items() for s in slots if s in row
    )


def windows_of(outcomes: Iterable[Outcome], ops: Mapping[str, Op], cpu: Collection[str]) -> tuple[Window, ...]:
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


# While the coarse sizes are measured, what follows keeps the rest of what is left.
COARSE_SHARE = 0.8
# The grid between the coarse sizes and above them may take this share of what is then left.
GRID_SHARE = 0.25
# Predictions are missed: a step is begun if it is predicted to fit with this much to spare.
MARGIN = 1.2
# A sample lasts 5 to 10 ms where launches are short.
SAMPLE_S = 0.01
BISECT = Purpose("search", curves.BISECTION_TIMINGS)


class Step(NamedTuple):
    """Workloads to measure together, and what for."""

    workloads: tuple[Workload, ...]
    purpose: Purpose


class BreakEvenSearch:
    """Steps of one search. Each has to be measured, and its time reported with `took`, before the next is asked for."""

    def __init__(
        self,
        curves: Sequence[Series],
        constraints: Constraints,
        recorder: Recorder,
        left_s: Callable[[], float],
    ) -> None:
        self._curves = curves
        self._scope = constraints
        self._recorder = recorder
        self._left_s = left_s
        self._settings = constraints.settings
        self._cpu = {t.device.id for t in constraints.targets if t.device.kind == "cpu"}
        # A software adapter gets no verdict, so a break-even of it would be measured for nobody.
        self._software = {t.device.id for t in constraints.targets if t.device.kind == "software"}
        self._elapsed: dict[str, dict[int, float]] = {}
        self._case_s: dict[str, dict[int, float]] = {}
        self._settled: dict[str, set[Curve]] = {}
        self._known: dict[str, Samples] = {}

    def took(self, step: Step, seconds: float) -> None:
        """A step was measured in so many seconds."""
        cases = sum(len(item.cases) for item in step.workloads)
        for item in step.workloads:
            share = seconds * len(item.cases) / max(cases, 1)
            known = self._elapsed.setdefault(item.series.key, {})
            known[item.n] = known.get(item.n, 0.0) + share
            self._case_s.setdefault(item.series.key, {})[item.n] = seconds / max(cases, 1)
            self._known.pop(item.series.key, None)

    def steps(self) -> Iterator[Step]:
        """All of them, in the order of the module's text."""
        searched = [curve for curve in self._curves if not curve.given]
        if self._settings.budget_s is None or self._settings.refine == "off":
            for curve in searched:
                for n in curve.ladder.sizes():
                    if n not in self.samples(curve):  # of a run that was interrupted
                        yield self.whole(curve, n)
        else:
            for place, curve in enumerate(searched):
                yield from self._coarse(curve, self._left_s() * COARSE_SHARE / (len(searched) - place))
            yield from self._gaps(searched, narrow=False)
            yield from self._grid(searched)
        if self._settings.refine != "off":
            yield from self._estimates()
            if self._settings.budget_s is not None:
                yield from self._gaps(searched, narrow=True)

    # ---------------------------------------------------------------- sizes that leave a verdict open

    def _coarse(self, curve: Series, share_s: float) -> Iterator[Step]:
        until = self._after(share_s)
        sizes = curves.coarse_sizes(curve.ladder)
        for n in sizes:
            if n in self.samples(curve):
                continue
            elapsed = self._elapsed.get(curve.key, {})
            left = self._left_s() - until
            fits = curves.affordable(curve, n, self.times(curve), elapsed, self._settings.min_samples, left)
            if fits is None:
                return
            yield self.whole(curve, fits, device_clock=n == sizes[-1])
            if fits < n:
                return

    def _gaps(self, all_series: Sequence[Series], *, narrow: bool) -> Iterator[Step]:
        """Take the most urgent step of all curves, as long as there is one and time for it."""
        while True:
            steps = []
            for place, curve in enumerate(all_series):
                done = self._settled.get(curve.key, set())
                step = curves.next_step(curve.ladder, self.times(curve), self._cpu, done, narrow=narrow)
                # A size that was tried and gave no time (it did not fit, say) gives none the second time either.
                tried = self._elapsed.get(curve.key, {})
                if step is not None and step[1] not in tried and self._fits(curve, step[1]):
                    steps.append((step[0], -place, step[1]))
            if not steps:
                return
            _, place, n = max(steps)
            curve = all_series[-place]
            times = self.times(curve)
            purpose = MAIN if n > max(times) else BISECT
            yield self._some(curve, n, curves.contenders(times, n, self._cpu), purpose)

    def _grid(self, all_series: Sequence[Series]) -> Iterator[Step]:
        """The sizes of the ladder that are missing, from the cheapest on, each within its share of the time."""
        missing = [
            (self._predicted_s(curve, n), place, n)
            for place, curve in enumerate(all_series)
            for n in curve.ladder.sizes()
            if n not in self._elapsed.get(curve.key, {}) and n not in self.samples(curve)
        ]
        left_s = self._left_s() * GRID_SHARE
        for i, (seconds, place, n) in enumerate(sorted(missing)):
            if seconds > left_s / (len(missing) - i) or not self._fits(all_series[place], n):
                return
            before = self._left_s()
            yield self.whole(all_series[place], n, device_clock=False)
            left_s -= before - self._left_s()

    # ---------------------------------------------------------------- fresh timings

    def _estimates(self) -> Iterator[Step]:
        """Curve by curve, from the cheapest on: the bracket halved, then fresh timings around it."""
        todo = sorted(
            (cost, place, name)
            for place, curve in enumerate(self._curves)
            for name in curves.ratios(self.times(curve), self._cpu)
            if name[0] not in self._software and (cost := self._least_s(curve, name)) is not None
        )
        for i, (_, place, name) in enumerate(todo):
            share_s = self._left_s() / (len(todo) - i)
            curve = self._curves[place]
            yield from self._bisect(curve, name, share_s)
            window = self._window(curve, name, share_s)
            if window is not None:
                self._settled.setdefault(curve.key, set()).add(name)
                for group in together(window.workloads(self._scope), self._scope):
                    yield Step(group, Purpose("estimate", window.samples))

    def _least_s(self, curve: Series, name: Curve) -> float | None:
        """What the smallest estimate of a curve will take; None if it has no single bracket."""
        ratios = curves.ratios(self.times(curve), self._cpu)
        slots = pair(self.samples(curve), name, self._cpu)
        if slots is None or name not in ratios or not curves.settled(ratios[name]):
            return None
        return self._estimate_s(curve, slots, BLOCK_SAMPLES)

    def _bisect(self, curve: Series, name: Curve, share_s: float) -> Iterator[Step]:
        until = self._after(share_s)
        while True:
            samples = self.samples(curve)
            slots = pair(samples, name, self._cpu)
            n = curves.bisection(curve.ladder, middle_ratios(samples, name, self._cpu))
            if slots is None or n is None or set(slots) <= samples.get(n, {}).keys():
                return
            spent = self._spent(curve, slots) + 2 * curves.BISECTION_TIMINGS
            seconds = self._estimate_s(curve, slots, BLOCK_SAMPLES) * (1 + 1 / break_even.WINDOW_SIZES)
            if spent > self._settings.break_even_timings / 2 or MARGIN * seconds > self._left_s() - until:
                return
            yield self._some(curve, n, set(slots), BISECT)
            if not set(slots) <= self.samples(curve).get(n, {}).keys():
                return

    def _window(self, curve: Series, name: Curve, share_s: float) -> Window | None:
        """As many fresh timings as the search has left, or fewer if the time does not do for them."""
        samples = self.samples(curve)
        slots = pair(samples, name, self._cpu)
        if slots is None:
            return None
        wanted = (self._settings.break_even_timings - self._spent(curve, slots)) // 2
        window = around(curve, samples, name, self._cpu, wanted)
        least = min(BLOCK_SAMPLES, wanted // break_even.WINDOW_SIZES)
        if window is None or least < LEAST_SAMPLES:
            return None
        for count in (window.samples, *range(window.samples - window.samples % 5, least, -5), least):
            seconds = MARGIN * self._estimate_s(curve, slots, count)
            if seconds <= share_s or (count == least and seconds <= self._left_s()):
                found = around(curve, samples, name, self._cpu, count * len(window.sizes))
                return found and msgspec.structs.replace(found, samples=count)
        return None

    def _spent(self, curve: Series, slots: Sequence[Slot]) -> int:
        given = dict.fromkeys([*curve.given, *curve.ladder.sizes()], curves.GRID_TIMINGS)
        return timings(self.samples(curve), slots, given)

    # ---------------------------------------------------------------- predictions

    def _fits(self, curve: Series, n: int) -> bool:
        """True if this size is predicted to fit what the search may still spend."""
        return MARGIN * self._predicted_s(curve, n) < self._left_s()

    def _predicted_s(self, curve: Series, n: int) -> float:
        elapsed = self._elapsed.get(curve.key, {})
        return curves.predicted_seconds(curve, n, self.times(curve), elapsed, self._settings.min_samples)

    def _estimate_s(self, curve: Series, slots: Sequence[Slot], samples: int) -> float:
        """Seconds for `samples` of each slot in a window: what a case took nearby, and the samples beyond those."""
        rows = {n: row for n, row in self.samples(curve).items() if all(s in row for s in slots)}
        known = self._case_s.get(curve.key, {})
        ends = break_even.bracket({n: _ratio(row, slots) for n, row in rows.items()}) or (0, max(rows))
        near = min((n for n in known if n >= ends[1]), default=max(known, default=0))
        usual_s, taken = known.get(near, 0.0), min(len(row[s]) for row in rows.values() for s in slots)
        launch_s = max(stats.median(rows[ends[1]][s]) for s in slots)
        sample_s = min(max(SAMPLE_S, launch_s), usual_s / taken)
        more = max(0, samples - taken)
        warm_up_s = -(-more // BLOCK_SAMPLES) * self._settings.warmup_s
        return break_even.WINDOW_SIZES * (len(slots) * (usual_s + more * sample_s) + warm_up_s)

    def _after(self, share_s: float) -> float:
        """What will be left of the time once a share of it is spent."""
        return self._left_s() - share_s if math.isfinite(share_s) else -math.inf

    # ---------------------------------------------------------------- what was measured, what is asked for

    def whole(self, curve: Series, n: int, *, device_clock: bool = True) -> Step:
        """All cases of a size."""
        found = workload(curve, n, self._scope)
        return Step((msgspec.structs.replace(found, device_clock=device_clock),), MAIN)

    def _some(self, curve: Series, n: int, slots: set[Slot], purpose: Purpose) -> Step:
        """The cases of a size that are in these slots."""
        found = workload(curve, n, self._scope)
        cases = tuple(c for c in found.cases if c.variant is None and slot(c) in slots)
        return Step((msgspec.structs.replace(found, cases=cases, skips=(), device_clock=False),), purpose)

    def samples(self, curve: Series) -> Samples:
        """The samples of the search by size and slot: fresh ones are for the estimate alone."""
        if curve.key not in self._known:
            self._known[curve.key] = search_samples(self._recorder.outcomes, curve)
        return self._known[curve.key]

    def times(self, curve: Series) -> dict[int, dict[Slot, curves.Span]]:
        """What the search knows of a curve: by size, then by form, device and regime."""
        return {
            n: {slot: _span(values) for slot, values in row.items()} for n, row in self.samples(curve).items()
        }


def _ratio(row: Row, slots: Sequence[Slot]) -> float:
    return stats.median(row[slots[0]]) / stats.median(row[slots[-1]])


def _span(values: Sequence[float]) -> curves.Span:
    low, high = stats.median_interval(values)
    return curves.Span(low, stats.median(values), high)
