"""Everything that is derived from one run, and the function that derives it: the same answer for the same file.

Beside it what `detect` takes from a run: by what the mode of its machine can be chosen. The mode is decided in one
place (gpubench/detect/recommend.py). And several runs: which machine each is of, what they all measured, how a case
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from gpubench.analysis.break_even import BreakEven, break_evens
from gpubench.analysis.claims import Claim, ClaimResult, judged
from gpubench.analysis.collectives import CollectiveResult, collectives
from gpubench.analysis.estimate import CaseResult, case_results
from gpubench.analysis.findings import Gates, ReportGate, ReportWarning, findings, gate_results
from gpubench.analysis.hybrid import Hybrid, hybrids
from gpubench.analysis.machine import connected, experiment, machine_line, marks
from gpubench.analysis.mode import evidence
from gpubench.analysis.overheads import CALLS, Overheads, overheads
from gpubench.analysis.placement import Placement, placements
from gpubench.analysis.reuse import Reuse, WeightLoad, reuses, weight_loads
from gpubench.analysis.roofline import Roofline, roofline
from gpubench.analysis.samples import Components, components
from gpubench.analysis.scaling import GangGains, scaling
from gpubench.analysis.speedup import Mean, Speedup, baseline_line, beside_written, means, speedups
from gpubench.analysis.stages import Stages, stages
from gpubench.analysis.twins import TwinCheck, twin_checks
from gpubench.result.case import GANG, Case, SeriesKey
from gpubench.result.machine import Measured, Recommendation
from gpubench.result.run import DeviceKind, Run


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is derived from one run, in the order in which it is printed."""

    run: Run
    machine: str
    baseline: str
    cases: tuple[CaseResult, ...]
    speedups: tuple[Speedup, ...]
    break_even: tuple[BreakEven, ...]
    findings: tuple[ReportWarning, ...]
    roofline: Roofline
    overheads: Overheads
    collectives: tuple[CollectiveResult, ...]
    scaling: GangGains = GangGains()
    gates: tuple[ReportGate, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    reuse: tuple[Reuse, ...] = ()
    weights: tuple[WeightLoad, ...] = ()
    means: tuple[Mean, ...] = ()
    hybrid: tuple[Hybrid, ...] = ()
    placements: tuple[Placement, ...] = ()
    noise: tuple[Components, ...] = ()
    stages: tuple[Stages, ...] = ()
    twins: tuple[TwinCheck, ...] = ()
    measured: Measured | None = None
    # Of users' functions by whatever code is the fastest on each side; `break_even` compares what is written.
    best_code: tuple[BreakEven, ...] = ()


def failed(analyses: Iterable[Analysis]) -> bool:
    return any(not gate.passed for analysis in analyses for gate in analysis.gates)


NO_GATES = Gates()


def analyse(
    run: Run,
    *,
    baseline: str | None = None,
    keep: Callable[[Case], bool] | None = None,
    gates: Gates = NO_GATES,
    claims: Sequence[Claim] = (),
) -> Analysis:
    """Everything derived from `run`. `baseline` is DEVICE, FORM or FORM@DEVICE (default: the fastest CPU form);
    `keep` selects cases, `gates` are those asked for, `claims` what others expect. Raises InputError if the
    baseline was not measured."""
    everything = case_results(run)
    # The selection chooses what is shown; a baseline that is not shown is still the baseline.
    cases = tuple(row for row in everything if keep is None or keep(row.case))
    compared = [row for row in everything if _compared(row)]
    beside = beside_written(compared) if baseline is None else frozenset()
    ratios = tuple(row for row in speedups(compared, baseline, beside) if keep is None or keep(row.case.case))
    found = _curves(run, compared, ratios, beside=beside)
    splits, timed = hybrids(run, compared, keep), stages(run, compared, keep)
    placed = placements(run, compared, keep)
    # Whatever is shown: a mode is chosen by all of the file, over the fastest CPU form.
    shown = ratios, found, splits, placed
    usual = shown if keep is None and baseline is None else _whole(run, compared)
    seen = None if experiment(run) else evidence(run, compared, *usual)
    return Analysis(
        run=run, machine=machine_line(run),
        baseline=baseline_line(run, [row for row in ratios if row.kind == "headline"]),
        cases=cases, speedups=ratios, break_even=found,
        findings=findings(run, cases, timed, placed),
        roofline=roofline(run, [row for row in everything if _alone(row)], [row for row in cases if _alone(row)]),
        overheads=overheads(run, everything, cases), collectives=collectives(cases),
        scaling=scaling(run, everything, cases),
        gates=gate_results(run, cases, [row for row in cases if _compared(row)], ratios, gates),
        claims=_judged(claims, run, cases, compared, ratios, found),
        means=means([row for row in cases if _compared(row)], ratios),
        reuse=reuses(run, compared, keep), weights=weight_loads(run, ratios), hybrid=splits, noise=components(run),
        stages=timed, placements=placed, twins=twin_checks(run), measured=seen,
        best_code=_best_code(run, [row for row in compared if keep is None or keep(row.case)], beside),
    )  # fmt: skip


def _judged(
    claims: Sequence[Claim],
    run: Run,
    cases: Sequence[CaseResult],
    compared: Sequence[CaseResult],
    ratios: Sequence[Speedup],
    found: Sequence[BreakEven],
) -> tuple[ClaimResult, ...]:
    """The claims; the curves of software adapters are drawn for those that ask for them alone."""
    if any(claim.break_even and claim.device == "software" for claim in claims):
        found = (*found, *_curves(run, compared, ratios, "software"))
    return judged(claims, cases, ratios, found)


class Curves(msgspec.Struct, frozen=True):
    """What the answer needs of a run, a tenth of the work of all that is derived from it."""

    run: Run
    cases: tuple[CaseResult, ...]
    break_even: tuple[BreakEven, ...]
    best_code: tuple[BreakEven, ...] = ()


def curves(run: Run, op: str | None = None) -> Curves:
    """The times of `run`, and where one side overtakes the other: for all ops, or for one."""
    cases = tuple(case_results(run))
    compared = [row for row in cases if _compared(row)]
    asked = [row for row in compared if op in (None, row.case.op)]
    beside = beside_written(asked)
    found = _curves(run, compared, speedups(asked, beside=beside), beside=beside)
    return Curves(run, cases, found, _best_code(run, asked, beside))


def recommended(run: Run, found: Measured | None) -> Recommendation | None:
    """The mode for the machine of the run: by the evidence, else what detection said at the run's start; None if
    neither says anything."""
    # Here, as `advise` loads this package too, and needs no detection.
    from gpubench.detect.recommend import decide

    advice = run.machine.recommendation
    decided = None if found is None else decide(run.machine, advice, found, _gpus_of(run))
    return decided or (advice if advice.reasons else None)


def measured(run: Run) -> Measured | None:
    """Return what a run tells of the mode of its machine; None of an experiment, or where it compares nothing."""
    if experiment(run):
        return None
    compared = [row for row in case_results(run) if _compared(row)]
    return evidence(run, compared, *_whole(run, compared))


def why_silent(run: Run) -> str:
    """Say why a run of which `measured` returns None tells no mode."""
    odd = ", ".join(f"{name} {value}" for name, value in experiment(run).items())
    return f"it is an experiment ({odd})" if odd else "it compares no GPU with a CPU"


def _whole(
    run: Run, compared: Sequence[CaseResult]
) -> tuple[Sequence[Speedup], Sequence[BreakEven], Sequence[Hybrid], Sequence[Placement]]:
    beside = beside_written(compared)
    ratios = speedups(compared, beside=beside)
    return (
        ratios,
        _curves(run, compared, ratios, beside=beside),
        hybrids(run, compared),
        placements(run, compared),
    )


def _gpus_of(run: Run) -> list[str]:
    """The GPUs that a run measured: ids of its `machine.gpus`, or of the device where detection did not know it."""
    return list(dict.fromkeys(device.gpu_id or device.id for device in run.devices if device.kind == "gpu"))


def _curves(
    run: Run, compared: Sequence[CaseResult], ratios: Sequence[Speedup], kind: DeviceKind = "gpu",
    beside: Collection[str] = (),
) -> tuple[BreakEven, ...]:  # fmt: skip
    alone = [row for row in compared if _alone(row) and row.id not in beside]
    return break_evens(run, alone, [row for row in ratios if _alone(row.case)], kind)


def _best_code(run: Run, compared: Sequence[CaseResult], beside: Collection[str]) -> tuple[BreakEven, ...]:
    ops = {row.case.op for row in compared if row.id in beside}
    return _curves(run, compared, speedups([row for row in compared if row.case.op in ops])) if ops else ()


def _alone(row: CaseResult) -> bool:
    """A split and a gang are no device with roofs, or with a curve that crosses the CPU's: they have sections of their
    own."""
    return row.case.shared_with is None and row.case.backend != GANG


def _compared(row: CaseResult) -> bool:
    """Overheads and collectives have no CPU side, a gang is held against one GPU; a named variant stands beside the
    form that it is a variant of."""
    return row.case.variant is None and row.case.group not in CALLS and row.case.backend != GANG


KEYS = ("case", "op", "n", "device", "time", "speedup")


def ordered(analysis: Analysis, key: str) -> Analysis:
    """`analysis` with its rows by `key`, one of KEYS, smallest first; `-key`: largest first.

    Rows without such a number come last either way; equal rows keep the order of the file.
    """
    name, down = key.removeprefix("-"), key.startswith("-")
    ratios = {row.case.id: row.ratio for row in analysis.speedups if row.kind in ("headline", "case")}
    values: dict[str, Callable[[CaseResult], float | str | None]] = {
        "case": lambda row: row.id,
        "op": lambda row: row.case.op,
        "n": lambda row: row.case.params.get("n"),
        "device": lambda row: row.case.device_id,
        "time": lambda row: row.time.estimate if row.time else None,
        "speedup": lambda row: ratios.get(row.id),
    }
    value = values[name]

    def by(rows: list[CaseResult]) -> list[CaseResult]:
        has = [row for row in rows if value(row) is not None]
        has.sort(key=lambda row: value(row), reverse=down)  # type: ignore[arg-type, return-value]
        return has + [row for row in rows if value(row) is None]

    place = {row.id: i for i, row in enumerate(by([row.case for row in analysis.speedups]))}
    return msgspec.structs.replace(
        analysis,
        cases=tuple(by(list(analysis.cases))),
        speedups=tuple(sorted(analysis.speedups, key=lambda row: place[row.case.id])),
    )


# ---------------------------------------------------------------- several runs


class MachineRuns(msgspec.Struct, frozen=True):
    """One machine: its runs from the oldest to the newest. The last one that measured something speaks for it."""

    runs: tuple[Analysis, ...]

    @property
    def newest(self) -> Analysis:
        timed = (run for run in reversed(self.runs) if any(case.time is not None for case in run.cases))
        return next(timed, self.runs[-1])


class History(msgspec.Struct, frozen=True):
    """One case over the runs of a machine, oldest first; None where a run has no time for it."""

    id: str
    times: tuple[float | None, ...]

    @property
    def change(self) -> float:
        """The newest time over the oldest."""
        measured = [time for time in self.times if time is not None]
        return measured[-1] / measured[0]


def machine_runs(analyses: Sequence[Analysis]) -> tuple[MachineRuns, ...]:
    """The machines, in the order in which their first files were given."""
    return tuple(
        MachineRuns(
            tuple(sorted((analyses[i] for i in places), key=lambda one: (one.run.started_at, one.run.id)))
        )
        for places in connected([marks(analysis.run) for analysis in analyses])
    )


def common_sizes(machines: Sequence[MachineRuns]) -> dict[SeriesKey, int]:
    """The largest size of each series that every machine has measured on a GPU that is no software."""
    found: dict[SeriesKey, int] = {}
    measured = [_sizes(headlines(side.newest)) for side in machines]
    for name in measured[0]:
        shared = set.intersection(*(sizes.get(name, set()) for sizes in measured))
        if shared:
            found[name] = max(shared)
    return found


def headlines(analysis: Analysis) -> list[Speedup]:
    """The headline speedups of GPUs: neither of software nor of a GPU that the CPU helps."""
    return [row for row in analysis.speedups if row.kind == "headline" and row.case.device_kind == "gpu"]


def histories(side: MachineRuns) -> tuple[History, ...]:
    """The cases of a machine with a time in two runs or more: per series, regime and device the faster form at the
    largest size that most runs have."""
    times: dict[str, dict[int, CaseResult]] = {}
    for i, analysis in enumerate(side.runs):
        for row in analysis.cases:
            if row.time is not None and row.case.variant is None:
                times.setdefault(row.id, {})[i] = row
    groups: dict[tuple[object, ...], list[dict[int, CaseResult]]] = {}
    for by_run in times.values():
        row = by_run[max(by_run)]
        if len(by_run) > 1:
            groups.setdefault((row.case.series, row.case.regime_id, row.case.device_id), []).append(by_run)
    return tuple(_history(max(group, key=_weight), len(side.runs)) for group in groups.values())


def _weight(by_run: dict[int, CaseResult]) -> tuple[int, int, float]:
    newest = by_run[max(by_run)]
    assert newest.time is not None, "only cases with a time have a history"
    return len(by_run), newest.case.params.get("n", 0), -newest.time.estimate


def _history(by_run: dict[int, CaseResult], runs: int) -> History:
    times = [by_run[i].time if i in by_run else None for i in range(runs)]
    return History(by_run[max(by_run)].id, tuple(time.estimate if time else None for time in times))


def _sizes(rows: Sequence[Speedup]) -> dict[SeriesKey, set[int]]:
    found: dict[SeriesKey, set[int]] = {}
    for row in rows:
        found.setdefault(row.case.case.series, set()).add(row.case.case.params["n"])
    return found
