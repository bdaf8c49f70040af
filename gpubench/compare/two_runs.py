"""Two comparisons. `compare` compares a base with new result files, and gives verdicts and gates. `noise`
compares one run with itself, and tells how much unchanged work seems to change.

Both only read files, and need neither NumPy nor a GPU. In the `gpubench-noise` document, version 2, a share lies
between 0 and 1: a threshold of 0.08 is a change of 8 %.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.findings import MinSpeedup, fall_short
from gpubench.analysis.machine import machine_line
from gpubench.analysis.samples import observations
from gpubench.base.errors import InputError
from gpubench.base.messages import WARNINGS, WarningCode
from gpubench.compare.comparison import (
    INTERLEAVED,
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
from gpubench.compare.judge import MIN_SESSIONS, CasePair, CaseValues, can_fire, changes, fewest_samples, judge
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
    values_of,
    within,
)
from gpubench.curves import stats
from gpubench.curves.stats import median
from gpubench.result.case import Case
from gpubench.result.run import Fingerprints, Run, Severity

Absent = Literal["missing", "failed", "added"]


class _Against(NamedTuple):
    """The comparison of one new file with the base."""

    name: str  # the name of the new file
    side: CompareSide  # its run and cases
    pair: Pair  # the summary of the comparison
    part: PairedCases  # the cases of the new file, paired with those of the base
    cases: list[JudgedCase]  # the judged cases
    differences: tuple[Difference, ...]  # the differences of the runs and of their cases
    idle: bool  # whether none of its cases could have become SLOWER


class _Whole(NamedTuple):
    """The comparison of all new files with the base."""

    options: CompareOptions  # the options of the comparison
    ours: CompareSide  # the run and cases of the base
    news: list[_Against]  # the comparison of each new file, in the order of the files

    @property
    def cases(self) -> list[JudgedCase]:
        return [case for new in self.news for case in new.cases]

    @property
    def heard(self) -> list[JudgedCase]:
        """The cases that the gates check: all except those that the user muted."""
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
        """Return the names of the new files in `concerned`, or an empty text if these are all new files."""
        return ", ".join(new.name for new in concerned) if len(concerned) < len(self.news) else ""


def compare(base: Named, news: Sequence[Named], options: CompareOptions) -> Comparison:
    """Compare each new file with `base`, case by case. Raises InputError if files or measured thresholds are
    from different machines, unless the options allow this. Raises InputError, too, if a new file or the
    measured thresholds have no comparable case in common with the base."""
    name, run = base
    own = side(run)
    require_fitting(options, base)
    against = [_against(name, own, new, index, options) for index, new in enumerate(news)]
    whole = _Whole(options, own, against)
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
        own_sizes=part.own_sizes, devices=() if family else changes(part.pairs, (own.run, run)),
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
    """Return the requested gates, each with the cases that breach it."""
    heard = whole.heard
    breaches: dict[CompareFailOn, list[str]] = {
        "slower": [case.id for case in heard if case.verdict == "SLOWER"],
        "unsure": [case.id for case in heard if case.verdict == "UNSURE"],
        "failed": [case.id for case in whole.absent("failed") if not case.muted],
        # A case that can no longer be compared counts as missing, if the base has a true number for it.
        "missing": [case.id for case in whole.absent("missing") if not case.muted]
        + [case.id for case in heard if case.verdict == "not-comparable" and case.base_s is not None],
        "noisy": [case.id for case in heard if {"noisy", "unstable"} & set(case.labels)],
    }
    gates = []
    for name in whole.options.gates:
        ids = tuple(dict.fromkeys(breaches[name]))
        # A breach in one file is enough. Without a breach, the gate has not passed if a file could not breach it.
        idle = any(new.idle for new in whole.news) if name == "slower" else not whole.asked
        gates.append(Gate(name=name, passed=not ids and not idle, impossible=not ids and idle, ids=ids))
    return (*gates, *(_min_speedup_gate(whole, demand) for demand in whole.options.min_speedups))


def _min_speedup_gate(whole: _Whole, demand: MinSpeedup) -> Gate:
    """Return the gate on the ratio base / new. The gate is marked `impossible` if `demand` selects no case."""
    chosen = [case_id for case_id, case in whole.asked.items() if demand.selects(case)]
    # (case, low end, high end) of base / new: the reciprocal exchanges the ends of new / base
    compared = [
        (case.id, 1 / case.hi, 1 / case.lo)
        for case in whole.cases
        if case.id in chosen and case.lo is not None and case.hi is not None
    ]
    low, near = fall_short(demand, compared)
    ratios = Counter(case_id for case_id, *_ in compared)
    missing = tuple(case_id for case_id in chosen if ratios[case_id] < len(whole.news))
    return Gate(
        name="min-speedup", selector=demand.text, least=demand.least, ids=low, missing=missing,
        impossible=not chosen, passed=bool(chosen) and not low and not missing, near=near,
    )  # fmt: skip


def exit_code(options: CompareOptions, gates: Sequence[Gate]) -> int:
    """Return the exit code: 4 if a gate that must count could never have failed, 3 if a gate failed, else 0.
    With the option `advisory`, a failed gate gives 0."""
    if any(gate.impossible and options.must_count(gate.name) for gate in gates):
        return 4
    failed = any(not gate.passed and not gate.impossible for gate in gates)
    return 3 if failed and not options.advisory else 0


def _notices(whole: _Whole, gates: Sequence[Gate]) -> tuple[Notice, ...]:
    """Return the warnings that a reader of the verdicts has to know."""
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
                f"to decide more, measure either side by `gpubench run --like BASE --sessions {MIN_SESSIONS} -o FILE`",
            )
        )
    if any(gate.impossible and gate.name == "slower" for gate in gates):
        where = whole.names(idle)
        notices.append(
            _notice(
                "no-gate",
                f"no regression gate was applied{f' to {where}' if where else ''}: no test of "
                f"{'it' if where else 'these files'} could have made it fail",
                _REMEDIES.get(
                    frozenset(
                        case.reason for new in idle for case in new.cases if case.verdict != "not-comparable"
                    )
                ),
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


# The remedy if all cases share this one reason for which a gate could not fail.
_REMEDIES: dict[frozenset[str | None], str] = {
    frozenset(["few-sessions"]): f"measure both with --sessions {MIN_SESSIONS} or more",
    frozenset(["throttled"]): "measure again with better cooling, more power or a lower --max-time",
}


def _notice(
    code: WarningCode, message: str = "", hint: str | None = None, severity: Severity = "warning"
) -> Notice:
    """Return a notice. An empty `message` or a missing `hint` becomes the standard text of the code."""
    usual, remedy = WARNINGS[code]
    return Notice(code=code, severity=severity, message=message or usual, hint=hint or remedy)


def _counts(whole: _Whole) -> VerdictCounts:
    """Count the cases that are not muted by verdict, and all muted cases together."""
    count = Counter(case.verdict for case in whole.heard)
    kinds: tuple[Absent, ...] = ("missing", "failed", "added")
    absent = {kind: [case.muted for case in whole.absent(kind)] for kind in kinds}
    muted = [case.muted for case in whole.cases] + list(itertools.chain(*absent.values()))
    return VerdictCounts(
        faster=count["FASTER"], slower=count["SLOWER"], same=count["SAME"], unsure=count["UNSURE"],
        not_comparable=count["not-comparable"], muted=sum(muted),
        **{kind: muted.count(False) for kind, muted in absent.items()},
    )  # fmt: skip


NAME = "gpubench-noise"
VERSION = 2


class NoisyCase(msgspec.Struct, frozen=True, kw_only=True):
    """The noise of one case."""

    id: str  # the id of the case
    spread: float  # the 95th percentile of |new / base - 1| over all permutations
    threshold: float  # the threshold to use in a comparison, as a share
    alarm_share: float  # the share of permutations in which the case was called SLOWER at a threshold of 5 %


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """The apparent changes of unchanged work on a machine. The sessions of one run are divided between two
    sides in many ways ("permutations"), and each time the sides are compared as if they were two runs."""

    name: Literal["gpubench-noise"] = "gpubench-noise"  # the name of the document's format
    schema_version: int = VERSION  # the version of the document's format
    run_id: str  # the id of the run
    machine: str  # a description of its CPU and GPUs
    fingerprint: Fingerprints  # the identity of machine, devices and software
    sessions: int  # the number of sessions a side
    alpha: float  # the significance level of the tests
    permutations: int  # the number of permutations; exchanged sides count as another one
    false_alarm_share: float  # the share of permutations with a case called SLOWER at a threshold of 5 %
    # `false_alarm_share` at the thresholds of `cases`, which come from the same sessions
    raised_alarm_share: float
    cases: tuple[NoisyCase, ...]  # the noise of each case
    left_out: tuple[str, ...] = ()  # ids of cases with too few sessions or implausible numbers


# The most ways to divide k pairs that are used, where exchanged sides are no other way. Up to k = 8 these are all
# ways, and a sample above.
MOST_HALVES = 128


class Permutation(NamedTuple):
    """One way to divide sessions between two sides. Each pair of consecutive sessions gives one to each side."""

    base: tuple[int, ...]  # the session indexes of one side
    new: tuple[int, ...]  # the session indexes of the other side


def windows(sessions: Sequence[int], k: int) -> list[tuple[tuple[int, int], ...]]:
    """Return every stretch of k consecutive pairs of sessions. A pair is two consecutive sessions. `sessions`
    must be in order of time. A last session without a partner is left out."""
    pairs = list(zip(sessions[0::2], sessions[1::2], strict=False))
    return [tuple(pairs[i : i + k]) for i in range(len(pairs) - k + 1)]


def permutations(pairs: Sequence[tuple[int, int]]) -> Iterator[Permutation]:
    """Yield the ways to divide the sessions of `pairs` between two sides, where each pair gives one session to
    each side. Exchanged sides are no other way. If there are more than MOST_HALVES ways, yield a fixed sample."""
    free = len(pairs) - 1
    if 2**free <= MOST_HALVES:
        flips = list(itertools.product((False, True), repeat=free))
    else:
        import random

        draw = random.Random(free)  # the same for every file
        flips = [tuple(draw.random() < 0.5 for _ in range(free)) for _ in range(MOST_HALVES)]
    for chosen in flips:
        sides = [(b, a) if flip else (a, b) for (a, b), flip in zip(pairs, (False, *chosen), strict=True)]
        yield Permutation(tuple(a for a, _ in sides), tuple(b for _, b in sides))


MARGIN = 1.2  # a measured threshold exceeds the spread by this factor


class _Seen(NamedTuple):
    """The result of one case in one permutation or in its mirror image."""

    ratio: float  # the ratio new / base
    slower: bool  # whether the case was called SLOWER


def noise(run: Run, sessions: int = MIN_SESSIONS, alpha: float = stats.ALPHA) -> Noise:
    """Return the false alarms and the spread of `run`, with `sessions` sessions on each side. The sessions of
    each stretch of `sessions` pairs of consecutive sessions are divided as in `permutations`. `alpha` is the
    significance level of the tests. Raises InputError if no case was measured in enough sessions."""
    own = side(run)
    order = _in_time(run)
    if len(order) < 2 * sessions:
        raise _too_few(len(order), sessions)
    timed = (case for case in own.rows.values() if case.time is not None)
    cases = [values_of(own, case, fewest_samples(case)) for case in timed]
    views: list[dict[str, _Seen]] = []
    for pairs in windows(order, sessions):
        complete = [case for case in cases if all({*pair} <= case.low.keys() for pair in pairs)]
        for permutation in permutations(pairs):
            views += _both_ways(complete, permutation, alpha)
    seen = {case.case.id: [view[case.case.id] for view in views if case.case.id in view] for case in cases}
    rows = tuple(_row(name, sights) for name, sights in seen.items() if sights)
    if not rows:
        raise _too_few(0, sessions)
    thresholds = {item.id: item.threshold for item in rows}
    return Noise(
        run_id=run.id, machine=machine_line(run), fingerprint=run.fingerprint, sessions=sessions, alpha=alpha,
        permutations=len(views), false_alarm_share=_alarms(views, {}),
        raised_alarm_share=_alarms(views, thresholds), cases=rows,
        left_out=tuple(name for name, item in own.rows.items() if item.sessions and name not in thresholds),
    )  # fmt: skip


def _in_time(run: Run) -> list[int]:
    """Return the indexes of the sessions that count, oldest first."""
    chosen = observations(run)
    used = [session for session in run.sessions if session.index in chosen]
    return [session.index for session in sorted(used, key=lambda session: (session.started_at, session.index))]


def _both_ways(
    cases: Sequence[CaseValues], sides: Permutation, alpha: float
) -> tuple[dict[str, _Seen], dict[str, _Seen]]:
    """Return the results by case id for the sessions divided as in `sides`, and for the sides exchanged."""
    pairs = [
        CasePair(base=_part(case, sides.base), new=_part(case, sides.new), threshold=INTERLEAVED)
        for case in cases
    ]
    there, back = {}, {}
    for item in judge(pairs, alpha, 0):
        if item.low_end_ratio is not None:
            there[item.id] = _Seen(item.low_end_ratio, item.verdict == "SLOWER")
            back[item.id] = _Seen(1 / item.low_end_ratio, item.verdict == "FASTER")
    return there, back


def _part(values: CaseValues, sessions: Sequence[int]) -> CaseValues:
    """Return the values of a case in these sessions only."""

    def part(by_session: dict[int, float]) -> dict[int, float]:
        return {session: by_session[session] for session in sessions}

    cycles = part(values.cycles) if all(session in values.cycles for session in sessions) else {}
    return CaseValues(
        within(values.case, sessions), part(values.low), part(values.medians), part(values.slow_ends), cycles
    )


def _row(name: str, seen: Sequence[_Seen]) -> NoisyCase:
    spread = stats.quantile(sorted(abs(sight.ratio - 1) for sight in seen), 0.95)
    alarms = sum(sight.slower for sight in seen) / len(seen)
    return NoisyCase(
        id=name, spread=spread, threshold=max(INTERLEAVED, MARGIN * spread), alarm_share=alarms
    )  # fmt: skip


def _alarms(views: Sequence[Mapping[str, _Seen]], thresholds: Mapping[str, float]) -> float:
    """Return the share of `views` (permutations) in which a case is SLOWER by more than its entry
    in `thresholds`."""
    alarmed = [
        any(sight.slower and sight.ratio > 1 + thresholds.get(name, 0.0) for name, sight in view.items())
        for view in views
    ]
    return sum(alarmed) / len(alarmed)


def _too_few(count: int, sessions: int) -> InputError:
    return InputError(
        "few-sessions",
        why=f"{2 * sessions} quiet sessions of one case are needed, {sessions} a side; there are {count}",
        hint=f"measure with --sessions {2 * sessions}, or let `gpubench noise` measure",
    )  # fmt: skip
