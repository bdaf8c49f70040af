"""The run: its sessions with new workers, its sizes (given or searched), its budget and its exit code."""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpubench.base import processes, units
from gpubench.base.errors import ExitCode, GpubenchError
from gpubench.curves.stats import median
from gpubench.measure import monitor
from gpubench.measure.budget import SEARCH_SHARE, SHARE_BESIDE_OVERHEADS, START_SHARE, Budget
from gpubench.measure.case_run import LARGEST_BLOCK, ONCE_S, CaseRun, Runtime, warn_once
from gpubench.measure.passes import Passes
from gpubench.measure.plan import Purpose, Step, Workload, plan_peaks
from gpubench.measure.points import Pace, device_ids
from gpubench.measure.recorder import (
    DEVICE_LOST,
    Progress,
    Recorder,
    RunDone,
    RunStarted,
    Save,
    SessionAgain,
    Sink,
    Warned,
    planned_cases,
    to_be_tried,
    utc_now,
    verdict,
)
from gpubench.measure.schedule import (
    Companion,
    Occasion,
    RunSpec,
    Schedule,
    alone,
    companions,
    open_curves,
)
from gpubench.measure.scratch import Scratch
from gpubench.measure.worker_pool import Cases, DeviceGone, WorkerPool
from gpubench.result.case import Case
from gpubench.result.run import (
    DeviceKind,
    Measurement,
    Run,
    RunWarning,
    SessionRecord,
    warning,
)

# Choosing kernels is reported if it took at least this long.
WORTH_A_WORD_S = 1.0
# A session that other programs disturbed is repeated at most this often.
REPEATS = 2


def run(spec: RunSpec, sink: Sink, save: Save) -> Run:
    """Carry out the run and return its document, complete or not. Ctrl-C, SIGTERM and SIGHUP end it early."""
    runner = Runner(spec, sink, save)
    try:
        runner.sessions()
        code, reason = verdict(
            runner.recorder.run, since=runner.first_session,
            unavailable=spec.required & runner.gone.keys(), check_only=spec.check_only,
        )  # fmt: skip
        complete = True
    except KeyboardInterrupt as interrupt:
        hold_signals()
        code = getattr(interrupt, "exit_code", ExitCode.INTERRUPTED)
        reason, complete = "interrupted", False
    finally:
        runner.clean_up()
    finished = runner.recorder.finish(code, reason, complete=complete)
    sink(RunDone(code, reason))
    return finished


