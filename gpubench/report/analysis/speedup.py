"""Speedups: wall time against wall time, fastest CPU form against fastest GPU form (section 9)."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence

from gpubench import stats
from gpubench.errors import InputError
from gpubench.model.case import Case
from gpubench.report.analysis.labels import gravest
from gpubench.report.analysis.types import NO_HEADLINE, CaseResult, Speedup, SpeedupKind


def speedups(cases: Sequence[CaseResult], baseline: str | None = None) -> tuple[Speedup, ...]:
    """All rows, in the order of `cases`: per workload, regime and device the headline and what stands beside it.

    `baseline` names another baseline than the fastest CPU form: DEVICE, FORM or FORM@DEVICE.
    Raises InputError (`baseline-missing`) if it names nothing that was measured.
    """
    numbered = [row for row in cases if row.time is not None]
    is_baseline = _baseline_rule(numbered, baseline)
    references: dict[str, list[CaseResult]] = {}
    for row in filter(is_baseline, numbered):
        references.setdefault(row.case.workload, []).append(row)
    found: list[Speedup] = []
    for group in _contenders(numbered, is_baseline):
        bases = _baselines(references.get(group[0].case.workload, []), group[0])
        best = _fastest(group)
        found += _pair("headline", _fastest(bases), best)
        for other in group:
            found += _pair("case", _fastest(bases), other) if other is not best else []
        if baseline is None:
            found += _pair("library", _library(bases), _library(group))
    return tuple(found)


def paired(baseline: CaseResult, case: CaseResult) -> stats.Interval | None:
    """The ratio over the sessions that measured both; None if none did."""
    common = sorted(baseline.sessions.keys() & case.sessions.keys())
    if not common:
        return None
    return stats.ratio_interval([(baseline.sessions[i], case.sessions[i]) for i in common])


def baseline_named(name: str) -> Callable[[Case, bool], bool]:
    """Of a case, and of whether a CPU runs it: is it the baseline that `name` (DEVICE, FORM, FORM@DEVICE) means?"""
    form, at, device = name.partition("@")
    if not at:
        form, device = ("", name) if ":" in name or name not in ("library", "tuned") else (name, "")
    pattern = device if not device or ":" in device else f"{device}:*"

    def chosen(case: Case, on_cpu: bool) -> bool:
        on_device = fnmatch.fnmatchcase(case.device_id, pattern) if pattern else on_cpu
        return on_device and form in ("", "*", case.form)

    return chosen


def _baseline_rule(cases: Sequence[CaseResult], name: str | None) -> Callable[[CaseResult], bool]:
    if name is None:
        return lambda row: row.device_kind == "cpu"
    named = baseline_named(name)

    def chosen(row: CaseResult) -> bool:
        return named(row.case, row.device_kind == "cpu")

    if not any(chosen(row) for row in cases):
        known = sorted({f"{row.case.form}@{row.case.device_id}" for row in cases})
        raise InputError(
            "baseline-missing", f"--baseline {name}: no measured case matches",
            why="a speedup needs a baseline that is in the file",
            hint=f"choose one of: {', '.join(known)}" if known else "run again; this file holds no estimate",
        )  # fmt: skip
    return chosen


def _contenders(
    cases: Sequence[CaseResult], is_baseline: Callable[[CaseResult], bool]
) -> Iterable[list[CaseResult]]:
    """The forms of one workload, regime and device together, for all that is no baseline and no CPU."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for row in cases:
        if not is_baseline(row) and row.device_kind != "cpu":
            groups.setdefault((row.case.workload, row.case.regime_id, row.case.device_id), []).append(row)
    return groups.values()


def _baselines(references: Sequence[CaseResult], contender: CaseResult) -> list[CaseResult]:
    """A CPU's data is at home: its resident case is the baseline in all regimes. Others pay their own."""
    return [
        row
        for row in references
        if row.case.regime_id == ("resident" if row.device_kind == "cpu" else contender.case.regime_id)
    ]


def _fastest(rows: Sequence[CaseResult]) -> CaseResult | None:
    timed = [(row.time.estimate, row.id, row) for row in rows if row.time is not None]
    return min(timed)[2] if timed else None


def _library(rows: Sequence[CaseResult]) -> CaseResult | None:
    return _fastest([row for row in rows if row.case.form == "library"])


def _pair(kind: SpeedupKind, baseline: CaseResult | None, case: CaseResult | None) -> list[Speedup]:
    ratio = paired(baseline, case) if baseline is not None and case is not None else None
    if baseline is None or case is None or ratio is None:
        return []
    label = gravest([baseline.label, case.label])
    headline = kind == "headline" and not {baseline.label, case.label} & NO_HEADLINE
    return [Speedup(case=case, baseline=baseline, kind=kind, ratio=ratio, label=label, headline=headline)]
