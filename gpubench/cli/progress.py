"""The messages of a run while it goes on.

The first ones tell what is measured, how long that takes and whether other programs disturb the run. Then there
are live lines or plain lines on stderr, or events as JSON lines.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import case_result
from gpubench.analysis.findings import stored_finding
from gpubench.base import BUSY_SHARE, disk, processes, units
from gpubench.base.errors import GpubenchError
from gpubench.base.streams import Output, cut, fill, in_ci, surviving, visible
from gpubench.cli.delivery import cannot_write
from gpubench.cli.options import NoiseOptions, RunOptions
from gpubench.cli.request import Tell
from gpubench.measure.recorder import (
    BlockDone,
    CaseDone,
    CaseStarted,
    Event,
    RunDone,
    RunStarted,
    Save,
    SessionAgain,
    Sink,
    Warned,
)
from gpubench.measure.schedule import RunSpec, open_curves, plan_workloads
from gpubench.report import document as lines
from gpubench.report.contents import AnswerSoFar
from gpubench.report.layout import RenderOptions, convert, json_line, round_numbers
from gpubench.report.wording import situation_text
from gpubench.result.case import RESIDENT, own_names, parse_case_id
from gpubench.result.run import Failure, Measurement, Outcome, Run, Selection, SessionFailure, Settings, Skip

# ---------------------------------------------------------------- before it measures

_MOST_NAMES = 3


def plan_text(ops: Sequence[str], seconds: float) -> str:
    """Return a text such as `Measuring 14 ops, at most 45 seconds`."""
    whole = math.ceil(seconds)
    most = units.count_noun(whole // 60, "minute") if whole % 60 == 0 else units.count_noun(whole, "second")
    beyond = " after the first calls" if any("." in op for op in ops) else ""
    return f"Measuring {_ops_text(ops)}, at most {most}{beyond}"


def counted_plan(spec: RunSpec) -> str:
    """Return `Measuring matmul: 12 cases in 3 sessions`, for a run without a time limit."""
    cases = sum(len(item.cases) for item in plan_workloads(spec))
    sessions = f" in {spec.sessions} sessions" if spec.sessions > 1 else ""
    verb = "Checking" if spec.check_only else "Measuring"
    if not (cases or open_curves(spec)):
        return f"{verb} {_ops_text(list(spec.ops))}: no case can run here"
    return f"{verb} {_ops_text(list(spec.ops))}: {units.count_noun(cases, 'case')}{sessions}"


def _ops_text(ops: Sequence[str]) -> str:
    return units.list_words(list(own_names(ops).values())) if len(ops) <= _MOST_NAMES else f"{len(ops)} ops"


def about(seconds: float) -> str:
    """Return a duration in everyday words: `about 20 seconds`, `about a minute`, `about 3 minutes`."""
    if seconds < 7.5:
        return "a few seconds"
    if seconds < 50:
        return f"about {5 * round(seconds / 5)} seconds"
    if seconds < 90:
        return "about a minute"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"


def tell(display: Display, options: RunOptions, find: Callable[[Tell], RunSpec]) -> RunSpec:
    """Call `find` and return its RunSpec. Show the plan on `display` as soon as it is known, and say whether
    other programs disturb the run."""
    before = processes.read_cpu_times()
    told_s: list[float] = []

    def early(selection: Selection, settings: Settings) -> None:
        if settings.budget_s is not None and not options.check_only:
            told_s.append(settings.budget_s)
            display.say(plan_text(selection.ops, settings.budget_s))

    spec = find(early)
    if not told_s:
        display.say(counted_plan(spec))
    elif spec.settings.budget_s is not None and spec.settings.budget_s < told_s[0]:
        display.say(f"Without a GPU it takes {about(spec.settings.budget_s)}.")
    disturbed = busy(before, spec.load(), repeats=spec.repeats)
    if disturbed is not None:
        display.say(disturbed)
    if spec.searches:
        display.searches()
    return spec


def busy(before: processes.CpuTimes | None, now: processes.CpuTimes | None, *, repeats: bool) -> str | None:
    """Return a text on what to expect if other programs used the CPUs between the readings `before` and `now`.
    Returns None if their load is low or unknown. `repeats` says whether disturbed sessions are measured again.
    """
    share = max(part or 0.0 for part in processes.load_between(before, now))
    if share <= BUSY_SHARE:
        return None
    text = f"Other programs use {share:.0%} of the CPUs: times will be noisy.".replace("%", " %")
    again = " A session that they disturb is measured again, at most twice and while there is time."
    return text + (again if repeats else "")


# ---------------------------------------------------------------- while it measures

HEARTBEAT_S = 30.0
# Least seconds between two cases of a search that have a line in a pipe: a search has hundreds, in no order.
SEARCH_EVERY_S = 5.0
WIDTH = 100


class Display:
    """Base class of displays of the progress of a run, which shows nothing. A display is a Sink of events."""

    _grows = False  # whether the plan grows during the run; then the number of cases is not shown

    def say(self, text: str) -> None:
        """Show a line about the whole run, such as its plan."""

    def searches(self) -> None:
        """Note that the plan grows during the run, so that the number of cases is known only at the end."""
        self._grows = True

    def watching(self, save: Save, look: RenderOptions) -> Save:
        """Return the function that saves the run: `save`, or a function that also keeps the run for the
        display. `look` has the options for the answer so far."""
        return save

    def __call__(self, event: Event) -> None:
        """Show the event."""

    def close(self) -> None:
        """Release the terminal. It is also called after an error."""


def display(
    *, quiet: bool, no_progress: bool, environ: Mapping[str, str], stream: IO[str] | None = None
) -> Display:
    """Return the display for `stream` (None: stderr). It shows nothing with `quiet` or `no_progress`, live
    lines on a terminal, and plain lines otherwise, also under CI."""
    stream = surviving(stream or sys.stderr)
    if quiet or no_progress:
        return Display()
    if stream.isatty() and not in_ci(environ) and environ.get("TERM") != "dumb":
        return Live(stream)
    return _Lines(stream)


def show(
    options: RunOptions | NoiseOptions, environ: Mapping[str, str]
) -> contextlib.AbstractContextManager[Display]:
    """Return the display of a run for a `with` block, which closes it at the end, also after an error."""
    return contextlib.closing(display(quiet=options.quiet, no_progress=options.no_progress, environ=environ))


def out_of(number: int, cases: int, between: str, *, grows: bool) -> str:
    """Return `between` and the number of all cases, such as ` of 40`, or an empty text if the plan still grows."""
    return "" if grows else f"{between}{max(number, cases)}"


def again(event: SessionAgain, *, grows: bool) -> str:
    """Return the line that says why a session is measured again and, if the plan is fixed, how many cases there
    are now."""
    share = f"{event.share:.0%}".replace("%", " %")
    why = f"Session {event.session + 1} runs again: others took {share} of the CPUs."
    return why if grows else f"{why} {units.count_noun(event.cases, 'case')} in all"


def describe(event: BlockDone | CaseDone) -> str:
    """Return `53.1 us ± 0.4 %`, or why there is no number."""
    broken = _without_number(event)
    if broken is not None:
        kind = "skipped" if isinstance(broken, Skip) else "FAILED"
        first_line = visible(broken.detail.partition("\n")[0])
        return f"{kind} ({broken.reason}): {first_line}"
    if event.estimate_s is None:
        outcome = event.outcome if isinstance(event, CaseDone) else None
        stops = outcome.stops if isinstance(outcome, Measurement) else []
        return (
            "right, but not timed: the budget ended"
            if any(stop.reason == "budget" for stop in stops)
            else "checked"
        )
    share = event.precision
    margin = "" if share is None else " ± more than 100 %" if share > 1 else f" ± {100 * share:.3g} %"
    return units.format_seconds(event.estimate_s) + margin


def _without_number(event: BlockDone | CaseDone) -> Skip | Failure | SessionFailure | None:
    if isinstance(event, BlockDone):
        return None
    return event.outcome if isinstance(event.outcome, Skip) else event.failure


def remaining(seconds: float | None) -> str:
    """Return `1:05 left`, or an empty text if the time is unknown."""
    if seconds is None:
        return ""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d} left"


class _Lines(Display):
    """A display of plain lines: one for each case in each session, and one in a while for a search."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._told: set[tuple[str, int]] = set()  # the id and the session of each case that has a line
        self._reasons: set[str] = set()  # why cases have no number, as a search has told it
        self._spoke = time.monotonic()

    def say(self, text: str, *, whole: bool = True) -> None:
        """Print one line, cut to WIDTH unless `whole` is true."""
        self._spoke = time.monotonic()
        print(text if whole else cut(text, WIDTH), file=self._stream, flush=True)

    def __call__(self, event: Event) -> None:
        match event:
            case CaseDone():
                self._tell_case(event)
            case Warned():
                self.say(f"warning: {visible(event.warning.message)}")
            case SessionAgain():
                self.say(again(event, grows=self._grows))
            case BlockDone() if time.monotonic() - self._spoke > HEARTBEAT_S:
                parts = [
                    f"{describe(event)}, {units.count_noun(event.samples, 'sample')}",
                    remaining(event.remaining_s),
                ]
                self.say("  ".join(part for part in (f"... {event.id}", *parts) if part), whole=False)

    def _tell_case(self, event: CaseDone) -> None:
        """Print the outcome of a case once in each session, and in a search that of the first case and of one
        after some seconds. Every outcome without a number is printed; in a search every reason once."""
        case, text = (event.outcome.id, event.session), describe(event)
        broken = _without_number(event) is not None
        if broken and self._grows:
            broken = text not in self._reasons
            self._reasons.add(text)
        soon = bool(self._told) and time.monotonic() - self._spoke < SEARCH_EVERY_S
        silent = soon if self._grows else case in self._told
        self._told.add(case)
        if silent and not broken:
            return
        done = len(self._told)
        total = out_of(done, event.cases, "/", grows=self._grows)
        self.say(f"[{done:>3}{total}] {event.outcome.id}  {text}", whole=broken)


