"""What is wrong with a run: warnings, which are those that its cases carry, those about the run as a whole, and the
stored ones; and gates, conditions whose breach is exit 3 (docs/ci.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import Speedup, SpeedupKind, cpu_limit
from gpubench.base.messages import WARNINGS, WarningCode
from gpubench.base.plugins import wings
from gpubench.curves import stats
from gpubench.result.case import FUNCTIONS, Case
from gpubench.result.run import Measurement, Run, RunWarning, Severity, failures_of


class ReportWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with its advice; no ids: it is about the whole run."""

    code: WarningCode
    severity: Severity
    message: str
    hint: str
    ids: tuple[str, ...]


_SEVERITIES: dict[WarningCode, Severity] = {
    "noisy": "warning", "unstable": "warning", "too-short": "warning", "first-slow": "info", "drift": "warning",
    "contended": "warning", "throttled": "warning", "power-cap": "info", "implausible": "error",
    "software-device": "warning", "no-device-clock": "info", "transfer-mismatch": "warning",
    "stage-mismatch": "warning", "placement-mismatch": "warning", "call-waits": "info",
}  # fmt: skip
# Advice never names an option that was given already.
_GIVEN_ALREADY = "close other programs; on a shared machine only a quieter hour helps"


@derive_once
def findings(analysis: Analysis) -> tuple[ReportWarning, ...]:
    """Return all warnings, gravest first. A code that the file already tells about a case is not repeated for it."""
    run, cases = analysis.run, analysis.cases
    stored = [stored_finding(warning) for warning in run.warnings]
    known = {(finding.code, case_id) for finding in stored for case_id in finding.ids}
    known |= {(finding.code, "") for finding in stored if not finding.ids}
    about_run = [finding for finding in _about_run(run, cases) if (finding.code, "") not in known]
    about_cases = [*_about_cases(run, cases, known), *_retaken(run, cases), *_failed_sessions(run, cases)]
    waiting = find_waiting(run)
    about_cases += [_case_finding(run, "call-waits", waiting)] if waiting else []
    for code, find_missed in wings.find_all(wings.brought("warnings")).items():
        ids = find_missed(analysis)
        about_cases += [_case_finding(run, code, ids)] if ids else []
    found = [*stored, *about_run, *about_cases]
    gravity = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: (gravity[finding.severity], finding.code, finding.ids)))


def stored_finding(warning: RunWarning) -> ReportWarning:
    return ReportWarning(
        code=warning.code, severity=warning.severity, message=warning.message, hint=warning.hint,
        ids=(warning.id,) if warning.id else (),
    )  # fmt: skip


def _about_cases(
    run: Run, cases: Sequence[CaseResult], known: set[tuple[WarningCode, str]]
) -> list[ReportWarning]:
    ids: dict[WarningCode, list[str]] = {}
    for row in cases:
        for name in row.findings:
            code: WarningCode = "software-device" if name == "software" else name
            if (code, row.id) not in known and (code, "") not in known:
                ids.setdefault(code, []).append(row.id)
    return [_case_finding(run, code, where) for code, where in ids.items()]


def _retaken(run: Run, cases: Sequence[CaseResult]) -> list[ReportWarning]:
    """What was set aside is reported, although enough samples were left to do without it."""
    quiet = {row.id for row in cases if row.time is not None and "throttled" not in row.findings}
    ids = [
        outcome.id
        for outcome in run.outcomes
        if isinstance(outcome, Measurement)
        and outcome.id in quiet
        and any(block.discarded for block in outcome.blocks)
    ]
    if not ids:
        return []
    message = "samples taken while the device was throttled were set aside and taken again"
    hint = "they are in the file; better cooling or power would spare the time"
    return [
        ReportWarning(code="throttled", severity="info", message=message, hint=hint, ids=tuple(sorted(ids)))
    ]


