"""`Analysis`: one run as a report reads it, with its cases, speedups and break-evens. The same file always
gives the same result.

Other modules compute further parts of a report from an `Analysis`. The functions for several runs group them by
machine, find common sizes, and follow the time of a case from run to run.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpubench.analysis.estimate import CALLS, CaseResult, case_results
from gpubench.analysis.machine import group_by_machine, machine_line
from gpubench.analysis.speedup import BreakEven, Speedup, baseline_line, break_evens, ids_beside, speedups
from gpubench.base import group_by
from gpubench.curves import stats
from gpubench.result.case import DEVICE_GROUP, Case, SeriesKey
from gpubench.result.run import DeviceKind, Measurement, Run

if TYPE_CHECKING:
    from gpubench.analysis.claims import Claim
    from gpubench.analysis.findings import Gates

T = TypeVar("T")


class Analysis:
    """One run as a report reads it. Values are computed on first use, and kept.

    `everything` holds all cases, and `compared` those that can be compared with a CPU. `cases` and `speedups`
    hold only shown ones.
    """

    def __init__(
        self, run: Run, baseline: str | None, keep: Callable[[Case], bool] | None, gates: Gates | None,
        claims: Sequence[Claim],
    ) -> None:  # fmt: skip
        self.run, self.asked_gates, self.asked_claims = run, gates, claims
        self._baseline, self._keep = baseline, keep
        self._source, self._nouns = self, dict[Any, Any]()

    def replace(self, **values: Any) -> Analysis:
        """Return a copy with other attributes, such as `cases` in another order. The copy shares the parts that
        `derive` keeps."""
        other = copy.copy(self)
        vars(other).update(values)
        return other

    def derive(self, noun: Callable[[Analysis], T]) -> T:
        """Return `noun(analysis)`, a part of the report. It is computed once, and from the analysis before any
        `replace`."""
        if noun not in self._nouns:
            self._nouns[noun] = noun(self._source)
        value: T = self._nouns[noun]
        return value

    def shows(self, case: Case) -> bool:
        """Tell whether the case is shown. A hidden case still serves as a baseline."""
        return self._keep is None or self._keep(case)

    def shown_of(self, rows: Iterable[CaseResult]) -> list[CaseResult]:
        """Return the rows whose cases are shown."""
        return [item for item in rows if self.shows(item.case)]

    @cached_property
    def whole(self) -> Analysis:
        """The analysis of all cases, shown or not, with the fastest CPU implementation as the baseline."""
        plain = self._keep is None and self._baseline is None
        return self._source if plain else analyse(self.run)

    @cached_property
    def outcomes(self) -> dict[str, Measurement]:
        """The measurements by case id."""
        return {outcome.id: outcome for outcome in self.run.measurements}

    @cached_property
    def everything(self) -> tuple[CaseResult, ...]:
        return tuple(case_results(self.run))

    @cached_property
    def cases(self) -> tuple[CaseResult, ...]:
        return tuple(self.shown_of(self.everything))

    @cached_property
    def compared(self) -> tuple[CaseResult, ...]:
        """All cases that can be compared with a CPU: without overheads, collectives, device groups and
        named variants."""
        return tuple(
            item
            for item in self.everything
            if item.case.variant is None and item.case.group not in CALLS and item.case.backend != DEVICE_GROUP
        )

    @cached_property
    def _beside(self) -> frozenset[str]:
        return ids_beside(self.compared) if self._baseline is None else frozenset()

    @cached_property
    def speedups(self) -> tuple[Speedup, ...]:
        return speedups(self.compared, self.shows, self._baseline, self._beside)

    @cached_property
    def break_even(self) -> tuple[BreakEven, ...]:
        return self.curves_of("gpu")

    @cached_property
    def points(self) -> tuple[BreakEven, ...]:
        """The break-evens without fitted curves. They are quick to compute, and their verdicts are all
        `undecided`."""
        return self.curves_of("gpu", fitted=False)

    def curves_of(self, kind: DeviceKind, *, fitted: bool = True) -> tuple[BreakEven, ...]:
        """Return the break-even of each series, regime and device of this kind. Without `fitted`, no curve is
        fitted: this is quick, and all verdicts are `undecided`."""
        cases = [item for item in self.compared if alone(item) and item.id not in self._beside]
        return break_evens(
            self.run, cases, [item for item in self.speedups if alone(item.case)], kind, fitted=fitted
        )

    @cached_property
    def best_code(self) -> tuple[BreakEven, ...]:
        """The break-evens of users' functions between the fastest code on the CPU and the fastest code on the
        GPU. Functions that run only as they are written are left out."""
        cases = [item for item in self.compared if alone(item)]
        ops = {item.case.op for item in self.shown_of(cases) if item.id in self._beside}
        ratios = speedups([item for item in cases if item.case.op in ops], self.shows) if ops else ()
        return break_evens(self.run, cases, ratios)

    @cached_property
    def machine(self) -> str:
        return machine_line(self.run)

    @cached_property
    def baseline(self) -> str:
        """The baseline of the speedups as text."""
        return baseline_line(self.run, [item for item in self.speedups if item.kind == "headline"])


def derive_once(derive: Callable[[Analysis], T]) -> Callable[[Analysis], T]:
    """Decorate a function of an analysis so that its value is computed once for each analysis."""

    @functools.wraps(derive)
    def noun(analysis: Analysis) -> T:
        return analysis.derive(derive)

    return noun


def analyse(
    run: Run, *, baseline: str | None = None, keep: Callable[[Case], bool] | None = None, gates: Gates | None = None,
    claims: Sequence[Claim] = (),
) -> Analysis:  # fmt: skip
    """Return the analysis of `run`. `baseline` is DEVICE, IMPLEMENTATION or IMPLEMENTATION@DEVICE (default:
    the fastest CPU implementation), and `keep` selects the shown cases. Raises InputError if the baseline was
    not measured."""
    analysis = Analysis(run, baseline, keep, gates, claims)
    if baseline is not None:
        _ = analysis.speedups
    return analysis


def alone(item: CaseResult) -> bool:
    """Tell whether the case computes on a single device, unlike splits and device groups."""
    return item.case.shared_with is None and item.case.backend != DEVICE_GROUP


KEYS = ("case", "op", "n", "device", "time", "speedup")


def order_rows(analysis: Analysis, key: str) -> Analysis:
    """Return `analysis` with its rows sorted by `key`: one of KEYS, with `-` in front for descending order.
    Rows without a value come last, and equal rows keep their order."""
    name, down = key.removeprefix("-"), key.startswith("-")
    ratios = {item.case.id: item.ratio for item in analysis.speedups if item.kind in ("headline", "case")}

    def value(item: CaseResult) -> Any:
        case = item.case
        return {
            "case": item.id, "op": case.op, "n": case.params.get("n"), "device": case.device_id,
            "time": item.time and item.time.estimate, "speedup": ratios.get(item.id),
        }[name]  # fmt: skip

    def by(rows: Iterable[T], case_of: Callable[[T], CaseResult]) -> tuple[T, ...]:
        values = [(value(case_of(item)), item) for item in rows]
        has = sorted((pair for pair in values if pair[0] is not None), key=lambda pair: pair[0], reverse=down)
        return tuple(item for _, item in [*has, *(pair for pair in values if pair[0] is None)])

    return analysis.replace(
        cases=by(analysis.cases, lambda item: item), speedups=by(analysis.speedups, lambda item: item.case)
    )


# ---------------------------------------------------------------- means of speedups


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """The geometric mean of one device's headline speedups. Means of different sets of workloads are
    not comparable."""

    regime: str  # the id of the regime
    dtype: str  # the dtype of the elements
    device_id: str  # the id of the device
    ratio: float  # the mean of the speedups
    lo: float  # the mean of the low ends of the speedups' intervals
    hi: float  # the mean of the high ends of the speedups' intervals
    count: int  # the number of workloads in the mean
    missing: tuple[str, ...]  # the workloads that all means of the dtype should include and this one lacks


@derive_once
def means(analysis: Analysis) -> tuple[Mean, ...]:
    """Return the geometric mean of the headline speedups of each regime, dtype and device. All means of a dtype
    are over the same workloads: those that have a case in every regime, timed or not. The interval is as wide
    as if all speedups erred in the same direction."""
    # This leaves out sizes that a search added for one break-even.
    everything = _fixed_set(analysis.shown_of(analysis.compared))
    counted = [
        ratio
        for ratio in analysis.speedups
        if ratio.headline and ratio.case.case.workload in everything.get(ratio.case.case.dtype, ())
    ]
    groups = group_by(counted, lambda ratio: (ratio.case.case.regime_id, ratio.case.case.dtype))
    rows = []
    for (regime, dtype), group in groups.items():
        for device_id, same in group_by(group, lambda ratio: ratio.case.case.device_id).items():
            ratios = {ratio.case.case.workload: ratio for ratio in same}
            lo, middle, hi = (
                stats.geometric_mean([getattr(ratio, end) for ratio in ratios.values()])
                for end in ("lo", "ratio", "hi")
            )
            missing = tuple(name for name in everything[dtype] if name not in ratios)
            rows.append(
                Mean(
                    regime=regime, dtype=dtype, device_id=device_id, ratio=middle, lo=lo, hi=hi, count=len(ratios),
                    missing=missing,
                )
            )  # fmt: skip
    return tuple(rows)


def _fixed_set(cases: Sequence[CaseResult]) -> dict[str, list[str]]:
    """Return, by dtype, the workloads that have a case in every regime of this dtype, timed or not. CPU cases
    do not count."""
    tried: dict[str, dict[str, set[str]]] = {}
    for case in cases:
        # a CPU has one regime for all situations
        if case.device_kind != "cpu":
            by_workload = tried.setdefault(case.case.dtype, {})
            by_workload.setdefault(case.case.workload, set()).add(case.case.regime_id)
    return {
        dtype: [name for name, regimes in by_workload.items() if regimes == set().union(*by_workload.values())]
        for dtype, by_workload in tried.items()
    }


# ---------------------------------------------------------------- several runs


class MachineRuns(msgspec.Struct, frozen=True):
    """The runs of one machine."""

    runs: tuple[Analysis, ...]  # from the oldest to the newest

    @property
    def newest(self) -> Analysis:
        """The newest run with a time, or the newest run if none has a time."""
        timed = (run for run in reversed(self.runs) if any(case.time is not None for case in run.cases))
        return next(timed, self.runs[-1])


class History(msgspec.Struct, frozen=True):
    """The times of one case over the runs of a machine."""

    id: str  # the id of the case
    # the seconds of the case in each run, oldest first; None if a run has no time of the case
    times: tuple[float | None, ...]

    @property
    def change(self) -> float:
        """The newest time divided by the oldest time. Runs without a time are ignored."""
        measured = [time for time in self.times if time is not None]
        return measured[-1] / measured[0]


def machine_runs(analyses: Sequence[Analysis]) -> tuple[MachineRuns, ...]:
    """Group the runs by machine. Machines have the order of their first files."""
    return tuple(
        MachineRuns(
            tuple(sorted((analyses[i] for i in places), key=lambda side: (side.run.started_at, side.run.id)))
        )
        for places in group_by_machine([analysis.run for analysis in analyses])
    )


def common_sizes(machines: Sequence[MachineRuns]) -> dict[SeriesKey, int]:
    """Return, by series, the largest size at which the newest run of every machine has the speedup of a
    hardware GPU. Series without such a size are left out. `machines` must not be empty."""
    compared = [
        dict.fromkeys((item.case.case.series, item.n) for item in headlines(side.newest)) for side in machines
    ]
    common = [place for place in compared[0] if all(place in places for places in compared)]
    return {name: max(n for _, n in same) for name, same in group_by(common, lambda place: place[0]).items()}


def headlines(analysis: Analysis) -> list[Speedup]:
    """Return the headline speedups of hardware GPUs, without splits and software adapters."""
    return [item for item in analysis.speedups if item.kind == "headline" and item.case.device_kind == "gpu"]


def histories(side: MachineRuns) -> tuple[History, ...]:
    """Return one history for each series, regime and device with a case that has a time in at least two runs.
    Of several cases, the one with times in the most runs counts, then the largest size, then the fastest
    implementation. Variants are left out."""
    times: dict[str, dict[int, CaseResult]] = {}
    for i, analysis in enumerate(side.runs):
        for item in analysis.cases:
            if item.time is not None and item.case.variant is None:
                times.setdefault(item.id, {})[i] = item
    several = [by_run for by_run in times.values() if len(by_run) > 1]
    groups = group_by(several, lambda by_run: by_run[max(by_run)].case.cell)
    return tuple(_history(max(group, key=_weight), len(side.runs)) for group in groups.values())


def _weight(by_run: dict[int, CaseResult]) -> tuple[int, int, float]:
    newest = by_run[max(by_run)]
    assert newest.time is not None, "only cases with a time have a history"
    return len(by_run), newest.case.params.get("n", 0), -newest.time.estimate


def _history(by_run: dict[int, CaseResult], runs: int) -> History:
    times = [by_run[i].time if i in by_run else None for i in range(runs)]
    return History(by_run[max(by_run)].id, tuple(time.estimate if time else None for time in times))
