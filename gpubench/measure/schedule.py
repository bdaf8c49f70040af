"""The request for a run (`RunSpec`), and the steps of each session (`Schedule`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from gpubench import backends
from gpubench.base import group_by, processes
from gpubench.base.plugins import wings
from gpubench.kernels.contract.op import Op
from gpubench.measure.budget import Budget
from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.passes import Passes
from gpubench.measure.plan import (
    BLOCKS,
    MAIN,
    ONE_BLOCK,
    Constraints,
    Series,
    Step,
    Target,
    Workload,
    expand,
    merge,
    only,
    open_series,
    series,
    together,
    workload,
)
from gpubench.measure.points import Cell, Rows, Rungs, cells, device_ids, ratios
from gpubench.measure.recorder import OUT_OF_TIME, Progress, Recorder, is_out_of_time, settled_block
from gpubench.measure.worker_pool import Spares, WorkerPool
from gpubench.result.case import DEVICE_GROUP, SEVERAL
from gpubench.result.run import Block, Device, Measurement, Outcome, Planned, Run, Settings, Skip, failures_of


class RunSpec(msgspec.Struct, frozen=True):
    """A complete description of what to measure and how."""

    run: Run  # the document to fill
    ops: Mapping[str, Op]  # the ops by name
    constraints: Constraints  # devices, selection and limits of the plan
    began: float  # the time by `monotonic` from which the budget counts
    # Devices that the user named. The run ends with exit code 5 if one of them cannot be opened.
    required: frozenset[str] = frozenset()
    check_only: bool = False  # whether outputs are checked and nothing is timed
    resume: Resume | None = None  # the plan of the file that is resumed; None for a new run
    # Returns the CPU times of this machine, from which the use by other programs is computed; None: unknown.
    load: Callable[[], processes.CpuTimes | None] = processes.no_cpu_times
    spares: Spares | None = None  # workers that already import libraries; None: there are none
    # Most seconds that are added to the budget for choosing kernels, which only the first run on a machine
    # does.
    once_s: float = 0.0
    whole: bool = False  # whether all of the budget is used, because the user named it
    adds_sessions: bool = False  # whether sessions are added as long as the budget has time for another one
    repeats: bool = True  # whether a session that other programs disturbed is repeated
    # Identical GPUs that the search leaves out. Each group begins with the one that is measured for all of
    # them.
    left_out: tuple[tuple[Target, ...], ...] = ()
    equip: Callable[[Op], Op] = lambda op: op  # adds the kernels that backends bring to an op

    @property
    def settings(self) -> Settings:
        """The settings of the measurement."""
        return self.run.settings

    @property
    def sessions(self) -> int:
        """The number of sessions to run."""
        return self.settings.sessions if self.resume is None else self.resume.count

    @property
    def searches(self) -> bool:
        """Whether sizes are searched. A run that only checks takes no times, so it never searches."""
        return not self.check_only and bool(open_curves(self)) and (self.resume is None or self.resume.search)


def plan_workloads(spec: RunSpec) -> list[Workload]:
    """Return the workloads that are known before measuring: the given sizes, or the whole ladder of an op
    without given sizes. A run that only checks takes some sizes of a ladder. If a file is resumed, the
    workloads are those of its plan."""
    if spec.resume is not None:
        return list(spec.resume.workloads)
    scope = alone(spec.constraints)
    ladders = [
        workload(curve, n, scope)
        for curve in open_curves(spec)
        for n in (Rungs(curve, scope).ends if spec.check_only else curve.ladder.rungs())
    ]
    return [*expand(spec.ops, spec.constraints), *ladders]


def open_curves(spec: RunSpec) -> list[Series]:
    """Return the series whose sizes the user did not give, without overheads."""
    return open_series(spec.ops, spec.constraints.selection)


class Schedule:
    """The plan, to which the search adds workloads, and the steps of each session. The order of the steps is
    random. It depends on the seed of the run and on `index`, the index of the session."""

    def __init__(self, spec: RunSpec, recorder: Recorder, progress: Progress) -> None:
        self._spec = spec
        self._recorder = recorder
        self._progress = progress
        self._cpu = device_ids(spec.constraints, "cpu")
        self.plan: list[Workload] = []
        is_fixed = spec.check_only or spec.resume is not None
        self._announce(plan_workloads(spec) if is_fixed else expand(spec.ops, spec.constraints))

    @property
    def count(self) -> int:
        """The number of cases in the plan."""
        return sum(len(item.cases) for item in self.plan)

    def first(self, index: int, search: Passes) -> Iterator[Step]:
        """Yield the steps of the first session: the plan, the search, splits and device groups, then overheads.
        If a file is resumed, yield the steps that it lacks. If it lacks none, yield those of `again`."""
        resume = self._spec.resume
        if resume is not None and not (resume.missing or resume.search):
            yield from self.again(index, search)
            return
        items = self.plan if resume is None else resume.missing
        plain = [item for item in items if item.op.overhead is None]
        overheads = [item for item in items if item.op.overhead is not None]
        if self._spec.settings.budget_s is None:
            yield from _each(plain if self._spec.check_only else self._shuffle(plain, index))
        else:
            # The budget pays for all sizes first, from small to large. Later sessions add precision.
            for step in _each(sorted(plain, key=lambda item: item.series.work(item.n))):
                yield step._replace(purpose=BLOCKS)
        if self._spec.searches:
            yield from self._searching(search)
            yield from self._splits(search)
        # From small to large: what a budget cuts off are the gigabytes, which take the longest.
        yield from _each(sorted(overheads, key=lambda item: item.n))

    def beginning(self, search: Passes) -> Sequence[Workload]:
        """Return the workloads that the first session measures first, as many as memory holds together. The
        result is empty if the run continues a file."""
        items = (self.plan or search.beginning()) if self._spec.resume is None else []
        return next(iter(together(items, self._spec.constraints)), ())

    def again(self, index: int, search: Passes) -> Iterator[Step]:
        """Yield the steps of a further session, which repeats the plan."""
        named = self._spec.constraints.selection.sizes
        items = self._shuffle(merge(self.plan), index)
        by_curve = group_by(
            items,
            lambda item: item.series.key if item.op.name not in named and item.op.overhead is None else None,
        )
        yield from _each(by_curve.pop(None, []))
        # The sizes of an op are interleaved, so that the blocks of a case lie apart in time.
        for items_of_curve in by_curve.values():
            for group in together(items_of_curve, self._spec.constraints):
                yield Step(group, ONE_BLOCK)

    def _searching(self, search: Passes) -> Iterator[Step]:
        """Yield the steps of the search, and add their workloads to the plan, which later sessions repeat."""
        for step in search.steps():
            self._announce(step.workloads)
            yield step

    def _splits(self, search: Passes) -> Iterator[Step]:
        """Yield the steps for splits, at sizes where both sides are about as fast, and for device groups."""
        for curve in open_curves(self._spec):
            rows, constraints = search.points.rows(curve), self._spec.constraints
            workloads = [
                *worth_trying(curve, rows, self._cpu, constraints), *on_groups(curve, rows, constraints),
            ]  # fmt: skip
            if workloads:
                self._announce(workloads)
                yield from _each(workloads)

    def _announce(self, workloads: Sequence[Workload]) -> None:
        """Add workloads to the plan, and their cases to the document."""
        self.plan += workloads
        planned = [Planned(id=case.id, case=case) for w in workloads for case in w.cases]
        self._recorder.plan([*planned, *(skip for w in workloads for skip in w.skips)])
        self._recorder.save()
        self._progress.cases += len(planned)

    def _shuffle(self, items: Sequence[Workload], index: int) -> list[Workload]:
        settings = self._spec.settings
        if settings.order == "sequential":
            return list(items)
        return random.Random(f"{settings.seed} workloads {index}").sample(items, len(items))


def _each(items: Sequence[Workload]) -> Iterator[Step]:
    return (Step((item,), MAIN) for item in items)


# ---------------------------------------------------------------- two sides of a case

# If one side takes more than this many times as long as the other, a split gains less than a tenth.
FARTHEST = 10.0


def alone(constraints: Constraints) -> Constraints:
    """Return the constraints without composed devices and device groups, since a search compares single
    devices."""
    single = tuple(t for t in constraints.targets if t.device.backend not in SEVERAL)
    return replace(constraints, targets=single)


def on_groups(series: Series, rows: Rows, constraints: Constraints) -> Sequence[Workload]:
    """Return the workloads of the device groups, from large to small, at sizes that the search has measured."""
    inner = {backends.names_of(t.device.id)[1] for t in constraints.targets if t.device.backend == DEVICE_GROUP}
    sizes = [n for n, times in rows.items() if any(slot[0].partition(":")[0] in inner for slot in times)]
    workloads: list[Workload] = []
    # A budget that ends early cuts off the small sizes, at which several GPUs gain nothing.
    for n in sorted(sizes, reverse=True):
        workloads += only(workload(series, n, constraints), lambda case: case.backend == DEVICE_GROUP)
    return workloads


def worth_trying(
    series: Series, rows: Rows, cpu: Collection[str], constraints: Constraints
) -> Sequence[Workload]:
    """Return the workloads with the split cases that may gain time, one for each GPU and regime. The size is
    the largest at which neither side is more than FARTHEST times as fast as the other. `rows` are the times so
    far, and `cpu` contains the ids of the CPUs."""
    sizes: dict[int, set[Cell]] = {}
    for cell in cells(rows, cpu):
        near = [n for n, ratio in ratios(rows, cell, cpu).items() if 1 / FARTHEST <= ratio <= FARTHEST]
        if near:
            sizes.setdefault(max(near), set()).add(cell)
    workloads: list[Workload] = []
    for n, places in sorted(sizes.items()):
        workloads += only(
            workload(series, n, constraints),
            lambda case, places=places: (case.shared_with, case.regime_id) in places,  # type: ignore[misc]
        )
    return workloads


# ---------------------------------------------------------------- the plan of a file


class Resume(msgspec.Struct, frozen=True):
    """The plan for going on with a file."""

    workloads: tuple[Workload, ...]  # the workloads of each further session
    blocks: Mapping[str, Block]  # by case id: a block whose repeat counts are used unchanged
    sessions: int  # number of further sessions, without the one for `missing`
    # Workloads that the interrupted session did not reach. They are measured first, in a session of their own.
    missing: tuple[Workload, ...] = ()
    search: bool = False  # whether the interrupt ended the search, so that the search goes on in that session

    @property
    def count(self) -> int:
        """The number of all sessions to run."""
        return self.sessions + bool(self.missing or self.search)


def repeat_plan(run: Run, ops: Mapping[str, Op], constraints: Constraints, sessions: int) -> Resume:
    """Return the plan for measuring the workloads of `run` in `sessions` more sessions. `ops` are the ops of
    its selection, and `constraints` hold its devices."""
    return Resume(
        workloads=_workloads([o for o in run.outcomes if _is_of_plan(o)], run, ops, constraints),
        sessions=sessions,
        blocks={
            outcome.id: block
            for outcome in run.measurements
            if (block := settled_block(outcome)) is not None
        },
    )  # fmt: skip


def resume_plan(
    run: Run, ops: Mapping[str, Op], constraints: Constraints, sessions: int | None
) -> tuple[Run, Resume]:
    """Return the run without the unfinished work of an interrupted session, and the plan of what is missing.
    `sessions` is the number of sessions to add. None means the sessions that the run lacks, or for a complete
    run as many as its settings say."""
    if run.complete and run.exit_reason != OUT_OF_TIME and not any(is_out_of_time(o) for o in run.outcomes):
        return run, repeat_plan(run, ops, constraints, sessions or run.settings.sessions)
    finished = _finished_sessions(run)
    most = max((1, *map(len, finished.values())))
    rest = max(0, run.settings.sessions - most)
    search = bool(open_series(ops, run.selection)) and _searching(run)
    run = _drop_last_session(run)
    resume = repeat_plan(run, ops, constraints, rest if sessions is None else sessions)
    missing = {workload for workload, done in finished.items() if len(done) < most}
    return run, replace(
        resume, missing=tuple(item for item in resume.workloads if item.key in missing), search=search
    )


def _is_of_plan(outcome: Outcome) -> bool:
    """Return whether every session measures the case: it has no blocks, or one of the phase `main`."""
    if not isinstance(outcome, Measurement) or not outcome.blocks:
        return True
    return any(block.phase == "main" for block in outcome.blocks)


def _finished_sessions(run: Run) -> dict[str, set[int]]:
    """Return, by workload of the plan, the sessions in which each of its cases has enough samples or failed."""
    planned = {session.index: session.planned_index for session in run.sessions}
    unused = {session.index for session in run.sessions if session.superseded}
    sessions: dict[str, set[int]] = {}
    for outcome in run.outcomes:
        if is_out_of_time(outcome):
            sessions[outcome.case.workload] = set()
        elif isinstance(outcome, Measurement) and _is_of_plan(outcome):
            done = {
                planned.get(stop.session, stop.session)
                for stop in outcome.stops
                if stop.session not in unused and _has_enough(outcome, stop.session, run.settings.min_samples)
            } | {planned.get(failure.session, failure.session) for failure in failures_of(outcome)}
            sessions[outcome.case.workload] = sessions.get(outcome.case.workload, done) & done
    return sessions


def _has_enough(outcome: Measurement, session: int, least: int) -> bool:
    """Return whether the session took enough samples of the case or the case failed in it."""
    if any(failure.session == session for failure in failures_of(outcome)):
        return True
    taken = sum(len(b.wall_s) - b.warmup for b in outcome.blocks if b.session == session and b.phase == "main")
    reasons = [stop.reason for stop in outcome.stops if stop.session == session]
    # A stop for another reason than the budget tells that there were enough.
    return bool(reasons) and (OUT_OF_TIME not in reasons or taken >= least)


def _searching(run: Run) -> bool:
    """Return whether the run's search for sizes may be unfinished."""
    if run.complete or any(session.repeats is not None for session in run.sessions):
        return False  # repeats of disturbed sessions come last
    # A session after the search repeats its sizes: it measures a case a second time, or has only just begun.
    begun = [
        {(outcome.id, block.session) for block in outcome.blocks if block.phase == "main"}
        for outcome in run.measurements
    ]
    once = all(len(sessions) <= 1 for sessions in begun)
    busy = {session for sessions in begun for _, session in sessions}
    counting = {session.index for session in run.counting}
    return once and (len(counting) <= 1 or counting <= busy)


