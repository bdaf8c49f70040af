"""The run: sessions of fresh workers, given sizes or a search for them, the budget, and the exit code."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from gpubench.errors import ExitCode
from gpubench.measure import load, rounds, scratch, splits, telemetry
from gpubench.measure.agenda import Agenda
from gpubench.measure.aim import MAIN
from gpubench.measure.ceiling_plan import asked
from gpubench.measure.crew import Crew, DeviceGone
from gpubench.measure.ending import verdict
from gpubench.measure.events import RunDone, RunStarted, SessionAgain, Sink, Warned
from gpubench.measure.hunt import Hunt, Step
from gpubench.measure.recorder import Recorder, Save, utc_now
from gpubench.measure.request import Request, planned, searched
from gpubench.measure.runtime import Progress, Runtime
from gpubench.model.result import Run, RunWarning
from gpubench.model.session import SessionRecord

# The search leaves this share of the budget for saving, closing workers and the report.
SEARCH_SHARE = 0.95
# Overheads and splits come after the search, which can be cut short: where there are some, it leaves them half.
SHARE_BESIDE_OVERHEADS = 0.5
# A session that others disturbed is repeated at most so often.
REPEATS = 2


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


class _Runner:
    def __init__(self, request: Request, sink: Sink, save: Save) -> None:
        self.request = request
        self.settings = request.settings
        self.sink = sink
        self.recorder = Recorder(request.run, save)
        self.gone: dict[str, DeviceGone] = {}
        self._scratch = scratch.new_folder()
        self._kinds = {t.device.id: t.device.kind for t in request.scope.targets}
        self._crew: Crew | None = None
        self._begun = 0
        self._sessions = request.sessions
        self.progress = Progress(0, self._next_index() + self._sessions, self._remaining_s)
        self._agenda = Agenda(request, self.recorder, self.progress)

    def sessions(self) -> None:
        """Every session: the first may search for sizes, the others repeat what it found."""
        self.progress.cases *= self._sessions
        self.sink(RunStarted(self.progress.cases, self.progress.sessions, self.settings.budget_s))
        longest_s, done = 0.0, []
        while self._begun < self._sessions:
            began = time.monotonic()
            if self._begun and self._left_s() < longest_s:
                cut = "the first session used up the budget" if self._left_s() <= 0 and self._begun == 1 else ""
                self._warn_budget(cut or f"{self._begun} of {self._sessions} sessions fit the budget")
                break
            done.append(self._one_session(self._agenda.first if self._begun == 0 else self._agenda.again))
            longest_s = max(longest_s, time.monotonic() - began)
        self._repeat([record for record in done if record.contended], longest_s)

    def clean_up(self) -> None:
        """No worker and no scratch file stays behind."""
        if self._crew is not None:
            self._crew.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _one_session(
        self, steps: Callable[[int, Hunt], Iterator[Step]], repeats: int | None = None
    ) -> SessionRecord:
        """One set of fresh workers, and what they are asked for, step by step. Returns the session's record.

        One that `repeats` another counts for nothing yet: an interrupt or the budget may cut it short.
        """
        before = self.request.load()
        self._begun += 1
        index = self._next_index()
        measured = [] if self.request.check_only else [t.device for t in self.request.scope.targets]
        crew = Crew(self.settings, self._scratch, self.gone, measured, self.request.run.machine)
        self._crew = crew
        record = SessionRecord(
            index=index, started_at=utc_now("milliseconds"), superseded=repeats is not None, repeats=repeats
        )
        self.recorder.session(record)
        runtime = self._runtime(crew, index)
        self._open_all(crew, index)
        self.recorder.clocks(crew.clocks)
        crew.measure_ceilings(asked(planned(self.request), measured, self.settings, self.request.run.machine))
        self.recorder.session(crew.entered(record))
        hunt = Hunt(
            searched(self.request), splits.alone(self.request.scope), self.recorder, self._search_left_s
        )
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

    def _open_all(self, crew: Crew, index: int) -> None:
        """Every worker; those of GPUs once it is known who else is there, while none of them can be ours."""
        crew.open_all(name for name, kind in self._kinds.items() if kind == "cpu")
        for found in telemetry.shared(crew.telemetry.users(), index):
            if all(
                (known.code, known.message) != (found.code, found.message)
                for known in self.recorder.run.warnings
            ):
                self.recorder.warn(found)
                self.sink(Warned(found))
        crew.open_all(self._kinds)

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

    def _repeat(self, busy: list[SessionRecord], longest_s: float) -> None:
        """Measure what others disturbed once more, at the end. If a repeat was quiet, it stands in for the others."""
        if self.request.check_only:
            return
        for record in busy:
            turn = [record]
            while len(turn) <= REPEATS and turn[-1].contended and self._left_s() >= longest_s:
                self.progress.cases += self._agenda.count
                self.progress.sessions += 1
                self.sink(SessionAgain(turn[-1].disturbance))
                again = self._one_session(self._agenda.again, repeats=record.index)
                if self._out_of_budget():
                    return  # it may lack cases
                turn.append(again)
                quiet = not again.contended
                for old in turn:
                    unused = quiet and old is not again
                    self.recorder.session(msgspec.structs.replace(old, superseded=unused))

    def _left_s(self) -> float:
        if self.settings.budget_s is None:
            return float("inf")
        return self.settings.budget_s - (time.monotonic() - self.request.began)

    def _search_left_s(self) -> float:
        """The search may use the first session's share of the budget."""
        if self.settings.budget_s is None:
            return float("inf")
        beside = any(item.op.overhead is not None for item in self._agenda.plan) or splits.asked(
            self.request.scope
        )
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
