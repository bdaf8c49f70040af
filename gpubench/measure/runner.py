"""The run: sessions of fresh workers, given sizes or a search for them, the budget, and the exit code."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping

import msgspec

from gpubench import stats
from gpubench.errors import ExitCode
from gpubench.measure import rounds, scratch, search, telemetry
from gpubench.measure.crew import Crew, DeviceGone
from gpubench.measure.events import RunDone, RunStarted, Sink, Warned
from gpubench.measure.plan import Scope, Series, Workload, expand, series, workload
from gpubench.measure.recorder import Recorder, Save, utc_now
from gpubench.measure.runtime import Progress, Runtime
from gpubench.measure.stopping import kept_samples
from gpubench.model.op import Op
from gpubench.model.result import (
    Failure,
    Measurement,
    Planned,
    Run,
    RunWarning,
    SessionRecord,
    Settings,
)

# The search leaves this share of the budget for saving, closing workers and the report.
SEARCH_SHARE = 0.95
# Overheads come after the search, which can be cut short as they cannot: where there are some, it leaves them half.
SHARE_BESIDE_OVERHEADS = 0.5
# While the coarse sizes are measured, refinement keeps this share of what is left.
COARSE_SHARE = 0.8


class Request(msgspec.Struct, frozen=True):
    """What `run` needs: the document to fill, the ops, the devices and what else bounds the plan.

    `required` devices were named by the user: if one cannot be opened, that is exit 5. `began` is
    the monotonic time from which the budget counts.
    """

    run: Run
    ops: Mapping[str, Op]
    scope: Scope
    began: float
    required: frozenset[str] = frozenset()
    check_only: bool = False

    @property
    def settings(self) -> Settings:
        """How to measure."""
        return self.run.settings


def run(request: Request, sink: Sink, save: Save) -> Run:
    """Measure everything; the returned run is saved, complete or not. Ctrl-C and SIGTERM end it early."""
    runner = _Runner(request, sink, save)
    try:
        runner.sessions()
        code, reason = runner.verdict()
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
    searched = [
        workload(curve, n, request.scope)
        for curve in _searched(request)
        for n in search.coarse_sizes(curve.ladder)
    ]
    return [*expand(request.ops, request.scope), *searched]


def _searched(request: Request) -> list[Series]:
    """The curves whose sizes were not given; those of overheads are known (`plan.sizes`)."""
    selection = request.scope.selection
    return [
        curve for curve in series(request.ops, selection)
        if curve.op.name not in selection.sizes and curve.op.overhead is None
    ]  # fmt: skip


class _Runner:
    def __init__(self, request: Request, sink: Sink, save: Save) -> None:
        self.request = request
        self.settings = request.settings
        self.sink = sink
        self.recorder = Recorder(request.run, save)
        self._scratch = scratch.new_folder()
        self._gone: dict[str, DeviceGone] = {}
        self._kinds = {t.device.id: t.device.kind for t in request.scope.targets}
        self._cpu = {device_id for device_id, kind in self._kinds.items() if kind == "cpu"}
        self._crew: Crew | None = None
        self._found: list[Workload] = []
        self._search_share = SEARCH_SHARE
        self._elapsed: dict[str, dict[int, float]] = {}
        self.progress = Progress(0, self.settings.sessions, self._remaining_s)

    def sessions(self) -> None:
        """Every session: the first may search for sizes, the others repeat what it found."""
        static = expand(self.request.ops, self.request.scope)
        self._announce_plan(static)
        first_s = 0.0
        for index in range(self.settings.sessions):
            began = time.monotonic()
            if index and self._left_s() < first_s:
                cut = "the first session used up the budget" if self._left_s() <= 0 and index == 1 else ""
                self._warn_budget(cut or f"{index} of {self.settings.sessions} sessions fit the budget")
                break
            self._one_session(index, static)
            first_s = first_s or time.monotonic() - began

    def verdict(self) -> tuple[ExitCode, str]:
        """The exit code of what was learnt (interface.md section 6)."""
        outcomes = self.recorder.run.outcomes
        failures = [o for o in outcomes if isinstance(o, Failure)]
        if any(f.reason == "wrong-result" for f in failures):
            return ExitCode.FAILED, "wrong-result"
        if failures:
            return ExitCode.FAILED, "failed"
        measured = [o for o in outcomes if isinstance(o, Measurement)]
        if self.request.required & self._gone.keys():
            return ExitCode.UNAVAILABLE, "unavailable"
        if not measured:
            return ExitCode.FAILED, "nothing-measured"
        if any(isinstance(o, Planned) for o in outcomes) or any(self._too_few(o) for o in measured):
            return ExitCode.BUDGET, "budget"
        return ExitCode.OK, "ok"

    def clean_up(self) -> None:
        """No worker and no scratch file stays behind."""
        if self._crew is not None:
            self._crew.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _too_few(self, outcome: Measurement) -> bool:
        if self.request.check_only:
            return False
        kept = sum(len(kept_samples(block)) for block in outcome.blocks)
        return kept < self.settings.min_samples

    def _one_session(self, index: int, static: list[Workload]) -> None:
        measured = [] if self.request.check_only else [t.device for t in self.request.scope.targets]
        crew = Crew(self.settings, self._scratch, self._gone, measured, self.request.run.machine)
        self._crew = crew
        record = SessionRecord(index=index, started_at=utc_now())
        self.recorder.session(record)
        runtime = Runtime(
            crew=crew, recorder=self.recorder, settings=self.settings, sink=self.sink, progress=self.progress,
            session=index, out_of_budget=self._out_of_budget,
            device_kind=lambda device_id: self._kinds[device_id], check_only=self.request.check_only,
            left_s=self._left_s,
        )  # fmt: skip
        crew.open_all(self._kinds)
        self.recorder.session(crew.entered(record))
        for item in self._workloads(index, static):
            if self._out_of_budget():
                break
            began = time.monotonic()
            tuning_s = rounds.measure(runtime, item)
            self._elapsed.setdefault(item.series.key, {})[item.n] = time.monotonic() - began - tuning_s
            for file in self._scratch.glob("*.npy"):
                file.unlink(missing_ok=True)
            self.recorder.session(crew.entered(record))
        self._warn_telemetry(crew)
        crew.close()
        self.recorder.session(crew.entered(record))

    def _warn_telemetry(self, crew: Crew) -> None:
        """Once a run: which clocks cannot be read, and why."""
        found = telemetry.warning(crew.telemetry.absent())
        if found is not None and all(known.code != found.code for known in self.recorder.run.warnings):
            self.recorder.warn(found)

    def _workloads(self, index: int, static: list[Workload]) -> Iterator[Workload]:
        if index == 0:
            overheads = [item for item in static if item.op.overhead is not None]
            if overheads:
                self._search_share = SEARCH_SHARE * SHARE_BESIDE_OVERHEADS
            yield from self._shuffled([item for item in static if item.op.overhead is None], index)
            yield from self._search()
            # From small to large: what a budget cuts off are the gigabytes, which take the longest.
            yield from sorted(overheads, key=lambda item: item.n)
        else:
            yield from self._shuffled([*static, *self._found], index)

    def _shuffled(self, items: list[Workload], index: int) -> list[Workload]:
        if self.settings.order == "sequential":
            return list(items)
        return random.Random(f"{self.settings.seed} workloads {index}").sample(items, len(items))

    # ---------------------------------------------------------------- the search for sizes

    def _search(self) -> Iterator[Workload]:
        """Coarse sizes of every op first, so that each gets a verdict; then the widest brackets in turn."""
        curves = _searched(self.request)
        if self.settings.budget_s is None or self.settings.refine == "off":
            for curve in curves:
                for n in curve.ladder.sizes():
                    yield self._new(curve, n, device_clock=True)
            return
        for place, curve in enumerate(curves):
            share = self._search_left_s() * COARSE_SHARE / (len(curves) - place)
            yield from self._coarse(curve, share)
        yield from self._refine(curves)

    def _coarse(self, curve: Series, share_s: float) -> Iterator[Workload]:
        began = time.monotonic()
        sizes = search.coarse_sizes(curve.ladder)
        for n in sizes:
            left = share_s - (time.monotonic() - began)
            elapsed = self._elapsed.get(curve.key, {})
            fits = search.affordable(curve, n, self._times(curve), elapsed, self.settings.min_samples, left)
            if fits is None:
                return
            yield self._new(curve, fits, device_clock=n == sizes[-1])
            if fits < n:
                return

    def _refine(self, curves: list[Series]) -> Iterator[Workload]:
        """Take the most urgent step of all curves, as long as there is one and time for it."""
        while True:
            steps = []
            for place, curve in enumerate(curves):
                step = search.next_step(curve.ladder, self._times(curve), self._cpu)
                # A size that was tried and gave no time (it did not fit, say) gives none the second time either.
                tried = self._elapsed.get(curve.key, {})
                if step is not None and step[1] not in tried and self._fits(curve, step[1]):
                    steps.append((step[0], -place, step[1]))
            if not steps:
                return
            _, place, n = max(steps)
            curve = curves[-place]
            yield self._new(curve, n, search.contenders(self._times(curve), n, self._cpu))

    def _fits(self, curve: Series, n: int) -> bool:
        """True if this size is predicted to fit what the search may still spend."""
        elapsed = self._elapsed.get(curve.key, {})
        seconds = search.predicted_seconds(curve, n, self._times(curve), elapsed, self.settings.min_samples)
        return 1.2 * seconds < self._search_left_s()

    def _new(
        self, curve: Series, n: int, slots: set[search.Slot] | None = None, *, device_clock: bool = False
    ) -> Workload:
        found = workload(curve, n, self.request.scope)
        found = msgspec.structs.replace(found, device_clock=device_clock)
        if slots is not None:
            kept = tuple(c for c in found.cases if (c.device_id, c.form_id, c.regime_id) in slots)
            found = msgspec.structs.replace(found, cases=kept, skips=())
        self._found.append(found)
        self._announce_plan([found])
        return found

    def _times(self, curve: Series) -> dict[int, dict[search.Slot, search.Span]]:
        times: dict[int, dict[search.Slot, search.Span]] = {}
        for item in self._found:
            if item.series.key != curve.key:
                continue
            for case in item.cases:
                if case.variant is not None:
                    continue  # no contender: it is measured for its own sake
                outcome = self.recorder.outcome(case.id)
                if isinstance(outcome, Measurement) and outcome.blocks:
                    kept = [v for block in outcome.blocks for v in kept_samples(block)]
                    slot = (case.device_id, case.form, case.regime_id)
                    low, high = stats.median_interval(kept)
                    times.setdefault(item.n, {})[slot] = search.Span(low, stats.median(kept), high)
        return times

    # ---------------------------------------------------------------- budget and bookkeeping

    def _announce_plan(self, workloads: list[Workload]) -> None:
        planned = [Planned(id=case.id, case=case) for w in workloads for case in w.cases]
        self.recorder.plan([*planned, *(skip for w in workloads for skip in w.skips)])
        self.recorder.save()
        self.progress.cases += len(planned) * (self.settings.sessions if not self._found else 1)
        if not self.progress.number:
            self.sink(RunStarted(self.progress.cases, self.settings.sessions, self.settings.budget_s))

    def _left_s(self) -> float:
        if self.settings.budget_s is None:
            return float("inf")
        return self.settings.budget_s - (time.monotonic() - self.request.began)

    def _search_left_s(self) -> float:
        """The search may use the first session's share of the budget."""
        budget = self.settings.budget_s or 0.0
        spent = time.monotonic() - self.request.began
        return self._search_share * budget / self.settings.sessions - spent

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
