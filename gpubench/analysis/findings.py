"""The warnings and gates of a run.

Warnings concern single cases or the run as a whole, and some are stored in the file. Gates are conditions that
end the command with exit code 3 if they fail (docs/ci.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup, SpeedupKind, cpu_limit
from gpubench.base import group_by
from gpubench.base.messages import WARNINGS, WarningCode
from gpubench.base.plugins import wings
from gpubench.base.units import count_noun
from gpubench.curves import stats
from gpubench.result.case import FUNCTIONS, Case
from gpubench.result.run import Run, RunWarning, Severity, failures_of


class ReportWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A warning about a run or some of its cases, with advice."""

    code: WarningCode  # its code in the list of messages
    severity: Severity  # its severity
    message: str  # one sentence that says what is wrong
    hint: str  # one sentence of advice
    ids: tuple[str, ...]  # the ids of the cases with this problem; empty: the whole run


_SEVERITIES: dict[WarningCode, Severity] = {
    "noisy": "warning", "unstable": "warning", "too-short": "warning", "first-slow": "info", "drift": "warning",
    "contended": "warning", "throttled": "warning", "power-cap": "info", "implausible": "error",
    "software-device": "warning", "no-device-clock": "info", "transfer-mismatch": "warning",
    "stage-mismatch": "warning", "assignment-mismatch": "warning", "call-waits": "info",
}  # fmt: skip


@derive_once
def findings(analysis: Analysis) -> tuple[ReportWarning, ...]:
    """Return all warnings, gravest first: warnings that the file stores, and warnings that follow from its
    samples."""
    run, cases = analysis.run, analysis.cases
    stored = [stored_finding(warning) for warning in run.warnings]
    answer = {(finding.code, case_id) for finding in stored for case_id in finding.ids or ("",)}
    about_run = [finding for finding in _about_run(run, cases) if (finding.code, "") not in answer]
    ids: dict[WarningCode, list[str]] = {"call-waits": find_waiting(run)}
    for code, find_missed in wings.find_all(wings.brought("warnings")).items():
        ids[code] = find_missed(analysis)
    for case in cases:
        for mark in case.findings:
            if mark == "too-short" and _is_search(run):
                continue
            named: WarningCode = "software-device" if mark == "software" else mark
            if not answer & {(named, case.id), (named, "")}:
                ids.setdefault(named, []).append(case.id)
    about_cases = [_about_cases(run, code, members) for code, members in ids.items() if members]
    every = [*stored, *about_run, *about_cases, *_taken_again(run, cases), *_failed_sessions(run, cases)]
    gravest = ("error", "warning", "info").index
    return tuple(sorted(every, key=lambda finding: (gravest(finding.severity), finding.code, finding.ids)))


def stored_finding(warning: RunWarning) -> ReportWarning:
    ids = [warning.id] if warning.id else []
    return _warn(warning.code, warning.severity, warning.message, warning.hint, ids)


def _warn(
    code: WarningCode, severity: Severity, message: str = "", hint: str = "", ids: Sequence[str] = ()
) -> ReportWarning:
    """Return a warning, with the code's standard texts for an empty `message` or `hint`."""
    usual, remedy = WARNINGS[code]
    return ReportWarning(
        code=code, severity=severity, message=message or usual, hint=hint or remedy, ids=tuple(ids)
    )


def _about_cases(run: Run, code: WarningCode, ids: Sequence[str]) -> ReportWarning:
    # Advice never names an option that was given already.
    again = "--rigorous" in WARNINGS[code].remedy and run.settings.preset == "rigorous"
    hint = "close other programs; on a shared machine only a quieter hour helps" if again else ""
    return _warn(code, _SEVERITIES[code], hint=hint, ids=ids)


def _taken_again(run: Run, cases: Sequence[CaseResult]) -> list[ReportWarning]:
    """Return a note about the cases whose throttled samples were measured again, if there are any."""
    quiet = {case.id for case in cases if case.time is not None and "throttled" not in case.findings}
    ids = sorted(
        outcome.id
        for outcome in run.measurements
        if outcome.id in quiet and any(block.discarded for block in outcome.blocks)
    )
    message = "samples taken while the device was throttled were set aside and taken again"
    hint = "they are in the file; better cooling or power would spare the time"
    return [_warn("throttled", "info", message, hint, ids)] if ids else []