def _drop_last_session(run: Run) -> Run:
    """Return the run without the last session's measurements of unfinished workloads."""
    last = max((session.index for session in run.counting), default=0)
    least = run.settings.min_samples
    unfinished = {
        outcome.case.workload
        for outcome in run.measurements
        if _is_of_plan(outcome) and not _has_enough(outcome, last, least)
    }
    outcomes = [_without_last(outcome, last, unfinished) for outcome in run.outcomes]
    measurements = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    remains = any(block.session == last for outcome in measurements for block in outcome.blocks)
    sessions = [
        replace(session, superseded=True) if session.index == last and not remains else session
        for session in run.sessions
    ]
    return replace(run, outcomes=outcomes, sessions=sessions)


def _without_last(outcome: Outcome, last: int, unfinished: Container[str]) -> Outcome:
    if isinstance(outcome, Skip) and is_out_of_time(outcome):
        return Planned(id=outcome.id, case=outcome.case)
    if not isinstance(outcome, Measurement) or outcome.case.workload not in unfinished:
        return outcome
    return replace(
        outcome,
        blocks=[block for block in outcome.blocks if block.session != last or block.phase != "main"],
        parts=[parts for parts in outcome.parts if parts.session != last],
        stages=[times for times in outcome.stages if times.session != last],
        assignment_times=[times for times in outcome.assignment_times if times.session != last],
        stops=[stop for stop in outcome.stops if stop.session != last],
    )  # fmt: skip


