"""The run: sessions of fresh workers, given sizes or a search for them, the budget, and the exit code."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from gpubench.errors import ExitCode
from gpubench.measure import load, rounds, scratch, search, splits, telemetry, windows
from gpubench.measure.aim import MAIN, Aim
from gpubench.measure.ceiling_plan import asked
from gpubench.measure.crew import Crew, DeviceGone
from gpubench.measure.ending import verdict
from gpubench.measure.events import RunDone, RunStarted, Sink, Warned
from gpubench.measure.hunt import Hunt, Step
from gpubench.measure.plan import Scope, Series, Workload, expand, series, together, workload
from gpubench.measure.recorder import Recorder, Save, utc_now
from gpubench.measure.runtime import Progress, Runtime
from gpubench.measure.sequel import Sequel
from gpubench.model.op import Op
from gpubench.model.result import Planned, Run, RunWarning, SessionRecord, Settings

# The search leaves this share of the budget for saving, closing workers and the report.
SEARCH_SHARE = 0.95
# Overheads and splits come after the search, which can be cut short: where there are some, it leaves them half.
SHARE_BESIDE_OVERHEADS = 0.5
# A session that others disturbed is repeated at most so often.
REPEATS = 2


class Request(msgspec.Struct, frozen=True):
    """What `run` needs: the document to fill, the ops, the devices and what else bounds the plan.

    `required` devices were named by the user: if one cannot be opened, that is exit 5. `began` is
    the monotonic time from which the budget counts. With a `sequel` the plan is that of a file. `load` reads what
    others do on this machine.
    """

    run: Run
    ops: Mapping[str, Op]
    scope: Scope
    began: float
    required: frozenset[str] = frozenset()
    check_only: bool = False
    sequel: Sequel | None = None
    load: Callable[[], load.Reading | None] = load.unread

    @property
    def settings(self) -> Settings:
        """How to measure."""
        return self.run.settings

    @property
    def sessions(self) -> int:
        """How many sessions are to come."""
        return self.settings.sessions if self.sequel is None else self.sequel.count

    @property
    def searches(self) -> bool:
        """Whether there are break-evens to search for."""
        return bool(_searched(self)) and (self.sequel is None or self.sequel.search)


def run(request: Request, sink: Sink, save: Save) -> Run:
    """Measure everything; the returned run is saved, complete or not. Ctrl-C and SIGTERM end it early."""
    runner = _Runner(request, sink, save)
    try:
        runner.sessions()
        lost = request.required & runner.gone.keys()
        code, reason = verdict(runner.recorder.run, unavailable=lost, check_only=request.check_only)
        complete = True
    except KeyboardInterrupt as interrupt:
        _hold_signals()
        code = getattr(interrupt, "exit_code", ExitCode.INTERRUPTED)
        reason, complete = "interrupted", False
    finally:
        runner.clean_up()
    finished = runner.recorder.finish(code, reason, complete=complete)
    sink(RunDone(code, reason))
    return finished


def _hold_signals() -> None:
    """A second Ctrl-C must not come between the first one and the saved file: the program ends soon anyway."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)


def planned(request: Request) -> list[Workload]:
    """What is known before measuring: given sizes, and the coarse ones of ops whose sizes are searched."""
    if request.sequel is not None:
        return list(request.sequel.workloads)
    searched = [
        workload(curve, n, splits.alone(request.scope))
        for curve in _searched(request)
        if not curve.given
        for n in search.coarse_sizes(curve.ladder)
    ]
    return [*expand(request.ops, request.scope), *searched]


def _searched(request: Request) -> list[Series]:
    """The curves to search: sizes were not given, or `--refine on` asks for it all the same. Overheads have none."""
    sizes, refine = request.scope.selection.sizes, request.settings.refine
    return [
        msgspec.structs.replace(curve, given=tuple(sizes.get(curve.op.name, ())))
        for curve in series(request.ops, request.scope.selection)
        if curve.op.overhead is None and (curve.op.name not in sizes or refine == "on")
    ]


