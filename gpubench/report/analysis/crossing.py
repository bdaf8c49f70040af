"""The timings made for a break-even's estimate, as both sides by size and session (section 10, steps 5 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench import threshold
from gpubench.model.case import Case
from gpubench.model.result import Measurement, Run
from gpubench.report.analysis.samples import main_blocks, wall_samples
from gpubench.report.analysis.types import Speedup

# Below this a median of one side, in one session at one size, says little of either.
MIN_SAMPLES = 3

Samples = dict[int, dict[int, Sequence[float]]]  # size -> session -> seconds per launch
Forms = dict[str, Samples]


def fresh_crossing(run: Run, row: Speedup) -> threshold.Crossing | None:
    """Where the curve of `row` crosses 1 by its blocks of phase "estimate" alone; None if they do not tell.

    Search timings chose the sizes and would bias the answer. Of each side one form takes part: the pair with
    the most timings at common sizes.
    """
    bases, cases = _forms(run, row.baseline.case), _forms(run, row.case.case)
    pairs = [(_paired(base, case), names) for base, case, names in _combinations(bases, cases)]
    pairs = [(timings, names) for timings, names in pairs if timings]
    if not pairs:
        return None
    timings, _ = min(pairs, key=lambda pair: (-_count(pair[0]), pair[1]))
    return threshold.crossing(timings, seed=run.settings.seed)


def _forms(run: Run, like: Case) -> Forms:
    """By form the fresh samples of the curve on which the case `like` lies."""
    found: Forms = {}
    for outcome in run.outcomes:
        case = outcome.case
        if not isinstance(outcome, Measurement) or case.variant is not None or _curve(case) != _curve(like):
            continue
        for session, blocks in main_blocks(run, outcome, "estimate").items():
            samples = wall_samples(blocks)
            if len(samples) >= MIN_SAMPLES:
                found.setdefault(case.form, {}).setdefault(case.params["n"], {})[session] = samples
    return found


def _curve(case: Case) -> tuple[object, ...]:
    others = sorted((name, value) for name, value in case.params.items() if name != "n")
    return (case.op, others, case.dtype, case.device_id, case.regime_id)


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