def hold_signals() -> None:
    """Ignore further signals, so that a second Ctrl-C cannot prevent the file from being saved."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):  # SIGHUP is of POSIX, SIGBREAK of Windows
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)


def _warn_on_failure(save: Save, sink: Sink) -> Save:
    """Return a function like `save` that warns the user if the disk fails, instead of raising GpubenchError."""

    def attempt(run: Run) -> None:
        try:
            save(run)
        except GpubenchError as error:
            message = f"{error.message}: {error.why}; measuring goes on, and saving is tried again"
            sink(Warned(RunWarning(code="cannot-save", message=message, hint=error.hint)))

    return attempt


class Runner:
    def __init__(self, spec: RunSpec, sink: Sink, save: Save) -> None:
        self.spec = spec
        self.settings = spec.settings
        self.sink = sink
        self.recorder = Recorder(spec.run, _warn_on_failure(save, sink))
        self._companions = companions(spec, self.recorder)
        self.gone: dict[str, DeviceGone] = {}
        self._given_another_try: set[str] = set()
        self._scratch = Scratch(host_bytes=spec.constraints.host_bytes)
        self._kinds = {t.device.id: t.device.kind for t in spec.constraints.targets}
        self._pool: WorkerPool | None = None
        self._pace = Pace()
        self._begun = 0
        self._budget = Budget(self.settings.budget_s, spec.began, spec.once_s)
        self._sessions = self._sharing = spec.sessions
        self.first_session = self._next_index()
        self.progress = Progress(0, self.first_session + self._sessions, self.remaining_s)
        self._schedule = Schedule(spec, self.recorder, self.progress)
        if not (self._schedule.count or spec.searches):  # all of the plan is skipped
            self._sessions = 0
            self.progress.sessions = self.first_session

    def sessions(self) -> None:
        """Run the sessions that fit the budget. The first may search for sizes, which the others repeat."""
        self.progress.cases *= self._sessions
        self.sink(RunStarted(self.progress.cases, self.progress.sessions, self.settings.budget_s))
        if self.spec.spares is not None:
            cpus = self.spec.run.machine.cpu.available.value or 1
            needed = dict.fromkeys(target.device.backend for target in self.spec.constraints.targets)
            self.spec.spares.keep_ahead(needed, self._sessions, cpus, self.settings.threads)
        longest_s, done = 0.0, []
        while self._begun < self._sessions and (self._schedule.count or not self._begun):
            began = time.monotonic()
            if self._begun and self._budget.left_s() < longest_s:
                spent = (
                    "the first session used up the budget"
                    if self._budget.left_s() <= 0 and self._begun == 1
                    else ""
                )
                self._warn_budget(spent or f"{self._begun} of {self._sessions} sessions fit the budget")
                break
            done.append(self._one_session(self._schedule.first if self._begun == 0 else self._schedule.again))
            took_s = time.monotonic() - began
            longest_s = took_s if self._begun <= 2 else max(longest_s, took_s)  # a repeat does not search
            fits = self.spec.searches and self._budget.left_s() > longest_s
            if fits and self.spec.adds_sessions and 1 < self._begun == self._sessions:
                self._sessions += 1
                self.progress.sessions += 1
                self.progress.cases += self._schedule.count
        if self.spec.check_only and (unfinished := planned_cases(self.recorder.run)):
            ops = units.list_words(list(dict.fromkeys(outcome.case.op for outcome in unfinished)))
            self._warn_budget(
                f"{len(unfinished)} of {len(self.recorder.run.outcomes)} cases were not checked: {ops}"
            )
        self._repeat([record for record in done if record.contended], longest_s)

    def clean_up(self) -> None:
        """End all child processes and remove the scratch files."""
        if self._pool is not None:
            self._pool.kill()
        for companion in self._companions:
            companion.clean_up()
        self._scratch.remove()

    def _one_session(
        self, steps: Callable[[int, Passes], Iterator[Step]], repeats: int | None = None
    ) -> SessionRecord:
        """Run one session with new workers and return its record."""
        # `repeats` is the index of the session that this one repeats, if it does.
        before = self.spec.load()
        self._begun += 1
        index = self._next_index()
        self.try_lost_devices_again()
        measured = [] if self.spec.check_only else [t.device for t in self.spec.constraints.targets]
        pool = WorkerPool(
            self.settings,
            self._scratch.folder,
            self.gone,
            [*measured, *(device for companion in self._companions for device in companion.devices())],
            self.spec.run.machine,
            self.spec.spares,
        )
        self._pool = pool
        # A repeat counts only once `_repeat` has chosen it.
        record = SessionRecord(
            index=index, started_at=utc_now("milliseconds"), superseded=repeats is not None, repeats=repeats
        )
        self.recorder.session(record)
        runtime = self._runtime(pool, index)
        search = Passes(
            open_curves(self.spec), alone(self.spec.constraints), self.recorder, self.search_left_s,
            whole=self.spec.whole,
        )  # fmt: skip
        # Calls and inputs that are known to take long would take the time of the start.
        first = self._schedule.beginning(search)
        first = [item for item in first if item.call_s + item.op.inputs_s(item.params) < ONCE_S]
        self._open_all(pool, index, first)
        self._budget.once_s += pool.once_s
        if self._begun == 1:
            self._budget.forgive(START_SHARE)
            if self.search_left_s() <= 0:  # one session that measures is worth more than several that do not
                self._sharing = 1
        self.recorder.clocks(pool.clocks)
        self.recorder.session(pool.enter_into(record))
        unused = self.spec.resume is not None  # one that goes on and finds nothing left counts for nothing
        under_way: StepRun | None = None
        for step in steps(index, search):  # it is chosen while the workers check what the last one left
            if under_way is not None:
                self._finish(under_way, search)
                under_way = None
                self.recorder.session(pool.enter_into(record))
            if self._budget.over:
                break
            unused = unused and not any(item.cases for item in step.workloads)
            self._scratch.serve({item.series.key for item in step.workloads})
            under_way = StepRun(runtime, step, self._companions)
            under_way.sample()
            self._budget.once_s += under_way.tuning_s if step.ends else 0.0
            search.note_times(step)
        if under_way is not None:
            self._finish(under_way, search)
        self.judge_losses(runtime)
        self.recorder.session(pool.enter_into(record))
        if self._begun == 1:  # hardware does not change from session to session
            peaks = plan_peaks(self._schedule.plan, measured, self.settings, self.spec.run.machine)
            late = self._budget.over  # a worker that did not answer in time is not replaced
            pool.measure_peaks({name: peaks[name] for name in peaks if name in pool.workers or not late})
        for companion in self._companions:
            companion.follow_session(Occasion(pool, index, self._begun == 1, self._schedule.plan, self._budget))
        self._warn_telemetry(pool)
        self._tell_once()
        foreign, steal = processes.load_between(before, self.spec.load())  # while all of our processes live
        pool.close()
        record = replace(
            pool.enter_into(record), foreign_cpu_share=foreign, steal_share=steal,
            superseded=record.superseded or unused,
        )  # fmt: skip
        self.recorder.session(record)
        return record

    def _finish(self, run: StepRun, search: Passes) -> None:
        """Wait for the last checks of a step, and let the search learn from its times."""
        if not run.finish():
            search.note_times(run.step)
        search.took(run.step, run.took_s - run.tuning_s)

    def judge_losses(self, runtime: Runtime) -> None:
        """Report the workers that ended before their cases were prepared."""
        for device_id, loss in runtime.pool.take_losses(list(runtime.pool.losses)).items():
            gone, case = loss
            outcome = self.recorder.outcome(case.id) if case is not None else None
            if case is None or not to_be_tried(outcome, runtime.session, self.first_session):
                self.recorder.warn(_restart_warning(device_id, gone.detail, runtime.session))
            else:
                item = Workload(self.spec.ops[case.op], case.params, case.dtype, (case,))
                CaseRun(case, runtime, item, before=outcome).lose(gone)

    def try_lost_devices_again(self) -> None:
        """Allow one more try for each lost device, unless it was lost in the session before, too."""
        lost = {device_id for device_id, gone in self.gone.items() if gone.reason == DEVICE_LOST}
        for device_id in lost - self._given_another_try:
            del self.gone[device_id]
        self._given_another_try = lost

    def _open_all(self, pool: WorkerPool, index: int, first: Sequence[Workload]) -> None:
        """Open every device, and build the workloads in `first` while the last ones open."""
        pool.begin(device_ids(self.spec.constraints, "cpu"), self.spec.run.selection)
        # Before any GPU is opened: our own workers would be listed among its users.
        for users in monitor.warn_of_users(pool.monitor.users(), index):
            warn_once(self.recorder, self.sink, users)
        self._scratch.serve({item.series.key for item in first})
        pool.open_all(list(self._kinds), self.spec.run.selection, _by_device(first, self._kinds), self._budget)

    def _next_index(self) -> int:
        return max((session.index for session in self.recorder.run.sessions), default=-1) + 1

    def _runtime(self, pool: WorkerPool, index: int) -> Runtime:
        return Runtime(
            pool=pool, recorder=self.recorder, settings=self.settings, sink=self.sink, progress=self.progress,
            session=index, first_session=self.first_session, budget=self._budget,
            kinds=self._kinds, check_only=self.spec.check_only,
            repeats=self.spec.resume.blocks if self.spec.resume else {}, pace=self._pace,
        )  # fmt: skip

    def _warn_telemetry(self, pool: WorkerPool) -> None:
        """Warn, once per run, of devices whose clocks cannot be read."""
        absent = monitor.warn_of_absent(pool.monitor.absent())
        if absent is not None and all(other.code != absent.code for other in self.recorder.run.warnings):
            self.recorder.warn(absent)

    def _tell_once(self) -> None:
        """Report the time of work that only the first run on a machine does, if it is long enough."""
        if self._budget.uncounted_s < WORTH_A_WORD_S or self._begun > 1:
            return
        message = (
            f"{self._budget.once_s:.0f} s of this run went to compiling, and to choosing kernels and numbers of threads"
            " for this machine"
        )
        data = {"seconds": round(self._budget.once_s, 1)}
        warn_once(self.recorder, self.sink, warning("chosen-once", message, severity="info", data=data))

    def _repeat(self, busy: list[SessionRecord], longest_s: float) -> None:
        """Measure each disturbed session in `busy` again while there is time, and count only its least
        disturbed try."""
        if self.spec.check_only or not self.spec.repeats:
            return
        for record in busy:
            turn = [record]
            while len(turn) <= REPEATS and turn[-1].contended and self._budget.left_s() >= longest_s:
                sessions = self.recorder.run.sessions
                if len(sessions) > 1 and all(session.contended for session in sessions):
                    return  # a repeat would be disturbed, too
                self.progress.cases += self._schedule.count
                self.sink(SessionAgain(turn[-1].disturbance, record.index, self.progress.cases))
                again = self._one_session(self._schedule.again, repeats=record.index)
                blocks = [block for outcome in self.recorder.run.measurements for block in outcome.blocks]
                if self._budget.over or all(block.session != again.index for block in blocks):
                    return  # it may lack cases, or has none: a device is lost, a user's file was edited
                turn.append(again)
                least = min(turn, key=lambda session: (session.disturbance, session.index))
                for session in turn:
                    self.recorder.session(replace(session, superseded=session is not least))

    def search_left_s(self) -> float:
        """Return the seconds left to the search: infinity without a budget, 0 or less if its share is used up.
        The rest of the budget is for overheads, splits, device groups and companions."""
        constraints, plan = self.spec.constraints, self._schedule.plan
        several = alone(constraints).targets != constraints.targets  # splits or device groups
        beside = several or any(item.op.overhead is not None for item in plan)
        share = SEARCH_SHARE * (SHARE_BESIDE_OVERHEADS if beside else 1.0)
        share -= sum(companion.share for companion in self._companions)
        return self._budget.left_s(share / max(self._sharing, 1))

    def remaining_s(self) -> float | None:
        """Return the estimated seconds left, or None if they are unknown. With a budget, they are the rest of
        it. Otherwise they are the mean time per case times the cases left."""
        if self.settings.budget_s is not None:
            return max(0.0, self._budget.left_s())
        if not self.progress.finished:
            return None
        return (
            self._budget.spent_s / self.progress.finished * max(0, self.progress.cases - self.progress.finished)
        )

    def _warn_budget(self, message: str) -> None:
        hint = "raise --budget or choose fewer --ops"
        warn_once(self.recorder, self.sink, warning("budget", message, hint))


class StepRun:
    """A step under way: its cases that this session measures, interleaved. Their outcomes go to the
    recorder."""

    def __init__(self, runtime: Runtime, step: Step, companions: Sequence[Companion] = ()) -> None:
        self.step, self._companions = step, companions
        self._runtime = runtime
        self._runs = [
            CaseRun(case, runtime, workload, step.purpose, before)
            for workload in step.workloads
            for case in workload.cases
            if to_be_tried(before := runtime.recorder.outcome(case.id), runtime.session, runtime.first_session)
        ]
        self._begun: set[str] = set()  # devices
        self.took_s = 0.0

    @property
    def tuning_s(self) -> float:
        """The seconds that were spent on choosing kernels, which is done once per device and not for each
        size."""
        return sum(run.prepared.tune_s for run in self._runs if run.prepared is not None)

    def sample(self) -> None:
        """Prepare, check and time the cases, then send the requests for their last checks."""
        runtime, runs = self._runtime, self._runs
        began, once_s = time.monotonic(), runtime.budget.once_s
        runtime.pool.reallocate(
            {run.case.device_id for run in runs if _needs_other_memory(run)}, runtime.budget
        )
        for run in runs:
            run.leave_out()
        waiting = {run.case.workload for run in runs if not run.over}
        workloads = [item for item in self.step.workloads if item.key in waiting]
        runtime.pool.load(_by_device(workloads, runtime.kinds), runtime.budget)
        quiet = [run for run in runs if run.quiet and not run.over]
        for run in quiet:
            run.ask_to_begin()
        for run in (*quiet, *(run for run in runs if run not in quiet)):
            if runtime.budget.over:
                run.over = True
            elif not run.over:
                self._begun.add(run.case.device_id)
                run.begin()
        if not runtime.check_only:
            for run in runs:
                if run.unsettled and not run.over:
                    sweep(run)
            _rounds(runtime, self.step.workloads[0].key if self.step.workloads else "", runs)
            for companion in self._companions:
                for workload in self.step.workloads:
                    companion.follow_cases(runtime, workload, runs)
        for run in runs:
            run.ask_to_finish()
        self.took_s = time.monotonic() - began - (runtime.budget.once_s - once_s)

    def finish(self) -> bool:
        """Wait for the last checks. Returns False if a case did not pass its last check."""
        began = time.monotonic()
        passed = [run.measured for run in self._runs]
        for run in self._runs:
            run.finish()
        blamed = {run.case.device_id for run in self._runs if run.failed}
        for device_id, loss in self._runtime.pool.take_losses(self._begun).items():
            if device_id not in blamed:
                self._runtime.recorder.warn(
                    _restart_warning(device_id, loss.gone.detail, self._runtime.session)
                )
        self.took_s += time.monotonic() - began
        return passed == [run.measured for run in self._runs]


def _needs_other_memory(run: CaseRun) -> bool:
    """Return whether this is a CPU case that already has a block in this session."""
    blocks = run.before.blocks if isinstance(run.before, Measurement) else []
    here = any(block.session == run.runtime.session for block in blocks)
    # The time of a CPU depends on where its data lies.
    return here and run.runtime.kinds[run.case.device_id] == "cpu"


def _by_device(workloads: Sequence[Workload], kinds: Mapping[str, DeviceKind]) -> list[Cases]:
    """Return for each workload a dict from device id, CPUs first, to one case of each implementation."""
    devices: list[Cases] = []
    for item in workloads:
        if item.op.overhead is not None:
            continue
        implementations: dict[str, dict[str, Case]] = {}
        cases = [case for case in item.cases if case.shared_with is None]
        for case in sorted(cases, key=lambda case: kinds[case.device_id] != "cpu"):
            implementations.setdefault(case.device_id, {}).setdefault(case.implementation_id, case)
        devices.append({device_id: list(chosen.values()) for device_id, chosen in implementations.items()})
    return devices


def _rounds(runtime: Runtime, key: str, runs: list[CaseRun]) -> None:
    """Take blocks in rounds until each case may stop, in a random order with `key` in its seed."""
    settings = runtime.settings
    shuffle = random.Random(f"{settings.seed} {runtime.session} {key}")
    order: list[CaseRun] = []
    long_runs: list[CaseRun] = []  # those that were sampled and whose last checks take a while
    number = 0
    while active := [run for run in runs if not run.over]:
        if settings.order == "sequential":
            order = active[:1]  # each case is measured to its end before the next one
        elif number % 2:
            order = [run for run in reversed(order) if not run.over]
        else:
            order = shuffle.sample(active, len(active))
        for position, run in enumerate(order):
            if runtime.budget.left_s() <= last_checks_s([*long_runs, run]) + run.sample_s - run.check_s:
                run.stop("budget")
                continue
            run.sample(number, position)
            if run.check_s and run not in long_runs:
                long_runs.append(run)
        number += 1


def last_checks_s(runs: Sequence[CaseRun]) -> float:
    """Return the expected seconds of the last checks of these cases. Short launches count as 0. Devices
    check at the same time, so the slowest device decides."""
    seconds: dict[str, dict[str, float]] = {}
    for run in runs:
        case, shared = run.case, f"{run.case.workload} {run.case.implementation_id}"
        # Cases with resident data share the check of their workload and implementation.
        seconds.setdefault(case.device_id, {})[shared if case.resident else case.id] = run.check_s
    return max((math.fsum(checks.values()) for checks in seconds.values()), default=0.0)


def _restart_warning(device_id: str, detail: str, session: int) -> RunWarning:
    """Return the warning that a worker died before its cases were prepared and was replaced; `detail` says
    how."""
    message = f"{device_id}: {detail}; a fresh worker goes on"
    return warning("worker-restarted", message, session=session)


# ---------------------------------------------------------------- two sides of a case

# Distances from the predicted best share at which splits are tried. If the sides slow each other down, the best
# share is not the predicted one.
STEPS = (0.05, 0.1, 0.2)


def optimum(cpu_s: float, gpu_s: float) -> float:
    """Return the GPU's share with which both sides end together, from the seconds of each side alone."""
    return cpu_s / (cpu_s + gpu_s)


