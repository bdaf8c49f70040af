"""Warnings of a run: those that its cases carry, those about the run as a whole, and the stored ones."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench import stats
from gpubench.model.result import Measurement, Run, RunWarning, Severity
from gpubench.report.analysis.baseline import cpu_limit
from gpubench.report.analysis.types import CaseResult, Finding

_CASE_FINDINGS: dict[str, tuple[Severity, str, str]] = {
    "noisy": ("warning", "the quartiles lie more than 10 % of the median apart",
              "close other programs or use --rigorous"),
    "unstable": ("warning", "the quartiles lie more than 25 % of the median apart; no headline",
                 "close other programs and run again with --rigorous"),
    "too-short": ("warning", "a sample lasts less than 1 ms", "use larger --sizes"),
    "first-slow": ("info", "the first sample is an outlier", "outliers are kept; --rigorous takes more samples"),
    "drift": ("warning", "values rise or fall with time", "let the machine settle and take more --sessions"),
    "contended": ("warning", "other processes took more than 5 % of the CPU", "close other programs and run again"),
    "throttled": ("warning", "the device was throttled; no headline", "improve cooling or power, or lower --max-time"),
    "power-cap": ("info", "the software power limit lowered the clock, as it does on large GPUs under a matrix product",
                  "compare runs at the same power limit; gpubench detect shows it"),
    "implausible": ("error", "beyond a ceiling or below the clock; excluded from every table",
                    "check it with run --filter on this case and report it as a bug"),
    "software-device": ("warning", "a software adapter runs on the CPU; it is no GPU and takes no headline",
                        "install the GPU's driver; gpubench detect names what is missing"),
    "no-device-clock": ("info", "the device has no usable clock of its own; rates use wall time",
                        "compare wall times; they need no device clock"),
    "transfer-mismatch": ("warning", "the parts, timed one by one, miss the whole by more than 10 %",
                          "see --sections anatomy; predictions from the parts are withheld"),
}  # fmt: skip
# Advice never names an option that was given already.
_GIVEN_ALREADY = "close other programs; on a shared machine only a quieter hour helps"
_CODES = {"software": "software-device"}


def findings(run: Run, cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """All warnings, gravest first. A code that the file already tells about a case is not repeated for it."""
    stored = [stored_finding(warning) for warning in run.warnings]
    known = {(finding.code, case_id) for finding in stored for case_id in finding.ids}
    known |= {(finding.code, "") for finding in stored if not finding.ids}
    about_run = [finding for finding in _about_run(run, cases) if (finding.code, "") not in known]
    found = [*stored, *about_run, *_about_cases(run, cases, known), *_retaken(run, cases)]
    gravity = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: (gravity[finding.severity], finding.code, finding.ids)))


def stored_finding(warning: RunWarning) -> Finding:
    """A warning as the file holds it."""
    return Finding(
        code=warning.code, severity=warning.severity, message=warning.message, hint=warning.hint,
        ids=(warning.id,) if warning.id else (),
    )  # fmt: skip


def _about_cases(run: Run, cases: Sequence[CaseResult], known: set[tuple[str, str]]) -> list[Finding]:
    ids: dict[str, list[str]] = {}
    for row in cases:
        for name in row.findings:
            code = _CODES.get(name, name)
            if (code, row.id) not in known and (code, "") not in known:
                ids.setdefault(code, []).append(row.id)
    return [_case_finding(run, code, where) for code, where in ids.items()]


def _retaken(run: Run, cases: Sequence[CaseResult]) -> list[Finding]:
    """What was set aside is told, although enough samples were left to do without it."""
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
    return [Finding(code="throttled", severity="info", message=message, hint=hint, ids=tuple(sorted(ids)))]


def _about_run(run: Run, cases: Sequence[CaseResult]) -> list[Finding]:
    found = []
    used = max((len(row.sessions) for row in cases), default=0)
    if 0 < used < stats.MIN_BOOTSTRAP_SESSIONS:
        sessions = "1 session" if used == 1 else f"{used} sessions"
        advice = "use --sessions 5 or more"
        message = f"{sessions}: an interval tells what was seen within it, not what another session would give"
        found.append(Finding(code="few-sessions", severity="info", message=message, hint=advice))
    limit = cpu_limit(run)
    if limit:
        advice = "without a quota and with --threads equal to the usable CPUs the baseline would be faster"
        found.append(Finding(code="cpu-limited", severity="warning", message=limit, hint=advice))
    if run.settings.inputs != "random":
        message = f"inputs are {run.settings.inputs}, which can be faster than real data"
        found.append(
            Finding(code="inputs-not-random", severity="warning", message=message, hint="leave out --inputs")
        )
    if run.exit_reason == "budget":
        message = "the time budget ended before every case had its samples"
        advice = "raise --budget or choose fewer --ops or --sizes"
        found.append(Finding(code="budget", severity="warning", message=message, hint=advice))
    return found


def _case_finding(run: Run, code: str, ids: Sequence[str]) -> Finding:
    severity, message, hint = _CASE_FINDINGS[code]
    if "--rigorous" in hint and run.settings.preset == "rigorous":
        hint = _GIVEN_ALREADY
    return Finding(code=code, severity=severity, message=message, hint=hint, ids=tuple(ids))
