"""The verdict on each case (FASTER, SLOWER, SAME or UNSURE), by tests that take whole sessions as observations
(docs/comparing.md).

The low end of a session is its fastest sample, the slow end is the 90 % quantile of its samples. A family is a
set of cases that are tested together.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.samples import GRAVITY, Label
from gpubench.base import group_by
from gpubench.compare.comparison import DeviceChange, JudgedCase, VerdictWord
from gpubench.curves import stats
from gpubench.result.run import Run

MIN_SESSIONS = stats.MIN_SESSIONS
SAME_ALPHA = 0.10  # the verdict is SAME if the 90 % interval lies within the threshold
# The level of the rank test by which changed medians or slow ends contradict a SAME. It is coarser than alpha,
# because with three moved sessions of five the test reaches only 7.5 %.
CONTRADICTION_ALPHA = 0.10
SLOW_END = 0.9  # the quantile of a session's samples that is its slow end
MOST_TAKEN = 0.99  # if other programs used a larger share of the CPUs, it counts as this share
MOST_SESSIONS = 100  # no advice asks for more sessions than this


class SessionValues(NamedTuple):
    """One statistic of a case for each session, in seconds, on both sides of the comparison."""

    base: dict[int, float]  # the value of each session of the base
    new: dict[int, float]  # the value of each session of the new file

    @property
    def ratio(self) -> float:
        """The Hodges-Lehmann estimate of the ratio new / base."""
        return self.shift(stats.ALPHA)[1]

    @property
    def p(self) -> tuple[float, float]:
        """The p-values of a rank test, as a pair: for a slower new file, and for a faster one."""
        return stats.rank_test(list(self.base.values()), list(self.new.values()))

    def shift(self, alpha: float) -> tuple[float, float, float]:
        """Return (low, estimate, high) of the ratio new / base. The interval has the level 1 - `alpha`."""
        return stats.shift_ratio(list(self.base.values()), list(self.new.values()), alpha)

    def logs(self) -> tuple[list[float], list[float]]:
        """Return the natural logarithms of both sides (base, new), each in the order of the sessions."""
        base, new = ([math.log(seconds) for _, seconds in sorted(side.items())] for side in self)
        return base, new

    def differ_beyond(self, limit: float) -> bool:
        """Return whether new and base differ by more than the factor `limit`, in either direction. The rank
        test at CONTRADICTION_ALPHA must also show that this is more than chance."""
        return min(self.p) <= CONTRADICTION_ALPHA and max(self.ratio, 1 / self.ratio) > limit

    def deny(self, effect: Callable[[float], float], limit: float) -> bool:
        """Return whether `effect`, a function of the ratio, is at most `limit` at both ends of the ratio's
        interval."""
        low, _, high = self.shift(SAME_ALPHA)
        return max(effect(low), effect(high)) <= limit


class CaseValues(NamedTuple):
    """The statistics of a case in one file. All statistics except `cycles` are in seconds, by session."""

    case: CaseResult  # the case with its estimate, as in a report
    # the fastest sample of each session, which other programs on the machine disturb least
    low: dict[int, float]
    medians: dict[int, float]  # the median of the blocks, as in a report
    # the 90 % quantile of each session, which changes even if only some of the samples change
    slow_ends: dict[int, float]
    cycles: dict[int, float]  # `low` in cycles of the device's clock; empty if a session has no clock readings

    @classmethod
    def of(cls, case: CaseResult, first: int, clocks: Mapping[int, Sequence[float]]) -> CaseValues:
        """Return the statistics of a case for each session. `clocks` holds clock readings in hertz, by session.
        The medians use all blocks. The low and slow ends use the first `first` samples of each session."""
        # Both sides use equally many samples, because more samples have a lower minimum even without a change.
        samples = {session: values[:first] for session, values in case.sessions.items()}
        low = {session: min(values) for session, values in samples.items()}
        answer = all(clocks.get(session) for session in low)
        return cls(
            case, low, {session: stats.median(case.blocks[session]) for session in samples},
            {session: stats.quantile(sorted(values), SLOW_END) for session, values in samples.items()},
            {session: seconds * stats.median(clocks[session]) for session, seconds in low.items()} if answer else {},
        )  # fmt: skip


class CasePair(msgspec.Struct, frozen=True, kw_only=True):
    """One case in the base and in the new file."""

    base: CaseValues  # the case in the base
    new: CaseValues  # the case in the new file
    threshold: float  # changes up to this share count as none
    muted: bool = False  # whether all gates ignore the case

    @property
    def id(self) -> str:
        return self.base.case.id

    @property
    def low(self) -> SessionValues:
        """The fastest sample of each session, on both sides."""
        return SessionValues(self.base.low, self.new.low)

    @property
    def medians(self) -> SessionValues:
        """The median of each session, on both sides."""
        return SessionValues(self.base.medians, self.new.medians)

    @property
    def slow_ends(self) -> SessionValues:
        """The 90 % quantile of each session's samples, on both sides."""
        return SessionValues(self.base.slow_ends, self.new.slow_ends)

    @property
    def ratio(self) -> stats.Interval:
        """The time in the new file divided by the time in the base, with its interval."""
        assert self.new.case.time is not None
        assert self.base.case.time is not None
        return stats.quotient(self.new.case.time, self.base.case.time)

    @property
    def sessions(self) -> tuple[int, int]:
        """The numbers of sessions with a time: (base, new)."""
        return len(self.base.low), len(self.new.low)

    @property
    def testable(self) -> bool:
        """Whether both sides have enough sessions for a rank test."""
        return min(self.sessions) >= MIN_SESSIONS

    @property
    def labels(self) -> tuple[Label, ...]:
        return labels(self.base.case, self.new.case)

    @property
    def throttled(self) -> bool:
        """Whether the device was throttled in one of the files. Such a case is always UNSURE."""
        return "throttled" in self.labels