class _Runner:
    def __init__(self, request: Request, sink: Sink, save: Save) -> None:
        self.request = request
        self.settings = request.settings
        self.sink = sink
        self.recorder = Recorder(request.run, save)
        self.gone: dict[str, DeviceGone] = {}
        self._scratch = scratch.new_folder()
        self._kinds = {t.device.id: t.device.kind for t in request.scope.targets}
        self._cpu = {device_id for device_id, kind in self._kinds.items() if kind == "cpu"}
        self._crew: Crew | None = None
        self._plan: list[Workload] = []
        self._begun = 0
        self._sessions = request.sessions
        self.progress = Progress(0, self._next_index() + self._sessions, self._remaining_s)

    def sessions(self) -> None:
        """Every session: the first may search for sizes, the others repeat what it found."""
        sequel = self.request.sequel
        self._announce(expand(self.request.ops, self.request.scope) if sequel is None else sequel.workloads)
        self.progress.cases *= self._sessions
        self.sink(RunStarted(self.progress.cases, self.progress.sessions, self.settings.budget_s))
        longest_s, done = 0.0, []
        while self._begun < self._sessions:
            began = time.monotonic()
            if self._begun and self._left_s() < longest_s:
                cut = "the first session used up the budget" if self._left_s() <= 0 and self._begun == 1 else ""
                self._warn_budget(cut or f"{self._begun} of {self._sessions} sessions fit the budget")
                break
            done.append(self._one_session(self._first if self._begun == 0 else self._again))
            longest_s = max(longest_s, time.monotonic() - began)
        self._repeat([record for record in done if load.contended(record)], longest_s)

    def clean_up(self) -> None:
        """No worker and no scratch file stays behind."""
        if self._crew is not None:
            self._crew.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _one_session(self, steps: Callable[[int, Hunt], Iterator[Step]]) -> SessionRecord:
        """One set of fresh workers, and what they are asked for, step by step. Returns the session's record."""
        before = self.request.load()
        self._begun += 1
        index = self._next_index()
        measured = [] if self.request.check_only else [t.device for t in self.request.scope.targets]
        crew = Crew(self.settings, self._scratch, self.gone, measured, self.request.run.machine)
        self._crew = crew
        record = SessionRecord(index=index, started_at=utc_now("milliseconds"))
        self.recorder.session(record)
        runtime = self._runtime(crew, index)
        crew.open_all(self._kinds)
        crew.measure_ceilings(asked(planned(self.request), measured, self.settings, self.request.run.machine))
        self.recorder.session(crew.entered(record))
        hunt = Hunt(_searched(self.request), splits.alone(self.request.scope), self.recorder, self._search_left_s)
        for step in steps(index, hunt):
            if self._out_of_budget():
                break
            began = time.monotonic()
            tuning_s = rounds.measure(runtime, *step.workloads, aim=step.aim)
            hunt.took(step, time.monotonic() - began - tuning_s)
            if step.aim != MAIN:
                self.recorder.drop_empty(case.id for item in step.workloads for case in item.cases)
            for file in self._scratch.glob("*.npy"):
                file.unlink(missing_ok=True)
            self.recorder.session(crew.entered(record))
        self._warn_telemetry(crew)
        crew.close()
        foreign, steal = load.between(before, self.request.load())
        record = msgspec.structs.replace(crew.entered(record), foreign_cpu_share=foreign, steal_share=steal)
        self.recorder.session(record)
        return record

    def _next_index(self) -> int:
        return max((session.index for session in self.recorder.run.sessions), default=-1) + 1

    def _runtime(self, crew: Crew, index: int) -> Runtime:
        return Runtime(
            crew=crew, recorder=self.recorder, settings=self.settings, sink=self.sink, progress=self.progress,
            session=index, out_of_budget=self._out_of_budget,
            device_kind=lambda device_id: self._kinds[device_id], check_only=self.request.check_only,
            left_s=self._left_s, repeats=self.request.sequel.blocks if self.request.sequel else {},
        )  # fmt: skip

    def _warn_telemetry(self, crew: Crew) -> None:
        """Once a run: which clocks cannot be read, and why."""
        found = telemetry.warning(crew.telemetry.absent())
        if found is not None and all(known.code != found.code for known in self.recorder.run.warnings):
            self.recorder.warn(found)

    # ---------------------------------------------------------------- what a session measures

    def _first(self, index: int, hunt: Hunt) -> Iterator[Step]:
        """The plan, then the search; from a file, what an interrupt left of the two."""
        sequel = self.request.sequel
        if sequel is not None and not (sequel.missing or sequel.search):
            yield from self._again(index, hunt)
            return
        items = self._plan if sequel is None else sequel.missing
        plain = [item for item in items if item.op.overhead is None]
        overheads = [item for item in items if item.op.overhead is not None]
        yield from self._each(self._shuffled(plain, index))
        if sequel is None or sequel.search:
            yield from self._searching(hunt)
            yield from self._splits(hunt)
        # From small to large: what a budget cuts off are the gigabytes, which take the longest.
        yield from self._each(sorted(overheads, key=lambda item: item.n))

    def _searching(self, hunt: Hunt) -> Iterator[Step]:
        """The hunt's steps. What it adds to the plan, later sessions repeat."""
        for step in hunt.steps():
            if step.aim == MAIN:
                self._announce(step.workloads)
            else:
                self.progress.cases += sum(len(item.cases) for item in step.workloads)
            yield step

    def _splits(self, hunt: Hunt) -> Iterator[Step]:
        """Where a search found both sides near each other, what they do together."""
        for curve in _searched(self.request):
            found = splits.worth_trying(curve, hunt.times(curve), self._cpu, self.request.scope)
            if not curve.given and found:
                self._announce(found)
                yield from self._each(found)

    def _again(self, index: int, hunt: Hunt) -> Iterator[Step]:
        """The plan once more, and fresh timings at the sizes that the first session chose for them."""
        scope, sequel = self.request.scope, self.request.sequel
        yield from self._each(self._shuffled(self._plan, index))
        found = windows.of_outcomes(self.recorder.outcomes, self.request.ops, self._cpu)
        for window in found or (sequel.windows if sequel else ()):
            for group in together(window.workloads(scope), scope):
                self.progress.cases += sum(len(item.cases) for item in group)
                yield Step(group, Aim("estimate", window.samples))

    @staticmethod
    def _each(items: Sequence[Workload]) -> Iterator[Step]:
        return (Step((item,), MAIN) for item in items)

    def _shuffled(self, items: list[Workload], index: int) -> list[Workload]:
        if self.settings.order == "sequential":
            return list(items)
        return random.Random(f"{self.settings.seed} workloads {index}").sample(items, len(items))

    def _repeat(self, busy: list[SessionRecord], longest_s: float) -> None:
        """Measure what others disturbed once more, at the end. If a repeat was quiet, it stands in for the others."""
        if self.request.check_only:
            return
        for record in busy:
            disturbed = [record]
            while len(disturbed) <= REPEATS and self._left_s() >= longest_s:
                self.progress.cases += sum(len(item.cases) for item in self._plan)
                self.progress.sessions += 1
                again = self._one_session(self._again)
                if self._out_of_budget():
                    return  # it may lack cases
                if not load.contended(again):
                    for old in disturbed:
                        self.recorder.session(msgspec.structs.replace(old, superseded=True))
                    break
                disturbed.append(again)

    # ---------------------------------------------------------------- budget and bookkeeping

    def _announce(self, workloads: Sequence[Workload]) -> None:
        """Workloads of the plan: what is not reached of them stays visible."""
        self._plan += workloads
        planned = [Planned(id=case.id, case=case) for w in workloads for case in w.cases]
        self.recorder.plan([*planned, *(skip for w in workloads for skip in w.skips)])
        self.recorder.save()
        self.progress.cases += len(planned)

    def _left_s(self) -> float:
        if self.settings.budget_s is None:
            return float("inf")
        return self.settings.budget_s - (time.monotonic() - self.request.began)

    def _search_left_s(self) -> float:
        """The search may use the first session's share of the budget."""
        if self.settings.budget_s is None:
            return float("inf")
        beside = any(item.op.overhead is not None for item in self._plan) or splits.asked(self.request.scope)
        share = SEARCH_SHARE * (SHARE_BESIDE_OVERHEADS if beside else 1.0)
        return share * self.settings.budget_s / max(self._sessions, 1) - (time.monotonic() - self.request.began)

    def _out_of_budget(self) -> bool:
        return self._left_s() <= 0

    def _remaining_s(self) -> float | None:
        """Until the end: the budget's rest, or the pace so far times the cases that are left."""
        if self.settings.budget_s is not None:
            return max(0.0, self._left_s())
        if not self.progress.finished:
            return None
        spent = time.monotonic() - self.request.began
        return spent / self.progress.finished * max(0, self.progress.cases - self.progress.finished)

    def _warn_budget(self, message: str) -> None:
        warning = RunWarning(code="budget", message=message, hint="raise --budget or choose fewer --ops")
        self.recorder.warn(warning)
        self.sink(Warned(warning))
