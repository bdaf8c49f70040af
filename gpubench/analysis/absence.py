"""Why a run has no numbers of a GPU and a CPU to compare, by the run's own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpubench.analysis.estimate import CALLS, CHECK_ONLY, NO_SAMPLES, CaseResult
from gpubench.analysis.machine import fact
from gpubench.result.run import Run

# `checked`: outputs were checked, nothing was timed. `nothing`: no case has a time. `overheads`: no op has one.
# `no-cpu`: only GPUs have times. `hidden`: the GPU's cases are not among those shown. `not-asked`: the machine has a
# GPU, of which no case was planned. `wrong`: all that it gave were wrong numbers. `no-time`: its cases gave no time.
# `no-gpu`: there is no GPU.
AbsenceKind = Literal[
    "checked", "nothing", "overheads", "no-cpu", "hidden", "not-asked", "wrong", "no-time", "no-gpu"
]

OUT_OF_TIME = "the time budget was used up first"
# Skips that are part of every plan. They explain an absence only where nothing else does.
_USUAL = frozenset({"no-implementation", "no-dtype", "no-transfer"})


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is missing, the gravest cause first. `checked`: outputs that are right; `unchecked`: cases that a
    check did not reach."""

    kind: AbsenceKind
    causes: tuple[str, ...] = ()
    checked: int = 0
    unchecked: int = 0


def absence(run: Run, everything: Sequence[CaseResult]) -> Absence:
    """Return why a run has no speedup over the CPU; `everything` are the cases shown."""
    cases = [row for row in everything if row.case.group not in CALLS]
    timed = [row for row in cases if row.time is not None]
    if not timed:
        return _nothing(run, everything, cases)
    if any(row.device_kind == "gpu" for row in timed):
        return Absence(kind="no-cpu")
    others = [row for row in cases if row.device_kind != "cpu"]
    if not others and _left_out(run, everything):
        return Absence(kind="hidden")
    # What failed has a line of its own.
    causes = tuple(_reasons(run, [row for row in others if row.time is None and row.outcome != "failure"]))
    gpus = {device.id for device in run.devices if device.kind == "gpu" and not device.composed}
    there = any(fact(gpu, "kind") != "software" for gpu in run.machine.gpus)
    if any(row.reason == "wrong-result" for row in others):
        return Absence(kind="wrong")
    if any(row.case.device_id in gpus for row in others):
        return Absence(kind="no-time", causes=causes)
    return Absence(kind="not-asked" if there or gpus else "no-gpu", causes=causes)


def _nothing(run: Run, everything: Sequence[CaseResult], cases: Sequence[CaseResult]) -> Absence:
    overheads = any(row.time is not None for row in everything)
    checked = sum(row.reason == CHECK_ONLY for row in (cases if overheads else everything))
    if checked:
        unchecked = sum(row.outcome == "planned" or out_of_budget(run, row) for row in everything)
        return Absence(kind="checked", checked=checked, unchecked=unchecked)
    causes = _reasons(run, cases if overheads else everything)
    if (
        not run.outcomes
        and run.settings.budget_s is not None
        and not (run.selection.filter or run.selection.skip)
    ):
        causes = [OUT_OF_TIME]  # nothing was even planned
    if overheads:
        return Absence(kind="overheads", causes=tuple(causes))
    return Absence(kind="nothing", causes=tuple(causes or _absent(run) or ["no case was planned"]))


def _reasons(run: Run, rows: Sequence[CaseResult]) -> list[str]:
    """Why these rows have no time, gravest first: the budget, failures, an early end, then skips."""
    budget = [row for row in rows if out_of_budget(run, row)]
    failed = [row for row in rows if row.outcome == "failure"]
    planned = [row for row in rows if row.outcome == "planned"]
    explained = {row.case.device_id for row in (*budget, *failed, *planned)}
    others = [row for row in rows if row.case.device_id not in explained and row.time is None]
    others.sort(key=lambda row: (row.outcome == "skip", row.reason in _USUAL))
    early = "the run was interrupted" if run.exit_reason == "interrupted" else "the run ended early"
    return [
        *([OUT_OF_TIME] if budget else []), *_of_each_device(failed), *([early] if planned else []),
        *_of_each_device(others),
    ]  # fmt: skip


def out_of_budget(run: Run, row: CaseResult) -> bool:
    """Tell whether the budget left the case without a time."""
    return row.reason == "budget" or (row.reason == NO_SAMPLES and run.exit_reason == "budget")


def _of_each_device(rows: Sequence[CaseResult]) -> list[str]:
    """The first reason of each device."""
    found: dict[str, str] = {}
    for row in rows:
        found.setdefault(row.case.device_id, " ".join((row.detail or "").split()) or row.reason or "")
    return _named(found)


def _absent(run: Run) -> list[str]:
    """Return the words of the run about backends that it did not find."""
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


def _others(run: Run) -> set[str]:
    return {device.id for device in run.devices if device.kind != "cpu"}
