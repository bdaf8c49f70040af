"""Base against new result files -> verdicts per case and gates. From the files alone; no NumPy, no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpubench.model.result import Run
from gpubench.report.analysis.machine import machine_line
from gpubench.report.analysis.turns import observations
from gpubench.report.compare import gates as outcome
from gpubench.report.compare.comparability import interleaved, run_differences
from gpubench.report.compare.judge import can_fire, correction_of, judged
from gpubench.report.compare.options import CompareOptions
from gpubench.report.compare.pairing import Paired, Side, paired, side
from gpubench.report.compare.refusals import Named, require_common, require_fitting, require_same_machine
from gpubench.report.compare.types import Comparison, Correction, Difference, JudgedCase, Pair, SideRow

__all__ = ["CompareOptions", "Comparison", "compare"]


class _Against(NamedTuple):
    """One new file beside the base.

    `differences` are those of the runs and of their cases. `idle`: none of its cases could have been SLOWER.
    """

    name: str
    side: Side
    pair: Pair
    part: Paired
    cases: list[JudgedCase]
    differences: tuple[Difference, ...]
    idle: bool


def compare(base: Named, news: Sequence[Named], options: CompareOptions) -> Comparison:
    """Every case of each new file against `base`.

    Raises InputError where a file stems from another machine and that is not allowed, and where no case is left
    that can be compared; both name the fields that differ.
    """
    ours = side(base[1])
    require_fitting(options, base)
    found = [_against(base[0], ours, new, index, options) for index, new in enumerate(news)]
    return _summed_up(base[0], ours, found, options)


def _against(base: str, ours: Side, new: Named, index: int, options: CompareOptions) -> _Against:
    name, run = new
    whole = run_differences(ours.run, run, index)
    require_same_machine(whole, base, name, options)
    theirs, takes_turns = side(run), interleaved(ours.run, run)
    alike = not any(row.scope == "protocol" for row in whole)
    part = paired(ours, theirs, index, options, alike=alike, takes_turns=takes_turns)
    family = [twin for twin in part.twins if twin.testable and not twin.muted]
    verdicts = {row.id: row for row in (*judged(part.twins, options.alpha, index), *part.refused)}
    differences = (*whole, *part.differences)
    require_common(part, list(verdicts.values()), differences, base, name)
    return _Against(
        name=name, side=theirs, part=part, differences=differences, idle=not can_fire(family, options.alpha),
        pair=Pair(interleaved=takes_turns, correction=correction_of(family, options.alpha), family=len(family)),
        cases=[verdicts[name] for name in ours.rows if name in verdicts],
    )  # fmt: skip


def _summed_up(base: str, ours: Side, news: Sequence[_Against], options: CompareOptions) -> Comparison:
    cases = [row for new in news for row in new.cases]
    missing = tuple(row for new in news for row in new.part.missing)
    failed = tuple(row for new in news for row in new.part.failed)
    added = tuple(row for new in news for row in new.part.added)
    pairs = tuple(new.pair for new in news)
    differences = tuple(row for new in news for row in new.differences)
    idle = [index for index, new in enumerate(news) if new.idle]
    known = {name: row.case for side in (ours, *(new.side for new in news)) for name, row in side.rows.items()}
    asked = {name: case for name, case in known.items() if not options.muted(case)}
    found = outcome.gates(options, cases, missing, failed, asked=asked, files=len(news), idle=bool(idle))
    same_run = any({*new.side.run.origins} & {*ours.run.origins} for new in news)
    code = outcome.ending(options, found)
    return Comparison(
        base=_side_row(base, ours.run), new=tuple(_side_row(new.name, new.side.run) for new in news),
        alpha=options.alpha, interleaved=all(pair.interleaved for pair in pairs), correction=_correction(pairs),
        pairs=pairs, differences=differences, cases=tuple(cases), missing=missing, failed=failed, added=added,
        counts=outcome.counts(cases, missing, failed, added), gates=found,
        warnings=outcome.notices(
            options, found, cases, pairs, differences, same_run, idle=idle, names=[new.name for new in news]
        ),
        exit_code=code, exit_reason={3: "gate", 4: "input"}.get(code, "ok"),  # type: ignore[arg-type]
    )  # fmt: skip


def _correction(pairs: Iterable[Pair]) -> Correction | None:
    """That of all pairs; where they differ, the joint one, which is used for large families."""
    used = [pair.correction for pair in pairs if pair.correction is not None]
    return None if not used else "max-t" if "max-t" in used else "bh"


def _side_row(name: str, run: Run) -> SideRow:
    return SideRow(
        source=name, run_id=run.id, label=run.label, started_at=run.started_at, machine=machine_line(run),
        sessions=len(observations(run)) if run.sessions else run.settings.sessions,
    )  # fmt: skip
