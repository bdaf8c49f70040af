"""The samples that are used, their scatter, and what is wrong with a case.

Warm-up samples, discarded samples and superseded sessions are not used. Times scatter inside a block, between
the blocks of a session, and between sessions. The label of a case is its gravest finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from gpubench.base import group_by, units
from gpubench.base.messages import WarningCode
from gpubench.curves import stats
from gpubench.curves.stats import median, order_correlation, spread_share
from gpubench.result.case import FUNCTIONS, STREAMED, TF32, copies
from gpubench.result.machine import cpu_cache_bytes
from gpubench.result.run import (
    LINK_BYTES,
    UNKNOWN_CACHE_BYTES,
    Block,
    Device,
    DeviceClock,
    DeviceKind,
    Measurement,
    Parts,
    Peak,
    Run,
    RunWarning,
    StageTimes,
    WorkerRecord,
)

OfSession = TypeVar("OfSession", Block, Parts, StageTimes)  # what is measured in one session
UNFINISHED_STOPS = frozenset({"timeout", "budget"})  # deadlines, which may leave too few samples


def used_sessions(run: Run) -> frozenset[int] | None:
    """Return the indexes of the sessions that count. Returns None if the file lists no sessions, because all
    count then."""
    if not run.sessions:
        return None
    return frozenset(session.index for session in run.counting)


def count_sessions(run: Run) -> int:
    """Return the number of sessions of the plan that count, without repeats. If the file lists none, it is the
    planned number, or 0 without samples."""
    if run.sessions:
        return len(observations(run))
    # the file lists no sessions
    sampled = any(outcome.blocks for outcome in run.measurements)
    return run.settings.sessions if sampled else 0


def of_used_sessions(run: Run, records: Iterable[OfSession]) -> list[OfSession]:
    """Return the records of the sessions that count."""
    allowed = used_sessions(run)
    return [record for record in records if allowed is None or record.session in allowed]


def empty_launch_s(run: Run, device_id: str) -> float:
    """Return the seconds of an empty launch and its wait on a device, as the median of its workers' medians.
    Returns 0 if it was not measured."""
    medians = [median(worker.overhead_s) for worker in workers(run, device_id) if worker.overhead_s]
    return median(medians) if medians else 0.0


SamplePhase = Literal["main", "sweep"]
SessionBlocks = dict[int, list[Block]]  # by session


def main_blocks(run: Run, outcome: Measurement, phase: SamplePhase = "main") -> SessionBlocks:
    """Return the blocks of a case in one `phase`, by session, in the order in which they were measured.
    Sessions that do not count are left out."""
    blocks = of_used_sessions(run, (block for block in outcome.blocks if block.phase == phase))
    blocks.sort(key=lambda block: (block.session, block.round, block.position))
    return group_by(blocks, lambda block: block.session)


def wall_samples(blocks: list[Block], *, discarded: bool = False) -> list[float]:
    """Return the seconds per launch of the used samples of `blocks`. Warm-up samples, and times that are not
    positive and finite, are left out. So are discarded samples, unless `discarded` is True."""
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


BlockSamples = dict[int, list[list[float]]]  # session -> the used samples of each non-empty block


def kept_samples(run: Run, outcome: Measurement, blocks: SessionBlocks) -> tuple[BlockSamples, bool]:
    """Return the used samples of `blocks`, and whether throttling left too few of them in a session. A session
    that was cut short before it had the minimum number of samples is left out."""
    used: BlockSamples = {}
    throttled = False
    for session, members in blocks.items():
        values = [wall_samples([block]) for block in members]
        if sum(map(len, values)) < run.settings.min_samples and any(block.discarded for block in members):
            # all samples, so that throttling does not empty a table
            values, throttled = [wall_samples([block], discarded=True) for block in members], True
        values = [samples for samples in values if samples]
        if values and not _cut_short(run, outcome, session, sum(map(len, values))):
            used[session] = values
    return used, throttled


def block_values(used: BlockSamples) -> dict[int, tuple[float, ...]]:
    """Return, by session, the medians of the blocks, without interrupted blocks and sessions. They are the
    observations of an interval."""
    clean = stats.clean_sessions([[*map(median, blocks)] for blocks in used.values()])
    return {session: values for session, values in zip(used, clean, strict=True) if values}


def device_time(blocks: SessionBlocks, clock: str) -> float | None:
    """Return the seconds of a launch by the device's own clock: the median of the sessions' medians. `clock` is
    as in `device_samples`. Returns None if no session has samples by this clock."""
    sessions = device_samples(blocks, clock)
    return median([median(values) for values in sessions]) if sessions else None


def device_samples(blocks: SessionBlocks, clock: str) -> list[list[float]]:
    """Return the seconds per launch by the device's own clock, as one list for each session with samples.
    `clock` is "cold" (one launch after its caches were flushed) or "hot" (launches in a row)."""
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
    """Return the seconds of a whole sample of `repeat` launches: the smallest of the sessions' medians. Returns
    None without samples."""
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
    """Return the indexes of the sessions that count as independent observations, ascending. Of a session and
    its repeats only the least disturbed one counts. `sessions` are the sessions to choose from (None: all that
    count)."""
    allowed = used_sessions(run)
    records = {session.index: session for session in run.sessions}
    counting = allowed or () if sessions is None else sessions
    least: dict[int, tuple[float, int]] = {}
    for index in counting:
        record = records.get(index)
        # The choice depends on the load beside a session and not on its times, so it favours no result.
        planned, load = (index, 0.0) if record is None else (record.planned_index, record.disturbance)
        least[planned] = min(least.get(planned, (load, index)), (load, index))
    return sorted(index for _, index in least.values())


# ---------------------------------------------------------------- how far times scatter

Launches = Literal["short", "middle", "long"]
# A value further off than this many standard deviations counts as if it lay at this distance.
FAR_OFF = 4.0
MIDDLE_S, LONG_S = 5e-5, 1e-3
# The variance of the median divided by that of the mean, for 1 to 5 normal values. For more values the limit pi
# / 2 is used.
MEDIAN_COSTS = (1.0, 1.0, 1.35, 1.19, 1.43)
Nested = Sequence[Sequence[Sequence[float]]]  # ln(time) of the samples of one case, by session and block


class Components(msgspec.Struct, frozen=True, kw_only=True):
    """The scatter of one device's times at three levels (samples, blocks, sessions), for launches of similar
    length. Each value is a standard deviation as a share of the time, without the scatter that the level below
    explains. It is None if nothing was repeated at its level."""

    device_id: str  # the id of the device
    launches: Launches  # `short`: below 50 us, `middle`: below 1 ms, `long`: all others
    cases: int  # the number of cases
    within: float | None  # the scatter of samples in a block
    within_degrees: int  # the degrees of freedom of `within`
    blocks: float | None  # the scatter of blocks in a session
    blocks_degrees: int  # the degrees of freedom of `blocks`
    sessions: float | None  # the scatter of sessions
    sessions_degrees: int  # the degrees of freedom of `sessions`


def components(run: Run) -> tuple[Components, ...]:
    """Return the scatter for each device and length of launches, sorted by device, then from short to
    long launches."""
    values: dict[tuple[str, Launches], list[Nested]] = {}
    for outcome in run.measurements:
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
    """Return the scatter of `cases` at each level, less what the level below it explains."""
    blocks = [[[stats.median(used) for used in session] for session in case] for case in cases]
    values = [[math.fsum(session) / len(session) for session in case] for case in blocks]
    within, within_degrees = _pool(used for case in cases for session in case for used in session)
    between, blocks_degrees = _pool(session for case in blocks for session in case)
    apart, sessions_degrees = _pool(values)
    counts = [len(used) for case in cases for session in case for used in session]
    of_median = _variance_of_means(within or 0.0, [count / _median_cost(count) for count in counts])
    of_session = _variance_of_means(between or 0.0, [len(session) for case in blocks for session in case])
    return Components(
        device_id=device_id, launches=launches, cases=len(cases),
        within=_deviation(within, 0.0), within_degrees=within_degrees,
        blocks=_deviation(between, of_median), blocks_degrees=blocks_degrees,
        sessions=_deviation(apart, of_session), sessions_degrees=sessions_degrees,
    )  # fmt: skip


def _pool(groups: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """Return the pooled variance inside the groups, or None, and its degrees of freedom."""
    rows: list[float] = []
    degrees = 0
    for values in groups:
        if len(values) > 1:
            mean, longer = math.fsum(values) / len(values), math.sqrt(len(values) / (len(values) - 1))
            rows += [abs(value - mean) * longer for value in values]
            degrees += len(values) - 1
    if not rows:
        return None, 0
    # values further off count as FAR_OFF deviations
    most = FAR_OFF * stats.MAD_SIGMA * stats.median(rows) or math.inf
    return math.fsum(min(value, most) ** 2 for value in rows) / len(rows), degrees


def _median_cost(count: int) -> float:
    """Return the ratio of two variances for `count` normal values: that of their median to that of their
    mean."""
    return MEDIAN_COSTS[count - 1] if count <= len(MEDIAN_COSTS) else math.pi / 2


def _variance_of_means(variance: float, counts: Sequence[float]) -> float:
    """Return the average variance of means of `counts` values with the given `variance`."""
    return variance * math.fsum(1 / count for count in counts) / len(counts)


def _deviation(variance: float | None, explained: float) -> float | None:
    return None if variance is None else math.sqrt(max(0.0, variance - explained))


def seconds_of(run: Run) -> float | None:
    """Return the seconds that the commands of a run took, without the pauses between them. Returns None if the
    run did not finish, or if a time cannot be read."""
    span_s = seconds_between(run.started_at, run.finished_at)
    return None if span_s is None else max(0.0, span_s - (run.paused_s or 0.0))


def seconds_between(started_at: str, finished_at: str | None) -> float | None:
    """Return the seconds between two times of a file, or None if one is missing or is not a time."""
    started, finished = units.parse_time(started_at), units.parse_time(finished_at or "")
    return None if started is None or finished is None else (finished - started).total_seconds()


Label = Literal[
    "ok", "noisy", "unstable", "too-short", "contended", "throttled", "implausible", "software",
]  # fmt: skip
# A finding about a case: a label, or the code of a warning.
Mark = WarningCode | Literal["software"]


# Labels that keep a case out of headlines, because its time does not show what a GPU can do. Scatter is no such
# reason, because intervals show it.
NO_HEADLINE: frozenset[Label] = frozenset({"throttled", "implausible", "software"})


NOISY, UNSTABLE = 0.10, 0.25
TOO_SHORT_S = 1e-3
CLOCK_STEPS = 100
FAR_BELOW_EMPTY = 0.7
OTHER_USERS: WarningCode = "other-gpu-users"  # a warning of the run that names its devices
POWER_CAP = "sw_power_cap"  # the name that nvidia-smi uses
FIRST_SLOW_Z, FIRST_SLOW_SHARE = 10.0, 1.01
DRIFT, DRIFT_SAMPLES = 0.5, 20
GRAVITY: tuple[Label, ...] = (
    "implausible", "software", "throttled", "unstable", "contended", "too-short", "noisy",
)  # fmt: skip


def gravest(findings: Sequence[str]) -> Label:
    """Return the gravest of the findings as the label of a case, or `ok` if none of them is in GRAVITY."""
    return next((label for label in GRAVITY if label in findings), "ok")


def noise_findings(
    sessions: Mapping[int, Sequence[float]], blocks: Mapping[int, Sequence[float]]
) -> list[Mark]:
    """Return the marks `noisy`, `unstable`, `first-slow` and `drift` of a case, by its samples and its block
    medians, both by session."""
    marks: list[Mark] = []
    # A median over sessions: more sessions make the marks more certain, but not more likely. A session with one
    # block has its samples compared.
    noise = median([spread_share(blocks[i] if len(blocks[i]) > 1 else sessions[i]) for i in blocks])
    if noise > NOISY:
        marks.append("unstable" if noise > UNSTABLE else "noisy")
    if any(_first_slow(samples) for samples in sessions.values()):
        marks.append("first-slow")
    long_enough = [samples for samples in sessions.values() if len(samples) >= DRIFT_SAMPLES]
    if any(abs(order_correlation(samples)) > DRIFT for samples in long_enough):
        marks.append("drift")
    return marks


def _first_slow(samples: Sequence[float]) -> bool:
    """Tell whether the first sample is a slow outlier, by its modified z-score (Iglewicz and Hoaglin 1993)."""
    middle = median(samples)
    # On a quiet device even 0.1 % would be many deviations.
    slow = len(samples) > 2 and samples[0] > FIRST_SLOW_SHARE * middle
    return slow and 0.6745 * (samples[0] - middle) > FIRST_SLOW_Z * stats.mad(samples)


def condition_findings(
    run: Run, outcome: Measurement, sessions: Mapping[int, Sequence[float]], blocks: SessionBlocks
) -> list[Mark]:
    """Return the marks of the conditions under which a case was measured: `too-short`, `contended`, `power-cap`
    and `other-gpu-users`. `sessions` has the used sessions as its keys."""
    marks: list[Mark] = []
    shortest = sample_seconds(blocks)
    if shortest is not None and shortest < max(TOO_SHORT_S, CLOCK_STEPS * _host_step(run, outcome)):
        marks.append("too-short")
    if any(session.contended for session in run.sessions if session.index in sessions):
        marks.append("contended")
    if any(POWER_CAP in block.throttle for own in blocks.values() for block in own):
        marks.append("power-cap")
    if any(_concerns(warning, outcome.case.device_id) for warning in run.warnings):
        marks.append(OTHER_USERS)
    return marks


def implausible(
    run: Run, outcome: Measurement, kind: DeviceKind, wall_s: float, blocks: SessionBlocks
) -> str | None:
    """Return a text that tells, with both numbers, why `wall_s` seconds cannot be the time of a launch.
    Returns None if nothing contradicts it. `kind` is the kind of the device, and `blocks` are the blocks of
    the case."""
    sample_s, step_s = sample_seconds(blocks), _host_step(run, outcome)
    if sample_s is not None and sample_s < CLOCK_STEPS * step_s:
        return f"a sample takes {sample_s:.3g} s, less than {CLOCK_STEPS} steps of its clock ({step_s:.3g} s)"
    # A call cannot take less wall time than device time. Both are noisy and have few samples, so every device sample
    # has to lie well above every wall sample. A user's function has many kernels: its device time includes waits for
    # the host.
    clock = None if outcome.case.group == FUNCTIONS else device_clock(run, outcome)
    hot = [value for values in device_samples(blocks, "hot") for value in values] if clock else []
    longest_s = max((value for own in blocks.values() for value in wall_samples(own)), default=math.inf)
    if clock and hot and outcome.case.queued and min(hot) > OVER_MEASURED * longest_s + clock.step_s:
        return f"device time {min(hot):.3g} s exceeds wall time {longest_s:.3g} s"
    overheads = [value for worker in workers(run, outcome.case.device_id) for value in worker.overhead_s]
    singles = [value for part in outcome.parts for value in part.single_s]
    # An empty launch is as noisy as a real one, and is timed while the device still raises its clock: an H200 later
    # took 0.85 of the time. So only a time far below the smallest one is refused.
    if overheads and singles and median(singles) < FAR_BELOW_EMPTY * min(overheads):
        return f"one launch takes {median(singles):.3g} s, less than an empty one ({min(overheads):.3g} s)"
    times = (wall_s, device_time(blocks, "cold"), device_time(blocks, "hot") if clock else None)
    fastest = min(value for value in times if value is not None)
    return above_link(run, outcome, wall_s) or above_peak(run, outcome, kind, fastest)


def workers(run: Run, device_id: str) -> list[WorkerRecord]:
    """Return the records of the workers of one device, in the listed sessions that count."""
    return [worker for session in run.counting for worker in session.workers if worker.device_id == device_id]


def _concerns(warning: RunWarning, device_id: str) -> bool:
    """Tell whether the warning reports that other programs computed on this device."""
    named = str(warning.data.get("devices", "")).split(", ")
    # programs that only draw, or that cannot be seen, have another severity
    return warning.code == OTHER_USERS and warning.severity == "warning" and device_id in named


def _host_step(run: Run, outcome: Measurement) -> float:
    return max((worker.clock_step_s for worker in workers(run, outcome.case.device_id)), default=0.0)


def device_clock(run: Run, outcome: Measurement) -> DeviceClock | None:
    """Return the device's own clock, or None if it has none: then its times are derived from wall times."""
    return next((device.own_clock for device in run.devices if device.id == outcome.case.device_id), None)


