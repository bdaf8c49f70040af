"""Base against new result files -> verdicts per case and gates. From the files alone; no NumPy, no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpubench.analysis.findings import MinSpeedup
from gpubench.analysis.machine import machine_line
from gpubench.analysis.samples import observations
from gpubench.base.messages import WARNINGS
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
from gpubench.compare.judge import MIN_SESSIONS, can_fire, changes, judged
from gpubench.compare.pairing import (
    CompareSide,
    Named,
    PairedCases,
    interleaved,
    paired,
    require_common,
    require_fitting,
    require_same_machine,
    run_differences,
    side,
)
from gpubench.curves.stats import median
from gpubench.result.case import Case
from gpubench.result.run import Run


class _Against(NamedTuple):
    """One new file beside the base.

    `differences` are those of the runs and of their cases. `idle`: none of its cases could have been SLOWER.
    """

    name: str
    side: CompareSide
    pair: Pair
    part: PairedCases
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


def _against(base: str, ours: CompareSide, new: Named, index: int, options: CompareOptions) -> _Against:
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
    heard = [row for row in verdicts.values() if not row.muted]
    spreads = [row.spread for row in heard if row.spread is not None]
    effects = [row.smallest_effect for row in heard if row.smallest_effect is not None]
    return _Against(
        name=name, side=theirs, part=part, differences=differences, idle=not can_fire(family, options.alpha),
        pair=Pair(
            interleaved=takes_turns, correction="max-t" if family else None, family=len(family),
            spread=median(spreads) if spreads else None, smallest_effect=median(effects) if effects else None,
            own_sizes=part.own_sizes, devices=() if family else changes(part.twins),
        ),
        cases=[verdicts[name] for name in ours.rows if name in verdicts],
    )  # fmt: skip


class _Whole(NamedTuple):
    """What all new files have to say beside the base.

    `asked` are the cases of base and of the new files that are not muted, by id; `base` and `names` are what the files
    are called, and `idle` are the files in which no case could have been SLOWER.
    """

    options: CompareOptions
    cases: list[JudgedCase]
    missing: tuple[AbsentCase, ...]
    failed: tuple[AbsentCase, ...]
    added: tuple[AbsentCase, ...]
    pairs: tuple[Pair, ...]
    differences: tuple[Difference, ...]
    asked: Mapping[str, Case]
    base: str
    names: list[str]
    idle: list[int]
    same_run: bool


def _whole(base: str, ours: CompareSide, news: Sequence[_Against], options: CompareOptions) -> _Whole:
    known = {name: row.case for side in (ours, *(new.side for new in news)) for name, row in side.rows.items()}
    return _Whole(
        options=options, cases=[row for new in news for row in new.cases],
        missing=tuple(row for new in news for row in new.part.missing),
        failed=tuple(row for new in news for row in new.part.failed),
        added=tuple(row for new in news for row in new.part.added),
        pairs=tuple(new.pair for new in news), differences=tuple(row for new in news for row in new.differences),
        asked={name: case for name, case in known.items() if not options.muted(case)},
        base=base, names=[new.name for new in news], idle=[index for index, new in enumerate(news) if new.idle],
        same_run=any({*new.side.run.origins} & {*ours.run.origins} for new in news),
    )  # fmt: skip


def _summed_up(base: str, ours: CompareSide, news: Sequence[_Against], options: CompareOptions) -> Comparison:
    whole = _whole(base, ours, news, options)
    found = _gates(whole)
    code = exit_code(options, found)
    return Comparison(
        base=_side_row(base, ours.run), new=tuple(_side_row(new.name, new.side.run) for new in news),
        alpha=options.alpha, interleaved=all(pair.interleaved for pair in whole.pairs),
        correction="max-t" if any(pair.correction for pair in whole.pairs) else None,
        pairs=whole.pairs, differences=whole.differences,
        cases=tuple(whole.cases), missing=whole.missing, failed=whole.failed, added=whole.added,
        counts=_counts(whole), gates=found, warnings=_notices(whole, found),
        exit_code=code, exit_reason={3: "gate", 4: "input"}.get(code, "ok"),  # type: ignore[arg-type]
    )  # fmt: skip


def _side_row(name: str, run: Run) -> SideRow:
    return SideRow(
        source=name, run_id=run.id, label=run.label, started_at=run.started_at, machine=machine_line(run),
        sessions=len(observations(run)) if run.sessions else run.settings.sessions,
    )  # fmt: skip


def _gates(whole: _Whole) -> tuple[Gate, ...]:
    """The gates asked for, each with the cases that breach it."""
    heard = [row for row in whole.cases if not row.muted]
    breaches: dict[CompareFailOn, Callable[[], list[str]]] = {
        "slower": lambda: [row.id for row in heard if row.verdict == "SLOWER"],
        "unsure": lambda: [row.id for row in heard if row.verdict == "UNSURE"],
        "failed": lambda: [row.id for row in whole.failed if not row.muted],
        # Whatever cannot be compared any more is missing; what base has no true number for never was there.
        "missing": lambda: (
            [row.id for row in whole.missing if not row.muted]
            + [row.id for row in heard if row.verdict == "not-comparable" and row.base_s is not None]
        ),
        "noisy": lambda: [row.id for row in heard if {"noisy", "unstable"} & set(row.labels)],
    }
    found = []
    for name in whole.options.gates:
        ids = tuple(dict.fromkeys(breaches[name]()))
        # What one file breached is breached; what no file breached is not passed by one that never could.
        impossible = not ids and (bool(whole.idle) if name == "slower" else not whole.asked)
        found.append(Gate(name=name, passed=not ids and not impossible, impossible=impossible, ids=ids))
    return (*found, *_min_speedup_gates(whole))


def exit_code(options: CompareOptions, found: Sequence[Gate]) -> int:
    """The exit code: 4 for a gate that could not have failed and had to count, 3 for one that failed, else 0."""
    if any(gate.impossible and options.must_count(gate.name) for gate in found):
        return 4
    failed = any(not gate.passed and not gate.impossible for gate in found)
    return 3 if failed and not options.advisory else 0


def _notices(whole: _Whole, found: Sequence[Gate]) -> tuple[Notice, ...]:
    """What a reader has to know before trusting the verdicts."""
    rows = [row for row in whole.cases if row.verdict != "not-comparable"]
    few = [row for row in rows if min(row.k_base, row.k_new) < MIN_SESSIONS]
    notices = []
    if few:
        notices.append(_few_sessions(len(few), len(rows), whole.base))
    if any(gate.impossible and gate.name == "slower" for gate in found):
        notices.append(
            _no_gate([row for row in rows if row.new in whole.idle], _names_of(whole.idle, whole.names))
        )
    apart = [index for index, pair in enumerate(whole.pairs) if not pair.interleaved]
    if apart:
        notices.append(
            Notice(
                code="not-interleaved", severity="warning",
                message=f"base and {_names_of(apart, whole.names) or 'new'} were measured one after the other, so "
                "drift of the machine looks like a change; the threshold is 10 % where --threshold does not say "
                "otherwise",
                hint=WARNINGS["not-interleaved"].remedy,
            )
        )  # fmt: skip
    if any(row.scope in ("machine", "device") for row in whole.differences):
        message, hint = WARNINGS["different-machine"]
        notices.append(Notice(code="different-machine", severity="warning", message=message, hint=hint))
    noise = whole.options.noise
    unknown = [row for row in rows if noise is not None and row.id not in noise.shares]
    if unknown:
        notices.append(
            Notice(
                code="no-threshold", severity="info",
                message=f"{len(unknown)} of {len(rows)} cases have no threshold in the file of --thresholds; "
                "the usual one is theirs",
                hint=WARNINGS["no-threshold"].remedy,
            )
        )  # fmt: skip
    if whole.same_run:
        message, hint = WARNINGS["same-run"]
        notices.append(Notice(code="same-run", severity="info", message=message, hint=hint))
    return tuple(notices)


def _counts(whole: _Whole) -> VerdictCounts:
    """Cases by verdict; muted ones apart."""
    heard = [row.verdict for row in whole.cases if not row.muted]
    muted = [row.muted for row in whole.cases]
    muted += [row.muted for rows in (whole.missing, whole.failed, whole.added) for row in rows]
    return VerdictCounts(
        faster=heard.count("FASTER"), slower=heard.count("SLOWER"), same=heard.count("SAME"),
        unsure=heard.count("UNSURE"), not_comparable=heard.count("not-comparable"),
        missing=_heard(whole.missing), failed=_heard(whole.failed), added=_heard(whole.added),
        muted=muted.count(True),
    )  # fmt: skip


def _heard(rows: Sequence[AbsentCase]) -> int:
    return sum(1 for row in rows if not row.muted)


def _few_sessions(few: int, all_cases: int, base: str) -> Notice:
    which = "every case has" if few == all_cases else f"{few} of {all_cases} cases have"
    return Notice(
        code="few-sessions", severity="warning",
        message=f"{which} fewer than {MIN_SESSIONS} sessions on a side, so only a large change can be told from chance",
        hint=f"to decide more, measure either side by `gpubench run --like {base} --sessions {MIN_SESSIONS} -o FILE`",
    )  # fmt: skip


def _names_of(concerned: Sequence[int], names: Sequence[str]) -> str:
    """The new files that are concerned, where others are not."""
    return ", ".join(names[index] for index in concerned) if len(concerned) < len(names) else ""


def _no_gate(unjudged: Sequence[JudgedCase], idle: str) -> Notice:
    where, what = (f" to {idle}", "it") if idle else ("", "these files")
    reasons = {row.reason for row in unjudged}
    hint = WARNINGS["no-gate"].remedy
    if reasons == {"few-sessions"}:
        hint = f"measure both with --sessions {MIN_SESSIONS} or more"
    elif reasons == {"throttled"}:
        hint = "measure again with better cooling, more power or a lower --max-time"
    return Notice(
        code="no-gate", severity="warning", hint=hint,
        message=f"no regression gate was applied{where}: nothing in {what} could have made it fail",
    )  # fmt: skip


def _min_speedup_gates(whole: _Whole) -> tuple[Gate, ...]:
    """One gate for each demand on base / new: it fails where the whole interval lies below, or there is no ratio.

    Each case that a demand selects has to have a ratio in each new file, whichever side lacks its number. A demand that
    selects none of them is impossible.
    """
    return tuple(_gate(whole, demand) for demand in whole.options.min_speedups)


def _gate(whole: _Whole, demand: MinSpeedup) -> Gate:
    chosen = [name for name, case in whole.asked.items() if demand.selects(case)]
    # The fastest that a case may be is base / the low end of new / base.
    spans = [
        (row.id, row.new, 1 / row.hi, 1 / row.lo)
        for row in whole.cases
        if row.id in chosen and row.lo is not None and row.hi is not None
    ]
    judged = {(name, new) for name, new, _, _ in spans}
    low = _once(name for name, _, _, most in spans if most < demand.least)
    missing = tuple(
        name for name in chosen if any((name, new) not in judged for new in range(len(whole.names)))
    )
    return Gate(
        name="min-speedup", selector=demand.text, least=demand.least, ids=low, missing=missing,
        impossible=not chosen, passed=bool(chosen) and not low and not missing,
        near=_once(name for name, _, least, most in spans if least < demand.least <= most),
    )  # fmt: skip


def _once(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))