def fewest_samples(*cases: CaseResult) -> int:
    """Return the smallest number of samples that any session of the cases has."""
    return min(len(samples) for case in cases for samples in case.sessions.values())


def labels(*cases: CaseResult) -> tuple[Label, ...]:
    """Return the labels that at least one of the cases has, gravest first, from all of their findings."""
    return tuple(label for label in GRAVITY if any(label in case.findings for case in cases))


def can_fire(family: Sequence[CasePair], alpha: float) -> bool:
    """Return whether any samples could make one of these cases SLOWER at the level `alpha`."""
    factor = len(_groups(family))
    return any(factor * _least_p(pair) <= alpha for pair in family if not pair.throttled)


def judge(pairs: Sequence[CasePair], alpha: float, new: int) -> tuple[JudgedCase, ...]:
    """Return the verdict on each pair, in the order of `pairs`. `alpha` is the significance level, and `new` is
    the index of the new file. A muted pair is judged alone: it does not count in the correction for many
    cases. A verdict does not depend on the order of the pairs or of the sessions."""
    family = [pair for pair in pairs if pair.testable and not pair.muted]
    adjusted, reach = _adjust(family), _reach(pairs, alpha)
    return tuple(
        _row(
            pair, new, smallest_effect(pair, alpha, max(1, len(family))),
            **(_test(pair, adjusted.get(pair.id), alpha) if pair.testable else _judge_few(pair, reach)),
        )
        for pair in pairs
    )  # fmt: skip


def _row(pair: CasePair, new: int, effect: float | None, **verdict: Any) -> JudgedCase:
    base, other = pair.base.case, pair.new.case
    assert base.time is not None
    assert other.time is not None
    low, ratio, high, _ = pair.ratio
    return JudgedCase(
        new=new, id=pair.id, muted=pair.muted, ratio=ratio, lo=low, hi=high, low_end_ratio=pair.low.ratio,
        median_ratio=pair.medians.ratio, slow_end_ratio=pair.slow_ends.ratio, base_s=base.time.estimate,
        new_s=other.time.estimate, threshold=pair.threshold, k_base=len(pair.base.low), k_new=len(pair.new.low),
        labels=pair.labels, spread=spread(pair), smallest_effect=effect, **verdict,
    )  # fmt: skip