def _workloads(
    outcomes: Sequence[Outcome], run: Run, ops: Mapping[str, Op], constraints: Constraints
) -> tuple[Workload, ...]:
    """Return the workloads of these outcomes, with only their cases."""
    ids = {outcome.id for outcome in outcomes}
    # The device clock is read again where it was read before, or everywhere if it was read nowhere.
    clocks = {o.case.workload for o in outcomes if isinstance(o, Measurement) and _on_device(o)}
    within = replace(constraints, keep=lambda case: case.id in ids)
    workloads = []
    for curve in series(ops, run.selection):
        for n in sorted({o.case.n for o in outcomes if curve.has(o.case)}):
            item = workload(curve, n, within)
            workloads.append(replace(item, explained=not clocks or item.key in clocks))
    return tuple(workloads)


def _on_device(outcome: Measurement) -> bool:
    return any(block.hot_repeat is not None or block.device_cold_s for block in outcome.blocks)


# ---------------------------------------------------------------- beside the cases


class Occasion(msgspec.Struct, frozen=True):
    """The session during which a companion measures."""

    pool: WorkerPool  # the workers of the session's devices
    index: int  # index of the session
    first: bool  # whether it is the first session of this run
    plan: Sequence[Workload]  # the plan of the run
    budget: Budget  # the time budget of the run


class Companion:
    """Base class of a measurement that a wing adds to a run. The base class measures nothing."""

    # Share of the budget that the search leaves to this companion.
    share = 0.0

    def __init__(self, spec: RunSpec, recorder: Recorder) -> None:
        self.spec, self.recorder = spec, recorder

    def devices(self) -> list[Device]:
        """Return the devices that are measured in addition to those of the run."""
        return []

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Measure something for a workload while its cases (`runs`) are prepared. The default measures
        nothing."""

    def follow_session(self, session: Occasion) -> None:
        """Measure something at the end of a session, before its workers end. The default measures nothing."""

    def clean_up(self) -> None:
        """End everything that the companion started. It is also called if the run is interrupted."""


def companions(spec: RunSpec, recorder: Recorder) -> list[Companion]:
    """Return a companion of each wing that brings one, or none for a run that only checks."""
    if spec.check_only:
        return []
    return [make(spec, recorder) for make in wings.find_all(wings.brought("companions")).values()]
