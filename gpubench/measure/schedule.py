"""The request for a run, and what each session measures of it, step by step: the plan, then the search."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

import msgspec

from gpubench import backends
from gpubench.base import processes
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
from gpubench.measure.points import Cell, Rows, Rungs, cells, ratios
from gpubench.measure.recorder import Progress, Recorder, settled_block
from gpubench.measure.worker_pool import Spares, WorkerPool
from gpubench.result.case import DEVICE_GROUP, Case
from gpubench.result.run import Block, Device, Measurement, Outcome, Planned, Run, Settings, Skip, failures_of


class RunSpec(msgspec.Struct, frozen=True):
    """The request of `run`."""

    run: Run  # the document to fill
    ops: Mapping[str, Op]  # by name
    constraints: Constraints  # the scope of the plan
    began: float  # the monotonic time from which the budget counts
    # Devices that the user named: if one cannot be opened, that is exit 5.
    required: frozenset[str] = frozenset()
    check_only: bool = False  # nothing is timed
    resume: Resume | None = None  # the plan of a file that is gone on with
    # reads what others do on this machine
    load: Callable[[], processes.CpuTimes | None] = processes.no_cpu_times
    spares: Spares | None = None  # workers that import already
    # By so much at most the budget grows with what a machine's first run takes to choose its kernels.
    once_s: float = 0.0
    whole: bool = False  # somebody named the budget, which is used up
    repeats: bool = True  # a session that others disturbed is measured again
    # Identical GPUs that the search leaves out, each group behind the one that is measured in its place.
    left_out: tuple[tuple[Target, ...], ...] = ()
    equip: Callable[[Op], Op] = lambda op: op  # gives an op the kernels that backends bring along

    @property
    def settings(self) -> Settings:
        """How to measure."""
        return self.run.settings

    @property
    def sessions(self) -> int:
        """How many sessions are to come."""
        return self.settings.sessions if self.resume is None else self.resume.count

    @property
    def searches(self) -> bool:
        """Whether there are sizes to choose. A check takes no times, so none."""
        return not self.check_only and bool(open_curves(self)) and (self.resume is None or self.resume.search)


def plan_workloads(spec: RunSpec) -> list[Workload]:
    """Return what is known before measuring: given sizes, and of ops without them the ladder, or those of its sizes
    that a check takes."""
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
    """The curves to search."""
    return open_series(spec.ops, spec.constraints.selection)


class Schedule:
    """The plan, to which a search adds, and the steps in which each session measures it."""

    def __init__(self, spec: RunSpec, recorder: Recorder, progress: Progress) -> None:
        self._spec = spec
        self._recorder = recorder
        self._progress = progress
        self._cpu = {t.device.id for t in spec.constraints.targets if t.device.kind == "cpu"}
        self.plan: list[Workload] = []
        resume = spec.resume
        if resume is not None:
            self._announce(resume.workloads)
        else:
            self._announce(plan_workloads(spec) if spec.check_only else expand(spec.ops, spec.constraints))

    @property
    def count(self) -> int:
        """Cases of the plan."""
        return sum(len(item.cases) for item in self.plan)

    def first(self, index: int, search: Passes) -> Iterator[Step]:
        """The plan, then the search; from a file, what an interrupt left of the two."""
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
            # It goes to everything that was asked for first, to precision in later sessions; what it cuts off is dear.
            for step in _each(sorted(plain, key=lambda item: item.series.work(item.n))):
                yield step._replace(purpose=BLOCKS)
        if self._spec.searches:
            yield from self._searching(search)
            yield from self._splits(search)
        # From small to large: what a budget cuts off are the gigabytes, which take the longest.
        yield from _each(sorted(overheads, key=lambda item: item.n))

    def beginning(self, search: Passes) -> Sequence[Workload]:
        """Return what is measured first, as far as memory holds it; of a file that goes on nothing."""
        items = (self.plan or search.beginning()) if self._spec.resume is None else []
        return next(iter(together(items, self._spec.constraints)), ())

    def again(self, index: int, search: Passes) -> Iterator[Step]:
        """The plan once more: what a search chose of an op with all its sizes side by side, so that blocks of a case
        lie apart in time."""
        named = self._spec.constraints.selection.sizes
        items = self._shuffle(merge(self.plan), index)
        yield from _each([item for item in items if item.op.name in named or item.op.overhead is not None])
        curves: dict[str, list[Workload]] = {}
        for item in items:
            if item.op.name not in named and item.op.overhead is None:
                curves.setdefault(item.series.key, []).append(item)
        for items_of_curve in curves.values():
            for group in together(items_of_curve, self._spec.constraints):
                yield Step(group, ONE_BLOCK)

    def _searching(self, search: Passes) -> Iterator[Step]:
        """The search's steps. What it adds to the plan, later sessions repeat."""
        for step in search.steps():
            self._announce(step.workloads)
            yield step

    def _splits(self, search: Passes) -> Iterator[Step]:
        """Steps of both sides together, where a search found them near each other, and of device groups."""
        for curve in open_curves(self._spec):
            workloads = worth_trying(curve, search.rows(curve), self._cpu, self._spec.constraints)
            workloads = [*workloads, *on_groups(curve, search.rows(curve), self._spec.constraints)]
            if workloads:
                self._announce(workloads)
                yield from _each(workloads)

    def _announce(self, workloads: Sequence[Workload]) -> None:
        """Workloads of the plan: what is not reached of them stays visible."""
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