OVER_THEORETICAL, OVER_MEASURED = 1.05, 1.10
# A CPU that is shared with unseen virtual machines reached up to 1.5 times as much a minute later (the host of
# an H200 with 16 cores: 1.24 and 1.80 TFLOP/s with one library). A kernel that leaves out work exceeds this
# factor.
OVER_MEASURED_CPU = 2.0
# Up to this many times the last-level cache, a rate may rightly exceed the memory peak.
CACHES = 4
Unit = Literal["FLOP/s", "B/s", "B/s over the link"]
# The bytes per second of one lane of PCIe, by generation, without the overhead of the coding.
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
Direction = Literal["upload", "download"]


def above_peak(run: Run, outcome: Measurement, kind: DeviceKind, seconds: float) -> str | None:
    """Return a text that names the measured or theoretical peak that the case would exceed if a launch took
    `seconds`. Returns None if it exceeds none, and for splits and single transfers. `kind` is the kind of
    its device."""
    case = outcome.case
    if case.shared_with is not None or case.op in COPIES:
        return None  # two devices together have no peak of their own; copies have the link's
    measured = list(_peaks(run, case.device_id, kind))
    vendors = [device.theoretical for device in _same_hardware(run, case.device_id)]
    why = None
    if case.variant != TF32:  # the float32 peaks do not limit TF32
        best = [peak.flops_per_s for peak in measured if peak.dtype in (None, case.dtype)]
        vendor = [device.flops_per_s.get(case.dtype) for device in vendors]
        why = _breach(outcome.flops / seconds, "FLOP/s", best, vendor, kind)
    # what the caches may hold is not judged
    if why is None and outcome.bytes > CACHES * last_level_cache(run, case.device_id, kind):
        best = [peak.bytes_per_s for peak in measured]
        vendor = [device.bytes_per_s for device in vendors]
        why = _breach(outcome.bytes / seconds, "B/s", best, vendor, kind)
    return why


