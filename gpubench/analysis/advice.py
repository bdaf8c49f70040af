"""The `gpubench-advise` document, version 2: where one call should run, by the expected times of all measured
devices.

Times are in seconds, and ratios are plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from gpubench.analysis.contenders import (
    NO_ROOM,
    Basis,
    Contender,
    ContenderSet,
    Decision,
    Expected,
    Key,
    calls_of,
    case_groups,
    contender_set,
    first_to_know,
    has_time,
    is_unsure,
    split_of,
)
from gpubench.analysis.estimate import CaseResult, Estimate
from gpubench.analysis.hybrid import SharedCall
from gpubench.analysis.machine import machine_line
from gpubench.analysis.samples import Label
from gpubench.analysis.speedup import cpu_codes, cpu_threads, pair_ratio
from gpubench.base.errors import InputError
from gpubench.base.streams import shorten
from gpubench.base.units import format_number
from gpubench.curves import HIGHEST_COST, doubt, fastest
from gpubench.curves.stats import Interval, quotient
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.run import DeviceKind, Run

# The highest probability that another choice is more than 5 % faster, for the confidence `clear`.
CLEAR = 0.05
AdviceConfidence = Literal["clear", "close", "noisy", "alone", "none"]


class AdviceGain(msgspec.Struct, frozen=True, kw_only=True):
    """The gain of the advised device over another device."""

    device_id: str  # the other device
    ratio: float  # the other device's time / the advised device's time
    lo: float  # the low end of the interval
    hi: float  # the high end of the interval


class AdviceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the CPU and the GPU compute together."""

    device_id: str  # the id of the pair, such as `hybrid:cupy:0`
    gpu_share: float | None  # the GPU's share of the work, from 0 to 1; None for a workload
    assignment: str | None  # for a workload: the side of each stage, as letters c and g; None for a split op
    on_gpu: tuple[str, ...]  # for a workload: the stages that the GPU runs, all or some of their repeats
    ratio: float  # the time of the faster side alone divided by the time of both together
    lo: float  # the low end of the interval
    hi: float  # the high end of the interval
    case_id: str  # the id of the measured case


class AdviceCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A device that could run the call, with the expected time of the call there."""

    device_id: str  # the id of the device
    name: str  # the name that its driver reports
    kind: str  # the kind of device: cpu, gpu, ...
    implementation: str | None  # its fastest implementation at this size; None: no time
    time: Estimate | None  # the expected time of one call; None: unknown
    basis: Basis  # `measured`, `interpolated`, or `unknown` without a time
    # the measured sizes below and above this size; both are this size if it was measured; None: no time
    between: tuple[int, int] | None
    labels: tuple[Label, ...]  # the labels of the cases behind the time
    case_ids: tuple[str, ...]  # the ids of the cases behind the time
    reason: str | None  # the reason why there is no time; None if there is one
    libraries: tuple[str, ...] = ()  # CPU only: the libraries that the implementation calls, numba or a BLAS
    weaker: bool = False  # CPU only: whether numba, which might be faster, was missing or did not work
    threads: int | None = None  # CPU only: the number of threads; None: unknown


class AdviceSource(msgspec.Struct, frozen=True, kw_only=True):
    """The result file on which the advice rests."""

    run_id: str  # the id of its run
    label: str | None  # the label that the user gave the run; None: it has none
    started_at: str  # the time of its start, in UTC
    complete: bool  # whether the run came to its end
    machine: str  # the machine in one line
    tool: dict[str, str]  # the versions of gpubench, Python and libraries


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the question where a call should run, with its evidence."""

    name: Literal["gpubench-advise"] = "gpubench-advise"  # the name of the document's format
    schema_version: int = 2  # the version of the document's format
    op: str  # the name of the op
    n: int  # the size n of the op
    params: dict[str, int]  # the params other than the size
    dtype: str  # the dtype of the elements
    data: Literal["host", "device"]  # where the data is before and after the call
    calls: int  # the number of calls that share one copy; 1 in regimes without shared copies
    regime: str  # the id of the regime
    basis: Basis  # `measured`, `interpolated`, or `unknown` without an answer
    device_id: str | None  # the advised device; None: unknown
    backend: str | None  # the backend of the device, `hybrid` if both sides share the call; None: unknown
    implementation: str | None  # the fastest implementation on the device; None: unknown
    time: Estimate | None  # the expected time of one call; None: unknown
    gain: AdviceGain | None  # the gain over the best device of the other side; None: that side has no time
    # clear: another choice is hardly ever faster; close: another one may be faster, but only by a little;
    # noisy: another one may be much faster; alone: the other side has no time; none: the answer is unknown
    confidence: AdviceConfidence
    reason: str | None  # the reason why no device is advised; None if one is advised
    command: str | None  # the command that measures the call; None if a device is advised
    split: AdviceSplit | None  # the advised split or stage assignment; None if a single device is advised
    candidates: tuple[AdviceCandidate, ...]  # all devices, the advised one first
    source: AdviceSource  # the result file on which the advice rests
    goal: Literal["time", "energy"] = "time"  # the quantity that the advice minimizes
    joules: dict[str, float | str] = {}  # goal `energy`: joules of a call by device, or why they are unknown

    def candidate(self, device_id: str | None) -> AdviceCandidate | None:
        """Return the candidate with this device id, or None if there is none or it has no time."""
        return next((item for item in self.candidates if item.device_id == device_id and item.time), None)

    @property
    def why(self) -> str:
        """The evidence for the answer as text, or the reason why there is no answer."""
        best = self.candidate(self.device_id)
        if best is None:
            return self.reason or ""
        low, high = best.between or (self.n, self.n)
        place = "measured" if low == high else f"between the measured sizes {low} and {high}"
        if self.gain is None:
            return f"{place}; {self.alone}"
        ends = f"{format_number(self.gain.lo)} to {format_number(self.gain.hi)}"
        return f"{place}; {format_number(self.gain.ratio)} times as fast as {self.gain.device_id} ({ends})"

    @property
    def alone(self) -> str:
        """The reason why the advice has no gain: the side without a time, and why its devices have no time."""
        best = self.candidate(self.device_id)
        on_cpu = best is not None and best.kind == "cpu"
        others = [item for item in self.candidates if item.time is None and (item.kind == "cpu") != on_cpu]
        reasons = "; ".join(f"{item.device_id} {item.reason}" for item in others)
        side = "GPU" if on_cpu else "CPU"
        return f"no {side} has a time here ({reasons})" if reasons else f"no {side} was measured here"


def advise(
    key: Key, contenders: ContenderSet, decision: Decision, n: int, regime: str, *, hybrid: bool = True
) -> Advice:
    """Return the advice for a call of size `n` in this regime (by id). `decision` is the choice among
    `contenders` at this size. A faster measured split is the advice, unless `hybrid` is False."""
    split = split_of(contenders, n, decision) if hybrid else None
    best_id, against_id = (place and place.device_id for place in (decision.best, decision.against))
    if split is not None:
        best_id, against_id = split.device_id, split.baseline_device
    expectations = list(_expectations(contenders, n, split))
    times = {candidate.device_id: expected for candidate, expected in expectations}
    candidates = sorted(
        (candidate for candidate, _ in expectations),
        key=lambda item: (
            item.device_id != best_id, item.time.estimate if item.time else math.inf, item.device_id,
        ),
    )  # fmt: skip
    best, against = times.get(best_id or ""), times.get(against_id or "")
    gain = split.interval if split else best and against and _gain(best, against)
    chosen = candidates[0] if decision.best is not None else None
    return Advice(
        op=key.op, n=n, params=dict(key.params), dtype=key.dtype,
        data="device" if regime in (WAITED, QUEUED) else "host",
        calls=calls_of(regime) or 1, regime=regime, basis="measured" if split else decision.basis(n),
        device_id=chosen.device_id if chosen else None, backend=chosen.device_id.partition(":")[0] if chosen else None,
        implementation=chosen.implementation if chosen else None, time=chosen.time if chosen else None,
        gain=AdviceGain(device_id=against_id, ratio=gain.estimate, lo=gain.low, hi=gain.high)
        if gain and against_id else None,
        confidence=_confidence(contenders, n, decision, split),
        reason=None if chosen else _reason(contenders, n, candidates),
        command=None if chosen else measuring_command(key, n), split=_split(split) if split else None,
        candidates=tuple(candidates), source=source_of(contenders.run),
    )  # fmt: skip


