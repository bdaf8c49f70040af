"""The gates of `run` and `report` from the words of their options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gpubench.errors import ExitCode, UsageError, require_choice

if TYPE_CHECKING:
    from gpubench.analysis.analyse import Analysis
    from gpubench.analysis.gates import Gates, MinSpeedup
    from gpubench.measure.schedule import RunSpec
    from gpubench.model.case import Case


def demands(min_speedups: Sequence[str], fail_on: str | None) -> Gates:
    """The gates asked for, as checked values. Raises UsageError."""
    from gpubench.analysis.gates import FAIL_ON, Gates

    words = [word.strip() for word in (fail_on or "").split(",") if word.strip()]
    for word in words:
        require_choice(word, FAIL_ON, "--fail-on")
    return Gates(
        min_speedups=tuple(_min_speedup(text) for text in min_speedups),
        fail_on=tuple(name for name in FAIL_ON if name in words),
    )


def exit_code(analyses: Sequence[Analysis]) -> ExitCode:
    """How a report ends: a failed gate or nothing wrong."""
    from gpubench.analysis.analyse import failed

    return ExitCode.GATE if failed(analyses) else ExitCode.OK


def require_measured(asked: Gates, analyses: Sequence[Analysis]) -> None:
    """`require_matches` in what the files hold. Raises UsageError."""
    rows = [row for analysis in analyses for row in analysis.cases]
    on_cpu = {row.case.device_id: row.device_kind == "cpu" for row in rows}
    hint = "gpubench report --sections raw lists the cases with their ids"
    require_matches(asked, (row.case for row in rows), on_cpu.__getitem__, hint)


def require_planned(asked: Gates, request: RunSpec) -> None:
    """`require_matches` in what is going to be measured, as far as sizes are known. Raises UsageError."""
    if not asked.min_speedups:
        return
    from gpubench.measure.schedule import planned

    on_cpu = {target.device.id: target.device.kind == "cpu" for target in request.constraints.targets}
    cases = (case for workload in planned(request) for case in workload.cases)
    hint = "give the sizes with --sizes; --dry-run lists the case ids"
    require_matches(asked, cases, on_cpu.__getitem__, hint)


def require_baseline(name: str | None, request: RunSpec) -> None:
    """The baseline is among what is going to be measured. Raises UsageError."""
    if name is None:
        return
    from gpubench.analysis.speedup import baseline_named
    from gpubench.measure.schedule import planned

    chosen = baseline_named(name)
    on_cpu = {target.device.id: target.device.kind == "cpu" for target in request.constraints.targets}
    known = {
        f"{case.form}@{case.device_id}": chosen(case, on_cpu.get(case.device_id, False))
        for workload in planned(request)
        for case in workload.cases
    }
    if known and not any(known.values()):
        raise UsageError(
            "no-such-baseline", f"--baseline {name}: nothing that is going to be measured matches",
            why="a speedup needs a baseline that is measured too", hint=f"choose one of: {', '.join(sorted(known))}",
        )  # fmt: skip


def require_matches(asked: Gates, cases: Iterable[Case], on_cpu: Callable[[str], bool], hint: str) -> None:
    """A gate that looks at nothing never fails: renaming an op must not switch it off. Raises UsageError.

    `cases` are those that are or will be there, `on_cpu` tells of a device id whether it is the baseline's.
    """
    contenders = [case for case in cases if not on_cpu(case.device_id)]
    for demand in asked.min_speedups:
        if not any(demand.selects(case) for case in contenders):
            raise UsageError(
                "no-such-case", f"--min-speedup: {demand.text[:60]!r} selects no case that has a speedup",
                why="no case beside the CPU's own matches it", hint=hint,
            )  # fmt: skip


def _min_speedup(text: str) -> MinSpeedup:
    from gpubench.analysis.gates import MinSpeedup
    from gpubench.selectors import selector

    path, equals, number = text.rpartition("=")
    try:
        least = float(number.strip().removesuffix("x"))
    except ValueError:
        least = math.nan
    if not equals or not 0 < least < math.inf:
        raise UsageError(
            "bad-speedup", f"--min-speedup: {text[:60]!r} is not SEL=X",
            why="after the last = stands a speedup above 0",
        )  # fmt: skip
    return MinSpeedup(text=text, selects=selector(path, option="--min-speedup"), least=least)