def above_link(run: Run, outcome: Measurement, wall_s: float) -> str | None:
    """Return a text on the transfer that would be faster than the link, in a call of `wall_s` seconds. Returns
    None if there is none, for splits, and for transfers below LINK_BYTES."""
    if outcome.case.shared_with is not None:
        return None
    for direction, size, seconds in _copies(outcome, wall_s):
        if size >= LINK_BYTES and seconds > 0:
            measured, vendor = link_peak(run, outcome.case.device_id, direction)
            if why := _breach(size / seconds, "B/s over the link", [measured], [vendor], "gpu"):
                return why
    return None


def stage_medians(run: Run, outcome: Measurement) -> dict[str, float]:
    """Return the seconds of each side or stage that was timed beside a case, by name: the median of the
    sessions' medians."""
    stages: dict[str, list[float]] = {}
    for parts in of_used_sessions(run, outcome.parts):
        for name, seconds in parts.stage_s.items():
            if seconds:
                stages.setdefault(name, []).append(median(seconds))
    return {name: median(medians) for name, medians in stages.items()}


COPIES: Mapping[str, Direction] = {"upload": "upload", "download": "download"}  # ops that are one transfer


def _copies(outcome: Measurement, wall_s: float) -> Iterator[tuple[Direction | None, int, float]]:
    """Yield the direction (None: both in turn), the bytes and the longest possible seconds of each transfer."""
    case = outcome.case
    if case.op in COPIES:
        yield COPIES[case.op], outcome.bytes, wall_s
    elif case.regime == STREAMED:
        for way, moved in zip(COPIES.values(), outcome.moved, strict=True):
            yield way, moved or 0, wall_s
    elif copies(case.regime):
        up, down = outcome.moved
        total = outcome.bytes if up is None or down is None else up + down
        yield None, total, wall_s * (case.calls or 1)
        uploads = [value for part in outcome.parts for value in part.upload_s]
        downloads = [value for part in outcome.parts for value in part.download_s]
        if uploads and downloads:
            if up is None or down is None:
                yield None, total, median(uploads) + median(downloads)
            else:
                yield "upload", up, median(uploads)
                yield "download", down, median(downloads)


