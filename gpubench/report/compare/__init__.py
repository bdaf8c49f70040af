"""Base against new result files -> verdicts per case and gates. From the files alone; no NumPy, no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpubench.errors import InputError
from gpubench.model.case import Case
from gpubench.model.result import Run
from gpubench.report.analysis.machine import machine_line
from gpubench.report.analysis.turns import observations
from gpubench.report.compare import gates as outcome
from gpubench.report.compare.comparability import IDENTITY, interleaved, print_differences, run_differences
from gpubench.report.compare.judge import can_fire, correction_of, judged
from gpubench.report.compare.options import CompareOptions
from gpubench.report.compare.pairing import Paired, Side, paired, side
from gpubench.report.compare.types import Comparison, Correction, Difference, JudgedCase, Pair, SideRow
from gpubench.report.listing import first_few

__all__ = ["CompareOptions", "Comparison", "compare"]

Named = tuple[str, Run]  # the name under which the user gave a file, and what it holds


def compare(base: Named, news: Sequence[Named], options: CompareOptions) -> Comparison:
    """Every case of each new file against `base`.

    Raises InputError where a file stems from another machine and that is not allowed, and where no case is left
    that can be compared; both name the fields that differ.
    """
    ours = side(base[1])
    _require_fitting(options, base)
    pairs, differences, parts, cases = [], [], [], []
    idle, known = [], _cases(ours)
    for index, (name, run) in enumerate(news):
        found = run_differences(base[1], run, index)
        _require_same_machine(found, base[0], name, options)
        theirs = side(run)
        pair, part, rows = _one(ours, theirs, index, found, options)
        _require_common(part, rows, (*found, *part.differences), base[0], name)
        family = [twin for twin in part.twins if twin.testable and not twin.muted]
        idle += [] if can_fire(family, options.alpha) else [index]
        pairs.append(pair)
        parts.append(part)
        cases += rows
        known |= _cases(theirs)
        differences += [*found, *part.differences]
    asked = {name: case for name, case in known.items() if not options.muted(case)}
    return _summed_up(base, news, options, pairs, differences, parts, cases, idle, asked)


def _cases(of: Side) -> dict[str, Case]:
    return {name: row.case for name, row in of.rows.items()}


def _one(
    base: Side, new: Side, index: int, found: Sequence[Difference], options: CompareOptions
) -> tuple[Pair, Paired, list[JudgedCase]]:
    """One new file against the base."""
    takes_turns = interleaved(base.run, new.run)
    alike = not any(row.scope == "protocol" for row in found)
    part = paired(base, new, index, options, alike=alike, takes_turns=takes_turns)
    family = [twin for twin in part.twins if twin.testable and not twin.muted]
    pair = Pair(interleaved=takes_turns, correction=correction_of(family, options.alpha), family=len(family))
    verdicts = {row.id: row for row in (*judged(part.twins, options.alpha, index), *part.refused)}
    return pair, part, [verdicts[name] for name in base.rows if name in verdicts]


def _summed_up(
    base: Named, news: Sequence[Named], options: CompareOptions, pairs: Sequence[Pair],
    differences: Sequence[Difference], parts: Sequence[Paired], cases: Sequence[JudgedCase], idle: Sequence[int],
    asked: Mapping[str, Case],
) -> Comparison:  # fmt: skip
    missing = tuple(row for part in parts for row in part.missing)
    failed = tuple(row for part in parts for row in part.failed)
    added = tuple(row for part in parts for row in part.added)
    found = outcome.gates(options, cases, missing, failed, asked=asked, files=len(news), idle=idle)
    code = outcome.ending(options, found)
    return Comparison(
        base=_side_row(base), new=tuple(_side_row(new) for new in news), alpha=options.alpha,
        interleaved=all(pair.interleaved for pair in pairs), correction=_correction(pairs), pairs=tuple(pairs),
        differences=tuple(differences), cases=tuple(cases), missing=missing, failed=failed, added=added,
        counts=outcome.counts(cases, missing, failed, added), gates=found,
        warnings=outcome.notices(
            options, found, cases, pairs, differences, any({*run.origins} & {*base[1].origins} for _, run in news),
            idle={index: news[index][0] for index in idle},
        ),
        exit_code=code, exit_reason={3: "gate", 4: "input"}.get(code, "ok"),  # type: ignore[arg-type]
    )  # fmt: skip


def _correction(pairs: Iterable[Pair]) -> Correction | None:
    """That of all pairs; where they differ, the joint one, which is used for large families."""
    used = [pair.correction for pair in pairs if pair.correction is not None]
    return None if not used else "max-t" if "max-t" in used else "bh"


def _side_row(named: Named) -> SideRow:
    name, run = named
    return SideRow(
        source=name, run_id=run.id, label=run.label, started_at=run.started_at, machine=machine_line(run),
        sessions=len(observations(run)) if run.sessions else run.settings.sessions,
    )  # fmt: skip


def _require_same_machine(found: Sequence[Difference], base: str, new: str, options: CompareOptions) -> None:
    foreign = [row for row in found if row.scope in IDENTITY]
    if foreign and not options.allow_different_machine:
        raise InputError(
            "not-comparable", f"{base} and {new} stem from different machines", why=_listed(foreign),
            hint="measure both on one machine, or compare all the same with --allow-different-machine",
        )  # fmt: skip


def _require_fitting(options: CompareOptions, base: Named) -> None:
    """Thresholds of another machine, or of other cases, are none."""
    found = options.noise
    if found is None:
        return
    differences = print_differences(base[1].fingerprint, found.fingerprint, 0)
    foreign = [row for row in differences if row.scope in IDENTITY]
    if foreign and not options.allow_different_machine:
        raise InputError(
            "not-comparable", f"{base[0]} and {found.source} stem from different machines", why=_listed(foreign),
            hint="measure the thresholds on the same machine with `gpubench noise -o`",
        )  # fmt: skip
    if not any(outcome.id in found.shares for outcome in base[1].outcomes):
        raise InputError(
            "not-comparable", f"{base[0]} and {found.source} have no case in common",
            why="the thresholds are those of other cases",
            hint="measure the thresholds of the same ops and sizes with `gpubench noise -o`",
        )  # fmt: skip


def _require_common(
    part: Paired, rows: Sequence[JudgedCase], found: Sequence[Difference], base: str, new: str
) -> None:
    """A file whose every case failed is a result; one that shares nothing with the base is not."""
    if any(row.verdict != "not-comparable" for row in rows) or part.failed:
        return
    if rows:
        reasons = [row for row in found if row.scope in ("protocol", "op")]
        raise InputError(
            "not-comparable", f"{base} and {new} have no case that can be compared",
            why=_listed(reasons) or "the numbers of every common case are implausible",
            hint="measure both with the same options and the same definition of the ops",
        )  # fmt: skip
    raise InputError(
        "not-comparable", f"{base} and {new} have no case in common",
        why=f"cases with a number: {len(part.missing)} in {base} alone, {len(part.added)} in {new} alone, none in both",
        hint="measure the same ops, sizes and devices on both sides",
    )  # fmt: skip


def _listed(rows: Sequence[Difference], most: int = 4) -> str:
    """`cpu: 'A' against 'B'; usable_cpus: '2' against '4'`."""
    texts = list(dict.fromkeys(f"{row.field}: {row.base!r} against {row.value!r}" for row in rows))
    return first_few(texts, most, between="; ")
