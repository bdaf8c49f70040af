"""Progress: what a narrow terminal shows, and lines that are never cut."""

import io
import re
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpubench.base.processes import CpuTimes
from gpubench.cli import progress
from gpubench.cli.options import RunOptions
from gpubench.measure.recorder import (
    BlockDone,
    CaseDone,
    CaseStarted,
    RunDone,
    RunStarted,
    SessionAgain,
    Warned,
)
from gpubench.report.contents import AnswerSoFar
from gpubench.report.layout import RenderOptions
from gpubench.result.case import parse_case_id
from gpubench.result.run import Failure, RunWarning, Selection, Settings
from tests.unit.report.answer_runs import suite_run
from tests.unit.report.builders import measured

ID = "matmul/n=16384/float32/library/transfer-once-10@cupy:0"
CASE = parse_case_id(ID)
BLOCK = BlockDone(ID, 4, 12, 1, 3, 42.0, 53.1e-6, 0.004, 20)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_precision_has_three_digits_and_a_duration_is_as_people_say_it():
    precisions = {0.004: "± 0.4 %", 0.99999: "± 100 %", 0.339: "± 33.9 %", 18.633: "± more than 100 %"}
    for precision, text in precisions.items():
        assert progress.describe(replace(BLOCK, precision=precision)) == f"53.1 us {text}"
    durations = {
        1: "a few seconds", 7.5: "about 10 seconds", 12: "about 10 seconds", 49: "about 50 seconds", 50: "about a minute", 89: "about a minute",
        90: "about 2 minutes", 170: "about 3 minutes", 5399: "about 90 minutes", 5400: "about 2 hours", 9000: "about 2 hours",
    }  # fmt: skip
    assert {seconds: progress.about(seconds) for seconds in durations} == durations


def shown(stream, *events, plan="", searches=False):
    display = progress.display(quiet=False, no_progress=False, environ={}, stream=stream)
    if plan:
        display.say(plan)
    if searches:
        display.searches()
    for event in events:
        display(event)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)


