"""Weak scaling: what equal GPUs do at once against what each does alone.

Rates are launches per second of the samples that lie wholly inside the window in which all GPUs worked. `early` is its
begin: from alone to early goes what the GPUs share, links and the host's memory. `late` is its end: from early to late
go heat and power.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from gpubench.analysis.samples import used_sessions
from gpubench.curves.stats import Interval, median, ratio_interval
from gpubench.result.case import Case, beside_size, parse_case_id
from gpubench.result.run import Run, Telemetry, TogetherTimes

PART_S = 3.0  # of the window, at each of its ends
SLICES = 6  # of a part: what it is that scatters


Part = Literal["alone", "early", "late"]


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU told of itself in a part of the work: medians, and all reasons for a lowered clock."""

    device_id: str
    part: Part
    clock_hz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: tuple[str, ...]
    pcie_generation: int | None
    pcie_width: int | None


class Weak(msgspec.Struct, frozen=True, kw_only=True):
    """One case on so many GPUs at once. `early` and `late`: the sum of their rates / that of each alone, with their
    intervals. `least_share`: that of the GPU that keeps least of its own rate, late, and `least_id` names it.
    `alone_s`: seconds per launch of one. `failed`: GPUs that gave nothing. `conditions`: of each GPU in each part,
    where they were read."""

    aside: ClassVar = ("case", "early_interval", "late_interval")
    id: str
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    form: str
    regime: str
    gpus: int
    device_ids: tuple[str, ...]
    alone_s: float
    early: float
    early_lo: float
    early_hi: float
    late: float
    late_lo: float
    late_hi: float
    least_id: str
    least_share: float
    failed: tuple[str, ...] = ()
    conditions: tuple[Conditions, ...] = ()
    case: Case
    early_interval: Interval
    late_interval: Interval


class Window(NamedTuple):
    """Seconds from the moment at which the GPUs were to begin."""

    begin: float
    end: float

    def slices(self) -> list[Window]:
        """Equal parts of it."""
        step = (self.end - self.begin) / SLICES
        return [Window(self.begin + i * step, self.begin + (i + 1) * step) for i in range(SLICES)]


Sessions = dict[int, dict[str, TogetherTimes]]  # by device


def weak(run: Run) -> tuple[Weak, ...]:
    """Case by case, in the order of the file."""
    allowed = used_sessions(run)
    telemetry = {(one.index, read.device_id): read for one in run.sessions for read in one.telemetry}
    alone: dict[str, Sessions] = {}
    at_once: dict[tuple[str, int], Sessions] = {}
    failed: dict[str, list[str]] = {}
    for one in run.together or ():
        if allowed is not None and one.session not in allowed:
            continue
        case = one.case_id.rpartition("@")[0]
        if one.reason is not None:
            failed.setdefault(case, []).append(one.device_id)
        elif one.phase == "alone":
            alone.setdefault(case, {}).setdefault(one.session, {})[one.device_id] = one
        else:
            at_once.setdefault((case, one.gpus), {}).setdefault(one.session, {})[one.device_id] = one
    rows = [
        _row(case, gpus, alone.get(case, {}), sessions, failed.get(case, ()), telemetry)
        for (case, gpus), sessions in at_once.items()
    ]
    return tuple(row for row in rows if row is not None)


