"""FASTER, SLOWER, SAME or UNSURE per case, by tests on whole sessions (docs/comparing.md)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.labels import GRAVITY, Label
from gpubench.base.groups import group_by
from gpubench.compare.comparison import DeviceChange, JudgedCase, VerdictWord
from gpubench.curves import stats

MIN_SESSIONS = stats.MIN_SESSIONS
SAME_ALPHA = 0.10  # SAME is said where the 90 % interval lies within the threshold
# The level of the rank test by which medians or slow ends contradict a SAME. It is coarser than alpha, because
# three moved sessions of five reach 7.5 %.
CONTRADICTION_ALPHA = 0.10
SLOW_END = 0.9  # the quantile that stands for the slow end of a session
MOST_SESSIONS = 100  # advice to measure more often than this is none


class SessionValues(NamedTuple):
    """One statistic of a case in seconds, by session, on both sides."""

    base: dict[int, float]
    new: dict[int, float]

    @property
    def ratio(self) -> float:
        """The Hodges-Lehmann ratio new / base."""
        return self.shift(stats.ALPHA)[1]

    def shift(self, alpha: float) -> tuple[float, float, float]:
        """Return (low, estimate, high) of new / base, with the interval at `alpha`."""
        return stats.shift_ratio(list(self.base.values()), list(self.new.values()), alpha)

    def has_moved(self, limit: float) -> bool:
        """Whether new differs from base by more than the factor `limit`, and a rank test says it is no chance."""
        p = stats.rank_test(list(self.base.values()), list(self.new.values()))
        return min(p) <= CONTRADICTION_ALPHA and max(self.ratio, 1 / self.ratio) > limit

    def deny(self, effect: Callable[[float], float], limit: float) -> bool:
        """Whether their whole interval says that the effect does not exceed `limit`."""
        low, _, high = self.shift(SAME_ALPHA)
        return max(effect(low), effect(high)) <= limit


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """One case on both sides, both with a number."""

    base: CaseResult
    new: CaseResult
    base_low: dict[int, float]  # low ends in seconds, by session
    new_low: dict[int, float]
    medians: SessionValues
    slow_ends: SessionValues
    # The low ends in clock cycles; empty unless both sides know their clock in every session.
    base_cycles: tuple[float, ...] = ()
    new_cycles: tuple[float, ...] = ()
    threshold: float
    muted: bool = False

    @property
    def ratio(self) -> stats.Interval:
        """The time of new / that of base."""
        assert self.new.time is not None
        assert self.base.time is not None
        return stats.quotient(self.new.time, self.base.time)

    @property
    def testable(self) -> bool:
        """Whether both sides have the sessions that a verdict takes."""
        return min(len(self.base_low), len(self.new_low)) >= MIN_SESSIONS

    @property
    def throttled(self) -> bool:
        """Whether a device was slowed down on one side: then nothing is said, whatever the samples are."""
        return "throttled" in labels(self.base, self.new)


class _Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests say about one case. p-values: (that it is slower, that it is faster)."""

    ratio: float
    inner: tuple[float, float]
    p: tuple[float, float]
    adjusted: tuple[float, float] | None


def low_ends(row: CaseResult, first: int) -> dict[int, float]:
    """Per session the smallest of its `first` used samples: what a busy neighbour changes least."""
    return {session: min(samples[:first]) for session, samples in row.sessions.items()}


def fewest_samples(*rows: CaseResult) -> int:
    """The smallest number of samples in any session: a minimum of more samples would be lower by itself."""
    return min(len(samples) for row in rows for samples in row.sessions.values())


def labels(*rows: CaseResult) -> tuple[Label, ...]:
    """What holds of any of these, the gravest first: a label of its own hides none of the others."""
    return tuple(label for label in GRAVITY if any(label in row.findings for row in rows))


def medians(case: CaseResult) -> dict[int, float]:
    """Return the value of each session: the median of its blocks, which is what a report shows."""
    return {session: stats.median(case.blocks[session]) for session in case.sessions}


def slow_ends(case: CaseResult, first: int) -> dict[int, float]:
    """Return the 90 % quantile of the `first` used samples of each session: it moves if a share of them does."""
    return {
        session: stats.quantile(sorted(samples[:first]), SLOW_END) for session, samples in case.sessions.items()
    }


def can_fire(family: Sequence[Twin], alpha: float) -> bool:
    """Whether any samples at all could have made one of these cases SLOWER."""
    factor = len(_groups(family))
    return any(factor * _least_p(twin) <= alpha for twin in family if not twin.throttled)