def _failed_sessions(run: Run, cases: Sequence[CaseResult]) -> list[ReportWarning]:
    """What broke cases that have a number all the same, from their other sessions."""
    numbered = {row.id for row in cases if row.time is not None}
    ids: dict[tuple[int, str, str], list[str]] = {}
    for outcome in run.outcomes:
        for failure in failures_of(outcome) if outcome.id in numbered else ():
            ids.setdefault((failure.session, failure.reason, failure.detail), []).append(outcome.id)
    return [
        ReportWarning(
            code="session-failed", severity="error", ids=tuple(where),
            message=f"these cases went without session {_session_name(run, session)}: {reason}: {detail}",
            hint=WARNINGS["session-failed"].remedy,
        )
        for (session, reason, detail), where in sorted(ids.items())
    ]  # fmt: skip


# A launch that takes such a share of a call that is waited for, and grows so many times over the sizes, waits itself.
WAITING_SHARE, WAITING_GROWTH = 0.8, 3.0


def find_waiting(run: Run) -> list[str]:
    """Return the ids of users' functions whose calls return once their work is done: the host's part of a call grows
    with its size as the whole call does."""
    times: dict[tuple[str, str, str], dict[int, tuple[float, float, str]]] = {}
    kinds = {device.id: device.kind for device in run.devices}
    for outcome in run.outcomes:
        case = outcome.case
        if isinstance(outcome, Measurement) and case.group == FUNCTIONS and kinds.get(case.device_id) == "gpu":
            launches = [second for part in outcome.parts for second in part.launch_s or ()]
            singles = [second for part in outcome.parts for second in part.single_s or ()]
            if launches and singles:
                by_size = times.setdefault((case.op, case.device_id, case.form_id), {})
                by_size[case.params["n"]] = (stats.median(launches), stats.median(singles), outcome.id)
    return [
        largest[2]
        for by_size in times.values()
        for smallest, largest in [(by_size[min(by_size)], by_size[max(by_size)])]
        if largest[0] >= WAITING_SHARE * largest[1] and largest[0] >= WAITING_GROWTH * smallest[0]
    ]


def _session_name(run: Run, index: int) -> str:
    """Return the number of a session as the plan counts it: a repetition has an index beyond the plan."""
    record = next((session for session in run.sessions if session.index == index), None)
    if record is None or record.repeats is None:
        return f"{index + 1}"
    return f"{record.planned_index + 1} when it was measured again"


def _about_run(run: Run, cases: Sequence[CaseResult]) -> list[ReportWarning]:
    found = []
    used = max((len(row.sessions) for row in cases), default=0)
    if 0 < used < stats.MIN_SESSIONS:
        sessions = "1 session" if used == 1 else f"{used} sessions"
        message = f"{sessions}: how far another one would lie is not seen but assumed, and widens the intervals"
        found.append(_of_run("few-sessions", "info", message))
    if limit := cpu_limit(run):
        found.append(_of_run("cpu-limited", "warning", limit))
    if run.settings.inputs != "random":
        message = f"inputs are {run.settings.inputs}, which can be faster than real data"
        found.append(_of_run("inputs-not-random", "warning", message, hint="leave out --inputs"))
    if run.exit_reason == "budget":
        message = "the time budget ended before every case had its samples"
        found.append(_of_run("budget", "warning", message))
    return found


def _of_run(code: WarningCode, severity: Severity, message: str, hint: str = "") -> ReportWarning:
    hint = hint or WARNINGS[code].remedy
    return ReportWarning(code=code, severity=severity, message=message, hint=hint, ids=())


def _case_finding(run: Run, code: WarningCode, ids: Sequence[str]) -> ReportWarning:
    message, hint = WARNINGS[code]
    if "--rigorous" in hint and run.settings.preset == "rigorous":
        hint = _GIVEN_ALREADY
    severity = _SEVERITIES[code]
    return ReportWarning(code=code, severity=severity, message=message, hint=hint, ids=tuple(ids))


