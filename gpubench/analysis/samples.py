"""Which samples count: not warm-up, not discarded, not of a superseded session; and how far times scatter: inside a
block, from block to block of a session, and from session to session."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from gpubench.base import units
from gpubench.base.groups import group_by
from gpubench.curves import stats
from gpubench.curves.stats import median
from gpubench.result.run import Block, Measurement, Run

UNFINISHED_STOPS = frozenset({"timeout", "budget"})


def used_sessions(run: Run) -> frozenset[int] | None:
    """Indexes of the sessions that count; None when the file lists no sessions, so that all do."""
    if not run.sessions:
        return None
    return frozenset(session.index for session in run.sessions if not session.superseded)


def count_sessions(run: Run) -> int:
    """Return how many sessions of the plan count. A file that lists no sessions has those of its plan."""
    if run.sessions:
        return len(observations(run))
    sampled = any(isinstance(outcome, Measurement) and outcome.blocks for outcome in run.outcomes)
    return run.settings.sessions if sampled else 0


def empty_launch_s(run: Run, device_id: str) -> float:
    """Return what an empty launch takes on a device, by all its workers; 0 where nobody measured it."""
    seconds = [
        value
        for session in run.sessions
        for worker in session.workers
        if worker.device_id == device_id
        for value in worker.overhead_s
    ]
    return stats.median(seconds) if seconds else 0.0


SamplePhase = Literal["main", "sweep"]
SessionBlocks = dict[int, list[Block]]  # by session


def main_blocks(run: Run, outcome: Measurement, phase: SamplePhase = "main") -> SessionBlocks:
    """Return the blocks of one phase by used session, in the order in which they were measured."""
    allowed = used_sessions(run)
    return group_by(
        (
            block
            for block in sorted(outcome.blocks, key=lambda block: (block.session, block.round, block.position))
            if block.phase == phase and (allowed is None or block.session in allowed)
        ),
        lambda block: block.session,
    )


def wall_samples(blocks: list[Block], *, discarded: bool = False) -> list[float]:
    """Seconds per launch of the used samples; with `discarded`, also of those that were set aside."""
    values: list[float] = []
    for block in blocks:
        # Nearly all of a report's time may go into this loop, and hardly a block has discarded samples.
        if discarded or not block.discarded:
            values += [value for value in block.wall_s[max(block.warmup, 0) :] if 0 < value < math.inf]
            continue
        aside = block.discarded
        values += [
            value
            for i, value in enumerate(block.wall_s)
            if i >= block.warmup and str(i) not in aside and 0 < value < math.inf
        ]
    return values


BlockSamples = dict[int, list[list[float]]]  # session -> used samples of each of its blocks that has any


def kept_samples(run: Run, outcome: Measurement, blocks: SessionBlocks) -> tuple[BlockSamples, bool]:
    """The used samples of the main `blocks`, and whether throttling left too few of them in a session.

    Then all samples of that session are used: a filter never empties a table. A session that a deadline cut
    short of the minimum gives no samples.
    """
    used: BlockSamples = {}
    throttled = False
    for session, members in blocks.items():
        values = [wall_samples([block]) for block in members]
        if sum(map(len, values)) < run.settings.min_samples and any(block.discarded for block in members):
            values, throttled = [wall_samples([block], discarded=True) for block in members], True
        values = [samples for samples in values if samples]
        if values and not _cut_short(run, outcome, session, sum(map(len, values))):
            used[session] = values
    return used, throttled


def block_values(used: BlockSamples) -> dict[int, tuple[float, ...]]:
    """The median of each block that nothing interrupted, by session: what an interval takes for its observations."""
    clean = stats.clean_sessions([[*map(median, blocks)] for blocks in used.values()])
    return {session: values for session, values in zip(used, clean, strict=True) if values}


def device_time(blocks: SessionBlocks, clock: str) -> float | None:
    """Median over sessions of the session medians on the clock "cold" or "hot"; None without that clock."""
    sessions = device_samples(blocks, clock)
    return median([median(values) for values in sessions]) if sessions else None


def device_samples(blocks: SessionBlocks, clock: str) -> list[list[float]]:
    """Seconds per launch on the clock "cold" or "hot", a list for each used session that has any."""
    sessions = [
        [
            value
            for block in members
            for value in (block.device_cold_s if clock == "cold" else block.device_hot_s) or []
            if 0 < value < math.inf
        ]
        for members in blocks.values()
    ]
    return [values for values in sessions if values]


def sample_seconds(blocks: SessionBlocks) -> float | None:
    """The length of the shortest session's median sample in seconds: `repeat` launches."""
    medians = [
        median(seconds)
        for members in blocks.values()
        if (seconds := [value * block.repeat for block in members for value in wall_samples([block])])
    ]
    return min(medians) if medians else None


def _cut_short(run: Run, outcome: Measurement, session: int, count: int) -> bool:
    if count >= run.settings.min_samples:
        return False
    reasons = {stop.reason for stop in outcome.stops if stop.session == session}
    return bool(reasons & UNFINISHED_STOPS) or (not reasons and not run.complete)


