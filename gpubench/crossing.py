"""The timings made for a break-even's estimate, as both sides by size and session (section 10, steps 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from gpubench import threshold
from gpubench.model.case import Case
from gpubench.model.result import Measurement, Run

# Below this a median of one side, in one session at one size, says little of either.
MIN_SAMPLES = 3

Samples = dict[int, dict[int, Sequence[float]]]  # size -> session -> seconds per launch
Forms = dict[str, Samples]


def fresh_crossing(
    run: Run, baseline: Case, case: Case, without: Collection[str] = ()
) -> threshold.Crossing | None:
    """Where the ratio of the curves on which the two cases lie crosses 1, by blocks of phase "estimate" alone; None if
    they do not tell.

    Search timings chose the sizes and would bias the answer. Of each side one form takes part: the pair with
    the most timings at common sizes. `without`: the ids of cases whose times are not to be believed.
    """
    bases, cases = _forms(run, baseline, without), _forms(run, case, without)
    pairs = [(_paired(base, case), names) for base, case, names in _combinations(bases, cases)]
    pairs = [(timings, names) for timings, names in pairs if timings]
    if not pairs:
        return None
    timings, _ = min(pairs, key=lambda pair: (-_count(pair[0]), pair[1]))
    return threshold.crossing(timings, seed=run.settings.seed)


def _forms(run: Run, like: Case, without: Collection[str]) -> Forms:
    """By form the fresh samples of the curve on which the case `like` lies."""
    found: Forms = {}
    for outcome in run.outcomes:
        case = outcome.case
        if not isinstance(outcome, Measurement) or case.variant is not None or curve(case) != curve(like):
            continue
        if outcome.id in without:
            continue
        for session, samples in _fresh(run, outcome).items():
            if len(samples) >= MIN_SAMPLES:
                found.setdefault(case.form, {}).setdefault(case.params["n"], {})[session] = samples
    return found


def _fresh(run: Run, outcome: Measurement) -> dict[int, list[float]]:
    """The fresh samples of each session that counts, neither warm-up nor discarded, in the order of their rounds."""
    unused = {session.index for session in run.sessions if session.superseded}
    found: dict[int, list[float]] = {}
    for block in sorted(outcome.blocks, key=lambda block: (block.session, block.round, block.position)):
        if block.phase == "estimate" and block.session not in unused:
            kept = [
                v for i, v in enumerate(block.wall_s) if i >= block.warmup and str(i) not in block.discarded
            ]
            found.setdefault(block.session, []).extend(v for v in kept if math.isfinite(v) and v > 0)
    return found


def curve(case: Case) -> tuple[object, ...]:
    """What the sizes of one curve have in common, but for the form."""
    return (*case.series, case.device_id, case.regime_id)


def _combinations(bases: Forms, cases: Forms) -> Iterable[tuple[Samples, Samples, tuple[str, str]]]:
    return ((bases[base], cases[case], (base, case)) for base in bases for case in cases)


def _paired(base: Samples, case: Samples) -> dict[int, dict[int, threshold.Sides]]:
    """Both sides of the sizes and sessions that have both."""
    paired = {
        n: {session: (base[n][session], case[n][session]) for session in base[n].keys() & case[n].keys()}
        for n in base.keys() & case.keys()
    }
    return {n: by_session for n, by_session in paired.items() if by_session}


def _count(timings: threshold.Timings) -> int:
    return sum(len(side) for by_session in timings.values() for sides in by_session.values() for side in sides)