FailOn = Literal["noisy", "skipped", "incomplete"]


# ---------------------------------------------------------------- gates


class ReportGate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate and the cases that decide it.

    `low`: the whole interval lies below what was asked for, or the case is what `--fail-on` names. `missing`: a
    selected case without a number. Either fails the gate. `near`: the interval contains what was asked for, which
    is reported and fails nothing. `reason`: why a gate on the whole run failed.
    """

    name: str
    selector: str | None
    least: float | None
    passed: bool
    low: tuple[str, ...]
    missing: tuple[str, ...]
    near: tuple[str, ...]
    reason: str | None


FAIL_ON: tuple[FailOn, ...] = ("noisy", "skipped", "incomplete")
# Which of a case's ratios a gate looks at: the one that the tables show first.
_PREFERENCE: tuple[SpeedupKind, ...] = ("headline", "case", "library")


class MinSpeedup(msgspec.Struct, frozen=True, kw_only=True):
    """`--min-speedup SEL=X`: `text` as it was typed, the cases it selects, and the least speedup of each."""

    text: str
    selects: Callable[[Case], bool]
    least: float


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """Which gates are asked for."""

    min_speedups: tuple[MinSpeedup, ...] = ()
    fail_on: tuple[FailOn, ...] = ()


@derive_once
def gates(analysis: Analysis) -> tuple[ReportGate, ...]:
    """Return the gates asked for, in that order."""
    asked, compared = analysis.asked_gates or Gates(), analysis.shown_of(analysis.compared)
    fast_enough = [_fast_enough(least, compared, analysis.speedups) for least in asked.min_speedups]
    return (*fast_enough, *(_on_run(name, analysis.run, analysis.cases) for name in asked.fail_on))


def failed(analyses: Iterable[Analysis]) -> bool:
    """Tell whether a gate failed."""
    return any(not gate.passed for analysis in analyses for gate in gates(analysis))


def competes(row: CaseResult) -> bool:
    """Whether the case is on the side that has a speedup: a CPU's case is what others are measured by."""
    return row.device_kind != "cpu"


def _fast_enough(demand: MinSpeedup, cases: Sequence[CaseResult], speedups: Sequence[Speedup]) -> ReportGate:
    baselines = {row.baseline.id for row in speedups}
    ratios = {
        row.case.id: row for row in sorted(speedups, key=lambda row: _PREFERENCE.index(row.kind), reverse=True)
    }
    chosen = [row.id for row in cases if competes(row) and row.id not in baselines and demand.selects(row.case)]
    known = [(case_id, ratios[case_id]) for case_id in chosen if case_id in ratios]
    low = tuple(case_id for case_id, ratio in known if ratio.hi < demand.least)
    missing = tuple(case_id for case_id in chosen if case_id not in ratios)
    return ReportGate(
        name="min-speedup", selector=demand.text, least=demand.least, passed=not low and not missing,
        low=low, missing=missing, reason=None,
        near=tuple(case_id for case_id, ratio in known if ratio.lo < demand.least <= ratio.hi),
    )  # fmt: skip


def _on_run(name: FailOn, run: Run, cases: Sequence[CaseResult]) -> ReportGate:
    breaches: dict[FailOn, Callable[[CaseResult], bool]] = {
        "noisy": lambda row: bool({"noisy", "unstable"} & {*row.findings}),
        "skipped": lambda row: row.outcome == "skip",
        "incomplete": lambda row: row.outcome == "planned",
    }
    low = tuple(row.id for row in cases if breaches[name](row))
    ended_early = name == "incomplete" and (not run.complete or run.exit_reason == "budget")
    return ReportGate(
        name=name, selector=None, least=None, passed=not low and not ended_early, low=low, missing=(),
        near=(), reason=f"the run ended early ({run.exit_reason})" if ended_early else None,
    )  # fmt: skip