def _failed_sessions(run: Run, cases: Sequence[CaseResult]) -> Iterable[ReportWarning]:
    """Yield a warning for each failed session of cases that have a number from their other sessions."""
    numbered = {case.id for case in cases if case.time is not None}
    ids: dict[tuple[int, str, str], list[str]] = {}
    for outcome in run.outcomes:
        for failure in failures_of(outcome) if outcome.id in numbered else ():
            ids.setdefault((failure.session, failure.reason, failure.detail), []).append(outcome.id)
    for (session, reason, detail), members in sorted(ids.items()):
        message = f"these cases went without session {_session_name(run, session)}: {reason}: {detail}"
        yield _warn("session-failed", "error", message, ids=members)


# A launch waits for its own work if it takes at least this share of a waited call, and at least this factor
# longer at the largest size than at the smallest.
WAITING_SHARE, WAITING_GROWTH = 0.8, 3.0


def find_waiting(run: Run) -> list[str]:
    """Return ids of GPU cases in which a user's function waits for its own work. Of each function, device and
    implementation it is the id of the largest case."""
    gpus = {device.id for device in run.devices if device.kind == "gpu"}
    timed = []
    for outcome in run.measurements:
        if outcome.case.group == FUNCTIONS and outcome.case.device_id in gpus:
            launches = [second for part in outcome.parts for second in part.launch_s or ()]
            singles = [second for part in outcome.parts for second in part.single_s or ()]
            if launches and singles:
                timed.append((outcome.case, stats.median(launches), stats.median(singles)))
    waiting = []
    for same in group_by(
        timed, lambda item: (item[0].op, item[0].device_id, item[0].implementation_id)
    ).values():
        same.sort(key=lambda item: item[0].n)
        (_, shortest_s, _), (case, launch_s, single_s) = same[0], same[-1]
        # the launch takes nearly the whole call, and grows with the size
        if launch_s >= WAITING_SHARE * single_s and launch_s >= WAITING_GROWTH * shortest_s:
            waiting.append(case.id)
    return waiting


def _session_name(run: Run, index: int) -> str:
    """Return the number of a session in the plan as text, counted from 1, and say if it is a repeat."""
    record = next((session for session in run.sessions if session.index == index), None)
    if record is None or record.repeats is None:
        return f"{index + 1}"
    return f"{record.planned_index + 1} when it was measured again"


def _is_search(run: Run) -> bool:
    """Tell whether the run chose all sizes by itself."""
    return bool(run.selection.ops) and not any(run.selection.sizes.get(op) for op in run.selection.ops)


def _about_run(run: Run, cases: Sequence[CaseResult]) -> Iterable[ReportWarning]:
    used = max((len(case.sessions) for case in cases), default=0)
    # A run that chose its sizes and sessions does not warn of its own defaults.
    if 0 < used < stats.MIN_SESSIONS and not _is_search(run):
        unseen = "how far another one would lie is not seen but assumed, and widens the intervals"
        yield _warn("few-sessions", "info", f"{count_noun(used, 'session')}: {unseen}")
    if limit := cpu_limit(run):
        yield _warn("cpu-limited", "warning", limit)
    if run.settings.inputs != "random":
        message = f"inputs are {run.settings.inputs}, which can be faster than real data"
        yield _warn("inputs-not-random", "warning", message, hint="leave out --inputs")
    if run.exit_reason == "budget":
        yield _warn("budget", "warning", "the time budget ended before every case had its samples")


FailOn = Literal["noisy", "skipped", "incomplete"]


# ---------------------------------------------------------------- gates


