"""The `gpubench-noise` document, version 2: how far unchanged work seems to change on one machine.

Shares run from 0 to 1; a threshold of 0.08 is a change of 8 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gpubench.analysis.machine import machine_line
from gpubench.analysis.samples import observations
from gpubench.base.errors import InputError
from gpubench.compare.comparison import INTERLEAVED
from gpubench.compare.judge import CasePair, CaseValues, fewest_samples, judge
from gpubench.compare.pairing import side, values_of, within
from gpubench.curves import stats
from gpubench.result.run import Fingerprints, Run

NAME = "gpubench-noise"
VERSION = 2


class NoisyCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    id: str  # of the case
    spread: float  # the 95th percentile of |new / base - 1| over all permutations
    threshold: float  # what a comparison should take
    alarm_share: float  # of the permutations, in which it was called SLOWER at 5 %


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a machine shows in unchanged work."""

    name: Literal["gpubench-noise"] = "gpubench-noise"  # of the document
    schema_version: int = VERSION  # of the document
    run_id: str  # of the run
    machine: str  # its CPU and GPUs, in words
    fingerprint: Fingerprints  # of machine, devices and software
    sessions: int  # a side
    alpha: float  # of the tests
    permutations: int  # how often the sessions were put on two sides
    false_alarm_share: float  # of them, in which some case was called SLOWER at 5 %
    raised_alarm_share: float  # of them, the same at the thresholds of `cases`, which the same sessions gave
    cases: tuple[NoisyCase, ...]  # each with its threshold
    left_out: tuple[str, ...] = ()  # cases that too few sessions have, or whose numbers cannot be true


# Half of the ways to label k pairs, as the other half are their mirror images: all up to k = 8, of more a sample.
MOST_HALVES = 128


class Permutation(NamedTuple):
    """The sessions of two sides: of each pair of consecutive sessions one went to each."""

    base: tuple[int, ...]  # one side
    new: tuple[int, ...]  # the other side


def windows(sessions: Sequence[int], k: int) -> list[tuple[tuple[int, int], ...]]:
    """Every stretch of k consecutive pairs; `sessions` are in order of time, an odd last one is left out."""
    pairs = list(zip(sessions[0::2], sessions[1::2], strict=False))
    return [tuple(pairs[i : i + k]) for i in range(len(pairs) - k + 1)]


def permutations(pairs: Sequence[tuple[int, int]]) -> Iterator[Permutation]:
    """The ways to put one session of each pair on each side, one of every two mirror images."""
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


SESSIONS = 5  # a side, as a comparison needs them
MARGIN = 1.2
ALLOWED_SHARE = 0.05  # of permutations with a false alarm: the gate of `--check`


class _Seen(NamedTuple):
    """One case in one permutation or in its mirror image."""

    ratio: float  # new / base
    slower: bool  # it was called so


def noise(run: Run, sessions: int = SESSIONS, alpha: float = stats.ALPHA) -> Noise:
    """The false alarms and the spread of `run`, whose consecutive sessions are paired, `sessions` a side.

    A file with more sessions gives more permutations: one set for each stretch of so many pairs. Raises InputError
    where there are too few sessions, or no case that has them.
    """
    own = side(run)
    order = _in_time(run)
    if len(order) < 2 * sessions:
        raise _too_few(len(order), sessions)
    timed = (case for case in own.rows.values() if case.time is not None)
    cases = [values_of(own, case, fewest_samples(case)) for case in timed]
    seen: dict[str, list[_Seen]] = {}
    views: list[dict[str, _Seen]] = []
    for pairs in windows(order, sessions):
        complete = [case for case in cases if all({*pair} <= case.low.keys() for pair in pairs)]
        for permutation in permutations(pairs):
            views += _both_ways(complete, permutation, alpha)
    for view in views:
        for name, sight in view.items():
            seen.setdefault(name, []).append(sight)
    if not seen:
        raise _too_few(0, sessions)
    rows = tuple(_row(case.case.id, seen[case.case.id]) for case in cases if case.case.id in seen)
    return Noise(
        run_id=run.id, machine=machine_line(run), fingerprint=run.fingerprint, sessions=sessions, alpha=alpha,
        permutations=len(views), false_alarm_share=_alarms(views, {}),
        raised_alarm_share=_alarms(views, {item.id: item.threshold for item in rows}), cases=rows,
        left_out=tuple(name for name, item in own.rows.items() if item.sessions and name not in seen),
    )  # fmt: skip


def _in_time(run: Run) -> list[int]:
    """One session for each session of the plan, oldest first."""
    chosen = observations(run)
    used = [session for session in run.sessions if session.index in chosen]
    return [session.index for session in sorted(used, key=lambda session: (session.started_at, session.index))]


def _both_ways(
    cases: Sequence[CaseValues], sides: Permutation, alpha: float
) -> tuple[dict[str, _Seen], dict[str, _Seen]]:
    """Return the verdicts on this permutation, and so, mirrored, on the one with both sides exchanged."""
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
    """Return the values of these sessions alone."""

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
    """The share of permutations in which some case is SLOWER, and beyond its threshold where it has one."""
    alarmed = [
        any(sight.slower and sight.ratio > 1 + thresholds.get(name, 0.0) for name, sight in view.items())
        for view in views
    ]
    return sum(alarmed) / len(alarmed)


def _too_few(sight: int, sessions: int) -> InputError:
    return InputError(
        "few-sessions",
        why=f"{2 * sessions} quiet sessions of one case are needed, {sessions} a side; there are {sight}",
        hint=f"measure with --sessions {2 * sessions}, or let `gpubench noise` measure",
    )  # fmt: skip