def lines(text):
    """What a terminal was given, without the codes that move its cursor."""
    return [part for part in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", text) if part]


def test_a_narrow_terminal_keeps_the_time_left_what_is_done_and_its_estimate():
    text = shown(Terminal(), RunStarted(12, 3, None), BLOCK, RunDone(0, "ok"), plan="Measuring matmul")
    assert lines(text)[0] == "Measuring matmul"
    line = next(line for line in lines(text) if line.startswith("0:42 left"))
    assert line.startswith("0:42 left  matmul n = 16384 on cupy:0, 10 calls a copy  53.1 us ± 0.4 %")
    assert (line[-1], len(line) <= 80) == ("…", True)
    ending = text.rpartition("0:42 left")[2]  # nothing stays: each line that was drawn is cleared
    assert ending.count("\x1b[2K") >= 2
    assert "warning" not in ending


def done(number, cases, size=None):
    case = parse_case_id(ID.replace("n=16384", f"n={size or number}"))
    return CaseDone(measured(case, 1e-3), cases, 0, 1e-3, None, None)


def failed(number, detail):
    case = done(number, 2).outcome.case
    return CaseDone(Failure(id=case.id, case=case, reason="error", detail=detail), 2, 0, None, None, None)


@pytest.mark.parametrize(("events", "searches", "every_s", "heads"), [
    # A case that a search sharpens counts once, and nobody knows how many there will be.
    ([done(1, 2), *(done(number, 40, size=1024) for number in range(2, 4))], True, 0, ["[  1", "[  2", "[  2"]),
    ([done(1, 2), done(2, 4)], True, 5, ["[  1"]),
    ([done(1, 2), done(2, 4)], False, 5, ["[  1/2", "[  2/4"]),
    # A search says each reason once.
    ([failed(1, "a"), failed(2, "a"), failed(3, "b")], True, 5, ["[  1", "[  3"]),
    ([failed(1, "a"), failed(2, "a")], False, 5, ["[  1/2", "[  2/2"]),
])  # fmt: skip
def test_lines_of_a_pipe(monkeypatch, events, searches, every_s, heads):
    monkeypatch.setattr(progress, "SEARCH_EVERY_S", every_s)
    text = shown(io.StringIO(), RunStarted(2, 1, None), *events, searches=searches)
    assert [line.split("]")[0] for line in text.splitlines()] == heads


def test_a_plan_names_few_ops_and_counts_many():
    assert progress.plan_text(["add", "dot"], 20.0) == "Measuring add and dot, at most 20 seconds"
    own = progress.plan_text(["mine.pca", "a.sort", "b.sort"], 20.0)
    assert own == "Measuring pca, a.sort and b.sort, at most 20 seconds after the first calls"
    assert progress.plan_text(["add"], 80.0) == "Measuring add, at most 80 seconds"
    assert progress.plan_text(["add"] * 14, 60.0) == "Measuring 14 ops, at most 1 minute"


@pytest.mark.parametrize(("budget_s", "load", "reported"), [
    (60.0, 0.0, []), (20.0, 0.0, ["Without a GPU it takes about 20 seconds."]), (60.0, 4.0, ["Other programs use 50 % of the CPUs: times will be noisy."])])  # fmt: skip
def test_without_a_gpu_the_shorter_time_is_told(monkeypatch, budget_s, load, reported):
    """The first line comes before the devices are known."""
    planned = Settings(budget_s=60.0)

    def find(tell):
        tell(Selection(ops=["add"] * 14), planned)
        settings = replace(planned, budget_s=budget_s)
        now = CpuTimes(at_s=4.0, total_s=8.0, busy_s=load, steal_s=0.0, ours_s=0.0)
        return SimpleNamespace(settings=settings, load=lambda: now, searches=False, repeats=False)

    before = CpuTimes(at_s=0.0, total_s=0.0, busy_s=0.0, steal_s=0.0, ours_s=0.0)
    monkeypatch.setattr(progress.processes, "read_cpu_times", lambda: before)
    stream = io.StringIO()
    display = progress.display(quiet=False, no_progress=False, environ={}, stream=stream)
    progress.tell(display, RunOptions(), find)
    assert stream.getvalue().splitlines() == ["Measuring 14 ops, at most 1 minute", *reported]


def test_a_busy_machine_is_told_with_what_will_be_done():
    before = CpuTimes(at_s=0.0, total_s=0.0, busy_s=0.0, steal_s=0.0, ours_s=0.0)
    quiet = CpuTimes(at_s=4.0, total_s=8.0, busy_s=2.0, steal_s=0.0, ours_s=2.0)
    once = progress.busy(before, quiet._replace(busy_s=6.0), repeats=False)
    assert once == "Other programs use 50 % of the CPUs: times will be noisy."
    again = progress.busy(before, quiet._replace(busy_s=6.0), repeats=True)
    assert (again.startswith(once), "measured again" in again) == (True, True)
    assert progress.busy(before, quiet, repeats=True) is None
    assert progress.busy(None, None, repeats=True) is None


@pytest.mark.parametrize("variable", ["NO_COLOR", "FORCE_COLOR"])
def test_the_live_line_has_no_style(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    failure = Failure(id=ID, case=CASE, reason="error", detail="[red]it broke[/red] at 3.5")
    events = (CaseStarted(ID, 4, 12, 1, 1, None), CaseDone(failure, 12, 1, None, None, None))
    warned = Warned(RunWarning(code="noisy", message="7 things"))
    text = shown(Terminal(), RunStarted(12, 1, None), *events, warned)
    assert "[red]it broke[/red] at 3.5" in " ".join(text.split())
    assert not re.search(r"\x1b\[[0-9;]*m", text)


@pytest.mark.parametrize(
    ("session", "sessions", "told"),
    [(0, 1, ""), (0, 2, "session 1 of 2"), (1, 2, "session 2 of 2"), (2, 2, "")],
)
def test_a_wide_line_ends_with_the_session(monkeypatch, session, sessions, told):
    monkeypatch.setenv("COLUMNS", "200")
    block = replace(BLOCK, number=9, session=session, sessions=sessions)
    line = next(line for line in lines(shown(Terminal(), block)) if "case 9 of 12" in line)
    assert line.rstrip().endswith(told or "case 9 of 12")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_repeated_session_is_told_with_its_reason(stream):
    reported = shown(stream(), RunStarted(12, 3, None), SessionAgain(0.234, 1, 16), done(13, 16))
    assert "Session 2 runs again: others took 23 % of the CPUs. 16 cases in all" in reported


def test_the_table_takes_its_share_of_a_run_and_no_more(monkeypatch):
    """A table that takes 0.1 s to derive is derived once in 5 s."""
    now, drawn = [100.0], []

    def slow(self, run, width):
        now[0] += 0.1
        drawn.append(now[0])
        return ["a table"]

    monkeypatch.setattr(AnswerSoFar, "lines", slow)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display = progress.display(quiet=False, no_progress=False, environ={}, stream=Terminal())
    display.watching(lambda run: None, RenderOptions())(suite_run())
    began = now[0]
    while now[0] < began + 20:
        display(BLOCK)
        now[0] += 0.05
    display.close()
    assert 3 <= len(drawn) <= 1 + 20 * progress.TABLE_SHARE / 0.1


def test_a_plain_line_with_a_reason_is_whole():
    reason = "the adapter says no " + "because " * 20 + "its driver is too old"
    outcome = Failure(id=ID, case=CASE, reason="unavailable", detail=reason)
    assert shown(io.StringIO(), CaseDone(outcome, 12, 0, None, None, None)).endswith(f"{reason}\n")
    assert shown(io.StringIO(), Warned(RunWarning(code="noisy", message=reason))) == f"warning: {reason}\n"


@pytest.mark.parametrize(("length", "cut"), [(100, False), (101, True)])
def test_a_line_of_a_case_has_a_hundred_columns(length, cut):
    short = shown(io.StringIO(), done(1, 2)).rstrip("\n")
    case = done(1, 2)
    outcome = replace(case.outcome, id=case.outcome.id + "x" * (length - len(short)))
    line = shown(io.StringIO(), replace(case, outcome=outcome)).rstrip("\n")
    assert (len(line), line.endswith("...")) == (100, cut)


@pytest.mark.parametrize(("silent_s", "told"), [(30.0, False), (30.1, True)])
def test_after_half_a_minute_of_silence_a_pipe_hears_of_a_block(monkeypatch, silent_s, told):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display = progress.display(quiet=False, no_progress=False, environ={}, stream=(stream := io.StringIO()))
    now[0] += silent_s
    display(BLOCK)
    assert (stream.getvalue() == f"... {ID}  53.1 us ± 0.4 %, 20 samples  0:42 left\n") is told