# ---------------------------------------------------------------- on a terminal: the answer, which fills
# The display draws at events of the runner. Events occur between blocks, so nothing is drawn while a sample is timed.

REDRAW_S = 0.25
# Least seconds between two changes of the table, and the largest share of the run's time that it may take.
TABLE_S, TABLE_SHARE = 1.0, 0.02


class Live(Display):
    """Live lines without style, which are cleared before the result is printed. They show the plan, the answer
    so far, the last problem, and the current step."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        # Without a colour system there is nothing for NO_COLOR to switch off.
        console = Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
        self._live: Any = Live(
            "", console=console, auto_refresh=False, transient=True, redirect_stdout=False,
            redirect_stderr=stream is sys.stderr,
        )  # fmt: skip
        self._drawn = 0.0
        self._run: Run | None = None
        self._answer: AnswerSoFar | None = None
        self._table: list[str] = []
        self._next_table = 0.0
        self._said: list[str] = []
        self._note = self._now = ""

    def say(self, text: str) -> None:
        """Show `text` permanently above the changing lines."""
        self._said.append(text)
        self._draw(at_once=True)

    def watching(self, save: Save, look: RenderOptions) -> Save:
        """Return a function that keeps the run, from which the display computes the answer so far, and then
        calls `save`."""
        self._answer = AnswerSoFar(look)

        def seen(run: Run) -> None:
            self._run = run
            save(run)

        return seen

    def __call__(self, event: Event) -> None:
        """Draw the event."""
        match event:
            case RunStarted():
                self._draw(at_once=True)
            case CaseStarted():
                self._do(event, "preparing")
            case BlockDone():
                self._do(event, describe(event))
            case CaseDone() if event.failure is not None:
                self._notice(f"{describe(event)}  {event.outcome.id}")
            case Warned():
                self._notice(f"warning: {visible(event.warning.message)}")
            case SessionAgain():
                self._notice(again(event, grows=self._grows))
            case RunDone():
                self.close()

    def close(self) -> None:
        """Clear the lines."""
        self._live.stop()

    def _notice(self, text: str) -> None:
        self._note = text
        self._draw(at_once=True)

    def _do(self, event: CaseStarted | BlockDone, state: str) -> None:
        """Show the case at work, its place in the plan, and `state`, such as `preparing` or its time so far."""
        session = (
            f"session {event.session + 1} of {event.sessions}" if event.session < event.sessions > 1 else ""
        )
        count = f"case {event.number}{out_of(event.number, event.cases, ' of ', grows=self._grows)}"
        # The first cases include one-time costs, so they do not predict the remaining time.
        tells = self._grows or 10 * event.number >= event.cases
        time_left = remaining(event.remaining_s) if tells else ""
        # A narrow terminal cuts the end, so the part that changes most often comes first.
        parts = [time_left, doing(event.id), state, count, session]
        self._now = "  ".join(part for part in parts if part)
        self._draw()

    def _draw(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        from rich.text import Text

        if not self._live.is_started:
            self._live.start()
        self._fill(now)
        plan_lines = [line for text in self._said for line in fill(text, self._live.console.width)]
        ending = list(filter(None, [self._note, self._now]))
        room = self._live.console.height - len(plan_lines) - len(ending) - 1
        lines = [*plan_lines, *self._table[: max(0, room)], *ending]
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _fill(self, now: float) -> None:
        """Update the answer, but so rarely that computing it takes at most TABLE_SHARE of the time."""
        if self._answer is None or self._run is None or now < self._next_table:
            return
        self._table = self._answer.lines(self._run, min(self._live.console.width, WIDTH))
        taken = time.monotonic() - now
        self._next_table = now + max(TABLE_S, taken / TABLE_SHARE)


def doing(case_id: str) -> str:
    """Return the description of a case: `matmul n = 1024 on cupy:0, copied at every call`."""
    case = parse_case_id(case_id)
    where = "" if case.regime == RESIDENT else f", {situation_text(case.regime_id)}"
    return f"{case.op.rpartition('.')[2]} n = {case.params.get('n', 1)} on {case.device_id}{where}"


# ---------------------------------------------------------------- as JSON lines

SUFFIX = ".jsonl"


class EventLog:
    """Writes the events and conclusions of a run as JSON lines: to those of `paths` that end in .jsonl, and to
    stdout if `to_stdout`. A case is written after its last session, or as soon as it has failed. A stream that
    fails is left out, and its error is in `errors`."""

    def __init__(self, run: Run, paths: Sequence[str], *, to_stdout: bool) -> None:
        self._run = run
        self._sessions = run.settings.sessions
        self._reported: dict[str, lines.CaseComplete] = {}
        self._warned: set[lines.WarningFound] = set()
        self.errors: list[GpubenchError] = []
        self._open = ExitStack()
        self._streams: list[Any] = [Output()] if to_stdout else []
        self._streams += [self._open_file(path) for path in paths if path.lower().endswith(SUFFIX)]

    def __call__(self, event: Event) -> None:
        """Write the event. This makes the log a Sink."""
        match event:
            case RunStarted():
                self._sessions = event.sessions
                self._write(lines.run_start(self._run))
            case CaseStarted():
                self._write(lines.CaseStart(id=event.id, session=event.session))
            case CaseDone() if self._streams:
                if event.session >= self._sessions - 1 or not isinstance(event.outcome, Measurement):
                    self._tell(self._case(event.outcome))
            case Warned():
                self._warn(convert(stored_finding(event.warning), lines.WarningFound))

    def beside(self, sink: Sink) -> Sink:
        """Return a sink that passes each event first to `sink` and then to this log."""

        def both(event: Event) -> None:
            sink(event)
            self(event)

        return both

    def watching(self, save: Save) -> Save:
        """Return a function that keeps the run and then calls `save`. The line of a case is computed from the
        run that was kept last."""

        def seen(run: Run) -> None:
            self._run = run
            save(run)

        return seen

    def finish(self, analysis: Analysis) -> None:
        """Write cases that were not reported, the conclusions and the end, from the run as its file has it.
        Then close the files."""
        if self._streams:
            for case in analysis.cases:
                self._tell(lines.case_complete(case))
            for line in lines.conclusions(analysis):
                if isinstance(line, lines.WarningFound):
                    self._warn(line)
                else:
                    self._write(line)
        with contextlib.suppress(OSError):  # of a stream that has failed already
            self._open.close()

    def _case(self, outcome: Outcome) -> lines.CaseComplete:
        """Return the line of a case, with numbers rounded as in the file."""
        outcome = msgspec.convert(round_numbers(msgspec.to_builtins(outcome)), Outcome)
        return lines.case_complete(case_result(self._run, outcome, {}))

    def _tell(self, line: lines.CaseComplete) -> None:
        if self._reported.get(line.id) != line:
            self._reported[line.id] = line
            self._write(line)

    def _warn(self, line: lines.WarningFound) -> None:
        if line not in self._warned:
            self._warned.add(line)
            self._write(line)

    def _write(self, line: lines.EventLine) -> None:
        text = json_line(line)
        for stream in list(self._streams):
            try:
                stream.write(text)
                stream.flush()
            except BrokenPipeError:  # whoever read standard output has gone
                raise
            except OSError as error:  # the run goes on without this stream
                self._streams.remove(stream)
                self.errors.append(cannot_write(stream.name, error))

    def _open_file(self, path: str) -> IO[str]:
        try:
            return self._open.enter_context(
                open(path, "w", encoding="ascii", newline="\n", opener=disk.open_descriptor)
            )
        except OSError as error:
            raise cannot_write(path, error) from error