def observations(run: Run, sessions: Iterable[int] | None = None) -> list[int]:
    """Return for each session of the plan, in order, the least disturbed one of `sessions` (None: all that count).

    Repeats that no session was quiet enough to end follow one another while the machine is busy: taken as independent
    they would let one busy moment speak three times. They are chosen by the load beside them, never by their times, so
    that unchanged work stays exchangeable. Sessions that the run does not list stand for themselves.
    """
    allowed = used_sessions(run)
    records = {session.index: session for session in run.sessions}
    counting = allowed or () if sessions is None else sessions
    least: dict[int, tuple[float, int]] = {}
    for index in counting:
        record = records.get(index)
        planned, load = (index, 0.0) if record is None else (record.planned_index, record.disturbance)
        least[planned] = min(least.get(planned, (load, index)), (load, index))
    return sorted(index for _, index in least.values())


# ---------------------------------------------------------------- how far times scatter

Launches = Literal["short", "middle", "long"]
# Of what lies further off than so many standard deviations only that much counts.
FAR_OFF = 4.0
MIDDLE_S, LONG_S = 5e-5, 1e-3
Nested = Sequence[Sequence[Sequence[float]]]  # ln(time) of the samples of one case, by session and block


class Components(msgspec.Struct, frozen=True, kw_only=True):
    """One device, and launches of one length: below 50 us, below 1 ms, longer.

    Each component is a standard deviation as a share of the time, without what the components inside it bring about:
    `within` of samples in a block, `blocks` of blocks in a session, `sessions` of sessions. Null where nothing was
    repeated. `*_degrees`: on how many repetitions it rests.
    """

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
    values: dict[tuple[str, Launches], list[Nested]] = {}
    for outcome in run.outcomes:
        if not isinstance(outcome, Measurement):
            continue
        blocks = main_blocks(run, outcome).values()
        nested = [[used for block in members if (used := wall_samples([block]))] for members in blocks]
        nested = [session for session in nested if session]
        if nested:
            typical = stats.median(stats.median(used) for session in nested for used in session)
            logs = [[[math.log(v) for v in used] for used in session] for session in nested]
            values.setdefault((outcome.case.device_id, _launches(typical)), []).append(logs)
    order: dict[Launches, int] = {"short": 0, "middle": 1, "long": 2}
    return tuple(
        _row(device_id, launches, values[device_id, launches])
        for device_id, launches in sorted(values, key=lambda key: (key[0], order[key[1]]))
    )


def _launches(seconds: float) -> Launches:
    return "short" if seconds < MIDDLE_S else "middle" if seconds < LONG_S else "long"


def _row(device_id: str, launches: Launches, cases: Sequence[Nested]) -> Components:
    """Each level's variance less what the level inside it explains of it."""
    blocks = [[[stats.median(used) for used in session] for session in case] for case in cases]
    values = [[math.fsum(session) / len(session) for session in case] for case in blocks]
    within, within_degrees = _pool(used for case in cases for session in case for used in session)
    between, blocks_degrees = _pool(session for case in blocks for session in case)
    apart, sessions_degrees = _pool(values)
    counts = [len(used) for case in cases for session in case for used in session]
    of_median = _variance_of_means(within or 0.0, [count / stats.median_cost(count) for count in counts])
    of_session = _variance_of_means(between or 0.0, [len(session) for case in blocks for session in case])
    return Components(
        device_id=device_id, launches=launches, cases=len(cases),
        within=_deviation(within, 0.0), within_degrees=within_degrees,
        blocks=_deviation(between, of_median), blocks_degrees=blocks_degrees,
        sessions=_deviation(apart, of_session), sessions_degrees=sessions_degrees,
    )  # fmt: skip


def _pool(groups: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """The variance inside these groups, what lies far off pulled in, None where none has two values, and its degrees of
    freedom."""
    rows: list[float] = []
    degrees = 0
    for values in groups:
        if len(values) > 1:
            mean, longer = math.fsum(values) / len(values), math.sqrt(len(values) / (len(values) - 1))
            rows += [abs(value - mean) * longer for value in values]
            degrees += len(values) - 1
    if not rows:
        return None, 0
    most = FAR_OFF * stats.MAD_SIGMA * stats.median(rows) or math.inf
    return math.fsum(min(value, most) ** 2 for value in rows) / len(rows), degrees


def _variance_of_means(variance: float, counts: Sequence[float]) -> float:
    """Return the variance of means of so many values of this variance."""
    return variance * math.fsum(1 / count for count in counts) / len(counts)


def _deviation(variance: float | None, explained: float) -> float | None:
    return None if variance is None else math.sqrt(max(0.0, variance - explained))


def seconds_of(run: Run) -> float | None:
    """Return the seconds that the commands of a run took, without the pauses between them."""
    span_s = seconds_between(run.started_at, run.finished_at)
    return None if span_s is None else max(0.0, span_s - (run.paused_s or 0.0))


def seconds_between(started_at: str, finished_at: str | None) -> float | None:
    """Return the seconds between two times of a file. Returns None if one is missing or no time."""
    started, finished = units.parse_time(started_at), units.parse_time(finished_at or "")
    return None if started is None or finished is None else (finished - started).total_seconds()