# Fewer cases than this scatter too little to tell how much two runs of this machine differ.
LEAST_SCATTER = 8


def _reach(pairs: Sequence[CasePair], alpha: float) -> float:
    """Return the factor by which to widen the intervals of all cases with few sessions, so that all hold
    at once."""
    few = [pair for pair in pairs if not pair.testable and not pair.muted]
    if not few:
        return 1.0
    # If cases scatter around 1 more than their intervals allow, the priors are too narrow for this machine.
    far = [abs(math.log(pair.ratio.estimate)) / (_half(pair) / stats.Z) for pair in few]
    scatter = stats.median(far) * stats.MAD_SIGMA if len(few) >= LEAST_SCATTER else 1.0
    # Bonferroni: alpha is divided by the number of cases.
    return max(1.0, scatter) * stats.prior_quantile(1 - alpha / 2 / len(few)) / stats.prior_quantile(0.975)


def _half(pair: CasePair) -> float:
    return math.log(pair.ratio.high / pair.ratio.estimate)


def _judge_few(pair: CasePair, reach: float) -> dict[str, Any]:
    """Return the verdict fields of a case that has too few sessions for a rank test."""
    reason = next((label for label in ("throttled", "contended") if label in pair.labels), "few-sessions")
    verdict: VerdictWord = "UNSURE"
    if reason == "few-sessions":  # the prior in the interval covers no other disturbance
        limit, half = math.log1p(pair.threshold), _half(pair) * reach
        middle = math.log(pair.ratio.estimate)
        verdict = "SLOWER" if middle - half > limit else "FASTER" if middle + half < -limit else "UNSURE"
    return {"verdict": verdict, "reason": reason, "sessions_needed": MIN_SESSIONS}


def changes(pairs: Sequence[CasePair], runs: Sequence[Run]) -> tuple[DeviceChange, ...]:
    """Return the mean change of the cases of each device, sorted by device. Each op is one observation. Muted
    and throttled cases are left out. `runs` are the base and the new run. The interval allows for shifts that
    all cases of a session share, and for the time that other programs took."""
    # Few sessions cannot measure a shift that all cases of a session share.
    common = [stats.USUAL.session**2 + _disturbance(run) for run in runs]
    devices = group_by(
        (pair for pair in pairs if not pair.muted and not pair.throttled),
        lambda pair: pair.base.case.case.device_id,
    )
    return tuple(_change(device_id, cases, common) for device_id, cases in sorted(devices.items()))


def _disturbance(run: Run) -> float:
    """Return the mean of ln(factor)² over the sessions that count."""
    # A call takes up to 1 / (1 - share) times as long if other programs take that share of the CPUs.
    shares = [min(session.disturbance, MOST_TAKEN) for session in run.counting if session.contended]
    return math.fsum(math.log1p(-share) ** 2 for share in shares) / max(1, len(run.counting))


def _change(device_id: str, pairs: Sequence[CasePair], common: Sequence[float]) -> DeviceChange:
    ops = group_by(pairs, lambda pair: pair.base.case.case.op).values()
    means = [stats.mean_log(pair.ratio.estimate for pair in same) for same in ops]
    sessions = map(min, zip(*(pair.sessions for pair in pairs), strict=True))
    between = math.fsum(square / count for square, count in zip(common, sessions, strict=True))
    expected = stats.USUAL.block**2 * 2
    mean = fmean(means)
    squared = stats.squared_margin(stats.squared_deviations(means), len(means) - 1, expected) / len(means)
    factor = math.exp(math.sqrt(squared + between * stats.Z**2))
    ratio = math.exp(mean)
    return DeviceChange(
        device_id=device_id, ratio=ratio, lo=ratio / factor, hi=ratio * factor, cases=len(pairs)
    )


# The probability with which a change of `smallest_effect` is detected, and the factor by which trimming and ranks
# increase the error of Student's t.
POWER, TRIMMING = 0.80, 1.05


