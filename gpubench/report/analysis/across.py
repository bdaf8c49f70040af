"""Several runs beside each other: which machine each is of, what they all measured, and how a case changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpubench.model.case import SeriesKey
from gpubench.model.result import GPUS
from gpubench.report.analysis.nodes import node_key
from gpubench.report.analysis.types import Analysis, BreakEven, CaseResult, Speedup


class Side(msgspec.Struct, frozen=True):
    """One machine: its runs from the oldest to the newest, the last of which speaks for it."""

    runs: tuple[Analysis, ...]

    @property
    def newest(self) -> Analysis:
        """The run that speaks for this machine."""
        return self.runs[-1]


class Course(msgspec.Struct, frozen=True):
    """One case over the runs of a machine, oldest first; None where a run has no time for it."""

    id: str
    times: tuple[float | None, ...]

    @property
    def change(self) -> float:
        """The newest time over the oldest."""
        told = [time for time in self.times if time is not None]
        return told[-1] / told[0]


def sides(analyses: Sequence[Analysis]) -> tuple[Side, ...]:
    """The machines, in the order in which their first files were given."""
    found: dict[str, list[Analysis]] = {}
    for analysis in analyses:
        found.setdefault(node_key(analysis.run), []).append(analysis)
    return tuple(
        Side(tuple(sorted(runs, key=lambda one: (one.run.started_at, one.run.id)))) for runs in found.values()
    )


def common_sizes(machines: Sequence[Side]) -> dict[SeriesKey, int]:
    """The largest size of each series that every machine has measured on a GPU that is no software."""
    found: dict[SeriesKey, int] = {}
    measured = [_sizes(headlines(side.newest)) for side in machines]
    for name in measured[0]:
        shared = set.intersection(*(sizes.get(name, set()) for sizes in measured))
        if shared:
            found[name] = max(shared)
    return found


def headlines(analysis: Analysis) -> list[Speedup]:
    """The headline speedups of GPUs: neither of software nor of a GPU that the CPU helps."""
    return [row for row in analysis.speedups if row.kind == "headline" and row.case.device_kind in GPUS]


def earliest(rows: Iterable[BreakEven]) -> BreakEven | None:
    """Of the GPUs of one machine that with the earliest break-even; one without any if none has one."""
    order = {"always": 0, "at": 1, "unstable": 3, "undecided": 4, "beyond-limit": 5, "never": 6}
    gpus = (row for row in rows if row.device_kind in GPUS)
    return min(gpus, key=lambda row: (order[row.verdict], row.n or row.first), default=None)


def courses(side: Side) -> tuple[Course, ...]:
    """The cases of a machine with a time in two runs or more: per series, regime and device the faster form at the
    largest size that most runs have."""
    times: dict[str, dict[int, CaseResult]] = {}
    for i, analysis in enumerate(side.runs):
        for row in analysis.cases:
            if row.time is not None and row.case.variant is None:
                times.setdefault(row.id, {})[i] = row
    groups: dict[tuple[object, ...], list[dict[int, CaseResult]]] = {}
    for told in times.values():
        row = told[max(told)]
        if len(told) > 1:
            groups.setdefault((row.case.series, row.case.regime_id, row.case.device_id), []).append(told)
    return tuple(_course(max(group, key=_weight), len(side.runs)) for group in groups.values())


def _weight(told: dict[int, CaseResult]) -> tuple[int, int, float]:
    newest = told[max(told)]
    assert newest.time is not None, "only cases with a time are in a course"
    return len(told), newest.case.params.get("n", 0), -newest.time.estimate


def _course(told: dict[int, CaseResult], runs: int) -> Course:
    times = [told[i].time if i in told else None for i in range(runs)]
    return Course(told[max(told)].id, tuple(time.estimate if time else None for time in times))


def _sizes(rows: Sequence[Speedup]) -> dict[SeriesKey, set[int]]:
    found: dict[SeriesKey, set[int]] = {}
    for row in rows:
        found.setdefault(row.case.case.series, set()).add(row.case.case.params["n"])
    return found
