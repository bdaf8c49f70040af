"""Parts of a run that other tools read: the cases with an estimate, their samples, rates and speedups."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import main_blocks
from gpubench.analysis.speedup import Speedup
from gpubench.base.errors import UsageError
from gpubench.curves.stats import IntervalLike, median
from gpubench.result.run import Measurement

# With more operations per byte than this, a case is described by its operations.
COMPUTE_INTENSITY = 4


class SessionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The used samples of one session, in seconds per launch, each the mean of `repeat` launches."""

    samples: tuple[float, ...]
    repeat: int

    @property
    def median_s(self) -> float:
        """The session's value."""
        return median(self.samples)

    @property
    def launches(self) -> int:
        """All launches behind the samples."""
        return self.repeat * len(self.samples)


class Estimated(msgspec.Struct, frozen=True, kw_only=True):
    """A case with an estimate; `speedup` against the baseline of the run, where it has one."""

    row: CaseResult
    time: IntervalLike
    sessions: tuple[SessionTimes, ...]
    speedup: Speedup | None

    @property
    def id(self) -> str:
        """The case id: the name in every tool."""
        return self.row.id

    @property
    def samples(self) -> list[float]:
        """The used samples of all sessions, in their order, in seconds per launch."""
        return [value for session in self.sessions for value in session.samples]


class Rate(NamedTuple):
    """Work per second in a unit that depends on the op and its size alone."""

    value: float
    unit: str


def estimated_cases(analysis: Analysis) -> tuple[Estimated, ...]:
    """The cases with an estimate, in the order of the report. What cannot be true has none."""
    repeats = _repeats(analysis)
    ratios = speedup_of(analysis)
    return tuple(
        Estimated(
            row=case, time=case.time, speedup=ratios.get(case.id),
            sessions=tuple(
                SessionTimes(samples=samples, repeat=repeats.get(case.id, {}).get(index, 1))
                for index, samples in sorted(case.sessions.items())
            ),
        )
        for case in analysis.cases
        if case.time is not None
    )  # fmt: skip


def only_run(analyses: Sequence[Analysis], format: str) -> Analysis:
    """The one run of a format that has a place for one. Raises UsageError for several: their cases share names."""
    if len(analyses) == 1:
        return analyses[0]
    raise UsageError(
        "one-file-only", f"--format {format} takes one result file, not {len(analyses)}",
        why="its entries are named by case id, and the same case of two files would be one entry",
    )  # fmt: skip


def speedup_of(analysis: Analysis) -> dict[str, Speedup]:
    """Return by case id the speedup against the fastest form of the baseline."""
    return {speedup.case.id: speedup for speedup in analysis.speedups if speedup.kind != "library"}


def rate_of(case: CaseResult, seconds: float) -> Rate | None:
    """Return what one launch does, over its `seconds`: GFLOP/s where it computes, GB/s where it moves; None:
    neither."""
    if case.flops > COMPUTE_INTENSITY * case.bytes:
        return Rate(case.flops / seconds / 1e9, "GFLOP/s")
    return Rate(case.bytes / seconds / 1e9, "GB/s") if case.bytes else None


def half_width(interval: IntervalLike) -> float:
    """The longer arm of an interval: `estimate ± half width` holds all of it."""
    return max(interval.high - interval.estimate, interval.estimate - interval.low)


def decimal(value: float, digits: int = 6) -> str:
    """`value` with so many significant digits and without an exponent, which not every reader of text knows."""
    text = format(Decimal(f"{value:.{digits}g}"), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _repeats(analysis: Analysis) -> dict[str, dict[int, int]]:
    """Launches per sample, by case and session; the last block has the one that stayed."""
    return {
        outcome.id: {
            session: blocks[-1].repeat for session, blocks in main_blocks(analysis.run, outcome).items()
        }
        for outcome in analysis.run.outcomes
        if isinstance(outcome, Measurement)
    }