def spread(pair: CasePair) -> float | None:
    """Return the standard deviation of ln(low end) between the sessions of one side, pooled over both sides.
    Returns None if there are too few sessions."""
    sides = pair.low.logs()
    degrees = sum(map(len, sides)) - 2
    if degrees < 1 or min(map(len, sides)) < 1:
        return None
    return math.sqrt(sum(map(stats.squared_deviations, sides)) / degrees)


def smallest_effect(pair: CasePair, alpha: float, family: int) -> float | None:
    """Return the smallest change, as a share, that is called SLOWER with probability POWER. Returns None if no
    test applies. The result is the larger of two limits: one of Student's t test at the level `alpha` /
    `family`, one of the threshold. `family` is the number of cases that are tested together."""
    deviation = spread(pair)
    if not pair.testable or pair.throttled or deviation is None:
        return None
    own, others = pair.sessions
    # This assumes that the next comparison has the same spread and numbers of sessions.
    error = deviation * math.sqrt(1 / own + 1 / others) * TRIMMING
    beyond = stats.student_quantile(POWER, own + others - 4)
    tested = error * (stats.student_quantile(1 - alpha / family, own + others - 4) + beyond)
    return math.expm1(max(tested, math.log1p(pair.threshold) + error * beyond))


def _least_p(pair: CasePair) -> float:
    """Return the smallest p-value that the test can give with these numbers of sessions."""
    own, others = pair.sessions
    return 1 / min(math.comb(own + others, own), MAX_RELABELLINGS + 1)


def _groups(family: Iterable[CasePair]) -> list[list[CasePair]]:
    """Divide the family into groups of cases that have the same sessions, as the permutations require."""
    groups = group_by(
        sorted(family, key=lambda pair: pair.id),
        lambda pair: (frozenset(pair.base.low), frozenset(pair.new.low)),
    )
    return list(groups.values())


def _adjust(family: Sequence[CasePair]) -> dict[str, tuple[float, float]]:
    """Return two p-values (slower, faster) by case id, adjusted for the number of cases in the family."""
    groups, adjusted = _groups(family), {}
    for group in groups:
        base, new = zip(*(pair.low.logs() for pair in group), strict=True)
        for pair, tails in zip(group, max_t(base, new), strict=True):
            slower_p, faster_p = (min(1.0, p * len(groups)) for p in tails)
            adjusted[pair.id] = (slower_p, faster_p)
    return adjusted


def _test(pair: CasePair, adjusted: tuple[float, float] | None, alpha: float) -> dict[str, Any]:
    """Return the verdict fields of a case that has enough sessions for the tests."""
    inner, p = pair.low.shift(SAME_ALPHA), pair.low.p
    largest = (max(p[0], adjusted[0]), max(p[1], adjusted[1])) if adjusted else p
    verdict, reason = _verdict(pair, inner, largest, alpha)
    worse = 0 if inner[1] >= 1 else 1
    return {
        "verdict": verdict, "reason": reason, "p": p[worse],
        "p_adjusted": None if adjusted is None else adjusted[worse],
        "sessions_needed": _advise_sessions(pair, inner) if reason == "noise" else None,
    }  # fmt: skip


def _verdict(
    pair: CasePair, inner: tuple[float, float, float], p: tuple[float, float], alpha: float
) -> tuple[VerdictWord, str | None]:
    if pair.throttled:
        return "UNSURE", "throttled"
    limit, (low, ratio, high) = 1 + pair.threshold, inner
    cycles = SessionValues(pair.base.cycles, pair.new.cycles)
    words: tuple[tuple[VerdictWord, int, Callable[[float], float]], ...] = (
        ("SLOWER", 0, lambda ratio: ratio), ("FASTER", 1, lambda ratio: 1 / ratio),
    )  # fmt: skip
    for word, side, effect in words:
        if p[side] <= alpha and effect(ratio) > limit:
            if all(cycles) and effect(cycles.ratio) <= 1 + pair.threshold / 2:
                return "UNSURE", "clock-limited"
            denied = effect(pair.ratio.estimate) <= 1 or pair.medians.deny(effect, limit)
            return ("UNSURE", "shape") if denied else (word, None)
    if not (1 / limit <= low and high <= limit):
        return "UNSURE", "noise"
    moved = pair.medians.differ_beyond(limit) or pair.slow_ends.differ_beyond(limit)
    return ("UNSURE", "shape") if moved else ("SAME", None)