def link_peak(run: Run, device_id: str, direction: Direction | None) -> tuple[float | None, float | None]:
    """Return the measured and the theoretical rate of the link to a device, in bytes/s. The smaller one is
    replaced by None. `direction` None means the faster direction. The theoretical rate is the rate of PCIe with
    the link's generation and width."""
    peaks = list(_peaks(run, device_id, "gpu"))
    sent = [c.upload_bytes_per_s or 0.0 for c in peaks if direction != "download"]
    fetched = [c.download_bytes_per_s or 0.0 for c in peaks if direction != "upload"]
    measured = max([*sent, *fetched], default=0.0)
    gpu_id = next((device.gpu_id for device in run.devices if device.id == device_id), None)
    link = next((gpu.link for gpu in run.machine.gpus if gpu_id and gpu.id == gpu_id), None)
    lane = LANE_BYTES_PER_S.get(link.gen_max.value or 0) if link else None
    theoretical = lane * link.width_max.value if link and lane and link.width_max.value else 0.0
    # virtual machines on the same host may slow the measured copies
    return (measured, None) if measured > theoretical else (None, theoretical or None)


def last_level_cache(run: Run, device_id: str, kind: DeviceKind) -> int:
    """Return the bytes of the device's last-level cache, or UNKNOWN_CACHE_BYTES if it is not known."""
    if kind == "cpu":
        return cpu_cache_bytes(run.machine) or UNKNOWN_CACHE_BYTES
    seen = (device.cache_bytes or 0 for device in _same_hardware(run, device_id))
    return max(seen, default=0) or UNKNOWN_CACHE_BYTES


