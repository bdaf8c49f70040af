"""Scaling: what several GPUs gain over one, and from which size on.

Strong scaling compares the time of an op divided among a device group with that of the best single GPU at the
same size. The speedup S is the time of the single GPU divided by the time of the device group, and the
efficiency is S / ranks.

Weak scaling compares the rate of identical GPUs that work at the same time with the rate of each GPU alone.
Rates are launches per second, from the samples that lie entirely inside the window in which all GPUs worked.
The part `early` is the beginning of the window and `late` is its end. A loss from alone to early is caused by
links and host memory, which the GPUs share. A loss from early to late is caused by heat and power.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import ClassVar, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from gpubench.analysis import thresholds
from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.analysis.estimate import CaseResult, declaration
from gpubench.analysis.samples import empty_launch_s, stage_medians, used_sessions
from gpubench.analysis.speedup import case_series, pair_ratio
from gpubench.analysis.thresholds import size_unit_of
from gpubench.base import group_by
from gpubench.base.plugins.sections import Rows, section
from gpubench.base.streams import printable
from gpubench.base.table import Cell, Column, Table, cells, heads, number
from gpubench.base.units import format_size, format_watts
from gpubench.curves import compare, fit
from gpubench.curves.stats import Interval, median, ratio_interval
from gpubench.report.layout import RenderOptions, Section
from gpubench.report.wording import (
    ALWAYS,
    data_text,
    device_text,
    interval_text,
    legend,
    mark,
    ratio_text,
    seconds_text,
    series_name,
    time_text,
    where_legend,
    with_params,
    with_text,
)
from gpubench.result.case import DEVICE_GROUP, RESIDENT, WAITED, Case, beside_size, group_ranks, parse_case_id
from gpubench.result.run import Measurement, Run, Telemetry, TogetherTimes

# If a device group takes less than this many times what its launches cost the host, the host limits it.
HOST_LIMITED = 2.0
From = Literal["at", "all-sizes", "no-size"]


class Strong(msgspec.Struct, frozen=True, kw_only=True):
    """One op shared out among a device group, compared with the best single GPU."""

    aside: ClassVar = ("row", "single", "singles", "interval")
    id: str  # id of the case
    op: str  # name of the op
    n: int  # size n of the op
    params: dict[str, int]  # params other than the size
    dtype: str  # dtype of the elements
    regime: str  # id of the regime
    device_id: str  # id of the device group
    ranks: int  # number of GPUs in the group
    baseline_id: str  # id of the case of the best single GPU
    speedup: float  # time of the best single GPU / time of the group
    lo: float  # lower end of the 95 % interval of speedup
    hi: float  # upper end of the 95 % interval of speedup
    efficiency: float  # speedup / ranks
    efficiency_lo: float  # lower end of the 95 % interval of efficiency
    efficiency_hi: float  # upper end of the 95 % interval of efficiency
    # time of one GPU with one rank's part of the batch / time of the group; null if the op is no training, or if
    # that time was not measured
    weak: float | None
    weak_lo: float | None  # lower end of the 95 % interval of weak; null without weak
    weak_hi: float | None  # upper end of the 95 % interval of weak; null without weak
    # the fastest rank's time / the slowest rank's, each alone with its share; null: not timed
    balance: float | None
    host_limited: bool  # whether the host's launches take most of the time
    row: CaseResult  # case of the device group
    single: CaseResult  # case of the best single GPU
    singles: tuple[CaseResult, ...]  # cases of all single GPUs of the same kind, fastest first
    interval: Interval  # speedup with its interval


class GroupFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The size from which a device group beats one GPU."""

    aside: ClassVar = ("case",)
    op: str  # name of the op
    params: dict[str, int]  # params other than the size
    dtype: str  # dtype of the elements
    regime: str  # id of the regime
    device_id: str  # id of the device group
    ranks: int  # number of GPUs in the group
    # `at`: from n on; `all-sizes`: at every measured size; `no-size`: not surely faster at the largest size
    verdict: From
    n: float | None  # size from which the group is faster; null if there is none
    lo: int | None  # lower end of the 95 % interval of n; null: it is open, or the verdict is not `at`
    hi: int | None  # upper end of the 95 % interval of n; null unless the verdict is `at`
    first: int  # smallest measured size
    last: int  # largest measured size
    case: Case  # case of the device group at the smallest size