def _advise_sessions(pair: CasePair, inner: tuple[float, float, float]) -> int | None:
    """Return how many sessions each side needs for a sure verdict, or None if MOST_SESSIONS are too few."""
    sessions, (low, ratio, high) = min(pair.sessions), inner
    distance = abs(math.log1p(pair.threshold) - abs(math.log(ratio)))
    if distance <= 0:
        return None
    # The width of the interval falls with the square root of the number of sessions.
    needed = max(sessions + 1, math.ceil(sessions * (math.log(high / low) / 2 / distance) ** 2))
    return needed if needed <= MOST_SESSIONS else None


class StepChange(NamedTuple):
    """A lasting change of a case between two runs in a sequence of runs."""

    run: int  # the index of the first run after the change
    ratio: float  # the time after the change / the time before it
    low: float  # the low end of the interval of the ratio
    high: float  # the high end of the interval of the ratio


# How many runs on either side of a place are compared at most, and how many the test needs at least to find a
# change.
STEP_REACH, STEP_LEAST = 6, 3
MOST_RUNS = 20  # the number of newest runs that are searched: for more, the permutations take seconds


def find_steps(
    histories: Mapping[str, Sequence[float | None]], threshold: float
) -> dict[str, list[StepChange]]:
    """Return the lasting changes ("steps") of each case over the runs of one machine, by case, oldest first.

    `histories` holds, by case, the seconds in each run, oldest first (None: no time). A step exceeds the factor
    1 + `threshold`. The test is `max_t`, with a run in place of a session. Only the newest MOST_RUNS runs with
    a time are searched.
    """
    steps: dict[str, list[StepChange]] = {}
    groups = group_by(
        histories, lambda name: tuple(i for i, seconds in enumerate(histories[name]) if seconds is not None)
    )
    for runs, names in groups.items():
        recent = runs[-MOST_RUNS:]
        seconds = {name: [histories[name][i] or 0.0 for i in recent] for name in names}
        places = range(STEP_LEAST, len(recent) - STEP_LEAST + 1)
        # Bonferroni: a step may lie at any of these places.
        level = stats.ALPHA / len(groups) / max(1, len(places))
        candidates = [place for i in places for place in _steps_at(seconds, i, threshold, level)]
        for _, name, step in sorted(candidates, reverse=True):
            own = steps.setdefault(name, [])
            if all(abs(step.run - recent.index(other.run)) >= STEP_LEAST for other in own):
                own.append(step._replace(run=recent[step.run]))
    return {name: sorted(own) for name, own in steps.items()}


def _steps_at(
    seconds: Mapping[str, Sequence[float]], place: int, threshold: float, level: float
) -> list[tuple[float, str, StepChange]]:
    """Return the cases that changed between the runs `place` - 1 and `place`, as (fit, case, step)."""
    count = len(next(iter(seconds.values())))
    first = max(0, min(place - STEP_REACH, count - 2 * STEP_REACH))
    last = min(count, first + 2 * STEP_REACH)
    sides = {
        name: SessionValues(
            dict(enumerate(values[first:place])), dict(enumerate(values[place:last]))
        )
        for name, values in seconds.items()
    }  # fmt: skip
    moved = {name for name, side in sides.items() if max(side.ratio, 1 / side.ratio) > 1 + threshold}
    if not moved:
        return []
    base, new = zip(*(side.logs() for side in sides.values()), strict=True)
    # A larger fit means that this place divides the runs better into two levels.
    return [
        (_division(side), name, StepChange(place, side.ratio, *side.shift(stats.ALPHA)[::2]))
        for (name, side), p in zip(sides.items(), max_t(base, new), strict=True)
        if name in moved and min(p) <= level
    ]


