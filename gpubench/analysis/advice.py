"""The `gpubench-advise` document, version 1: where one call should run, by the expected times of every device that was
measured. Times in seconds, plain ratios."""

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
    TimedSplit,
    basis,
    calls_of,
    case_groups,
    contender_set,
    fastest,
    first_to_know,
    is_unsure,
    split_of,
    timed,
    weaker,
)
from gpubench.analysis.estimate import CaseResult, Estimate
from gpubench.analysis.labels import Label
from gpubench.analysis.machine import machine_line
from gpubench.analysis.speedup import cpu_codes, cpu_threads, paired
from gpubench.base.errors import InputError
from gpubench.base.escaping import shortened
from gpubench.curves import HIGHEST_COST, doubt
from gpubench.curves.stats import Interval
from gpubench.result.case import QUEUED, WAITED
from gpubench.result.run import DeviceKind, Run

# A clear choice is wrong (another one more than 5 % faster) with at most this probability.
CLEAR = 0.05
AdviceConfidence = Literal["clear", "close", "noisy", "alone", "none"]


class AdviceGain(msgspec.Struct, frozen=True, kw_only=True):
    """Time on `device_id` over the time on the device advised: above 1 the advice gains."""

    device_id: str
    ratio: float
    lo: float
    hi: float


class AdviceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """`fraction` of the work on the GPU of `device_id`, the rest on the CPU; of a workload a `placement` instead, a
    letter for each stage, and the stages `on_gpu`, all of them or some of their repeats. `ratio`: time of the better of
    the two alone over the time of both."""

    device_id: str
    fraction: float | None
    placement: str | None
    on_gpu: tuple[str, ...]
    ratio: float
    lo: float
    hi: float
    case_id: str


class AdviceCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One device. Without a time, `reason` says why. `case_ids` are the cases behind it, at the sizes `between`. Of a
    CPU `libraries` are what its form calls, numba or a BLAS, and `threads` what it has; `weaker`: numba
    might be faster, and was not there."""

    device_id: str
    name: str
    kind: str
    form: str | None
    time: Estimate | None
    basis: Basis
    between: tuple[int, int] | None
    labels: tuple[Label, ...]
    case_ids: tuple[str, ...]
    reason: str | None
    libraries: tuple[str, ...] = ()
    weaker: bool = False
    threads: int | None = None


class AdviceSource(msgspec.Struct, frozen=True, kw_only=True):
    """The result that answered; `tool`: the versions that made it."""

    run_id: str
    label: str | None
    started_at: str
    complete: bool
    machine: str
    tool: dict[str, str]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The place where one call should run. `device_id` is null where the answer is unknown; `reason` then says why, and
    `command` measures what is missing. `confidence` is clear where another device or form is hardly the faster one,
    close where it may be and the choice is expected to cost little, noisy at a measured size whose times do not even
    tell that.

    `split` is null unless the answer is to split the call over the CPU and a GPU, or to place its stages on both:
    `backend` is then hybrid.
    """

    name: Literal["gpubench-advise"] = "gpubench-advise"
    schema_version: int = 1
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    data: Literal["host", "device"]
    calls: int
    regime: str
    basis: Basis
    device_id: str | None
    backend: str | None
    form: str | None
    time: Estimate | None
    gain: AdviceGain | None
    confidence: AdviceConfidence
    reason: str | None
    command: str | None
    split: AdviceSplit | None
    candidates: tuple[AdviceCandidate, ...]
    source: AdviceSource

    def candidate(self, device_id: str | None) -> AdviceCandidate | None:
        """The candidate of this device; None where it has no time."""
        return next((one for one in self.candidates if one.device_id == device_id and one.time), None)

    @property
    def why(self) -> str:
        """The grounds of the answer, or what is missing."""
        best = self.candidate(self.device_id)
        if best is None:
            return self.reason or ""
        low, high = best.between or (self.n, self.n)
        place = "measured" if low == high else f"between the measured sizes {low} and {high}"
        if self.gain is None:
            return f"{place}; nothing else was measured, or could run it"
        ends = f"{self.gain.lo:.3g} to {self.gain.hi:.3g}"
        return f"{place}; {self.gain.ratio:.3g} times as fast as {self.gain.device_id} ({ends})"


