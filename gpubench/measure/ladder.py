"""The fixed ladder of an op: a few sizes that are the same in every run on every machine, measured first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.measure.plan import SLOW_BYTES, Constraints, Series, Workload, workload
from gpubench.result.case import RESIDENT, Case

# A launch is cheap if it takes so long on a slow machine of SLOW_BYTES, and so many operations, a second.
CHEAP_S, SLOW_FLOPS = 8e-3, 4e10


class Rungs:
    """The ladder of one op on the devices at hand: sizes without a case are left out."""

    def __init__(self, series: Series, constraints: Constraints) -> None:
        self.series = series
        self._scope = constraints
        self._cpu = [target.device.id for target in constraints.targets if target.device.kind == "cpu"]
        items = [workload(series, n, constraints) for n in series.ladder.rungs()]
        last = self._last(items)
        self.refused = [item for item in items[last + 1 :] if item.skips]
        self.items = {item.n: item for item in items[: last + 1] if item.cases}
        self.sizes = list(self.items)
        self.left = list(self.sizes)  # not measured yet
        self.dropped: list[int] = []  # the tops that take too long, ascending
        self.asked: set[int] = set()  # also where it failed: nothing is asked for again and again
        self.tops = 0  # how often the top was asked for again
        self.checked = False  # whether a size past a power of two was asked for

    def _last(self, items: Sequence[Workload]) -> int:
        """The place of the largest size that memory holds: some GPU has to be left of those of the smallest one."""
        devices = [{case.device_id for case in item.cases} for item in items]
        first = next(filter(None, devices), set())
        first = first - set(self._cpu) or first
        return max((i for i, present in enumerate(devices) if present & first), default=-1)

    @property
    def rest(self) -> list[int]:
        """The sizes that are still to be measured, without the tops that were dropped."""
        return [n for n in self.left if n not in self.dropped]

    @property
    def top(self) -> int:
        """The largest size that is, or is to be, measured."""
        return max((n for n in self.sizes if n not in self.dropped), default=self.sizes[0])

    @property
    def middle(self) -> int:
        return self.series.ladder.ends(self.sizes)[1]

    @property
    def ends(self) -> list[int]:
        """A low, a middle and the largest size."""
        return sorted({self.sizes[0], self.middle, self.top}) if self.sizes else []

    def next(self) -> list[int]:
        """The sizes of the next turn: a low one and the largest cheap one, then all cheap ones, then the rest."""
        if len(self.left) == len(self.sizes):
            return sorted({self.sizes[0], self._begin} & set(self.rest))
        return [n for n in self.rest if self._is_cheap(n)] or self.rest

    @property
    def _begin(self) -> int:
        """The largest cheap size: with the lowest one it is the first answer of all."""
        return max(filter(self._is_cheap, self.sizes), default=self.sizes[0])

    def _is_cheap(self, n: int) -> bool:
        op, params = self.series.op, self.series.params(n)
        seconds = op.seconds(params) if op.seconds else op.flops(params) / SLOW_FLOPS
        return max(op.bytes(params, self.series.dtype) / SLOW_BYTES, seconds) <= CHEAP_S

    def at(self, n: int, *, whole: bool) -> Workload:
        """The cases of a size. CPUs have every size; GPUs, copies and what decides nothing have few, but for a size
        that is to be measured `whole`."""
        item, host_alone = self.items[n], len(self._cpu) == len(self._scope.targets)
        cases = tuple(case for case in item.cases if whole or self._stays(case, item, n))
        # Of a CPU alone the answer is about the largest sizes.
        explained = (self.top, self.middle if host_alone else self.sizes[0])
        return msgspec.structs.replace(item, cases=cases, explained=n in explained)

    def _stays(self, case: Case, item: Workload, n: int) -> bool:
        low, second, third = (self.sizes[min(i, len(self.sizes) - 1)] for i in range(3))
        if case.variant is not None:
            return n in (low, self.middle, self.top)
        if case.device_id in self._cpu:
            best = next(name for name in self._cpu if any(other.device_id == name for other in item.cases))
            beside = item.outdone(case) or case.device_id != best
            return not beside or n in (second, self.middle, self.top)
        if item.outdone(case):
            return n == self.top and case.regime.startswith(RESIDENT)
        return n in (low, self._begin, self.middle, self.top) or (
            n == third and case.regime != "transfer-always"
        )
