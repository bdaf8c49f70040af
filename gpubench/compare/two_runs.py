"""Base against new result files -> verdicts per case and gates. From the files alone; no NumPy, no GPU."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from gpubench.analysis.findings import MinSpeedup
from gpubench.analysis.machine import machine_line
from gpubench.analysis.samples import observations
from gpubench.base.messages import WARNINGS, WarningCode
from gpubench.compare.comparison import (
    AbsentCase,
    CompareFailOn,
    CompareOptions,
    Comparison,
    Difference,
    Gate,
    JudgedCase,
    Notice,
    Pair,
    SideRow,
    VerdictCounts,
)
from gpubench.compare.judge import MIN_SESSIONS, can_fire, changes, judge
from gpubench.compare.pairing import (
    IDENTITY,
    CompareSide,
    Named,
    PairedCases,
    pair_cases,
    require_common,
    require_fitting,
    require_same_machine,
    run_differences,
    side,
    take_turns,
)
from gpubench.curves.stats import median
from gpubench.result.case import Case
from gpubench.result.run import Run, Severity

Absent = Literal["missing", "failed", "added"]


class _Against(NamedTuple):
    """One new file beside the base."""

    name: str  # of the file
    side: CompareSide  # its cases
    pair: Pair  # sums it up
    part: PairedCases  # its cases beside those of base
    cases: list[JudgedCase]  # with their verdicts
    differences: tuple[Difference, ...]  # of the runs and of their cases
    idle: bool  # none of its cases could have been SLOWER


class _Whole(NamedTuple):
    """All new files beside the base."""

    options: CompareOptions  # of the comparison
    base: str  # name of the file
    ours: CompareSide  # cases of base
    news: list[_Against]  # in order

    @property
    def cases(self) -> list[JudgedCase]:
        return [case for new in self.news for case in new.cases]

    @property
    def heard(self) -> list[JudgedCase]:
        """The cases that gates look at."""
        return [case for case in self.cases if not case.muted]

    def absent(self, kind: Absent) -> tuple[AbsentCase, ...]:
        return tuple(case for new in self.news for case in getattr(new.part, kind))

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(difference for new in self.news for difference in new.differences)

    @property
    def asked(self) -> dict[str, Case]:
        """The cases of all files that are not muted, by id."""
        rows = [case for side in (self.ours, *(new.side for new in self.news)) for case in side.rows.values()]
        return {case.id: case.case for case in rows if not self.options.ignores(case.case)}

    def names(self, concerned: Sequence[_Against]) -> str:
        """Return the names of the new files that are concerned, where others are not."""
        return ", ".join(new.name for new in concerned) if len(concerned) < len(self.news) else ""


def compare(base: Named, news: Sequence[Named], options: CompareOptions) -> Comparison:
    """Return every case of each new file against `base`.

    Raises InputError where a file stems from another machine and that is not allowed, and where no case is left
    that can be compared; both name the fields that differ.
    """
    name, run = base
    own = side(run)
    require_fitting(options, base)
    against = [_against(name, own, new, index, options) for index, new in enumerate(news)]
    whole = _Whole(options, name, own, against)
    gates = _gates(whole)
    code = exit_code(options, gates)
    pairs = tuple(new.pair for new in against)
    return Comparison(
        base=_side_row(name, run), new=tuple(_side_row(new.name, new.side.run) for new in against),
        alpha=options.alpha, interleaved=all(pair.interleaved for pair in pairs),
        correction="max-t" if any(pair.correction for pair in pairs) else None,
        pairs=pairs, differences=whole.differences, cases=tuple(whole.cases), missing=whole.absent("missing"),
        failed=whole.absent("failed"), added=whole.absent("added"),
        counts=_counts(whole), gates=gates, warnings=_notices(whole, gates),
        exit_code=code, exit_reason={3: "gate", 4: "input"}.get(code, "ok"),  # type: ignore[arg-type]
    )  # fmt: skip


def _against(base: str, own: CompareSide, new: Named, index: int, options: CompareOptions) -> _Against:
    name, run = new
    differences = run_differences(own.run, run, index)
    require_same_machine(differences, base, name, options)
    other, takes_turns = side(run), take_turns(own.run, run)
    alike = not any(difference.scope == "protocol" for difference in differences)
    part = pair_cases(own, other, index, options, alike=alike, takes_turns=takes_turns)
    family = [pair for pair in part.pairs if pair.testable and not pair.muted]
    verdicts = {case.id: case for case in (*judge(part.pairs, options.alpha, index), *part.refused)}
    differences = (*differences, *part.differences)
    require_common(part, list(verdicts.values()), differences, base, name)
    heard = [case for case in verdicts.values() if not case.muted]
    spreads = [case.spread for case in heard if case.spread is not None]
    effects = [case.smallest_effect for case in heard if case.smallest_effect is not None]
    pair = Pair(
        interleaved=takes_turns, correction="max-t" if family else None, family=len(family),
        spread=median(spreads) if spreads else None, smallest_effect=median(effects) if effects else None,
        own_sizes=part.own_sizes, devices=() if family else changes(part.pairs),
    )  # fmt: skip
    cases = [verdicts[case_id] for case_id in own.rows if case_id in verdicts]
    idle = not can_fire(family, options.alpha)
    return _Against(name, other, pair, part, cases, differences, idle)


def _side_row(name: str, run: Run) -> SideRow:
    return SideRow(
        source=name, run_id=run.id, label=run.label, started_at=run.started_at, machine=machine_line(run),
        sessions=len(observations(run)) if run.sessions else run.settings.sessions,
    )  # fmt: skip


def _gates(whole: _Whole) -> tuple[Gate, ...]:
    """Return the gates asked for, each with the cases that breach it."""
    heard = whole.heard
    breaches: dict[CompareFailOn, list[str]] = {
        "slower": [case.id for case in heard if case.verdict == "SLOWER"],
        "unsure": [case.id for case in heard if case.verdict == "UNSURE"],
        "failed": [case.id for case in whole.absent("failed") if not case.muted],
        # Whatever cannot be compared any more is missing; what base has no true number for never was there.
        "missing": [case.id for case in whole.absent("missing") if not case.muted]
        + [case.id for case in heard if case.verdict == "not-comparable" and case.base_s is not None],
        "noisy": [case.id for case in heard if {"noisy", "unstable"} & set(case.labels)],
    }
    gates = []
    for name in whole.options.gates:
        ids = tuple(dict.fromkeys(breaches[name]))
        # What one file breached is breached; what no file breached is not passed by one that never could.
        idle = any(new.idle for new in whole.news) if name == "slower" else not whole.asked
        gates.append(Gate(name=name, passed=not ids and not idle, impossible=not ids and idle, ids=ids))
    return (*gates, *(_min_speedup_gate(whole, demand) for demand in whole.options.min_speedups))


def _min_speedup_gate(whole: _Whole, demand: MinSpeedup) -> Gate:
    """Return the gate on base / new: it fails where the whole interval lies below, or there is no ratio.

    Each case that the demand selects has to have a ratio in each new file, whichever side lacks its number. A demand
    that selects none of them is impossible.
    """
    chosen = [case_id for case_id, case in whole.asked.items() if demand.selects(case)]
    # The fastest that a case may be is base / the low end of new / base.
    spans = {
        (case.id, case.new): (1 / case.hi, 1 / case.lo)
        for case in whole.cases
        if case.id in chosen and case.lo is not None and case.hi is not None
    }
    low = dict.fromkeys(case_id for (case_id, _), (_, most) in spans.items() if most < demand.least)
    near = dict.fromkeys(
        case_id for (case_id, _), (least, most) in spans.items() if least < demand.least <= most
    )
    news = range(len(whole.news))
    missing = tuple(case_id for case_id in chosen if any((case_id, new) not in spans for new in news))
    return Gate(
        name="min-speedup", selector=demand.text, least=demand.least, ids=tuple(low), missing=missing,
        impossible=not chosen, passed=bool(chosen) and not low and not missing, near=tuple(near),
    )  # fmt: skip


def exit_code(options: CompareOptions, gates: Sequence[Gate]) -> int:
    """The exit code: 4 for a gate that could not have failed and had to count, 3 for one that failed, else 0."""
    if any(gate.impossible and options.must_count(gate.name) for gate in gates):
        return 4
    failed = any(not gate.passed and not gate.impossible for gate in gates)
    return 3 if failed and not options.advisory else 0


def _notices(whole: _Whole, gates: Sequence[Gate]) -> tuple[Notice, ...]:
    """Return what a reader has to know before trusting the verdicts."""
    cases = [case for case in whole.cases if case.verdict != "not-comparable"]
    few = sum(min(case.k_base, case.k_new) < MIN_SESSIONS for case in cases)
    idle = [new for new in whole.news if new.idle]
    apart = [new for new in whole.news if not new.pair.interleaved]
    noise = whole.options.noise
    unknown = 0 if noise is None else sum(case.id not in noise.shares for case in cases)
    notices = []
    if few:
        which = "every case has" if few == len(cases) else f"{few} of {len(cases)} cases have"
        notices.append(
            _notice(
                "few-sessions",
                f"{which} fewer than {MIN_SESSIONS} sessions on a side, so only a large change can be told from chance",
                f"to decide more, measure either side by `gpubench run --like {whole.base} --sessions {MIN_SESSIONS} "
                "-o FILE`",
            )
        )
    if any(gate.impossible and gate.name == "slower" for gate in gates):
        where = whole.names(idle)
        notices.append(
            _notice(
                "no-gate",
                f"no regression gate was applied{f' to {where}' if where else ''}: nothing in "
                f"{'it' if where else 'these files'} could have made it fail",
                _REMEDIES.get(frozenset(case.reason for new in idle for case in new.cases if case in cases)),
            )
        )
    if apart:
        message = (
            f"base and {whole.names(apart) or 'new'} were measured one after the other, so drift of the machine looks "
            "like a change; the threshold is 10 % where --threshold does not say otherwise"
        )
        notices.append(_notice("not-interleaved", message))
    if any(difference.scope in IDENTITY for difference in whole.differences):
        notices.append(_notice("different-machine"))
    if unknown:
        which = f"{unknown} of {len(cases)} cases"
        message = f"{which} have no threshold in the file of --thresholds; the usual one is theirs"
        notices.append(_notice("no-threshold", message, severity="info"))
    if any({*new.side.run.origins} & {*whole.ours.run.origins} for new in whole.news):
        notices.append(_notice("same-run", severity="info"))
    return tuple(notices)


# What to do where one reason alone kept a gate from firing.
_REMEDIES: dict[frozenset[str | None], str] = {
    frozenset(["few-sessions"]): f"measure both with --sessions {MIN_SESSIONS} or more",
    frozenset(["throttled"]): "measure again with better cooling, more power or a lower --max-time",
}


def _notice(
    code: WarningCode, message: str = "", hint: str | None = None, severity: Severity = "warning"
) -> Notice:
    """Return a notice; by default in the words of its code."""
    usual, remedy = WARNINGS[code]
    return Notice(code=code, severity=severity, message=message or usual, hint=hint or remedy)


def _counts(whole: _Whole) -> VerdictCounts:
    """Count the cases by verdict; muted ones apart."""
    count = Counter(case.verdict for case in whole.heard)
    kinds: tuple[Absent, ...] = ("missing", "failed", "added")
    absent = {kind: [case.muted for case in whole.absent(kind)] for kind in kinds}
    muted = [case.muted for case in whole.cases] + list(itertools.chain(*absent.values()))
    return VerdictCounts(
        faster=count["FASTER"], slower=count["SLOWER"], same=count["SAME"], unsure=count["UNSURE"],
        not_comparable=count["not-comparable"], muted=sum(muted),
        **{kind: muted.count(False) for kind, muted in absent.items()},
    )  # fmt: skip
