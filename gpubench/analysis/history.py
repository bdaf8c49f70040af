"""Several runs beside each other: which machine each is of, what they all measured, and how a case changed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.machine import node_key
from gpubench.analysis.speedup import Speedup
from gpubench.model.case import SeriesKey


class MachineRuns(msgspec.Struct, frozen=True):
    """One machine: its runs from the oldest to the newest, the last of which speaks for it."""

    runs: tuple[Analysis, ...]

    @property
    def newest(self) -> Analysis:
        """The run that speaks for this machine."""
        return self.runs[-1]


class History(msgspec.Struct, frozen=True):
    """One case over the runs of a machine, oldest first; None where a run has no time for it."""

    id: str
    times: tuple[float | None, ...]

    @property
    def change(self) -> float:
        """The newest time over the oldest."""
        measured = [time for time in self.times if time is not None]
        return measured[-1] / measured[0]


def machine_runs(analyses: Sequence[Analysis]) -> tuple[MachineRuns, ...]:
    """The machines, in the order in which their first files were given."""
    found: dict[str, list[Analysis]] = {}
    for analysis in analyses:
        found.setdefault(node_key(analysis.run), []).append(analysis)
    return tuple(
        MachineRuns(tuple(sorted(runs, key=lambda one: (one.run.started_at, one.run.id))))
        for runs in found.values()
    )


def common_sizes(machines: Sequence[MachineRuns]) -> dict[SeriesKey, int]:
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
    return [row for row in analysis.speedups if row.kind == "headline" and row.case.device_kind == "gpu"]


def histories(side: MachineRuns) -> tuple[History, ...]:
    """The cases of a machine with a time in two runs or more: per series, regime and device the faster form at the
    largest size that most runs have."""
    times: dict[str, dict[int, CaseResult]] = {}
    for i, analysis in enumerate(side.runs):
        for row in analysis.cases:
            if row.time is not None and row.case.variant is None:
                times.setdefault(row.id, {})[i] = row
    groups: dict[tuple[object, ...], list[dict[int, CaseResult]]] = {}
    for by_run in times.values():
        row = by_run[max(by_run)]
        if len(by_run) > 1:
            groups.setdefault((row.case.series, row.case.regime_id, row.case.device_id), []).append(by_run)
    return tuple(_history(max(group, key=_weight), len(side.runs)) for group in groups.values())


def _weight(by_run: dict[int, CaseResult]) -> tuple[int, int, float]:
    newest = by_run[max(by_run)]
    assert newest.time is not None, "only cases with a time are in a course"
    return len(by_run), newest.case.params.get("n", 0), -newest.time.estimate


def _history(by_run: dict[int, CaseResult], runs: int) -> History:
    times = [by_run[i].time if i in by_run else None for i in range(runs)]
    return History(by_run[max(by_run)].id, tuple(time.estimate if time else None for time in times))


def _sizes(rows: Sequence[Speedup]) -> dict[SeriesKey, set[int]]:
    found: dict[SeriesKey, set[int]] = {}
    for row in rows:
        found.setdefault(row.case.case.series, set()).add(row.case.case.params["n"])
    return found
