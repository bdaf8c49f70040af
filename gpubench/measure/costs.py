"""What measuring takes: the seconds of a step before it is begun, by what earlier steps took."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping

from gpubench.curves import stats
from gpubench.measure.pace import between
from gpubench.measure.plan import Constraints, Series, Step
from gpubench.measure.points import Points, Slot, slot

# Before anything is known: seconds of an op in a step, of a case beside its launches, and of a byte of its operands
# (they are drawn, go up, and are compared).
STEP_S, CASE_S, BYTE_S = 0.08, 0.02, 4e-9
# Launches of a case with one block: the first one, trials, samples, checks; and seconds and launches of each further
# block. A reference in float64 takes as long as so many of the slowest launches.
LAUNCHES, BLOCK_S, BLOCK_LAUNCHES, REFERENCE_LAUNCHES = 6, 0.005, 2, 4
# So many steps tell what a case and a byte take.
REMEMBERED = 9
# What several ops ask for, or what is left of one's ladder, is one step if it takes no longer than this.
ONE_STEP_S = 3.0
# What an op takes beyond the usual, as far as it is believed.
LEAST_SCALE, MOST_SCALE = 0.3, 3.0


def count_together(costs_s: Iterable[float], most_s: float) -> int:
    """Return how many of the first costs one step of `most_s` seconds holds: one at least, as long as there is one."""
    totals = list(itertools.accumulate(costs_s))
    return max(min(len(totals), 1), sum(total <= most_s for total in totals))


class CostModel:
    """The cost model of one session: what steps took, and what sizes to come will take."""

    def __init__(self, points: Points, constraints: Constraints) -> None:
        self._points = points
        self._cpu = {target.device.id for target in constraints.targets if target.device.kind == "cpu"}
        self._gpu = {target.device.id for target in constraints.targets if target.device.kind == "gpu"}
        self._calls = constraints.selection.calls
        self._case_s: deque[float] = deque(maxlen=REMEMBERED)
        self._byte_s: deque[float] = deque(maxlen=REMEMBERED)
        self._scale: dict[str, float] = {}
        # Bytes and work of a launch, which some ops add up from many stages.
        self._sizes: dict[tuple[str, int], tuple[int, int]] = {}
        # Seconds of launches by series, and the times that they follow from.
        self._launches: dict[str, tuple[object, dict[tuple[Slot, int], float]]] = {}

    def took(self, step: Step, took_s: float) -> None:
        """Learn from a step whose times are among the points by now."""
        ops: dict[str, dict[int, set[Slot]]] = {}
        series: dict[str, Series] = {}
        for item in step.workloads:
            if item.cases:
                series[item.series.key] = item.series
                ops.setdefault(item.series.key, {})[item.n] = {slot(case) for case in item.cases}
        if not ops:
            return
        blocks = step.purpose.blocks or 1
        sizes = [(series[key], n, names) for key, slots in ops.items() for n, names in slots.items()]
        cases = sum(len(names) for *_, names in sizes)
        moved = sum(self._size(one, n)[0] for one, n, _ in sizes)
        launches_s = math.fsum(self._launches_s(one, n, names, blocks - 1) for one, n, names in sizes)
        rest_s = max(0.0, took_s - len(ops) * STEP_S - launches_s - cases * (blocks - 1) * BLOCK_S)
        if moved * self.byte_s <= cases * self.case_s:
            self._case_s.append(max(0.0, rest_s - moved * self.byte_s) / cases)
        else:
            self._byte_s.append(max(0.0, rest_s - cases * self.case_s) / moved)
        expected = {key: self.of(series[key], slots, blocks) for key, slots in ops.items()}
        whole_s = math.fsum(expected.values())
        for key, expected_s in expected.items():  # who was to take longer is the likelier cause
            scale = self._scale.get(key, 1.0) * (took_s / whole_s) ** (expected_s / whole_s)
            self._scale[key] = min(max(scale, LEAST_SCALE), MOST_SCALE)

    @property
    def known(self) -> bool:
        """Whether a step has told what steps cost here."""
        return bool(self._case_s or self._byte_s)

    @property
    def case_s(self) -> float:
        """Seconds of a case beside its launches."""
        return stats.median(self._case_s) if self._case_s else CASE_S

    @property
    def byte_s(self) -> float:
        """Seconds for each byte of the operands."""
        return stats.median(self._byte_s) if self._byte_s else BYTE_S

    def of(self, series: Series, slots: Mapping[int, Collection[Slot]], blocks: int = 1) -> float:
        """Predict the seconds of a step with these sizes, the contenders at each, and so many blocks of each case."""
        total_s = STEP_S
        for n, names in slots.items():
            total_s += len(names) * (self.case_s + (blocks - 1) * BLOCK_S)
            total_s += self._launches_s(series, n, names, blocks - 1)
            total_s += self.byte_s * self._size(series, n)[0]
        return total_s * self._scale.get(series.key, 1.0)

    def _launches_s(self, series: Series, n: int, names: Collection[Slot], more: int) -> float:
        """Seconds of all launches at size `n`, those of the reference and of `more` blocks included."""
        times = {name: self._launch_s(series, name, n) for name in names}
        every = math.fsum(launch_s * self._count(name) for name, launch_s in times.items())
        return (LAUNCHES + more * BLOCK_LAUNCHES) * every + REFERENCE_LAUNCHES * max(
            times.values(), default=0.0
        )

    def _count(self, name: Slot) -> int:
        return self._calls if name[2].startswith("transfer-once") else 1

    def _size(self, series: Series, n: int) -> tuple[int, int]:
        """Return the bytes and the work of a launch."""
        key = (series.key, n)
        if key not in self._sizes:
            self._sizes[key] = (series.op.bytes(series.params(n), series.dtype), series.work(n))
        return self._sizes[key]

    def _launch_s(self, series: Series, name: Slot, n: int) -> float:
        """Seconds of a launch: between measured sizes by the line, above them as its work or its bytes grow."""
        every = self._points.times(series)
        source, launches = self._launches.get(series.key, (None, {}))
        if source is not every:
            launches = {}
            self._launches[series.key] = (every, launches)
        if (name, n) not in launches:
            launches[name, n] = self._predicted_s(series, name, n, every)
        return launches[name, n]

    def _predicted_s(
        self, series: Series, name: Slot, n: int, every: Mapping[Slot, Mapping[int, float]]
    ) -> float:
        times = every.get(name)
        if not times:  # about as long as the others of its side, or as the op itself says
            if name[0] not in self._cpu:
                return 0.0
            rivals = [other for other in every if other[0] in self._cpu]
            said_s = series.op.seconds(series.params(n)) if series.op.seconds else 0.0
            return max((self._launch_s(series, rival, n) for rival in rivals), default=said_s)
        if n < min(times):
            return times[min(times)]
        if (launch_s := between(times, n)) is not None:
            return launch_s
        return self._grown_s(series, name, times[max(times)], max(times), n)

    def _grown_s(self, series: Series, name: Slot, launch_s: float, low: int, n: int) -> float:
        if name[2].startswith("transfer"):
            return launch_s * self._size(series, n)[0] / max(self._size(series, low)[0], 1)
        grown_s = launch_s * self._size(series, n)[1] / max(self._size(series, low)[1], 1)
        if name[0] not in self._gpu:
            return grown_s
        # A GPU that waits for its next launch takes hardly longer: it competes with the CPU, or is not worth it.
        rivals = [other for other in self._points.times(series) if other[0] in self._cpu]
        return min([grown_s, *(self._launch_s(series, rival, n) for rival in rivals)])