def gpu_shares(cpu_s: float, gpu_s: float) -> list[float]:
    """Return the GPU's shares to try, from the seconds of each side alone: the optimum, then its neighbours.
    Each share is above 0 and below 1."""
    best = optimum(cpu_s, gpu_s)
    around = [best, *(place for step in STEPS for place in (best - step, best + step))]
    return [place for place in around if 0.0 < place < 1.0]


def fastest(times: Mapping[float, float]) -> float | None:
    """Return the GPU's share with the least seconds per launch, or None if no share splits the work."""
    split = {share: seconds for share, seconds in times.items() if 0.0 < share < 1.0}
    return min(split, key=split.__getitem__, default=None)


SWEEP = Purpose("sweep", samples=LARGEST_BLOCK)
# Seconds for the stages of a workload on both sides.
ASSIGNMENT_S = 0.5


def sweep(run: CaseRun) -> None:
    """Try the splits of a case and settle on the fastest. Each is checked before it is timed. If the budget
    ends first, the best split so far is taken, or the one that the model predicts. An error ends the case."""
    left_s, times = run.left_s, dict[Any, float]()  # each split has the case's whole time limit
    best: float | str | None = None
    if run.prepared is not None and isinstance(run.prepared.split, str):
        assignment_times = run.assign_stages(min(ASSIGNMENT_S, run.runtime.budget.left_s()))
        predicted = assignment_times.predicted_s if assignment_times is not None else {}
        for assignment in predicted:
            _try(run, assignment, times)
        seconds = times or predicted
        best = min(seconds, key=seconds.__getitem__, default=None)
    else:
        for share in (0.0, 1.0):
            _try(run, share, times)
        if len(times) == 2:
            cpu_s, gpu_s = times[0.0], times[1.0]
            for share in gpu_shares(cpu_s, gpu_s):
                _try(run, share, times)
            best = fastest(times) or optimum(cpu_s, gpu_s)
    if run.over:
        return
    run.left_s = left_s
    _settle(run, best)


def _try(run: CaseRun, split: Any, times: dict[Any, float]) -> None:
    """Time one block at this split, and store its median seconds in `times`."""
    if run.over or run.runtime.budget.over:
        return
    trial = run.trial(SWEEP, split)
    trial.prepare(first=False)
    ready = trial.prepared
    place = ready.split if ready is not None else None
    # Rounding to whole units may lead to a split that was tried before.
    fresh = place is not None and place not in times and trial.take(len(times), 0)
    if place is not None and fresh and trial.kept:  # the budget may end where all that was taken is throttled
        times[place] = median(trial.kept)
    run.worker = trial.worker
    if trial.over:
        run.over, run.prepared = True, None


def _settle(run: CaseRun, split: float | str | None) -> None:
    """Prepare the case at `split` (None: its present split), and store its check."""
    run.split = split if split is not None or run.prepared is None else run.prepared.split
    run.prepare(first=True)
    recorder, ready = run.runtime.recorder, run.prepared
    outcome = recorder.outcome(run.case.id)
    if isinstance(outcome, Measurement) and ready is not None:
        recorder.put(replace(outcome, check=ready.check, kernel_hash=ready.kernel_hash, kernel=ready.kernel))
