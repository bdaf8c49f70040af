"""How far times scatter: inside a block, from block to block of a session, and from session to session."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpubench import stats
from gpubench.analysis.samples import SamplePhase, main_blocks, wall_samples
from gpubench.break_even import MAD_SIGMA
from gpubench.model.result import Measurement, Run

Launches = Literal["short", "middle", "long"]
# Of what lies further off than so many standard deviations only that much counts.
FAR_OFF = 4.0
MIDDLE_S, LONG_S = 5e-5, 1e-3
Nested = Sequence[Sequence[Sequence[float]]]  # ln(time) of the samples of one case, by session and block
PHASES: tuple[SamplePhase, ...] = ("main", "estimate")


class Components(msgspec.Struct, frozen=True, kw_only=True):
    """One device, and launches of one length: below 50 us, below 1 ms, longer.

    Each component is a standard deviation as a share of the time, without what the components inside it bring about:
    `within` of samples in a block, `blocks` of blocks in a session, `sessions` of sessions. Null where nothing was
    repeated. `*_degrees`: on how many repetitions it rests.
    """

    source: int
    device_id: str
    launches: Launches
    cases: int
    within: float | None
    within_degrees: int
    blocks: float | None
    blocks_degrees: int
    sessions: float | None
    sessions_degrees: int


def components(run: Run) -> tuple[Components, ...]:
    """A row for each device and length of launches that was measured, in the order of their names."""
    found: dict[tuple[str, Launches], list[Nested]] = {}
    for outcome in run.outcomes:
        if not isinstance(outcome, Measurement):
            continue
        for phase in PHASES:
            blocks = main_blocks(run, outcome, phase).values()
            nested = [[kept for block in ours if (kept := wall_samples([block]))] for ours in blocks]
            nested = [session for session in nested if session]
            if nested:
                typical = stats.median(stats.median(kept) for session in nested for kept in session)
                logs = [[[math.log(v) for v in kept] for kept in session] for session in nested]
                found.setdefault((outcome.case.device_id, _launches(typical)), []).append(logs)
    order: dict[Launches, int] = {"short": 0, "middle": 1, "long": 2}
    return tuple(
        _row(device_id, launches, found[device_id, launches])
        for device_id, launches in sorted(found, key=lambda key: (key[0], order[key[1]]))
    )


def _launches(seconds: float) -> Launches:
    return "short" if seconds < MIDDLE_S else "middle" if seconds < LONG_S else "long"


def _row(device_id: str, launches: Launches, cases: Sequence[Nested]) -> Components:
    """Each level's variance less what the level inside it explains of it."""
    blocks = [[[stats.median(kept) for kept in session] for session in case] for case in cases]
    values = [[stats.median(session) for session in case] for case in blocks]
    within, within_degrees = _pooled(kept for case in cases for session in case for kept in session)
    between, blocks_degrees = _pooled(session for case in blocks for session in case)
    apart, sessions_degrees = _pooled(values)
    of_median = _explained(within or 0.0, (kept for case in cases for session in case for kept in session))
    of_session = _explained(between or 0.0, (session for case in blocks for session in case))
    return Components(
        source=0, device_id=device_id, launches=launches, cases=len(cases),
        within=_deviation(within, 0.0), within_degrees=within_degrees,
        blocks=_deviation(between, of_median), blocks_degrees=blocks_degrees,
        sessions=_deviation(apart, of_session), sessions_degrees=sessions_degrees,
    )  # fmt: skip


def _pooled(groups: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """The variance inside these groups, what lies far off pulled in, None where none has two values, and its degrees of
    freedom."""
    found: list[float] = []
    degrees = 0
    for values in groups:
        if len(values) > 1:
            mean, longer = math.fsum(values) / len(values), math.sqrt(len(values) / (len(values) - 1))
            found += [abs(value - mean) * longer for value in values]
            degrees += len(values) - 1
    if not found:
        return None, 0
    most = FAR_OFF * MAD_SIGMA * stats.median(found) or math.inf
    return math.fsum(min(value, most) ** 2 for value in found) / len(found), degrees


def _explained(variance: float, groups: Iterable[Sequence[float]]) -> float:
    """The variance of the medians of these groups, of values of this variance."""
    shares = [stats.median_cost(len(values)) / len(values) for values in groups]
    return variance * math.fsum(shares) / len(shares)


def _deviation(variance: float | None, explained: float) -> float | None:
    return None if variance is None else math.sqrt(max(0.0, variance - explained))