def judged(twins: Sequence[Twin], alpha: float, new: int) -> tuple[JudgedCase, ...]:
    """The verdicts, in the order of `twins`. The answer does not depend on that order, nor on that of sessions."""
    family = [twin for twin in twins if twin.testable and not twin.muted]
    adjusted = _adjusted(family)
    few = _reach(twins, alpha)
    return tuple(
        msgspec.structs.replace(
            _judge(twin, _tested(twin, adjusted.get(twin.base.id)), alpha, new)
            if twin.testable
            else _judge_few(twin, few, new),
            spread=spread(twin), smallest_effect=smallest_effect(twin, alpha, max(1, len(family))),
        )
        for twin in twins
    )  # fmt: skip


# Below so many cases their scatter says little of how far runs of this machine lie apart.
LEAST_SCATTER = 8


def _reach(twins: Sequence[Twin], alpha: float) -> float:
    """Return by how much the intervals of cases with few sessions grow, so that all of them hold together.

    They are tested together (Bonferroni). Where the cases scatter further around 1 than their intervals say, the priors
    are too narrow for this machine, and all intervals grow by as much.
    """
    few = [twin for twin in twins if not twin.testable and not twin.muted]
    if not few:
        return 1.0
    far = [abs(math.log(twin.ratio.estimate)) / (_half(twin) / stats.Z) for twin in few]
    scatter = stats.median(far) * stats.MAD_SIGMA if len(few) >= LEAST_SCATTER else 1.0
    return max(1.0, scatter) * stats.prior_quantile(1 - alpha / 2 / len(few)) / stats.prior_quantile(0.975)


def _half(twin: Twin) -> float:
    return math.log(twin.ratio.high / twin.ratio.estimate)


def _judge_few(twin: Twin, reach: float, new: int) -> JudgedCase:
    """Judge a case with too few sessions for a rank test, by its interval with the prior.

    The prior knows nothing of a session that others disturbed, nor of a device that was slowed down.
    """
    unsure = _row(twin, new)
    if (
        reason := next((label for label in ("throttled", "contended") if label in unsure.labels), None)
    ) is not None:
        return msgspec.structs.replace(unsure, reason=reason)
    limit, half = math.log1p(twin.threshold), _half(twin) * reach
    middle = math.log(twin.ratio.estimate)
    word: VerdictWord = "SLOWER" if middle - half > limit else "FASTER" if middle + half < -limit else "UNSURE"
    return msgspec.structs.replace(unsure, verdict=word)


def changes(twins: Sequence[Twin]) -> tuple[DeviceChange, ...]:
    """Return for each device how all its common cases changed together, ops being the observations.

    What a session has in common on a device is not seen with few sessions; the prior says it.
    """
    devices = group_by(
        (twin for twin in twins if not twin.muted and not twin.throttled), lambda twin: twin.base.case.device_id
    )
    return tuple(_change(device_id, cases) for device_id, cases in sorted(devices.items()))


def _change(device_id: str, twins: Sequence[Twin]) -> DeviceChange:
    ops: dict[str, list[float]] = {}
    for twin in twins:
        ops.setdefault(twin.base.case.op, []).append(math.log(twin.ratio.estimate))
    means = [math.fsum(logs) / len(logs) for logs in ops.values()]
    sessions = [
        min(len(side) for side in sides) for sides in ([t.base_low for t in twins], [t.new_low for t in twins])
    ]
    common = stats.USUAL.session**2 * math.fsum(1 / count for count in sessions)
    expected = stats.USUAL.block**2 * 2
    mean = math.fsum(means) / len(means)
    squared = stats.squared_margin(
        math.fsum((value - mean) ** 2 for value in means), len(means) - 1, expected
    ) / len(means)
    factor = math.exp(math.sqrt(squared + common * stats.Z**2))
    ratio = math.exp(mean)
    return DeviceChange(
        device_id=device_id, ratio=ratio, lo=ratio / factor, hi=ratio * factor, cases=len(twins)
    )


# What is called "found": in so many of all comparisons. Trimming and ranks cost the tests so much beside Student's t.
POWER, TRIMMING = 0.80, 1.05


def spread(twin: Twin) -> float | None:
    """The standard deviation of the logarithms of the low ends between sessions of one side, both sides together."""
    sides = [_logs(low) for low in (twin.base_low, twin.new_low)]
    degrees = sum(map(len, sides)) - 2
    if degrees < 1 or min(map(len, sides)) < 1:
        return None
    means = [math.fsum(side) / len(side) for side in sides]
    squares = [(x - mean) ** 2 for side, mean in zip(sides, means, strict=True) for x in side]
    return math.sqrt(math.fsum(squares) / degrees)