def advise(
    key: Key, contenders: ContenderSet, decision: Decision, n: int, regime: str, *, hybrid: bool = True
) -> Advice:
    """Return the answer for a call of this regime, with its evidence. The advised candidate stands first. `hybrid`: it
    may be a split."""
    split = split_of(contenders, n, decision) if hybrid else None
    candidates, known = _candidates(contenders, n, decision, split)
    best_id, against_id = (one and one.device_id for one in (decision.best, decision.against))
    if split is not None:
        best_id, against_id = split.row.device_id, split.row.baseline_device
    best, against = known.get(best_id or ""), known.get(against_id or "")
    gain = split.row.interval if split else _gain(best, against)
    chosen = next((one for one in candidates if decision.best is not None and one.device_id == best_id), None)
    return Advice(
        op=key.op, n=n, params=dict(key.params), dtype=key.dtype,
        data="device" if regime in (WAITED, QUEUED) else "host",
        calls=calls_of(regime) or 1, regime=regime, basis="measured" if split else basis(decision, n),
        device_id=chosen.device_id if chosen else None,
        backend=chosen.device_id.partition(":")[0] if chosen else None,
        form=chosen.form if chosen else None, time=chosen.time if chosen else None,
        gain=AdviceGain(device_id=against_id, ratio=gain.estimate, lo=gain.low, hi=gain.high)
        if gain is not None and against is not None and against_id is not None else None,
        confidence=_confidence(contenders, n, decision, split), reason=_reason(contenders, n, decision, candidates),
        command=measuring_command(key, n) if decision.best is None else None, split=split and _split(split),
        candidates=tuple(candidates), source=_source(contenders.run),
    )  # fmt: skip


def _split(split: TimedSplit) -> AdviceSplit:
    row = split.row
    return AdviceSplit(
        device_id=row.device_id, fraction=row.fraction, placement=row.placement, on_gpu=row.on_gpu,
        ratio=row.gain, lo=row.lo, hi=row.hi, case_id=row.id,
    )  # fmt: skip


def _source(run: Run) -> AdviceSource:
    return AdviceSource(
        run_id=run.id, label=run.label, started_at=run.started_at, complete=run.complete, machine=machine_line(run),
        tool=dict(sorted(run.tool.items())),
    )  # fmt: skip


def _candidates(
    contenders: ContenderSet, n: int, decision: Decision, split: TimedSplit | None
) -> tuple[list[AdviceCandidate], dict[str, Expected]]:
    """One for each device, the advised one first, then by time, and for `split` the CPU and a GPU together as one more;
    and the times that are known, by device id."""
    names = {device.id: shortened(device.name) for device in contenders.run.devices}
    known: dict[str, Expected] = {}
    found: list[AdviceCandidate] = []

    def add(
        device_id: str, kind: DeviceKind, form: str | None, expected: Expected | None, reason: str = ""
    ) -> None:
        if expected is not None:
            known[device_id] = expected
        time = expected.time if expected else None
        found.append(
            AdviceCandidate(
                device_id=device_id, name=names.get(device_id, "an unknown device"), kind=kind, form=form,
                time=Estimate(time.estimate, time.low, time.high, time.kind) if time else None,
                basis=expected.basis if expected else "unknown", between=expected.between if expected else None,
                labels=tuple(sorted(expected.labels)) if expected else (),
                case_ids=tuple(row.id for row in expected.rows) if expected else (), reason=reason or None,
            )
        )  # fmt: skip

    for device_id, kind in {row.case.device_id: row.device_kind for row in contenders.rows}.items():
        ours = [one for one in contenders.contenders if one.device_id == device_id]
        best = fastest(ours, n)[0]
        if best is not None:
            add(device_id, kind, best.form, best.expected(n))
        else:
            rows = [row for row in contenders.rows if row.case.device_id == device_id]
            add(device_id, kind, None, None, _why_no_time(ours, rows, n))
        if best is not None and kind == "cpu":
            codes = cpu_codes(contenders.run, _behind(contenders, best, n))
            found[-1] = msgspec.structs.replace(
                found[-1], threads=cpu_threads(contenders.run, device_id),
                libraries=tuple(code.library for code in codes if code.library),
                weaker=any(code.weaker for code in codes),
            )  # fmt: skip
    case = split.row.case if split else None
    if split is not None and case is not None and case.time is not None:
        expected = Expected(time=case.time, basis="measured", between=(n, n), rows=(case,))
        add(split.row.device_id, case.device_kind, case.case.form, expected)
    advised = split.row.device_id if split else decision.best and decision.best.device_id
    found.sort(
        key=lambda one: (one.device_id != advised, one.time.estimate if one.time else math.inf, one.device_id)
    )
    return found, known


def _behind(contenders: ContenderSet, one: Contender, n: int) -> list[CaseResult]:
    """The cases of a contender at n, or at the sizes around it."""
    sizes = one.around(n)
    return [
        row
        for row in contenders.rows
        if (row.case.device_id, row.case.form) == one[:2] and row.case.params["n"] in sizes and timed(row)
    ]


