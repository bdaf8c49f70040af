"""What a run prints for other programs: events while it happens, and every format as report prints it from the file."""

import json
import signal
import subprocess

import pytest

from tests.forking import environment

RELU = "run --ops relu --sizes 1k --regimes resident-queued --no-progress --devices".split()
SMALL = (*RELU, *"fake:gpu,numpy:0 --max-time 20ms --min-samples 5".split())


def events(text):
    return [json.loads(line) for line in text.splitlines()]


def outcome_lines(found):
    """The last word on each case, and what follows from all of them."""
    cases = {line["id"]: line for line in found if line["reason"] == "case-complete"}
    rest = [line for line in found if line["reason"] in ("speedup", "break-even", "run-complete")]
    return cases, rest, sorted([line for line in found if line["reason"] == "warning"], key=json.dumps)


def test_the_log_ends_with_what_report_says(gpubench, in_process, tmp_path):
    done = gpubench(*SMALL, "--sessions", "2", "-o", "r.json", "-o", "r.jsonl", "--format", "jsonl", status=0)
    reported = (tmp_path / "r.jsonl").read_text()
    assert done.stdout == reported
    live, saved = events(reported), events(in_process("report", "r.json", "--format", "jsonl").stdout)
    assert live[0] == saved[0]
    assert outcome_lines(live) == outcome_lines(saved)
    starts = [line for line in live if line["reason"] == "case-start"]
    assert {line["session"] for line in starts} >= {0, 1}  # a busy one is repeated


def test_events_come_while_the_run_goes_on(tmp_path, starter):
    """Each line is there as soon as it is true: the reader has the first case before the run has ended."""
    long = "--max-time 300ms --min-samples 50 --max-samples 90 --precision 0.001 --no-save --format jsonl"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with starter.begin(*SMALL, *long.split(), **streams, cwd=tmp_path, env=environment(tmp_path)) as run:
        seen = []
        for line in run.stdout:
            seen.append(json.loads(line)["reason"])
            if seen[-1] == "case-complete":
                break
        assert run.poll() is None
        assert seen[:2] == ["run-start", "case-start"]
        run.send_signal(signal.SIGINT)
        rest = events(run.stdout.read())
    assert run.returncode == 130
    told = {"reason": "run-complete", "exit_reason": "interrupted", "complete": False}
    assert rest[-1].items() >= told.items()


@pytest.mark.check
def test_a_failure_is_told_with_its_cause(gpubench):
    command = "run --ops relu --sizes 1k --devices fake:wrong --quick --no-save --no-progress --format jsonl"
    done = gpubench(*command.split())
    found = [line for line in events(done.stdout) if line["reason"] == "case-complete"]
    assert done.returncode == 1
    assert {line["cause"] for line in found} == {"wrong-result"}
    assert events(done.stdout)[-1]["exit_reason"] == "wrong-result"


def test_a_column_that_no_table_turns_out_to_have_hides_no_result(gpubench):
    command = "run --ops add --sizes 1k --quick --devices fake:cpu,fake:gpu --no-save --format plain"
    ended = gpubench(*command.split(), "--columns", "nope", status=0)
    assert "warning: --columns: there is no 'nope'; all columns are shown" in ended.stderr
    assert "Break-even: " in ended.stdout