def smallest_effect(twin: Twin, alpha: float, family: int) -> float | None:
    """The change, as a share, that POWER of the comparisons with this spread, these sessions and so many cases would
    call SLOWER; None where none could.

    Two things limit it, and the larger one counts: the test, as Student's t of two means at alpha / family (which
    the joint permutations are not far from), and the threshold, which the measured ratio has to exceed.
    """
    deviation = spread(twin)
    if not twin.testable or twin.throttled or deviation is None:
        return None
    ours, theirs = len(twin.base_low), len(twin.new_low)
    error = deviation * math.sqrt(1 / ours + 1 / theirs) * TRIMMING
    beyond = stats.student_quantile(POWER, ours + theirs - 4)
    tested = error * (stats.student_quantile(1 - alpha / family, ours + theirs - 4) + beyond)
    return math.expm1(max(tested, math.log1p(twin.threshold) + error * beyond))


def _least_p(twin: Twin) -> float:
    """Return the smallest adjusted p of any samples: a share of the permutations, of which not all may be drawn."""
    return max(stats.smallest_p(len(twin.base_low), len(twin.new_low)), 1 / (MAX_RELABELLINGS + 1))


def _groups(family: Iterable[Twin]) -> list[list[Twin]]:
    """Sessions are permuted as a whole, so a case that missed some of them is in a family of its own kind."""
    found = group_by(
        sorted(family, key=lambda twin: twin.base.id),
        lambda twin: (frozenset(twin.base_low), frozenset(twin.new_low)),
    )
    return list(found.values())


def _adjusted(family: Sequence[Twin]) -> dict[str, tuple[float, float]]:
    """Return (p that it is slower, p that it is faster) of each case, adjusted over the family."""
    groups, adjusted = _groups(family), {}
    for group in groups:
        joint = max_t([_logs(twin.base_low) for twin in group], [_logs(twin.new_low) for twin in group])
        for twin, (slower_p, faster_p) in zip(group, joint, strict=True):
            adjusted[twin.base.id] = (min(1.0, slower_p * len(groups)), min(1.0, faster_p * len(groups)))
    return adjusted


def _raw_p(twin: Twin) -> tuple[float, float]:
    return stats.rank_test(list(twin.base_low.values()), list(twin.new_low.values()))


def _logs(low: dict[int, float]) -> list[float]:
    return [math.log(low[session]) for session in sorted(low)]


def _tested(twin: Twin, adjusted: tuple[float, float] | None) -> _Tested:
    base, new = list(twin.base_low.values()), list(twin.new_low.values())
    inner_low, ratio, inner_high = stats.shift_ratio(base, new, SAME_ALPHA)
    return _Tested(ratio=ratio, inner=(inner_low, inner_high), p=_raw_p(twin), adjusted=adjusted)


def _row(twin: Twin, new: int) -> JudgedCase:
    """Return the row of a case that nothing was found of yet."""
    assert twin.base.time is not None
    assert twin.new.time is not None
    low, ratio, high, _ = twin.ratio
    low_ends = SessionValues(twin.base_low, twin.new_low)
    return JudgedCase(
        new=new, id=twin.base.id, verdict="UNSURE", reason="few-sessions", muted=twin.muted,
        ratio=ratio, lo=low, hi=high, low_end_ratio=low_ends.ratio, median_ratio=twin.medians.ratio,
        slow_end_ratio=twin.slow_ends.ratio, base_s=twin.base.time.estimate, new_s=twin.new.time.estimate,
        threshold=twin.threshold, k_base=len(twin.base_low), k_new=len(twin.new_low), sessions_needed=MIN_SESSIONS,
        labels=labels(twin.base, twin.new),
    )  # fmt: skip


def _judge(twin: Twin, tested: _Tested, alpha: float, new: int) -> JudgedCase:
    row = _row(twin, new)
    verdict, reason = _verdict(twin, tested, alpha)
    worse = 0 if tested.ratio >= 1 else 1
    return msgspec.structs.replace(
        row, verdict=verdict, reason=reason,
        p=tested.p[worse], p_adjusted=None if tested.adjusted is None else tested.adjusted[worse],
        sessions_needed=_sessions_needed(row, tested) if reason == "noise" else None,
    )  # fmt: skip