def _row(
    case_id: str, gpus: int, alone: Sessions, at_once: Sessions, failed: Sequence[str],
    telemetry: Mapping[tuple[int, str], Telemetry],
) -> Weak | None:  # fmt: skip
    """None where no session has all GPUs, alone and at once."""
    early: list[tuple[list[float], list[float]]] = []
    late: list[tuple[list[float], list[float]]] = []
    kept: dict[str, list[float]] = {}
    own_s: list[float] = []
    seen: dict[tuple[str, Part], list[tuple[TogetherTimes, Window]]] = {}
    for session, both in at_once.items():
        single = alone.get(session, {})
        window = common(list(both.values()))
        if len(both) < gpus or window is None or not both.keys() <= single.keys():
            continue
        ours = [single[id] for id in both]
        length = min(PART_S, (window.end - window.begin) / 2)
        first, last = Window(window.begin, window.begin + length), Window(window.end - length, window.end)
        base = _summed([[rate(one, part) for part in _own(one).slices()] for one in ours])
        parts = [
            _summed([[rate(one, part) for part in at.slices()] for one in both.values()])
            for at in (first, last)
        ]
        if not (base and all(parts)):
            continue
        early.append((base, parts[0]))
        late.append((base, parts[1]))
        for id, one in both.items():
            before, after = rate(single[id], _own(single[id])), rate(one, last)
            if before and after:
                kept.setdefault(id, []).append(after / before)
                own_s.append(1 / before)
            seen.setdefault((id, "alone"), []).append((single[id], _own(single[id])))
            seen.setdefault((id, "early"), []).append((one, first))
            seen.setdefault((id, "late"), []).append((one, last))
    if not early or len(kept) < gpus:
        return None
    shares = {id: median(values) for id, values in kept.items()}
    least = min(shares, key=lambda id: (shares[id], id))
    case = parse_case_id(f"{case_id}@{next(iter(shares))}")
    # Both sides are of the same workers, seconds apart: what is known of sessions in general is too wide for them.
    a, b = ratio_interval(early, None), ratio_interval(late, None)
    return Weak(
        id=f"{case_id}@{'+'.join(shares)}", op=case.op, n=case.params["n"],
        params=dict(beside_size(case.params)), dtype=case.dtype, form=case.form_id, regime=case.regime_id, gpus=gpus,
        device_ids=tuple(shares), alone_s=median(own_s), early=a.estimate, early_lo=a.low, early_hi=a.high,
        late=b.estimate, late_lo=b.low, late_hi=b.high, least_id=least, least_share=shares[least],
        failed=tuple(dict.fromkeys(failed)), case=case, early_interval=a, late_interval=b,
        conditions=tuple(
            read
            for (id, part), spans in seen.items()
            if (read := _conditions(id, part, spans, telemetry)) is not None
        ),
    )  # fmt: skip


def _conditions(
    device_id: str, part: Part, spans: Sequence[tuple[TogetherTimes, Window]],
    telemetry: Mapping[tuple[int, str], Telemetry],
) -> Conditions | None:  # fmt: skip
    """None where nothing was read in any of these spans."""
    read: list[tuple[Telemetry, int]] = []
    for one, window in spans:
        found = telemetry.get((one.session, device_id))
        if found is not None and one.at_s is not None:
            begin, end = one.at_s + window.begin, one.at_s + window.end
            read += [(found, place) for place, t in enumerate(found.t_s) if begin <= t <= end]
    if not read:
        return None

    def middle(column: Callable[[Telemetry], Sequence[float | None]]) -> float | None:
        values = [column(one)[place] for one, place in read if place < len(column(one))]
        known = [value for value in values if value is not None]
        return median(known) if known else None

    generation, width = middle(lambda one: one.pcie_generation), middle(lambda one: one.pcie_width)
    reasons = {word for one, place in read if place < len(one.throttle) for word in one.throttle[place]}
    return Conditions(
        device_id=device_id, part=part, clock_hz=middle(lambda one: one.clock_hz),
        power_w=middle(lambda one: one.power_w), temperature_c=middle(lambda one: one.temperature_c),
        throttle=tuple(sorted(reasons)), pcie_generation=None if generation is None else int(generation),
        pcie_width=None if width is None else int(width),
    )  # fmt: skip


def common(all_times: Sequence[TogetherTimes]) -> Window | None:
    """From when the last one began until the first one ended; None where they never worked at the same time."""
    begin = max(one.begin_s for one in all_times)
    end = min(one.ends_s[-1] if one.ends_s else one.begin_s for one in all_times)
    return Window(begin, end) if begin < end else None


def rate(one: TogetherTimes, window: Window) -> float | None:
    """Launches per second of its samples that lie wholly inside the window; None without any."""
    inside = [
        end - start
        for start, end in itertools.pairwise([one.begin_s, *one.ends_s])
        if window.begin <= start and end <= window.end
    ]
    return one.repeat * len(inside) / sum(inside) if inside and sum(inside) > 0 else None


def _own(one: TogetherTimes) -> Window:
    return Window(one.begin_s, one.ends_s[-1] if one.ends_s else one.begin_s)


def _summed(rates: Sequence[Sequence[float | None]]) -> list[float]:
    """Seconds per launch of all GPUs as one, slice by slice; slices in which one of them has no sample are left out."""
    found = []
    for slices in zip(*rates, strict=True):
        known = [one for one in slices if one]
        if len(known) == len(slices):
            found.append(1 / sum(known))
    return found