class GroupGains(msgspec.Struct, frozen=True, kw_only=True):
    """The gains of several GPUs over one."""

    weak: tuple[Weak, ...] = ()  # rates of GPUs that work at once, compared with each GPU alone
    strong: tuple[Strong, ...] = ()  # ops shared out among a device group
    pays_from: tuple[GroupFrom, ...] = ()  # size from which a group is faster, one for each curve of times


@derive_once
def scaling(analysis: Analysis) -> GroupGains:
    """Return what several GPUs gain: weak scaling, and the gains of the device groups that the report shows over
    single GPUs, ordered by op and size."""
    run = analysis.run
    single = group_by(
        (
            result
            for result in analysis.everything
            if result.case.backend != DEVICE_GROUP and result.case.variant is None and result.time is not None
        ),
        lambda result: result.case.workload,
    )
    device_groups = [
        result for result in analysis.cases if result.case.backend == DEVICE_GROUP and result.time is not None
    ]
    gains = [
        gain
        for result in device_groups
        if (gain := _strong(run, analysis.outcomes[result.id], result, single)) is not None
    ]
    gains.sort(key=lambda gain: (*_curve(gain), gain.n))
    curves = tuple(_pays_from(list(same)) for _, same in groupby(gains, key=_curve))
    return GroupGains(weak=weak(run), strong=tuple(gains), pays_from=curves)


