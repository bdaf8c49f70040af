"""The times of a run so far: by size for those who compare sizes, and as curves over the size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gpubench import curves
from gpubench.curves import stats
from gpubench.measure.plan import Series
from gpubench.result.case import GANG, Case
from gpubench.result.run import Block, DeviceKind, Measurement, Outcome

Slot = tuple[str, str, str]  # device id, implementation (variants take no part in the search), regime id
Cell = tuple[str, str]  # device id, regime id
# Slot -> session -> seconds per launch, a value for each block.
Row = Mapping[Slot, Mapping[int, Sequence[float]]]
Rows = Mapping[int, Row]  # by size


def slot(case: Case) -> Slot:
    """Return device, implementation and regime of a case."""
    return (case.device_id, case.form, case.regime_id)


class Points:
    """What was timed of each op. `outcomes` hands over what the run holds; `forget` says that an op has new ones."""

    def __init__(
        self,
        outcomes: Callable[[], Iterable[Outcome]],
        series: Sequence[Series],
        kinds: Mapping[str, DeviceKind],
    ) -> None:
        self._outcomes = outcomes
        self._series = {item.key: item for item in series}
        self._kinds = kinds
        self._by_op: dict[tuple[str, str], list[Outcome]] | None = None
        self._rows: dict[str, Rows] = {}
        self._times: dict[str, dict[Slot, dict[int, float]]] = {}
        self._contenders: dict[str, dict[tuple[str, Slot], curves.TimedSizes]] = {}
        self._curves: dict[str, dict[Slot, curves.TimeCurve]] = {}
        self._fitted: dict[str, dict[Slot, curves.Blocks]] = {}  # the times that these curves were fitted to

    def forget(self, key: str) -> None:
        """Read the times of a series anew; the curves of those that have new ones change with them."""
        self._by_op = None
        for known in (self._rows, self._times, self._contenders):
            known.pop(key, None)

    def rows(self, series: Series) -> Rows:
        """Return what was measured of a series, by size and slot."""
        if series.key not in self._rows:
            if self._by_op is None:  # a run has a thousand outcomes, and all ops ask for theirs
                self._by_op = {}
                for outcome in self._outcomes():
                    self._by_op.setdefault((outcome.case.op, outcome.case.dtype), []).append(outcome)
            ours = self._by_op.get((series.op.name, series.dtype), ())
            self._rows[series.key] = rows(ours, series)
        return self._rows[series.key]

    def times(self, series: Series) -> Mapping[Slot, Mapping[int, float]]:
        """Return the typical seconds of each contender by size."""
        if series.key not in self._times:
            times: dict[Slot, dict[int, float]] = {}
            for n, row in self.rows(series).items():
                for name, sessions in row.items():
                    times.setdefault(name, {})[n] = seconds(sessions)
            self._times[series.key] = times
        return self._times[series.key]

    def fitted(self, series: Series) -> Mapping[Slot, curves.TimeCurve]:
        """Return the curve of each contender that has a time, by what its relatives had when it was timed last."""
        key, blocks = series.key, {name: item.blocks for (_, name), item in self._of(series).items()}
        before = self._fitted.get(key, {})
        changed = {(key, name) for name, times in blocks.items() if before.get(name) != times}
        if changed:
            every = {name: item for other in self._series.values() for name, item in self._of(other).items()}
            fitted = curves.fit(every, only=changed.__contains__)
            self._curves[key] = self._curves.get(key, {}) | {name: curve for (_, name), curve in fitted.items()}
            self._fitted[key] = blocks
        return self._curves.get(key, {})

    def _of(self, series: Series) -> Mapping[tuple[str, Slot], curves.TimedSizes]:
        """Return the times of each contender of a series."""
        if series.key not in self._contenders:
            blocks: dict[Slot, dict[int, list[Sequence[float]]]] = {}
            for n, row in self.rows(series).items():
                for name, sessions in row.items():
                    blocks.setdefault(name, {})[n] = list(sessions.values())
            self._contenders[series.key] = {
                (series.key, name): self._contender(series, name, times) for name, times in blocks.items()
            }
        return self._contenders[series.key]

    def _contender(self, series: Series, name: Slot, times: curves.Blocks) -> curves.TimedSizes:
        op, sizes = series.op, [] if series.shape else [(n, series.params(n)) for n in times]
        moved = {n: (op.bytes(at, series.dtype), op.written_bytes(at, series.dtype)) for n, at in sizes}
        return curves.TimedSizes.of(self._kinds[name[0]], (series.dtype, *name), times, moved)


def rows(outcomes: Iterable[Outcome], series: Series) -> Rows:
    """Return the times of a series by size; splits, gangs and variants are measured for their own sake."""
    times: dict[int, dict[Slot, dict[int, list[float]]]] = {}
    for outcome in outcomes:
        case = outcome.case
        apart = case.variant or case.shared_with or case.backend == GANG
        if not isinstance(outcome, Measurement) or case.op != series.op.name or apart:
            continue
        if case.dtype == series.dtype and case.params == series.params(case.params["n"]):
            sessions: dict[int, list[float]] = {}
            for block in outcome.blocks:
                if block.phase == "main" and (middle := _middle(block)) is not None:
                    sessions.setdefault(block.session, []).append(middle)
            if sessions:
                times.setdefault(case.params["n"], {})[slot(case)] = sessions
    return times


def _middle(block: Block) -> float | None:
    used = block.wall_s[block.warmup :]
    kept = [value for i, value in enumerate(used, block.warmup) if str(i) not in block.discarded] or used
    return stats.median(kept) if kept else None


def seconds(sessions: Mapping[int, Sequence[float]]) -> float:
    """Return the typical time of a slot at one size."""
    return stats.median([value for blocks in sessions.values() for value in blocks])


def cells(known: Rows, cpu: Collection[str], without: Collection[str] = ()) -> list[Cell]:
    """Return each device and regime that may overtake the CPU, but for the devices `without`."""
    places = {
        (name[0], name[2]): None
        for row in known.values()
        for name in row
        if name[0] not in cpu and name[0] not in without
    }
    return list(places)


def ratios(known: Rows, cell: Cell, cpu: Collection[str]) -> dict[int, float]:
    """Return by size the fastest CPU over the fastest implementation of the cell; above 1 the cell wins."""
    ratio = {}
    for n, row in sorted(known.items()):
        base = [seconds(times) for name, times in row.items() if name[0] in cpu]
        case = [seconds(times) for name, times in row.items() if (name[0], name[2]) == cell]
        if base and case:
            ratio[n] = min(base) / min(case)
    return ratio