def _division(side: SessionValues) -> float:
    """Return the distance between the mean logarithms of the two sides, scaled by their numbers of runs. Its
    square is how much smaller the squared deviations are around two means than around one."""
    base, new = side.logs()
    distance = abs(fmean(new) - fmean(base))
    return distance * math.sqrt(len(base) * len(new) / (len(base) + len(new)))


# If there are more ways to assign the sessions to two sides, the test uses a sample of about this many.
MAX_RELABELLINGS = 2000
# Added to each deviation, so that a case that barely varies does not outrank all others.
QUIET_DEVIATION = 0.01


def max_t(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return two adjusted p-values for each case of a family: one that `new` is larger, one that `new` is
    smaller. `base` and `new` hold, for each case, the logarithm of the time in each session. All cases have the
    same sessions, at least three on each side. The test is a joint permutation test (Westfall and Young 1993)."""
    columns = sorted(
        [(values, False) for values in zip(*base, strict=True)]
        + [(values, True) for values in zip(*new, strict=True)]
    )
    observed = tuple(i for i, (_, is_new) in enumerate(columns) if is_new)
    sides = [
        (operator.itemgetter(*new_side), operator.itemgetter(*base_side))
        for base_side, new_side in _permutations(len(columns), observed)
    ]
    largest, smallest, seen = [-math.inf] * len(sides), [math.inf] * len(sides), []
    for case in zip(*(values for values, _ in columns), strict=True):
        centre = fmean(case)
        values = [value - centre for value in case]
        squares = [value * value for value in values]
        t = [
            _trimmed_t(of_new(values), sum(of_new(squares)), of_base(values), sum(of_base(squares)))
            for of_new, of_base in sides
        ]
        largest = list(map(max, largest, t))
        smallest = list(map(min, smallest, t))
        seen.append(t[0])
    # The share of permutations in which the largest T of all cases reaches the case's own T.
    close = 1e-9
    return [
        (
            sum(most >= t - close for most in largest) / len(sides),
            sum(least <= t + close for least in smallest) / len(sides),
        )
        for t in seen
    ]


def _permutations(count: int, observed: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the ways to divide `count` sessions into (base, new), as indexes. The first way has the sessions
    `observed` as new."""
    k = len(observed)
    chosen: Iterable[tuple[int, ...]] = itertools.combinations(range(count), k)
    if math.comb(count, k) > MAX_RELABELLINGS:
        import random

        draw = random.Random(k * count)  # the same for every family, so that equal files give equal answers
        chosen = [tuple(sorted(draw.sample(range(count), k))) for _ in range(MAX_RELABELLINGS)]
        # The sample contains each way with its mirror image, so that exchanged files give exchanged verdicts.
        if 2 * k == count:
            half = [observed, *chosen[: MAX_RELABELLINGS // 2]]
            chosen = [*half, *(_rest(count, item) for item in half)]
    splits = [observed, *(item for item in chosen if item != observed)]
    return [(_rest(count, item), item) for item in splits]


def _rest(count: int, chosen: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(count) if i not in chosen)


def _trimmed_t(new: Sequence[float], new_squares: float, base: Sequence[float], base_squares: float) -> float:
    """Return the difference of the trimmed means (new - base) divided by the pooled deviation plus
    QUIET_DEVIATION. The largest value of each side is left out."""
    top_new, top_base = max(new), max(base)
    mean_new, mean_base = (sum(new) - top_new) / (len(new) - 1), (sum(base) - top_base) / (len(base) - 1)
    of_new = new_squares - top_new * top_new - (len(new) - 1) * mean_new * mean_new
    of_base = base_squares - top_base * top_base - (len(base) - 1) * mean_base * mean_base
    deviation = math.sqrt((max(0.0, of_new) + max(0.0, of_base)) / (len(new) + len(base) - 4))
    return (mean_new - mean_base) / (deviation + QUIET_DEVIATION)
