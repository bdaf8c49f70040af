"""Where a ratio crosses 1: sizes to look at closely, the crossing with its interval, and the same of a result file."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpubench import stats
from gpubench.model.result import Run
from gpubench.stats import Prior

# Seconds of the baseline and of the case, a value for each block.
Sides = tuple[Sequence[float], Sequence[float]]
Timings = Mapping[int, Mapping[int, Sides]]  # size -> session -> both sides

NARROWEST = 0.01  # an interval is never narrower than +-1 %
# Fewer repeated blocks of a side, over all sizes, do not tell how far they scatter.
LEAST_BLOCKS = 6
# The spread of a few blocks may be 0 by chance: no size may count more than this many times one of usual noise.
MOST_WEIGHT = 4.0
# Of ln(block): equal blocks are equal as far as their clock tells.
LEAST_VARIANCE = 1e-12
# A size lies beside the line by tiles and thread counts of its own: the standard deviation of ln(ratio) that is
# expected of it, beside what the sizes themselves tell.
OWN = 0.05
# Of blocks that lie further off, in standard deviations, only so much counts.
FAR_OFF = 2.5
# Variance of the median of the means of pairs / that of the mean, for normal noise.
MIDDLE_COST = 1.05
# sigma / MAD for normal noise.
MAD_SIGMA = 1.4826
FARTHEST = 100.0  # |ln n| of a root that no memory holds: an open end


class Crossing(NamedTuple):
    """The size at which the fitted ratio is 1, with its 95 % interval; an end that the timings leave open is None.

    `apart`: high / low as far as sessions lie apart, which no further size of the same sessions makes less.
    """

    n: float
    low: float | None
    high: float | None
    apart: float = 1.0


def bracket(ratios: Mapping[int, float]) -> tuple[int, int] | None:
    """(largest size at which the case loses, next measured size); None without a loss or without a size above.

    By the middle ratios, sure or not: a bracket between sure sizes is wide where noise is, its centre lies off the
    crossing, and a line fitted around it is bent (simulated: intervals then hold a crossing near a knee in 37 to 87 %).
    """
    low = max((n for n, ratio in ratios.items() if ratio < 1), default=None)
    above = [n for n in ratios if low is not None and n > low]
    return (low, min(above)) if low is not None and above else None


# A line stands for a curve near its crossing: so far, at first, and farther where fewer than FEWEST sizes lie there.
REACHES, FEWEST = (4.0, 6.0, 10.0), 4
# Curves bend: between sizes further apart than this no line tells where one crosses, however exact it is.
FARTHEST_ENDS = 6.0
# A search stops where the sizes that it took happen to agree, so what they tell of their scatter is too little by so
# much. How far sessions lie apart has no part in that.
STOPPED_EARLY = 1.15


# d ln(ratio) / d ln(n) below which the ratio hardly depends on the size.
FLAT = 0.45


class Local(NamedTuple):
    """A straight line through the sizes around the last change of sides: where it crosses 1, None where that is not
    told, and its slope, d ln(ratio) / d ln(n)."""

    crossing: Crossing | None
    slope: float


def local_crossing(timings: Timings, priors: tuple[Prior, Prior] | None = stats.BOTH_USUAL) -> Local | None:
    """By the very timings that chose the sizes; None where the ratios do not change sides, from loss to win, or where
    the sizes between which they do lie too far apart."""
    near = sizes_around(timings)
    if not near:
        return None
    points = _Points.of({n: timings[n] for n in near})
    _, slope = stats.fit_line(points.x, points.y)
    found = _by_line(points, priors, STOPPED_EARLY)
    return Local(found and _by_pieces(points, priors, found), slope)


def sizes_around(timings: Timings) -> list[int]:
    """The sizes near the last change of sides, from loss to win; none where there is no such change, or where its ends
    lie further apart than FARTHEST_ENDS."""
    heights = {n: _middle([_log_ratio(sides) for sides in row.values()]) for n, row in timings.items() if row}
    ends = bracket({n: math.exp(height) for n, height in heights.items()})
    if ends is None or ends[1] > FARTHEST_ENDS * ends[0]:
        return []
    centre = math.log(ends[0] * ends[1]) / 2
    near: list[int] = []
    for reach in REACHES:
        near = [n for n in heights if n in ends or abs(math.log(n) - centre) <= math.log(reach)]
        if len(near) >= FEWEST:
            break
    return near


def crossing(timings: Timings, priors: tuple[Prior, Prior] | None = stats.BOTH_USUAL) -> Crossing | None:
    """Root of the weighted straight line of ln(ratio) on ln n, with its interval.

    The interval holds every size at which the height of the line may be 0 (Fieller 1954). The variance of the height
    is that of the blocks; more, where the sizes lie further from a line than their blocks explain; and from two
    sessions on that of the sessions, where it is larger. Below 5 sessions the priors (of the baseline's times and of
    the case's) stand beside them; None: they know nothing. An end is None where the timings leave it open. None if the
    line does not rise, or with fewer than two sizes.
    """
    points = _Points.of({n: row for n, row in timings.items() if row})
    return _by_line(points, priors) if len(points.x) > 1 else None


class _Points(NamedTuple):
    """ln(ratio) over ln(size), ascending: the middle `y` of the sessions, and its variance by the blocks, None where
    too few are repeated to tell. `apart`: how far each session lies from the middle of all."""

    x: list[float]
    y: list[float]
    variances: list[float] | None
    apart: list[float]

    @classmethod
    def of(cls, timings: Timings) -> _Points:
        """Of timings at each size."""
        sizes = sorted(timings)
        heights = [{i: _log_ratio(sides) for i, sides in timings[n].items()} for n in sizes]
        y = [_middle(list(row.values())) for row in heights]
        variances = _variances([timings[n] for n in sizes]) if sizes else None
        weights = [1.0] * len(sizes) if variances is None else [1 / v for v in variances]
        return cls([math.log(n) for n in sizes], y, variances, _apart(heights, y, weights))


def _by_line(points: _Points, priors: tuple[Prior, Prior] | None, stretch: float = 1.0) -> Crossing | None:
    """As `crossing`. `stretch`: how much wider the line's own part is."""
    x, y, variances, apart = points
    blocks = line = _Line.of(x, y, variances and [1 / v for v in variances])
    if variances is not None and line.uneven:
        # What the sizes have of their own is the same for all of them, however exact each was measured.
        own = (line.misfit / line.degrees - 1) * len(x) / line.total
        line = _Line.of(x, y, [1 / (v + own) for v in variances])
    root = line.root
    if root is None:
        return None
    scale = _scale(line, priors, replicated=variances is not None, uneven=blocks.uneven)
    session = _session_margin(apart, blocks.variance(root) if variances else 0.0, priors)
    return _crossing(root, *line.ends(root, stretch**2 * scale, session), session, line.slope)


def _by_pieces(points: _Points, priors: tuple[Prior, Prior] | None, found: Crossing) -> Crossing:
    """Beside a knee a line crosses elsewhere than the curve. There the straight piece between the two sizes around the
    crossing tells it, and the pieces before and after, which go on to it, how far the curve may bend in between; the
    nearest sizes that lose, or win, for sure bound them.

    `found`, by the line through all, stays where the sizes bend no more than chance bends one of ten, and where it
    holds all crossings of the pieces and is the narrower one.
    """
    x, y, variances, apart = points
    own = None if variances is None else _beside_a_bend(x, y, [1 / v for v in variances])
    if variances is None or own is None:
        return found
    weights = [1 / (v + own) for v in variances]
    last = max(i for i, height in enumerate(y) if math.exp(height) < 1)  # as `bracket` has it
    starts = [i for i in (last - 1, last, last + 1) if 0 <= i < len(x) - 1]
    pieces = [_Line.of(x[i : i + 2], y[i : i + 2], weights[i : i + 2]) for i in starts]
    middle, scale = pieces[starts.index(last)], (STOPPED_EARLY * stats.Z) ** 2
    root = middle.root
    if root is None:
        return found
    session = _session_margin(apart, _Line.of(x, y, weights).variance(root), priors)
    sure = list(_sure(x, y, weights, scale, session))
    loss = max((first for first, _, wins in sure if not wins), default=-math.inf)
    win = min((last for _, last, wins in sure if wins and last > loss), default=math.inf)
    ends = [one.ends(one.root, scale, session) if one.root is not None else (None, None) for one in pieces]
    low, high = _hull(ends, loss, win)
    low, high = min(low, root), max(high, root)
    least, most = _hull([(one.root, one.root) for one in pieces], loss, win)
    first, final = _hull([(found.low and math.log(found.low), found.high and math.log(found.high))])
    if first <= least and most <= final and not final - first > high - low:
        return found
    closed = None if low == -math.inf else low, None if high == math.inf else high
    return _crossing(root, *closed, session, middle.slope)


def _sure(
    x: Sequence[float], y: Sequence[float], weights: Sequence[float], scale: float, session: float
) -> Iterator[tuple[float, float, bool]]:
    """(first, last, whether it wins) of each row of neighbouring sizes whose mean surely lies on one side. As the ratio
    rises there, it loses at the first of a row that loses, and wins at the last of one that wins."""
    for i in range(len(x)):
        total = height = 0.0
        for j in range(i, len(x)):
            total, height = total + weights[j], height + weights[j] * y[j]
            if (height / total) ** 2 > scale / total + session:
                yield x[i], x[j], height > 0


def _hull(
    spans: Sequence[tuple[float | None, float | None]], least: float = -math.inf, most: float = math.inf
) -> tuple[float, float]:
    """The least and the largest of these ends, an open one being infinite, but not beyond `least` and `most`."""
    low = min(-math.inf if low is None else low for low, _ in spans)
    high = max(math.inf if high is None else high for _, high in spans)
    return min(max(low, least), most), max(min(high, most), least)


def _beside_a_bend(x: Sequence[float], y: Sequence[float], weights: Sequence[float]) -> float | None:
    """The variance that points have of their own beside a parabola; None where a line fits them as well, but for what
    chance does in one of ten."""
    line = _Line.of(x, y, weights)
    if line.degrees < 2:
        return None
    squares = [(a - line.centre) ** 2 for a in x]
    intercept, slope = stats.fit_line(x, squares, weights)
    bends = [b - intercept - slope * a for a, b in zip(x, squares, strict=True)]
    spread = math.fsum(w * b * b for w, b in zip(weights, bends, strict=True))
    if spread <= 0:
        return None
    bent = math.fsum(w * a * b for w, a, b in zip(weights, y, bends, strict=True)) ** 2 / spread
    chance = max(1.0, (line.misfit - bent) / (line.degrees - 1))
    return (chance - 1) * len(x) / line.total if bent > chance * exceeded_by_a_tenth(1) else None


def _crossing(root: float, low: float | None, high: float | None, session: float, slope: float) -> Crossing:
    """Of logarithms; `session` is what its sessions add to (half-width)^2 of the height."""
    n = math.exp(root)
    return Crossing(
        n,
        None if low is None else min(math.exp(low), n * (1 - NARROWEST)),
        None if high is None else max(math.exp(high), n * (1 + NARROWEST)),
        math.exp(min(2 * math.sqrt(session) / slope, FARTHEST)),
    )


class _Line(NamedTuple):
    """A weighted line: where it crosses 0 as it rises, its slope, the sum of its weights, their centre and spread in x.

    `misfit`: the weighted sum of the squared distances of the points, which are `degrees` more than a line takes.
    """

    root: float | None
    slope: float
    total: float
    centre: float
    spread: float
    misfit: float
    degrees: int

    @classmethod
    def of(cls, x: Sequence[float], y: Sequence[float], weights: Sequence[float] | None) -> _Line:
        """The line through these points; without weights all count alike."""
        weights = weights or [1.0] * len(x)
        intercept, slope = stats.fit_line(x, y, weights)
        total = math.fsum(weights)
        centre = math.fsum(map(operator.mul, weights, x)) / total
        spread = math.fsum(w * (a - centre) ** 2 for w, a in zip(weights, x, strict=True))
        misfit = math.fsum(w * (b - intercept - slope * a) ** 2 for w, a, b in zip(weights, x, y, strict=True))
        root = -intercept / slope if slope > 0 and abs(intercept) <= FARTHEST * slope else None
        return cls(root, slope, total, centre, spread, misfit, len(x) - 2)

    def variance(self, at: float) -> float:
        """Of the height at `at`, where 1 / weight is that of a point."""
        return 1 / self.total + (at - self.centre) ** 2 / self.spread

    @property
    def uneven(self) -> bool:
        """Whether the points lie further from the line than chance brings them in nine of ten."""
        return self.degrees > 0 and self.misfit > exceeded_by_a_tenth(self.degrees)

    def ends(self, root: float, scale: float, beside: float) -> tuple[float | None, float | None]:
        """The ends of the x at which (height)^2 <= `scale` * variance + `beside`; None where there is no end."""
        away = root - self.centre
        steepness = self.slope**2 - scale / self.spread
        if not 0 < steepness < math.inf or not math.isfinite(beside):
            return None, None
        lean = scale * away / self.spread
        reach = math.sqrt(lean**2 + steepness * (scale * self.variance(root) + beside))
        low, high = root + (lean - reach) / steepness, root + (lean + reach) / steepness
        return (None if low < -FARTHEST else low), (None if high > FARTHEST else high)


def _scale(line: _Line, priors: tuple[Prior, Prior] | None, *, replicated: bool, uneven: bool) -> float:
    """What the variance of the line's height is multiplied with to give (half-width)^2.

    Points that lie further from the line than their blocks explain widen it by Student's distribution (Knapp and
    Hartung 2003). Where chance does as much in one of ten, the blocks count, and with a prior what sizes usually have
    of their own: two or three of them cannot tell. Without repeated blocks, the points alone tell how far they
    scatter, and the prior.
    """
    if not replicated:
        expected = None if priors is None else math.fsum(prior.block**2 for prior in priors)
        return stats.squared_margin(line.misfit, line.degrees, expected)
    if uneven:
        return max(stats.Z**2, stats.squared_margin(line.misfit, line.degrees, None))
    if priors is None:
        return stats.Z**2
    usual = 1 + OWN**2 * line.total / (line.degrees + 2)
    return max(stats.Z**2, stats.squared_margin(line.misfit, line.degrees, usual))


def exceeded_by_a_tenth(degrees: int) -> float:
    """What a sum of so many squared normal values exceeds in one of ten (Wilson and Hilferty 1931)."""
    ninth = 2 / (9 * degrees)
    return degrees * (1 - ninth + 1.2816 * math.sqrt(ninth)) ** 3


def _apart(
    heights: Sequence[Mapping[int, float]], middles: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """How far each session lies from the middle of all, by the height of each session at each size: whatever a size
    does in all sessions alike takes no part."""
    found = []
    for session in {session for by_session in heights for session in by_session}:
        ours = [
            (w, row[session] - y) for row, y, w in zip(heights, middles, weights, strict=True) if session in row
        ]
        total = math.fsum(weight for weight, _ in ours)
        found.append(math.fsum(weight * height for weight, height in ours) / total)
    return found


def _session_margin(apart: Sequence[float], explained: float, priors: tuple[Prior, Prior] | None) -> float:
    """What the spread between sessions adds to (half-width)^2 of the height, beyond the variance that the blocks
    explain."""
    count = len(apart)
    few = count < stats.MIN_BOOTSTRAP_SESSIONS
    expected = None if priors is None else math.fsum(prior.session**2 for prior in priors)
    if count == 1:
        return 0.0 if expected is None else stats.Z**2 * expected
    one = explained * count  # of a single session
    squares = math.fsum((value - math.fsum(apart) / count) ** 2 for value in apart)
    if few and expected is not None:
        found = stats.squared_margin(squares, count - 1, expected + one)
    elif few and one > 0 and squares <= one * exceeded_by_a_tenth(count - 1):
        return 0.0
    else:
        found = stats.squared_margin(squares, count - 1, None)
    return max(0.0, found / count - stats.Z**2 * explained)


def _variances(sizes: Sequence[Mapping[int, Sides]]) -> list[float] | None:
    """Of ln(ratio) at each size, by how far its blocks lie apart; None where too few are repeated to tell."""
    found = [0.0] * len(sizes)
    for side in (0, 1):
        groups = [[sides[side] for sides in by_session.values()] for by_session in sizes]
        spreads = _block_variances([_deviations(blocks) for blocks in groups])
        if spreads is None:
            return None
        for i, blocks in enumerate(groups):
            shares = math.fsum(1 / len(one) for one in blocks)
            found[i] += MIDDLE_COST * spreads[i] * shares / len(blocks) ** 2
    return found


def _deviations(groups: Iterable[Sequence[float]]) -> list[float]:
    """How far ln(block) lies from the middle of its session, as far as from the true one; of single blocks nothing."""
    found: list[float] = []
    for blocks in groups:
        logs, count = [math.log(value) for value in blocks], len(blocks)
        if count > 1:
            middle, longer = _middle(logs), math.sqrt(count / (count - 1))
            found += [(value - middle) * longer for value in logs]
    return found


def _block_variances(sizes: Sequence[Sequence[float]]) -> list[float] | None:
    """Of ln(block) at each size, by its deviations and those of all sizes, which count as PRIOR_DEGREES more; what lies
    far off is pulled in. None where fewer than LEAST_BLOCKS tell."""
    together = [value for deviations in sizes for value in deviations]
    if len(together) < LEAST_BLOCKS:
        return None
    usual = MAD_SIGMA * stats.median(map(abs, together))
    common = max(_mean_square(together, usual), LEAST_VARIANCE)
    found = []
    for deviations in sizes:
        own, count = common, len(deviations)
        if deviations:
            own = _mean_square(deviations, max(usual, MAD_SIGMA * stats.median(map(abs, deviations))))
        mixed = (stats.PRIOR_DEGREES * common + count * own) / (stats.PRIOR_DEGREES + count)
        found.append(max(mixed, common / MOST_WEIGHT))
    return found


def _mean_square(values: Sequence[float], deviation: float) -> float:
    most = FAR_OFF * deviation if deviation > 0 else math.inf
    return math.fsum(min(abs(value), most) ** 2 for value in values) / len(values)


def _middle(values: Sequence[float]) -> float:
    """The median of the means of all pairs: nearly as precise as the mean, and nearly as robust as the median (Hodges
    and Lehmann 1963)."""
    return stats.median((a + b) / 2 for i, a in enumerate(values) for b in values[i:])


def _log_ratio(sides: Sides) -> float:
    base, case = (_middle([math.log(value) for value in blocks]) for blocks in sides)
    return base - case


def empty_launch_s(run: Run, device_id: str) -> float:
    """What an empty launch takes on a device, by all its workers; 0 where nobody measured it."""
    found = [
        value
        for session in run.sessions
        for worker in session.workers
        if worker.device_id == device_id
        for value in worker.overhead_s
    ]
    return stats.median(found) if found else 0.0
