"""Which samples count: not warm-up, not discarded, not of a superseded session (measurement.md, section 6)."""

from __future__ import annotations

import math
from typing import Literal

from gpubench.model.result import Block, Measurement, Outcome, Run
from gpubench.stats import median

UNFINISHED_STOPS = frozenset({"timeout", "budget"})


def used_sessions(run: Run) -> frozenset[int] | None:
    """Indexes of the sessions that count; None when the file lists no sessions, so that all do."""
    if not run.sessions:
        return None
    return frozenset(session.index for session in run.sessions if not session.superseded)


Phase = Literal["main", "search", "estimate", "sweep"]
Blocks = dict[int, list[Block]]  # by session


def main_blocks(run: Run, outcome: Measurement, phase: Phase = "main") -> Blocks:
    """The blocks of the main phase, or of another, per used session, in the order in which they were measured.

    What a search took of a size counts as its measurement where there is no other: timings chosen for where they lie
    do not mix with those that were not.
    """
    allowed = used_sessions(run)
    phases = ("main", "search") if phase == "main" else (phase,)
    found: Blocks = {}
    for block in sorted(outcome.blocks, key=lambda block: (block.session, block.round, block.position)):
        if block.phase in phases and (allowed is None or block.session in allowed):
            found.setdefault(block.session, []).append(block)
    return {
        session: [block for block in ours if block.phase == phase] or ours for session, ours in found.items()
    }


def only_estimates(run: Run, outcome: Outcome) -> bool:
    """Whether all that was measured of a case in sessions that count served a break-even's search or estimate, and
    none of it tells a time of its own."""
    if not isinstance(outcome, Measurement) or not outcome.blocks:
        return False
    beside = all(block.phase in ("search", "estimate") for block in outcome.blocks)
    return beside and not main_blocks(run, outcome)


def in_plan(outcome: Outcome) -> bool:
    """Whether the case is of the run's plan, and not only a size at which a search looked in one session."""
    return not isinstance(outcome, Measurement) or any(block.phase == "main" for block in outcome.blocks)


def wall_samples(blocks: list[Block], *, discarded: bool = False) -> list[float]:
    """Seconds per launch of the used samples; with `discarded`, also of those that were set aside."""
    return [
        value
        for block in blocks
        for i, value in enumerate(block.wall_s)
        if i >= block.warmup and (discarded or str(i) not in block.discarded) and _usable(value)
    ]


def kept_samples(run: Run, outcome: Measurement, blocks: Blocks) -> tuple[dict[int, tuple[float, ...]], bool]:
    """The used samples per session of its main `blocks`, and whether throttling left too few of them in one.

    Then all samples of that session are used: a filter never empties a table. A session that a deadline cut
    short of the minimum gives no samples.
    """
    kept: dict[int, tuple[float, ...]] = {}
    throttled = False
    for session, ours in blocks.items():
        samples = wall_samples(ours)
        if len(samples) < run.settings.min_samples and any(block.discarded for block in ours):
            samples, throttled = wall_samples(ours, discarded=True), True
        if samples and not _cut_short(run, outcome, session, len(samples)):
            kept[session] = tuple(samples)
    return kept, throttled


def device_time(blocks: Blocks, clock: str) -> float | None:
    """Median over sessions of the session medians on the clock "cold" or "hot"; None without that clock."""
    sessions = device_samples(blocks, clock)
    return median([median(values) for values in sessions]) if sessions else None


def device_samples(blocks: Blocks, clock: str) -> list[list[float]]:
    """Seconds per launch on the clock "cold" or "hot", a list for each used session that has any."""
    sessions = [
        [
            value
            for block in ours
            for value in (block.device_cold_s if clock == "cold" else block.device_hot_s) or []
            if _usable(value)
        ]
        for ours in blocks.values()
    ]
    return [values for values in sessions if values]


def sample_seconds(blocks: Blocks) -> float | None:
    """The length of the shortest session's median sample in seconds: `repeat` launches."""
    medians = [
        median(seconds)
        for ours in blocks.values()
        if (seconds := [value * block.repeat for block in ours for value in wall_samples([block])])
    ]
    return min(medians) if medians else None


def _cut_short(run: Run, outcome: Measurement, session: int, count: int) -> bool:
    if count >= run.settings.min_samples:
        return False
    reasons = {stop.reason for stop in outcome.stops if stop.session == session}
    return bool(reasons & UNFINISHED_STOPS) or (not reasons and not run.complete)


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0