def _why_no_time(ours: Sequence[Contender], rows: Sequence[CaseResult], n: int) -> str:
    """Why a device has no expected time at n, in a few words."""
    refused = [row for row in rows if row.reason and row.case.params["n"] == n] or [
        row for row in rows if row.reason == NO_ROOM and row.case.params["n"] <= n
    ]
    if refused:
        return f"{refused[0].outcome} at n = {refused[0].case.params['n']}: {refused[0].reason}"
    if ours:
        low, high = min(one.first for one in ours), max(one.last for one in ours)
        return f"measured from n = {low} to {high}" if low < high else f"measured at n = {low} alone"
    if any(timed(row) for row in rows):
        return "not measured with the data there"
    return next((f"{row.outcome}: {row.reason}" for row in rows if row.reason), "not measured")


def _gain(ours: Expected | None, theirs: Expected | None) -> Interval | None:
    if ours is None or theirs is None:
        return None
    if ours.basis == theirs.basis == "measured":
        ratio = paired(theirs.rows[0], ours.rows[0])
        if ratio is not None:
            return ratio
    a, b = theirs.time, ours.time
    down = math.hypot(math.log(a.estimate / a.low), math.log(b.high / b.estimate))
    up = math.hypot(math.log(a.high / a.estimate), math.log(b.estimate / b.low))
    ratio_s = a.estimate / b.estimate
    return Interval(ratio_s * math.exp(-down), ratio_s, ratio_s * math.exp(up), weaker(a.kind, b.kind))


def _confidence(
    contenders: ContenderSet, n: int, decision: Decision, split: TimedSplit | None
) -> AdviceConfidence:
    if decision.best is None:
        return "none"
    if split is not None:
        return "clear" if split.row.lo > 1 else "close"
    if decision.against is None:
        return "alone"
    choice = decision.best.curve
    rivals = [
        one.curve for one in contenders.contenders if one.first <= n <= one.last and one.curve is not choice
    ]
    wrong, cost = doubt(choice, rivals, math.log(n))
    return "clear" if wrong <= CLEAR else "close" if cost <= HIGHEST_COST else "noisy"


def _reason(
    contenders: ContenderSet, n: int, decision: Decision, candidates: Sequence[AdviceCandidate]
) -> str | None:
    """Why no device is known; None where one is."""
    if decision.best is not None:
        return None
    cpu, other = (fastest(side, n)[0] for side in (contenders.cpu, contenders.others))
    if cpu is not None and other is not None and is_unsure(contenders, n, cpu, other):
        return f"{cpu.device_id} and {other.device_id} cannot be told apart by the sizes around n = {n}"
    missing = [f"{one.device_id} {one.reason}" for one in candidates if one.time is None]
    return "; ".join(missing) or f"nothing was measured around n = {n}"


def measuring_command(key: Key, n: int) -> str:
    """Return the command that measures the size that was asked for."""
    params = f" --params {','.join(f'{name}={value}' for name, value in key.params)}" if key.params else ""
    dtype = f" --dtypes {key.dtype}" if key.dtype != "float32" else ""
    file, dot, name = key.op.partition(".")
    what = f"{file}.py:{name}" if dot else f"--ops {key.op}"  # a function of the user's own
    return f"gpubench run {what} --sizes {n}{dtype}{params}"


def answer(runs: Iterable[Run], key: Key, n: int, regime: str) -> Advice:
    """Return where a call of size n and this regime should run: by the first of `runs` (newest first) that compares two
    devices there, else by what is known.

    Raises InputError if no run has a result for the op, dtype and params, naming what there is.
    """
    seen: set[Key] = set()
    known = first_to_know(_contenders(runs, key, regime, seen), n)
    if known is None:
        raise _no_result(key, seen)
    return advise(key, *known, n, regime)


def _contenders(runs: Iterable[Run], key: Key, regime: str, seen: set[Key]) -> Iterator[ContenderSet]:
    for run in runs:
        found = case_groups(run)
        seen.update(found)
        if key in found:
            yield contender_set(run, found[key], regime)


def _no_result(key: Key, seen: set[Key]) -> InputError:
    ops = sorted({other.op for other in seen})
    why, flag = f"measured: {', '.join(ops)}" if ops else "nothing in it has a number", ""
    what = f"of {key.op}"
    if key.op in ops:
        shapes = sorted({_shape(other) for other in seen if other.op == key.op})
        what, why = f"of {_shape(key)}", f"measured: {'; '.join(shapes)}"
        flag = f" --dtypes {key.dtype}"
        flag += f" --params {','.join(f'{name}={value}' for name, value in key.params)}" if key.params else ""
    return InputError(
        "no-result-for-op", f"there is no result {what}", why=why,
        hint=f"measure it: gpubench run --ops {key.op}{flag}",
    )  # fmt: skip


def _shape(key: Key) -> str:
    return f"{key.op} {key.dtype}" + "".join(f" {name}={value}" for name, value in key.params)