def _strong(
    run: Run, outcome: Measurement, result: CaseResult, singles: Mapping[str, Sequence[CaseResult]]
) -> Strong | None:
    """Return the gain of a device group's case over the best single GPU, or None if it is unknown."""
    inner, case = result.case.device_id.split(":")[1], result.case
    ranks = len(group_ranks(case.device_id))
    # Ranks in host memory are compared with the CPU.
    side, regime = (
        ("cpu", RESIDENT) if result.device_kind == "software" else (result.device_kind, case.regime_id)
    )

    def singles_at(n: int) -> list[CaseResult]:
        workload = replace(case, params={**case.params, "n": n}).workload
        fitting = [
            single
            for single in singles.get(workload, ())
            if (single.case.backend, single.device_kind, single.case.regime_id) == (inner, side, regime)
        ]
        return sorted(fitting, key=lambda single: (_seconds(single), single.id))

    alike = singles_at(case.params["n"])
    best = next(iter(alike), None)
    gain = None if best is None else pair_ratio(best, result)
    op = declaration(case.op)
    parts = singles_at(case.params["n"] // ranks) if op is not None and op.averaged else []
    weak = pair_ratio(parts[0], result) if parts else None
    if best is None or gain is None:
        return None
    launches_s = ranks * empty_launch_s(run, best.case.device_id)
    return Strong(
        id=result.id, op=case.op, n=case.params["n"], params=dict(beside_size(case.params)), dtype=case.dtype,
        regime=case.regime_id, device_id=case.device_id, ranks=ranks, baseline_id=best.id,
        speedup=gain.estimate, lo=gain.low, hi=gain.high, efficiency=gain.estimate / ranks,
        efficiency_lo=gain.low / ranks, efficiency_hi=gain.high / ranks, weak=weak and weak.estimate,
        weak_lo=weak and weak.low, weak_hi=weak and weak.high, balance=_balance(run, outcome),
        host_limited=_seconds(result) < HOST_LIMITED * launches_s, row=result, single=best, singles=tuple(alike),
        interval=gain,
    )  # fmt: skip


def _seconds(case: CaseResult) -> float:
    return case.time.estimate if case.time is not None else math.inf


def _balance(run: Run, outcome: Measurement) -> float | None:
    """Return the fastest rank's seconds divided by the slowest's, or None if ranks were not timed alone."""
    times = list(stage_medians(run, outcome).values())
    return min(times) / max(times) if len(times) > 1 and max(times) > 0 else None


def _curve(gain: Strong) -> tuple[object, ...]:
    case = gain.row.case
    return (gain.op, gain.dtype, beside_size(case.params), gain.regime, gain.ranks, gain.device_id)


def _pays_from(rows: Sequence[Strong]) -> GroupFrom:
    """Return from which size, if any, the device group is faster than the best single GPU."""
    first, last = rows[0], rows[-1]
    pays = GroupFrom(
        op=first.op, params=first.params, dtype=first.dtype, regime=first.regime, device_id=first.device_id,
        ranks=first.ranks, verdict="all-sizes", n=first.n, lo=None, hi=None, first=first.n, last=last.n,
        case=first.row.case,
    )  # fmt: skip
    # Only GPUs that are the best at some size count. The minimum over many equal curves would be too low.
    sides = {key for gain in rows for key in (gain.device_id, gain.single.case.device_id)}
    cases = {
        case.id: case for gain in rows for case in (gain.row, *gain.singles) if case.case.device_id in sides
    }
    curves = fit(case_series(cases.values()))
    device_group = [curve for key, curve in curves.items() if key[1] == first.device_id]
    threshold = compare(device_group, [curve for key, curve in curves.items() if key[1] != first.device_id])
    assert threshold is not None, "both sides of a speedup have its size"
    if threshold.state == "always":
        return pays
    if threshold.high == math.inf:
        return replace(pays, verdict="no-size", n=None)
    low = max(math.floor(threshold.low), first.n) if threshold.low > 0 else None
    return replace(pays, verdict="at", n=max(threshold.n, first.n), lo=low, hi=math.ceil(threshold.high))


PART_S = 3.0  # the seconds at each end of the window that are compared
SLICES = 6  # the number of slices of a part, whose scatter gives the interval


Part = Literal["alone", "early", "late"]
PARTS: tuple[Part, ...] = ("alone", "early", "late")


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one GPU during a part of the work. Quantities that the driver does not tell are null."""

    device_id: str  # id of the device
    part: Part  # part: alone, early or late
    clock_hz: float | None  # median clock rate, in hertz
    power_w: float | None  # median power, in watts
    temperature_c: float | None  # median temperature, in degrees Celsius
    throttle: tuple[str, ...]  # all reasons for a lowered clock that were read
    pcie_generation: int | None  # median generation of the PCIe link
    pcie_width: int | None  # median number of PCIe lanes


class Weak(msgspec.Struct, frozen=True, kw_only=True):
    """One case on a number of GPUs at once, compared with each alone."""

    aside: ClassVar = ("case", "early_interval", "late_interval")
    id: str  # id of the case together with its GPUs
    op: str  # name of the op
    n: int  # size n of the op
    params: dict[str, int]  # params other than the size
    dtype: str  # dtype of the elements
    implementation: str  # id of the implementation
    regime: str  # id of the regime
    gpus: int  # number of GPUs
    device_ids: tuple[str, ...]  # ids of the GPUs
    alone_s: float  # median seconds per launch of one GPU alone
    early: float  # sum of the rates at once / sum of the rates alone, in the early part
    early_lo: float  # lower end of the 95 % interval of early
    early_hi: float  # upper end of the 95 % interval of early
    late: float  # like `early`, in the late part
    late_lo: float  # lower end of the 95 % interval of late
    late_hi: float  # upper end of the 95 % interval of late
    least_id: str  # id of the GPU with the lowest rate in the late part, as a share of its rate alone
    least_share: float  # rate of that GPU in the late part / its rate alone
    failed: tuple[str, ...] = ()  # ids of the GPUs that have no times
    conditions: tuple[Conditions, ...] = ()  # state of each GPU in each part, if it was read
    case: Case  # case on one of the GPUs
    early_interval: Interval  # ratio of the early part with its interval
    late_interval: Interval  # ratio of the late part with its interval


class Window(NamedTuple):
    """A window of time, in seconds since the moment at which the GPUs were to begin."""

    begin: float  # begin of the window
    end: float  # end of the window

    def slices(self) -> list[Window]:
        """Return the window cut into `SLICES` equal parts."""
        step = (self.end - self.begin) / SLICES
        return [Window(self.begin + i * step, self.begin + (i + 1) * step) for i in range(SLICES)]


Sessions = dict[int, dict[str, TogetherTimes]]  # the times of one GPU in one session, by session and device id
Span = tuple[TogetherTimes, Window]
Spans = dict[str, dict[Part, Span]]  # the parts of one session, by device id
Readings = Mapping[tuple[int, str], Telemetry]  # telemetry by session and device id


def weak(run: Run) -> tuple[Weak, ...]:
    """Return a `Weak` for each case and number of GPUs that ran at once, in the order of the file. A case is left
    out if no session has times of all its GPUs."""
    allowed = used_sessions(run)
    readings = {(session.index, read.device_id): read for session in run.sessions for read in session.telemetry}
    alone: dict[str, Sessions] = {}
    at_once: dict[tuple[str, int], Sessions] = {}
    failed: dict[str, list[str]] = {}
    for times in run.together or ():
        if allowed is not None and times.session not in allowed:
            continue
        case = times.case_id.rpartition("@")[0]
        if times.reason is not None:
            failed.setdefault(case, []).append(times.device_id)
        else:
            is_alone = times.phase == "alone"
            sessions = alone.setdefault(case, {}) if is_alone else at_once.setdefault((case, times.gpus), {})
            sessions.setdefault(times.session, {})[times.device_id] = times
    rows = [
        _weak_row(case, gpus, _spans(gpus, alone.get(case, {}), sessions), failed.get(case, ()), readings)
        for (case, gpus), sessions in at_once.items()
    ]
    return tuple(gain for gain in rows if gain is not None)


def _spans(gpus: int, alone: Sessions, at_once: Sessions) -> list[Spans]:
    """Return, for each session with times of all GPUs, the parts of each GPU's work by device id."""
    sessions = []
    for session, together in at_once.items():
        single = alone.get(session, {})
        window = common(list(together.values()))
        if len(together) < gpus or window is None or not together.keys() <= single.keys():
            continue
        length = min(PART_S, (window.end - window.begin) / 2)
        early, late = Window(window.begin, window.begin + length), Window(window.end - length, window.end)
        spans: Spans = {
            id: {"alone": (single[id], _own(single[id])), "early": (times, early), "late": (times, late)}
            for id, times in together.items()
        }
        if all(_add_up(spans, part) for part in PARTS):
            sessions.append(spans)
    return sessions


def _weak_row(
    case_id: str, gpus: int, sessions: Sequence[Spans], failed: Sequence[str],
    readings: Readings,
) -> Weak | None:  # fmt: skip
    """Return the `Weak` of one case on `gpus` GPUs, or None if a GPU has no rate."""
    late_shares: dict[str, list[float]] = {}
    own_s: list[float] = []
    seen: dict[tuple[str, Part], list[Span]] = {}
    for spans in sessions:
        for id, by_part in spans.items():
            before, after = rate(*by_part["alone"]), rate(*by_part["late"])
            if before and after:
                late_shares.setdefault(id, []).append(after / before)
                own_s.append(1 / before)
            for part, span in by_part.items():
                seen.setdefault((id, part), []).append(span)
    if not sessions or len(late_shares) < gpus:
        return None
    shares = {id: median(values) for id, values in late_shares.items()}
    least = min(shares, key=lambda id: (shares[id], id))
    case = parse_case_id(f"{case_id}@{next(iter(shares))}")
    # Both times come from the same workers, seconds apart. The scatter between sessions is too wide here.
    early, late = (
        ratio_interval([(_add_up(spans, "alone"), _add_up(spans, part)) for spans in sessions], None)
        for part in PARTS[1:]
    )
    conditions = (_conditions(id, part, spans, readings) for (id, part), spans in seen.items())
    return Weak(
        id=f"{case_id}@{'+'.join(shares)}", op=case.op, n=case.params["n"],
        params=dict(beside_size(case.params)), dtype=case.dtype, implementation=case.implementation_id,
        regime=case.regime_id, gpus=gpus,
        device_ids=tuple(shares), alone_s=median(own_s), early=early.estimate, early_lo=early.low,
        early_hi=early.high, late=late.estimate, late_lo=late.low, late_hi=late.high, least_id=least,
        least_share=shares[least], failed=tuple(dict.fromkeys(failed)), case=case, early_interval=early,
        late_interval=late, conditions=tuple(read for read in conditions if read is not None),
    )  # fmt: skip


def _conditions(device_id: str, part: Part, spans: Sequence[Span], readings: Readings) -> Conditions | None:
    """Return the state of one GPU (clock, power and the like) during these spans, or None if nothing was read
    in them."""
    moments: list[tuple[Telemetry, int]] = []
    for times, window in spans:
        read = readings.get((times.session, device_id))
        if read is not None and times.at_s is not None:
            begin, end = times.at_s + window.begin, times.at_s + window.end
            moments += [(read, place) for place, t in enumerate(read.t_s) if begin <= t <= end]
    if not moments:
        return None
    medians: dict[str, float | None] = {}
    for name in ("clock_hz", "power_w", "temperature_c", "pcie_generation", "pcie_width"):
        columns = [(getattr(read, name), place) for read, place in moments]
        values = [column[place] for column, place in columns if column[place:] and column[place] is not None]
        middle = median(values) if values else None
        medians[name] = int(middle) if middle is not None and name.startswith("pcie") else middle
    reasons = {word for read, place in moments for words in read.throttle[place:][:1] for word in words}
    return Conditions(device_id=device_id, part=part, throttle=tuple(sorted(reasons)), **medians)  # type: ignore[arg-type]


def common(all_times: Sequence[TogetherTimes]) -> Window | None:
    """Return the window in which all GPUs worked, from the last begin to the first end. Returns None if they
    never worked at the same time."""
    windows = [_own(times) for times in all_times]
    begin, end = max(window.begin for window in windows), min(window.end for window in windows)
    return Window(begin, end) if begin < end else None


def rate(times: TogetherTimes, window: Window) -> float | None:
    """Return the launches per second in the samples that lie entirely inside the window, or None if there are
    none."""
    inside = [
        end - start
        for start, end in itertools.pairwise([times.begin_s, *times.ends_s])
        if window.begin <= start and end <= window.end
    ]
    return times.repeat * len(inside) / sum(inside) if inside and sum(inside) > 0 else None


def _own(times: TogetherTimes) -> Window:
    return Window(times.begin_s, times.ends_s[-1] if times.ends_s else times.begin_s)


def _add_up(spans: Mapping[str, Mapping[Part, Span]], part: Part) -> list[float]:
    """Return the seconds per launch of all GPUs together, in each slice where every GPU has a sample."""
    rates = []
    for by_part in spans.values():
        times, window = by_part[part]
        rates.append([rate(times, slice) for slice in window.slices()])
    return [1 / sum(filter(None, slices)) for slices in zip(*rates, strict=True) if all(slices)]


TITLE = "Scaling"
_WEAK = (
    "At once: the sum of what all GPUs do at the same time / of what each does alone, in the first and in the last "
    "3 s. The first tells what they share (links, host memory), the last also heat and power. keeps least: the GPU "
    "that keeps the least share of its own rate; its state: clock early and late, power, link, reasons for a lowered "
    "clock."
)
_STRONG = (
    "speedup = time of the best single GPU / time of the device group, on the same data; efficiency = speedup / GPUs. "
    "weak, of a training: time of the best single GPU with one GPU's part of the batch / time of the device group. "
    "balance: the fastest rank's time for its share / the slowest's. host-limited: launching takes most of the time."
)


@section("scaling", order=130, help="What several GPUs gain over one", usual="end")
def scaling_section(analysis: Analysis, options: RenderOptions) -> Section:
    unit, gains = options.time_unit, scaling(analysis)
    strong, weak = gains.strong, gains.weak
    device_groups = dict.fromkeys(gain.device_id for gain in strong)
    tables = tuple(
        _strong_table(analysis, [gain for gain in strong if gain.device_id == device_group], unit)
        for device_group in device_groups
    )
    shown = [gain for gain in gains.pays_from if gain.regime in (WAITED, ALWAYS)]
    lines = (_STRONG, *map(pays_text, shown or gains.pays_from)) if strong else ()
    if weak:
        lines, tables = (_WEAK, *lines), (_weak(weak, unit), *tables)
    return Section(title=TITLE, lines=lines, tables=tables, folded=True)


def _weak(rows: Sequence[Weak], unit: str) -> Table:
    columns = heads(
        "op", number("n"), "implementation", number("GPUs"), number("alone"),
        number("first 3 s"), number("last 3 s"), "keeps least",
        Column("its state", rank=1),
    )  # fmt: skip
    missing = {id: None for gain in rows for id in gain.failed}
    return Table(
        columns, tuple(_weak_cells(gain, unit) for gain in rows), title="All GPUs at once",
        note=f"Without {', '.join(missing)}, which failed." if missing else "",
    )  # fmt: skip


def _weak_cells(gain: Weak, unit: str) -> tuple[Cell, ...]:
    return cells(
        series_name(gain.case), format_size(gain.n), gain.implementation, str(gain.gpus),
        seconds_text(gain.alone_s, unit), ratio_text(gain.early_interval), ratio_text(gain.late_interval),
        f"{gain.least_id} {gain.least_share:.3f}", _state_text(gain),
    )  # fmt: skip


def _state_text(gain: Weak) -> str:
    """Return the state of the GPU that keeps the least, such as `1.98 -> 1.76 GHz, 690 W`. The text is empty if
    nothing was read."""
    early, late = (
        next(
            (state for state in gain.conditions if (state.device_id, state.part) == (gain.least_id, part)), None
        )
        for part in ("early", "late")
    )
    if late is None:
        return ""
    clocks = [f"{state.clock_hz / 1e9:.2f}" for state in (early, late) if state is not None and state.clock_hz]
    parts = [
        f"{' -> '.join(dict.fromkeys(clocks))} GHz" if clocks else "",
        format_watts(late.power_w) if late.power_w else "",
        f"PCIe {late.pcie_generation} x{late.pcie_width}" if late.pcie_generation else "",
        *late.throttle,
    ]
    return printable(", ".join(part for part in parts if part))


def from_text(gain: GroupFrom) -> str:
    """Return the size from which the group is faster, such as `700²`, or `at most 1024²` if the low end of its
    interval is open. The verdict must not be `no-size`."""
    size_unit = size_unit_of(gain.case)
    if gain.verdict == "at" and gain.lo is None:
        return f"at most {thresholds.size_text(gain.hi or 0, size_unit)}"
    return thresholds.size_text(round(gain.n or 0), size_unit)


def pays_text(gain: GroupFrom) -> str:
    """Return a text such as `matmul float32 with data on the GPU: 2 GPUs beat one from 700² (512-1024²), measured up to
    4096² (group:cupy:0+1)`."""
    what, size_unit = with_params(f"{gain.op} {gain.dtype}", gain.params), size_unit_of(gain.case)
    last = thresholds.size_text(gain.last, size_unit)
    between = f" ({thresholds.range_text(gain.lo, gain.hi or 0, size_unit)})" if gain.lo is not None else ""
    how = {
        "at": f"beat one from {from_text(gain)}{between}, measured up to {last}",
        "all-sizes": f"beat one at every size measured, from {thresholds.size_text(gain.first, size_unit)} to {last}",
        "no-size": f"do not beat one at the largest size measured, {last}",
    }[gain.verdict]
    return printable(f"{what} {with_text(gain.regime)}: {gain.ranks} GPUs {how} ({gain.device_id})")


def _strong_table(analysis: Analysis, rows: Sequence[Strong], unit: str) -> Table:
    columns = heads(
        "op", number("n"), "data", number("one GPU"),
        number("group"), number("speedup"), number("efficiency", 1),
        number("weak", 2), number("balance", 2), Column("note", rank=2),
    )  # fmt: skip
    shown = [gain.row.case for gain in rows]
    return Table(
        columns, tuple(_cells(gain, unit) for gain in rows), title=device_text(analysis, rows[0].device_id),
        note=where_legend(shown), legend=legend({gain.row.label for gain in rows}),
    )  # fmt: skip


def _cells(gain: Strong, unit: str) -> tuple[Cell, ...]:
    share = Interval(gain.efficiency_lo, gain.efficiency, gain.efficiency_hi, gain.interval.kind)
    return cells(
        series_name(gain.row.case), format_size(gain.row.n), data_text(gain.row.case),
        time_text(gain.single.time, unit),
        time_text(gain.row.time, unit) + mark(gain.row.label), ratio_text(gain.interval),
        f"{gain.efficiency:.2f} {interval_text(share)}",
        "" if gain.weak is None else f"{gain.weak:.2f}",
        "" if gain.balance is None else f"{gain.balance:.2f}", "host-limited" if gain.host_limited else "",
    )  # fmt: skip


ROWS = (
    Rows("scaling.weak", Weak, lambda analysis: scaling(analysis).weak, order=80),
    # In the CSV the speedup of a device group is over the best single GPU.
    Rows(
        "scaling.strong",
        Strong,
        lambda analysis: scaling(analysis).strong,
        order=90,
        csv={"speedup_lo": "lo", "speedup_hi": "hi"}
        | {
            name: name
            for name in ("speedup", "baseline_id", "efficiency", "efficiency_lo", "efficiency_hi", "balance")
        },
    ),
    Rows("scaling.pays_from", GroupFrom, lambda analysis: scaling(analysis).pays_from, order=100),
)
