"""The search for break-evens in a run's first session: coarse sizes, brackets, fresh timings, inside the budget.

What it asks for next depends on what was measured so far, so it hands out one step at a time. The order keeps
verdicts first: every curve gets its coarse sizes, then the gaps and ends that leave a verdict open, then the rest of
the grid where it is cheap. Only then curves are finished one by one, the cheapest first: bracket, window, estimate.
A curve for which the budget does not do keeps its measured sizes, and its break-even is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gpubench import stats, threshold
from gpubench.measure import search, windows
from gpubench.measure.aim import MAIN, Aim
from gpubench.measure.plan import Scope, Series, Workload, together, workload
from gpubench.measure.recorder import Recorder
from gpubench.measure.search import Curve, Slot

# While the coarse sizes are measured, what follows keeps the rest of what is left.
COARSE_SHARE = 0.8
# The grid between the coarse sizes and above them may take this share of what is then left.
GRID_SHARE = 0.25
# Predictions are missed: a step is begun if it is predicted to fit with this much to spare.
MARGIN = 1.2
# A sample lasts 5 to 10 ms where launches are short (measurement.md section 5, step 4).
SAMPLE_S = 0.01
BISECT = Aim("search", search.BISECTION_TIMINGS)


class Step(NamedTuple):
    """Workloads to measure together, and what for."""

    workloads: tuple[Workload, ...]
    aim: Aim


class Hunt:
    """Steps of one search. Each has to be measured, and its time told with `took`, before the next is asked for."""

    def __init__(
        self, curves: Sequence[Series], scope: Scope, recorder: Recorder, left_s: Callable[[], float]
    ) -> None:
        self._curves = curves
        self._scope = scope
        self._recorder = recorder
        self._left_s = left_s
        self._settings = scope.settings
        self._cpu = {t.device.id for t in scope.targets if t.device.kind == "cpu"}
        # A software adapter gets no verdict, so a break-even of it would be measured for nobody.
        self._software = {t.device.id for t in scope.targets if t.device.kind == "software"}
        self._elapsed: dict[str, dict[int, float]] = {}
        self._case_s: dict[str, dict[int, float]] = {}
        self._settled: dict[str, set[Curve]] = {}
        self._known: dict[str, windows.Samples] = {}

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
                    if n not in self._samples(curve):  # of a run that was interrupted
                        yield self._whole(curve, n)
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
        sizes = search.coarse_sizes(curve.ladder)
        for n in sizes:
            if n in self._samples(curve):
                continue
            elapsed = self._elapsed.get(curve.key, {})
            left = self._left_s() - until
            fits = search.affordable(curve, n, self.times(curve), elapsed, self._settings.min_samples, left)
            if fits is None:
                return
            yield self._whole(curve, fits, device_clock=n == sizes[-1])
            if fits < n:
                return

    def _gaps(self, curves: Sequence[Series], *, narrow: bool) -> Iterator[Step]:
        """Take the most urgent step of all curves, as long as there is one and time for it."""
        while True:
            steps = []
            for place, curve in enumerate(curves):
                done = self._settled.get(curve.key, set())
                step = search.next_step(curve.ladder, self.times(curve), self._cpu, done, narrow=narrow)
                # A size that was tried and gave no time (it did not fit, say) gives none the second time either.
                tried = self._elapsed.get(curve.key, {})
                if step is not None and step[1] not in tried and self._fits(curve, step[1]):
                    steps.append((step[0], -place, step[1]))
            if not steps:
                return
            _, place, n = max(steps)
            curve = curves[-place]
            times = self.times(curve)
            aim = MAIN if n > max(times) else BISECT
            yield self._some(curve, n, search.contenders(times, n, self._cpu), aim)

    def _grid(self, curves: Sequence[Series]) -> Iterator[Step]:
        """The sizes of the ladder that are missing, from the cheapest on, each within its share of the time."""
        missing = [
            (self._predicted_s(curve, n), place, n)
            for place, curve in enumerate(curves)
            for n in curve.ladder.sizes()
            if n not in self._elapsed.get(curve.key, {}) and n not in self._samples(curve)
        ]
        left_s = self._left_s() * GRID_SHARE
        for i, (seconds, place, n) in enumerate(sorted(missing)):
            if seconds > left_s / (len(missing) - i) or not self._fits(curves[place], n):
                return
            before = self._left_s()
            yield self._whole(curves[place], n, device_clock=False)
            left_s -= before - self._left_s()

    # ---------------------------------------------------------------- fresh timings

    def _estimates(self) -> Iterator[Step]:
        """Curve by curve, from the cheapest on: the bracket halved, then fresh timings around it."""
        todo = sorted(
            (cost, place, name)
            for place, curve in enumerate(self._curves)
            for name in search.ratios(self.times(curve), self._cpu)
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
                    yield Step(group, Aim("estimate", window.samples))

    def _least_s(self, curve: Series, name: Curve) -> float | None:
        """What the smallest estimate of a curve will take; None if it has no single bracket."""
        ratios = search.ratios(self.times(curve), self._cpu)
        slots = windows.pair(self._samples(curve), name, self._cpu)
        if slots is None or name not in ratios or not search.settled(ratios[name]):
            return None
        return self._estimate_s(curve, slots, windows.BLOCK_SAMPLES)

    def _bisect(self, curve: Series, name: Curve, share_s: float) -> Iterator[Step]:
        until = self._after(share_s)
        while True:
            samples = self._samples(curve)
            slots = windows.pair(samples, name, self._cpu)
            n = search.bisection(curve.ladder, windows.middle_ratios(samples, name, self._cpu))
            if slots is None or n is None or set(slots) <= samples.get(n, {}).keys():
                return
            spent = self._spent(curve, slots) + 2 * search.BISECTION_TIMINGS
            seconds = self._estimate_s(curve, slots, windows.BLOCK_SAMPLES) * (1 + 1 / threshold.WINDOW_SIZES)
            if spent > self._settings.break_even_timings / 2 or MARGIN * seconds > self._left_s() - until:
                return
            yield self._some(curve, n, set(slots), BISECT)
            if not set(slots) <= self._samples(curve).get(n, {}).keys():
                return

    def _window(self, curve: Series, name: Curve, share_s: float) -> windows.Window | None:
        """As many fresh timings as the search has left, or fewer if the time does not do for them."""
        samples = self._samples(curve)
        slots = windows.pair(samples, name, self._cpu)
        if slots is None:
            return None
        wanted = (self._settings.break_even_timings - self._spent(curve, slots)) // 2
        window = windows.around(curve, samples, name, self._cpu, wanted)
        least = min(windows.BLOCK_SAMPLES, wanted // threshold.WINDOW_SIZES)
        if window is None or least < windows.LEAST_SAMPLES:
            return None
        for count in (window.samples, *range(window.samples - window.samples % 5, least, -5), least):
            seconds = MARGIN * self._estimate_s(curve, slots, count)
            if seconds <= share_s or (count == least and seconds <= self._left_s()):
                found = windows.around(curve, samples, name, self._cpu, count * len(window.sizes))
                return found and msgspec.structs.replace(found, samples=count)
        return None

    def _spent(self, curve: Series, slots: Sequence[Slot]) -> int:
        given = dict.fromkeys([*curve.given, *curve.ladder.sizes()], search.GRID_TIMINGS)
        return windows.timings(self._samples(curve), slots, given)

    # ---------------------------------------------------------------- predictions

    def _fits(self, curve: Series, n: int) -> bool:
        """True if this size is predicted to fit what the search may still spend."""
        return MARGIN * self._predicted_s(curve, n) < self._left_s()

    def _predicted_s(self, curve: Series, n: int) -> float:
        elapsed = self._elapsed.get(curve.key, {})
        return search.predicted_seconds(curve, n, self.times(curve), elapsed, self._settings.min_samples)

    def _estimate_s(self, curve: Series, slots: Sequence[Slot], samples: int) -> float:
        """Seconds for `samples` of each slot in a window: what a case took nearby, and the samples beyond those."""
        rows = {n: row for n, row in self._samples(curve).items() if all(s in row for s in slots)}
        known = self._case_s.get(curve.key, {})
        ends = threshold.bracket({n: _ratio(row, slots) for n, row in rows.items()}) or (0, max(rows))
        near = min((n for n in known if n >= ends[1]), default=max(known, default=0))
        usual_s, taken = known.get(near, 0.0), min(len(row[s]) for row in rows.values() for s in slots)
        launch_s = max(stats.median(rows[ends[1]][s]) for s in slots)
        sample_s = min(max(SAMPLE_S, launch_s), usual_s / taken)
        more = max(0, samples - taken)
        warm_up_s = -(-more // windows.BLOCK_SAMPLES) * self._settings.warmup_s
        return threshold.WINDOW_SIZES * (len(slots) * (usual_s + more * sample_s) + warm_up_s)

    def _after(self, share_s: float) -> float:
        """What will be left of the time once a share of it is spent."""
        return self._left_s() - share_s if math.isfinite(share_s) else -math.inf

    # ---------------------------------------------------------------- what was measured, what is asked for

    def _whole(self, curve: Series, n: int, *, device_clock: bool = True) -> Step:
        """All cases of a size."""
        found = workload(curve, n, self._scope)
        return Step((msgspec.structs.replace(found, device_clock=device_clock),), MAIN)

    def _some(self, curve: Series, n: int, slots: set[Slot], aim: Aim) -> Step:
        """The cases of a size that are in these slots."""
        found = workload(curve, n, self._scope)
        cases = tuple(c for c in found.cases if c.variant is None and windows.slot(c) in slots)
        return Step((msgspec.structs.replace(found, cases=cases, skips=(), device_clock=False),), aim)

    def _samples(self, curve: Series) -> windows.Samples:
        """The samples of the search by size and slot: fresh ones are for the estimate alone."""
        if curve.key not in self._known:
            self._known[curve.key] = windows.search_samples(self._recorder.outcomes, curve)
        return self._known[curve.key]

    def times(self, curve: Series) -> dict[int, dict[Slot, search.Span]]:
        """What the search knows of a curve: by size, then by form, device and regime."""
        return {
            n: {slot: _span(values) for slot, values in row.items()} for n, row in self._samples(curve).items()
        }


def _ratio(row: windows.Row, slots: Sequence[Slot]) -> float:
    return stats.median(row[slots[0]]) / stats.median(row[slots[-1]])


def _span(values: Sequence[float]) -> search.Span:
    low, high = stats.median_interval(values)
    return search.Span(low, stats.median(values), high)