def _split(call: SharedCall) -> AdviceSplit:
    return AdviceSplit(
        device_id=call.device_id, gpu_share=call.gpu_share, assignment=call.assignment, on_gpu=call.on_gpu,
        ratio=call.gain, lo=call.lo, hi=call.hi, case_id=call.id,
    )  # fmt: skip


def source_of(run: Run) -> AdviceSource:
    """Return the description of the result file of `run`."""
    return AdviceSource(
        run_id=run.id, label=run.label, started_at=run.started_at, complete=run.complete, machine=machine_line(run),
        tool=dict(sorted(run.tool.items())),
    )  # fmt: skip


def _expectations(
    contenders: ContenderSet, n: int, split: SharedCall | None
) -> Iterator[tuple[AdviceCandidate, Expected | None]]:
    """Yield each device and the split as a candidate, with the expected time of a call of size `n` there (None:
    unknown)."""
    run = contenders.run
    for device_id, kind in {call.case.device_id: call.device_kind for call in contenders.rows}.items():
        own = [contender for contender in contenders.contenders if contender.device_id == device_id]
        best, _ = fastest(own, n)
        if best is not None:
            expected = best.expect(n)
            yield _candidate(run, device_id, kind, best.implementation, expected), expected
        else:
            rows = [call for call in contenders.rows if call.case.device_id == device_id]
            yield _candidate(run, device_id, kind, reason=_why_no_time(own, rows, n)), None
    # the CPU and the GPU together
    if split and (case := split.case).time:
        expected = Expected(time=case.time, basis="measured", between=(n, n), rows=(case,))
        yield (
            _candidate(run, case.case.device_id, case.device_kind, case.case.implementation, expected),
            expected,
        )


def _candidate(
    run: Run, device_id: str, kind: DeviceKind, implementation: str | None = None, expected: Expected | None = None,
    reason: str | None = None,
) -> AdviceCandidate:  # fmt: skip
    name = next((shorten(device.name) for device in run.devices if device.id == device_id), "an unknown device")
    candidate = AdviceCandidate(
        device_id=device_id, name=name, kind=kind, implementation=implementation, time=None, basis="unknown",
        between=None, labels=(), reason=reason, case_ids=(),
    )  # fmt: skip
    if expected is None:
        return candidate
    time, codes = expected.time, cpu_codes(run, expected.rows)
    return msgspec.structs.replace(
        candidate, time=Estimate(time.estimate, time.low, time.high, time.kind), basis=expected.basis,
        between=expected.between, labels=tuple(sorted(expected.labels)),
        case_ids=tuple(case.id for case in expected.rows),
        libraries=tuple(code.library for code in codes if code.library), weaker=any(code.weaker for code in codes),
        threads=cpu_threads(run, device_id) if codes else None,
    )  # fmt: skip


def _why_no_time(own: Sequence[Contender], rows: Sequence[CaseResult], n: int) -> str:
    """Return a few words that say why a device with these contenders and cases has no expected time at `n`."""
    refused = [case for case in rows if case.reason and case.n == n]
    refused += [case for case in rows if case.reason == NO_ROOM and case.n <= n]
    if refused:
        return f"{refused[0].outcome} at n = {refused[0].n}: {refused[0].reason}"
    if own:
        low, high = min(item.first for item in own), max(item.last for item in own)
        return f"measured from n = {low} to {high}" if low < high else f"measured at n = {low} alone"
    if any(map(has_time, rows)):
        return "not measured with the data there"
    return next((f"{case.outcome}: {case.reason}" for case in rows if case.reason), "not measured")