_SEVERAL = (*backends.COMPOSED, DEVICE_GROUP)
# Where one side is slower than this many times the other, both rates added up gain less than a tenth.
FARTHEST = 10.0


def alone(constraints: Constraints) -> Constraints:
    """Return the constraints without the composed devices and device groups: a search compares single ones."""
    single = tuple(t for t in constraints.targets if t.device.backend not in _SEVERAL)
    return msgspec.structs.replace(constraints, targets=single)


def measures_several(constraints: Constraints) -> bool:
    """Whether there is such a device to measure."""
    return any(target.device.backend in _SEVERAL for target in constraints.targets)


def on_groups(series: Series, rows: Rows, constraints: Constraints) -> Sequence[Workload]:
    """The device groups at each size that the search measured on one of their members, from large to small: what a
    budget cuts off are sizes at which several GPUs gain nothing."""
    inner = {backends.names_of(t.device.id)[1] for t in constraints.targets if t.device.backend == DEVICE_GROUP}
    sizes = [n for n, times in rows.items() if any(slot[0].partition(":")[0] in inner for slot in times)]
    workloads: list[Workload] = []
    for n in sorted(sizes, reverse=True):
        workloads += only(workload(series, n, constraints), lambda case: case.backend == DEVICE_GROUP)
    return workloads


def worth_trying(
    series: Series, rows: Rows, cpu: Collection[str], constraints: Constraints
) -> Sequence[Workload]:
    """Return for each device and regime the split case at the largest measured size at which both sides are near
    enough."""
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

# The reason of a skip, a stop or an ending: lack of time, which is no failure.
OUT_OF_TIME = "budget"


class Resume(msgspec.Struct, frozen=True):
    """The plan of a file that is gone on with."""

    workloads: tuple[Workload, ...]  # of each of the sessions to come
    blocks: Mapping[str, Block]  # by case, a block whose repeat counts are used unchanged
    sessions: int  # to come after the first
    # What an interrupted session did not reach: measured first, in a session of its own.
    missing: tuple[Workload, ...] = ()
    search: bool = False  # the interrupt ended the search, which goes on in that session

    @property
    def count(self) -> int:
        """All sessions to come."""
        return self.sessions + bool(self.missing or self.search)


def repeat_plan(run: Run, ops: Mapping[str, Op], constraints: Constraints, sessions: int) -> Resume:
    """The plan of a file, for `sessions` more of them. `ops` are those of its selection, `constraints` its devices."""
    return Resume(
        workloads=_workloads([o for o in run.outcomes if _is_of_plan(o)], run, ops, constraints),
        sessions=sessions,
        blocks={
            o.id: block for o in run.outcomes if isinstance(o, Measurement) and (block := settled_block(o)) is not None
        },
    )  # fmt: skip


def resume_plan(
    run: Run, ops: Mapping[str, Op], constraints: Constraints, sessions: int | None
) -> tuple[Run, Resume]:
    """The file without what an interrupt left unfinished, and what it asks for.

    `sessions` more than it has; None: as many as it was to have, or as one call adds to a file that is complete.
    """
    if run.complete and run.exit_reason != OUT_OF_TIME and not any(_out_of_time(o) for o in run.outcomes):
        return run, repeat_plan(run, ops, constraints, sessions or run.settings.sessions)
    finished = _finished_sessions(run)
    most = max((len(done) for done in finished.values()), default=0)
    rest = max(0, run.settings.sessions - max(most, 1))
    search = bool(open_series(ops, run.selection)) and _searching(run)
    run = _drop_last_session(run)
    resume = repeat_plan(run, ops, constraints, rest if sessions is None else sessions)
    missing = {workload for workload, done in finished.items() if len(done) < max(most, 1)}
    return run, msgspec.structs.replace(
        resume, missing=tuple(item for item in resume.workloads if item.key in missing), search=search
    )


def _is_of_plan(outcome: Outcome) -> bool:
    """Whether the plan has this case: sizes at which a search looked, or took fresh timings, are not of the plan."""
    if not isinstance(outcome, Measurement) or not outcome.blocks:
        return True
    return any(block.phase == "main" for block in outcome.blocks)


def _out_of_time(outcome: Outcome) -> bool:
    return isinstance(outcome, Planned) or (isinstance(outcome, Skip) and outcome.reason == OUT_OF_TIME)