def _verdict(twin: Twin, tested: _Tested, alpha: float) -> tuple[VerdictWord, str | None]:
    if twin.throttled:
        return "UNSURE", "throttled"
    limit = 1 + twin.threshold
    adjusted = tested.p if tested.adjusted is None else tested.adjusted
    words: tuple[tuple[VerdictWord, int, Callable[[float], float]], ...] = (
        ("SLOWER", 0, lambda ratio: ratio), ("FASTER", 1, lambda ratio: 1 / ratio),
    )  # fmt: skip
    for word, side, effect in words:
        if max(tested.p[side], adjusted[side]) <= alpha and effect(tested.ratio) > limit:
            if twin.base_cycles and effect(_cycle_ratio(twin)) <= 1 + twin.threshold / 2:
                return "UNSURE", "clock-limited"
            denied = effect(twin.ratio.estimate) <= 1 or twin.medians.deny(effect, limit)
            return ("UNSURE", "shape") if denied else (word, None)
    if not (1 / limit <= tested.inner[0] and tested.inner[1] <= limit):
        return "UNSURE", "noise"
    moved = twin.medians.has_moved(limit) or twin.slow_ends.has_moved(limit)
    return ("UNSURE", "shape") if moved else ("SAME", None)


def _cycle_ratio(twin: Twin) -> float:
    return stats.shift_ratio(twin.base_cycles, twin.new_cycles)[1]


def _sessions_needed(row: JudgedCase, tested: _Tested) -> int | None:
    """Sessions a side after which the interval should be narrow enough, as its width falls with their root.

    None where more sessions are no remedy: there would be too many of them.
    """
    assert row.threshold is not None
    sessions = min(row.k_base, row.k_new)
    half = math.log(tested.inner[1] / tested.inner[0]) / 2
    distance = abs(math.log1p(row.threshold) - abs(math.log(tested.ratio)))
    if distance <= 0:
        return None
    needed = max(sessions + 1, math.ceil(sessions * (half / distance) ** 2))
    return needed if needed <= MOST_SESSIONS else None


# All ways to put sessions on two sides up to this many; of more, so many are drawn.
MAX_RELABELLINGS = 2000
# A case that barely varies must not outrank all others by its tiny deviation.
QUIET_DEVIATION = 0.01


def max_t(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Joint permutation correction over a family: per case (p that `new` is larger, p that it is smaller), adjusted.

    `base` and `new` hold the logarithms of each case in each session, all cases in the same sessions, at least three
    a side. p = share of permutations of whole sessions whose largest T over the family reaches the case's T
    (Westfall and Young 1993). Above MAX_RELABELLINGS a fixed sample of them is drawn.
    """
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
        centre = math.fsum(case) / len(case)
        values = [value - centre for value in case]
        squares = [value * value for value in values]
        t = [
            _trimmed_t(of_new(values), sum(of_new(squares)), of_base(values), sum(of_base(squares)))
            for of_new, of_base in sides
        ]
        largest = list(map(max, largest, t))
        smallest = list(map(min, smallest, t))
        seen.append(t[0])
    close = 1e-9
    return [
        (
            sum(1 for most in largest if most >= t - close) / len(sides),
            sum(1 for least in smallest if least <= t + close) / len(sides),
        )
        for t in seen
    ]


def _permutations(count: int, observed: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ways to split `count` sessions into (base, new), the observed one first."""
    k = len(observed)
    chosen: Iterable[tuple[int, ...]] = itertools.combinations(range(count), k)
    if math.comb(count, k) > MAX_RELABELLINGS:
        import random

        draw = random.Random(k * count)  # the same for every family, so that equal files give equal answers
        chosen = [tuple(sorted(draw.sample(range(count), k))) for _ in range(MAX_RELABELLINGS)]
        if (
            2 * k == count
        ):  # with each its mirror image: "faster" and "slower" stay alike when the files change places
            half = [observed, *chosen[: MAX_RELABELLINGS // 2]]
            chosen = [*half, *(_rest(count, one) for one in half)]
    splits = [observed, *(one for one in chosen if one != observed)]
    return [(_rest(count, one), one) for one in splits]


def _rest(count: int, chosen: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(count) if i not in chosen)


def _trimmed_t(new: Sequence[float], new_squares: float, base: Sequence[float], base_squares: float) -> float:
    """Return the difference of the means, each side without its slowest session, over the pooled deviation.

    `*_squares`: the sum of the squares of a side.
    """
    top_new, top_base = max(new), max(base)
    mean_new, mean_base = (sum(new) - top_new) / (len(new) - 1), (sum(base) - top_base) / (len(base) - 1)
    of_new = new_squares - top_new * top_new - (len(new) - 1) * mean_new * mean_new
    of_base = base_squares - top_base * top_base - (len(base) - 1) * mean_base * mean_base
    deviation = math.sqrt((max(0.0, of_new) + max(0.0, of_base)) / (len(new) + len(base) - 4))
    return (mean_new - mean_base) / (deviation + QUIET_DEVIATION)