def _gain(best: Expected, against: Expected) -> Interval:
    ratio = pair_ratio(against.rows[0], best.rows[0]) if best.measured and against.measured else None
    return ratio or quotient(against.time, best.time)


def _confidence(
    contenders: ContenderSet, n: int, decision: Decision, split: SharedCall | None
) -> AdviceConfidence:
    if decision.best is None:
        return "none"
    if split is not None:
        return "clear" if split.lo > 1 else "close"
    if decision.against is None:
        return "alone"
    choice = decision.best.curve
    rivals = [
        item.curve
        for item in contenders.contenders
        if item.first <= n <= item.last and item.curve is not choice
    ]
    wrong, cost = doubt(choice, rivals, math.log(n))
    return "clear" if wrong <= CLEAR else "close" if cost <= HIGHEST_COST else "noisy"


def _reason(contenders: ContenderSet, n: int, candidates: Sequence[AdviceCandidate]) -> str:
    """Return the reason why the advice names no device."""
    cpu, other = (fastest(side, n)[0] for side in (contenders.cpu, contenders.others))
    if cpu is not None and other is not None and is_unsure(contenders, n, cpu, other):
        return f"{cpu.device_id} and {other.device_id} cannot be told apart by the sizes around n = {n}"
    missing = [f"{item.device_id} {item.reason}" for item in candidates if item.time is None]
    return "; ".join(missing) or f"nothing was measured around n = {n}"


def measuring_command(key: Key, n: int | None = None) -> str:
    """Return the `gpubench run` command that measures this op, dtype and params at size `n`, or the call of `bench`
    for a function of no file. None means the sizes that the run chooses."""
    file, dot, name = key.op.partition(".")
    if file == "session":  # of a notebook
        return f"gpubench.bench({name}{f', sizes={n}' if n else ''})"
    words = ["gpubench run", f"{file}.py:{name}" if dot else f"--ops {key.op}"]  # a function of the user's own
    words += [f"--sizes {n}"] if n else []
    words += [f"--dtypes {key.dtype}"] if key.dtype != "float32" else []
    words += [f"--params {','.join(f'{name}={value}' for name, value in key.params)}"] if key.params else []
    return " ".join(words)


def answer(runs: Iterable[Run], key: Key, n: int, regime: str) -> Advice:
    """Return the advice for a call of size `n` in this regime (by id). `runs` are sorted, newest first. The
    first run that compares both sides at `n` answers, else the first that chooses a device there, else the
    first. Raises InputError if no run has this op, dtype and params."""
    seen: set[Key] = set()

    def sets() -> Iterator[ContenderSet]:
        for run in runs:
            groups = case_groups(run)
            seen.update(groups)
            if key in groups:
                yield contender_set(run, groups[key], regime)

    declared = first_to_know(sets(), n)
    if declared is None:
        raise _no_result(key, seen)
    return advise(key, *declared, n, regime)


def _no_result(key: Key, seen: set[Key]) -> InputError:
    ops = sorted({other.op for other in seen})
    what, why = f"of {key.op}", f"measured: {', '.join(ops)}" if ops else "nothing in it has a number"
    if key.op in ops:
        shapes = sorted({_shape(other) for other in seen if other.op == key.op})
        what, why = f"of {_shape(key)}", f"measured: {'; '.join(shapes)}"
    return InputError(
        "no-result-for-op", f"there is no result {what}", why=why,
        hint=f"measure it: {measuring_command(key)}",
    )  # fmt: skip


def _shape(key: Key) -> str:
    return f"{key.op} {key.dtype}{''.join(f' {name}={value}' for name, value in key.params)}"