def _finished_sessions(run: Run) -> dict[str, set[int]]:
    """Return by workload of the plan the sessions of the plan in which all of its cases were finished, or failed."""
    planned = {session.index: session.planned_index for session in run.sessions}
    unused = {session.index for session in run.sessions if session.superseded}
    sessions: dict[str, set[int]] = {}
    for outcome in run.outcomes:
        if _out_of_time(outcome):
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
    """Whether the session stopped the case with enough samples, which a budget may have done before, or lost it."""
    if any(failure.session == session for failure in failures_of(outcome)):
        return True
    taken = sum(len(b.wall_s) - b.warmup for b in outcome.blocks if b.session == session and b.phase == "main")
    reasons = [stop.reason for stop in outcome.stops if stop.session == session]
    return bool(reasons) and (OUT_OF_TIME not in reasons or taken >= least)


def _searching(run: Run) -> bool:
    """Whether an interrupt came before the search was over: then each session went on where the one before it ended,
    and none took up a case once more."""
    if run.complete or any(session.repeats is not None for session in run.sessions):
        return False
    begun = [
        {(outcome.id, block.session) for block in outcome.blocks if block.phase == "main"}
        for outcome in run.outcomes
        if isinstance(outcome, Measurement)
    ]
    once = all(len(sessions) <= 1 for sessions in begun)
    busy = {session for sessions in begun for _, session in sessions}
    counting = {session.index for session in run.sessions if not session.superseded}
    return once and (len(counting) <= 1 or counting <= busy)


def _drop_last_session(run: Run) -> Run:
    """Return the run without what the last session began and did not finish: that is measured anew, with all of the
    workload's cases. A session of which nothing is left counts for nothing."""
    last = max((session.index for session in run.sessions if not session.superseded), default=0)
    least = run.settings.min_samples
    unfinished = {
        outcome.case.workload
        for outcome in run.outcomes
        if isinstance(outcome, Measurement) and _is_of_plan(outcome) and not _has_enough(outcome, last, least)
    }
    outcomes = [_without_last(outcome, last, unfinished) for outcome in run.outcomes]
    remains = any(
        block.session == last
        for outcome in outcomes
        if isinstance(outcome, Measurement)
        for block in outcome.blocks
    )
    sessions = [
        msgspec.structs.replace(session, superseded=True) if session.index == last and not remains else session
        for session in run.sessions
    ]
    return msgspec.structs.replace(run, outcomes=outcomes, sessions=sessions)


def _without_last(outcome: Outcome, last: int, unfinished: Container[str]) -> Outcome:
    if isinstance(outcome, Skip) and _out_of_time(outcome):
        return Planned(id=outcome.id, case=outcome.case)
    if not isinstance(outcome, Measurement) or outcome.case.workload not in unfinished:
        return outcome
    return msgspec.structs.replace(
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
    """The workloads of these outcomes, with these cases alone; a device clock is read where it was before."""
    ids = {outcome.id for outcome in outcomes}
    clocks = {o.case.workload for o in outcomes if isinstance(o, Measurement) and _on_device(o)}
    within = msgspec.structs.replace(constraints, keep=lambda case: case.id in ids)
    workloads = []
    for curve in series(ops, run.selection):
        for n in sorted({o.case.params["n"] for o in outcomes if _on(o.case, curve)}):
            item = workload(curve, n, within)
            workloads.append(msgspec.structs.replace(item, explained=not clocks or item.key in clocks))
    return tuple(workloads)


def _on(case: Case, curve: Series) -> bool:
    return (case.op, case.dtype) == (curve.op.name, curve.dtype) and case.params == curve.params(
        case.params["n"]
    )


def _on_device(outcome: Measurement) -> bool:
    return any(block.hot_repeat is not None or block.device_cold_s for block in outcome.blocks)


# ---------------------------------------------------------------- beside the cases


class Occasion(msgspec.Struct, frozen=True):
    """A session whose cases are measured."""

    pool: WorkerPool  # drives its devices
    index: int  # of the session
    first: bool  # of this run
    plan: Sequence[Workload]  # what the run measures
    budget: Budget  # the time that is left


class Companion:
    """Base of what a wing measures beside the cases of one run: as it stands, nothing."""

    # The part of the budget that the search leaves.
    share = 0.0

    def __init__(self, spec: RunSpec, recorder: Recorder) -> None:
        self.spec, self.recorder = spec, recorder

    def devices(self) -> list[Device]:
        """Return the devices that are measured beside those of the cases."""
        return []

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Measure what belongs to a workload, while its cases are prepared."""

    def follow_session(self, session: Occasion) -> None:
        """Measure what belongs to a session, before its workers end."""

    def clean_up(self) -> None:
        """End what was started, also where the run is interrupted."""


def companions(spec: RunSpec, recorder: Recorder) -> list[Companion]:
    """Return those of all wings. A check measures none."""
    if spec.check_only:
        return []
    return [make(spec, recorder) for make in wings.find_all(wings.brought("companions")).values()]