def _same_hardware(run: Run, device_id: str) -> list[Device]:
    """Return all devices of the run that are the same hardware: one for each backend that drives it."""
    answer = next((device for device in run.devices if device.id == device_id), None)
    if answer is None:
        return []
    return [
        other
        for other in run.devices
        if other.id == device_id
        or (answer.gpu_id and other.gpu_id == answer.gpu_id)
        or answer.kind == other.kind == "cpu"
        # WebGPU cannot tell two equal GPUs apart
        or (not answer.gpu_id and answer.kind == other.kind == "gpu" and other.name == answer.name)
    ]


def _peaks(run: Run, device_id: str, kind: DeviceKind) -> Iterable[Peak]:
    """Yield the measured peaks that hold for a device, from the sessions that count."""
    names = {device_id, *(device.id for device in _same_hardware(run, device_id))}
    for session in run.counting:
        # without the other load the CPU may be faster
        if not (kind == "cpu" and session.contended):
            # a peak that is `own` holds for its backend only
            yield from (
                c for c in session.peaks if c.device_id == device_id or (c.device_id in names and not c.own)
            )


def _breach(
    rate: float, unit: Unit, measured: Sequence[float | None], vendor: Sequence[float | None], kind: DeviceKind
) -> str | None:
    """Return a text if the rate exceeds the best measured peak, or the vendor's peak, by more than the
    tolerance of this peak. Returns None otherwise."""
    limits = (
        ("measured", OVER_MEASURED_CPU if kind == "cpu" else OVER_MEASURED, measured),
        ("vendor's", OVER_THEORETICAL, vendor),
    )
    for whose, most, peaks in limits:
        best = max(filter(None, peaks), default=None)
        if best is not None and rate > most * best:
            return f"{rate:.3g} {unit} is above {most:.2f} x the {whose} peak of {best:.3g}"
    return None
