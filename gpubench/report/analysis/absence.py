"""What to say when no GPU was measured, or nothing at all, and why it was not."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.result import Run
from gpubench.report.analysis.estimate import CHECK_ONLY, NO_SAMPLES
from gpubench.report.analysis.overheads import GROUP
from gpubench.report.analysis.types import CaseResult

_BUDGET = "the time budget was used up first"
# Skips that are part of every plan. They explain an absence only where nothing else does.
_USUAL = frozenset({"no-implementation", "no-dtype", "no-transfer"})


def no_gpu(run: Run, cases: Sequence[CaseResult]) -> str:
    """Why there is no verdict at all."""
    everything, cases = cases, [row for row in cases if row.case.group != GROUP]
    if not cases and any(row.time is not None for row in everything):
        return "Overheads were measured, and nothing that a CPU could do instead: there is no verdict."
    software = sorted({d.name for d in run.devices if d.kind == "software" and not d.composed})
    if any(row.device_kind == "software" and row.time is not None for row in cases):
        return (
            f"No GPU was measured: {', '.join(software) or 'the adapter'} is a software adapter, which runs on "
            "the CPU; its times stand in a table of their own and give no verdict."
        )
    if not any(row.time is not None for row in cases):
        only = any(row.time is not None for row in everything)
        return _nothing(run, cases, "Only overheads were measured") if only else _nothing(run, everything)
    if any(row.device_kind in ("gpu", "fake") and row.time is not None for row in cases):
        return "A GPU was measured, but no CPU case of the same work: there is nothing to compare it with."
    rows = [row for row in cases if row.device_kind != "cpu"]
    if not rows and _left_out(run, cases):
        return "CPU: no case of a GPU is among those shown."
    told = _reasons(run, rows) or _absent(run) or [_unplanned(run)]
    return f"CPU: no GPU was measured ({'; '.join(told).rstrip('.')})."


def _nothing(run: Run, cases: Sequence[CaseResult], words: str = "Nothing was measured") -> str:
    checked = sum(row.reason == CHECK_ONLY for row in cases)
    if checked:
        right = "1 case is right" if checked == 1 else f"{checked} cases are right"
        return f"{right}; nothing was timed (--check-only)."
    told = _reasons(run, cases) or _absent(run) or ["no case was planned"]
    return f"{words} ({'; '.join(told).rstrip('.')})."


def _reasons(run: Run, rows: Sequence[CaseResult]) -> list[str]:
    """Why these rows have no time, gravest first: the budget, failures, an early end, then skips."""
    budget = [row for row in rows if _out_of_budget(run, row)]
    failed = [row for row in rows if row.outcome == "failure"]
    planned = [row for row in rows if row.outcome == "planned"]
    explained = {row.case.device_id for row in (*budget, *failed, *planned)}
    others = [row for row in rows if row.case.device_id not in explained and row.time is None]
    others.sort(key=lambda row: (row.outcome == "skip", row.reason in _USUAL))
    early = "the run was interrupted" if run.exit_reason == "interrupted" else "the run ended early"
    return [
        *([_BUDGET] if budget else []), *_of_each_device(failed), *([early] if planned else []),
        *_of_each_device(others),
    ]  # fmt: skip


def _out_of_budget(run: Run, row: CaseResult) -> bool:
    return row.reason == "budget" or (row.reason == NO_SAMPLES and run.exit_reason == "budget")


def _of_each_device(rows: Sequence[CaseResult]) -> list[str]:
    """The first reason of each device."""
    found: dict[str, str] = {}
    for row in rows:
        found.setdefault(row.case.device_id, " ".join(row.detail.split()) or row.reason or "")
    return _named(found)


def _absent(run: Run) -> list[str]:
    """What the run said of backends that it did not find."""
    found: dict[str, str] = {}
    for warning in run.warnings:
        if warning.code in ("unavailable", "software-device") and warning.id is None:
            text = " ".join(warning.message.split())
            found.setdefault(text.partition(":")[0], text)
    return _named(found)


def _named(texts: dict[str, str]) -> list[str]:
    return [text if text.startswith(f"{name}:") else f"{name}: {text}" for name, text in texts.items()]


def _left_out(run: Run, cases: Sequence[CaseResult]) -> bool:
    """Whether the run knows cases of other devices than the CPU that are not in the selection."""
    shown = {row.id for row in cases}
    others = _others(run)
    return any(outcome.id not in shown and outcome.case.device_id in others for outcome in run.outcomes)


def _unplanned(run: Run) -> str:
    """The run has no word on why: which devices it knew still tells whether there was a GPU."""
    others = _others(run)
    if others:
        return f"no case was planned for {', '.join(sorted(others))}"
    return "no GPU backend was asked for, or none was found"


def _others(run: Run) -> set[str]:
    return {device.id for device in run.devices if device.kind != "cpu"}
