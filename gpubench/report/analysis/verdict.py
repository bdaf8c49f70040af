"""The verdict in words, one sentence per op, dtype and device; and what to say when no GPU was measured."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.result import Run
from gpubench.report.analysis.types import BreakEven, CaseResult
from gpubench.units import earned_digits

_WHERE = {"resident": "with data resident", "transfer-always": "when every call copies both ways"}
_REASONS = {
    "noise": "the measurements are too noisy to say",
    "few-sizes": "too few sizes were measured to say",
    "throttled": "the device was throttled",
    "failed-cases": "cases failed that would decide it",
    "budget": "the time budget ended first",
}


def verdicts(run: Run, cases: Sequence[CaseResult], rows: Sequence[BreakEven]) -> tuple[str, ...]:
    """One sentence per curve family; if no GPU was measured, one sentence that says so and why."""
    devices = list(dict.fromkeys(row.device_id for row in rows))
    families: dict[tuple[object, ...], list[BreakEven]] = {}
    for row in rows:
        families.setdefault((row.op, row.dtype, tuple(row.params.items()), row.device_id), []).append(row)
    sentences = [_sentence(family, name_device=len(devices) > 1) for family in families.values()]
    return tuple(sentences) if sentences else (no_gpu(run, cases),)


def where_text(row: BreakEven) -> str:
    """The regime in words: `with data resident`."""
    if row.regime == "transfer-once":
        return f"when {row.calls} calls share one copy"
    return _WHERE[row.regime]


def verdict_text(row: BreakEven) -> str:
    """The table's word for a verdict: `at 212 [204, 221]`, `always (from 256)`, `undecided (noise)`."""
    if row.verdict == "at":
        return f"at {size_text(row)}{interval_text(row)}"
    if row.verdict == "always":
        return f"always (from {row.first})"
    if row.verdict == "beyond-limit":
        return f"beyond limit ({row.last})"
    if row.verdict == "unstable":
        times = "once" if len(row.crossings) == 1 else f"{len(row.crossings)} times"
        return f"unstable: crosses {times} ({', '.join(map(str, row.crossings))})"
    return f"undecided ({row.reason})" if row.verdict == "undecided" else row.verdict


def size_text(row: BreakEven) -> str:
    """The threshold without digits that its interval does not earn, still inside the interval."""
    if row.n is None or row.low is None or row.high is None:
        return str(row.n)
    digits = earned_digits(row.n, row.low, row.high)
    rounded = int(float(f"{row.n:.{digits - 1}e}"))
    return str(rounded if row.low <= rounded <= row.high else row.n)


def interval_text(row: BreakEven) -> str:
    """` [204, 221]`; an open end is `<=` or `>=`; empty without an interval."""
    if row.low is None and row.high is None:
        return ""
    if row.low is None:
        return f" [<= {row.high}]"
    return f" [>= {row.low}]" if row.high is None else f" [{row.low}, {row.high}]"


def no_gpu(run: Run, cases: Sequence[CaseResult]) -> str:
    """Why there is no verdict at all."""
    software = sorted({device.name for device in run.devices if device.kind == "software"})
    if any(row.device_kind == "software" and row.time is not None for row in cases):
        return (
            f"No GPU was measured: {', '.join(software) or 'the adapter'} is a software adapter, which runs on "
            "the CPU; its times stand in a table of their own and give no verdict."
        )
    if not any(row.time is not None for row in cases):
        return f"Nothing was measured{_because(run, cases)}."
    if any(row.device_kind in ("gpu", "fake") and row.time is not None for row in cases):
        return "A GPU was measured, but no CPU case of the same work: there is nothing to compare it with."
    return f"CPU: no GPU was measured{_because(run, cases)}."


def _because(run: Run, cases: Sequence[CaseResult]) -> str:
    reasons: dict[str, str] = {}
    for row in cases:
        if row.device_kind != "cpu" and row.time is None and row.reason:
            reasons.setdefault(row.case.device_id, " ".join(row.detail.split()) or row.reason)
    for warning in run.warnings:
        if warning.code in ("unavailable", "software-device") and warning.id is None:
            text = " ".join(warning.message.split())
            reasons.setdefault(text.partition(":")[0], text)
    if not reasons:
        return " (no GPU backend was asked for, or none was found)"
    texts = [text if text.startswith(f"{name}:") else f"{name}: {text}" for name, text in reasons.items()]
    told = "; ".join(texts)
    return f" ({told.rstrip('.')})"


def _sentence(family: Sequence[BreakEven], *, name_device: bool) -> str:
    first = family[0]
    rest = "".join(f" {name}={value}" for name, value in first.params.items())
    subject = f"{first.op} {first.dtype}{rest}" + (f" on {first.device_id}" if name_device else "")
    if all(row.verdict == "never" for row in family):
        where = "in no regime" if len(family) > 1 else f"not {where_text(first)}"
        return f"{subject}: the GPU pays {where} at any size up to {max(row.last for row in family)}."
    clauses = [_clause(row) for row in family]
    # "pays from ..., from ..." reads better than the verb in every clause.
    short = [
        clause.removeprefix("pays ") if before.startswith("pays ") else clause
        for before, clause in zip(["", *clauses], clauses, strict=False)
    ]
    return f"{subject}: the GPU {', '.join(short)}."


def _clause(row: BreakEven) -> str:
    where = where_text(row)
    if row.verdict == "at":
        return f"pays from n = {size_text(row)}{interval_text(row)} {where}"
    if row.verdict == "always":
        return f"pays at every measured size (from n = {row.first}) {where}"
    if row.verdict == "beyond-limit":
        return f"does not pay up to n = {row.last} {where}, but comes closer with size"
    if row.verdict == "never":
        return f"never pays {where}"
    if row.verdict == "unstable":
        return f"has no single threshold {where} (it crosses at {', '.join(map(str, row.crossings))})"
    return f"is undecided {where} ({_REASONS[row.reason or 'noise']})"