class ReportGate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate on a run, and the cases that decide it."""

    name: str  # the name of the option
    selector: str | None = None  # the selector as the user typed it; null for other gates than `min-speedup`
    least: float | None = None  # the required speedup; null for other gates than `min-speedup`
    passed: bool  # whether the gate passes
    # the failing cases: their whole interval lies below `least`, or they have a fault that `--fail-on` names
    low: tuple[str, ...]
    missing: tuple[str, ...] = ()  # the selected cases without a number, which fail the gate, too
    near: tuple[str, ...] = ()  # the cases whose interval contains the required speedup; they do not fail
    reason: str | None = None  # the reason why a gate on the whole run failed; else null


FAIL_ON: tuple[FailOn, ...] = ("noisy", "skipped", "incomplete")
# A case may have several speedups. A gate uses the first of these kinds that the case has, as the tables do.
_PREFERENCE: tuple[SpeedupKind, ...] = ("headline", "case", "library")


class MinSpeedup(msgspec.Struct, frozen=True, kw_only=True):
    """One option `--min-speedup SEL=X`."""

    text: str  # the option as the user typed it
    selects: Callable[[Case], bool]  # tells whether a case is selected
    least: float  # the required speedup of each selected case


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """The requested gates."""

    min_speedups: tuple[MinSpeedup, ...] = ()  # the required speedups of selected cases
    fail_on: tuple[FailOn, ...] = ()  # conditions on the whole run


@derive_once
def gates(analysis: Analysis) -> tuple[ReportGate, ...]:
    """Return the requested gates: first `--min-speedup`, then `--fail-on`."""
    named, compared = analysis.asked_gates or Gates(), analysis.shown_of(analysis.compared)
    fast_enough = [_fast_enough(least, compared, analysis.speedups) for least in named.min_speedups]
    return (*fast_enough, *(_on_run(name, analysis.run, analysis.cases) for name in named.fail_on))


def has_failures(analyses: Iterable[Analysis]) -> bool:
    """Tell whether a gate of any of these runs failed."""
    return any(not gate.passed for analysis in analyses for gate in gates(analysis))


def _fast_enough(demand: MinSpeedup, cases: Sequence[CaseResult], speedups: Sequence[Speedup]) -> ReportGate:
    baselines = {ratio.baseline.id for ratio in speedups}
    by_preference = sorted(speedups, key=lambda ratio: _PREFERENCE.index(ratio.kind), reverse=True)
    ratios = {ratio.case.id: ratio for ratio in by_preference}
    chosen = [
        case.id
        for case in cases
        if case.device_kind != "cpu" and case.id not in baselines and demand.selects(case.case)
    ]
    spans = [(case_id, ratios[case_id].lo, ratios[case_id].hi) for case_id in chosen if case_id in ratios]
    low, near = fall_short(demand, spans)
    missing = tuple(case_id for case_id in chosen if case_id not in ratios)
    return ReportGate(
        name="min-speedup", selector=demand.text, least=demand.least, passed=not low and not missing,
        low=low, missing=missing, near=near,
    )  # fmt: skip


def fall_short(
    demand: MinSpeedup, spans: Iterable[tuple[str, float, float]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two lists of case ids. The whole interval of the first ones lies below the speedup that `demand`
    requires; the interval of the second ones contains this speedup. `spans` holds tuples (case id, low end,
    high end)."""
    low, near = dict[str, None](), dict[str, None]()
    for case_id, least, most in spans:
        if least < demand.least:
            (low if most < demand.least else near)[case_id] = None
    return tuple(low), tuple(near)


def _on_run(name: FailOn, run: Run, cases: Sequence[CaseResult]) -> ReportGate:
    breaches: dict[FailOn, Callable[[CaseResult], bool]] = {
        "noisy": lambda case: bool({"noisy", "unstable"} & {*case.findings}),
        "skipped": lambda case: case.outcome == "skip",
        "incomplete": lambda case: case.outcome == "planned",
    }
    low = tuple(case.id for case in cases if breaches[name](case))
    early = name == "incomplete" and (not run.complete or run.exit_reason == "budget")
    reason = f"the run ended early ({run.exit_reason})" if early else None
    return ReportGate(name=name, passed=not low and not early, low=low, reason=reason)
