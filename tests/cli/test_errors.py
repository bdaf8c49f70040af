"""Every error is three lines on stderr, nothing on stdout, the documented exit code, and no traceback."""

import os
import signal
import subprocess
import sys

import pytest

from gpubench import cli
from gpubench.base.errors import ExitCode, GpubenchError, InputError, UsageError, require_choice, suggest
from gpubench.cli import command, exit


def test_no_command_shows_the_help_and_fails(gpubench):
    ended = gpubench()
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, "")
    assert "Usage: gpubench" in ended.stderr


def test_suggestions():
    assert suggest("--zzzzzz", ["--format"]) == ""
    assert (
        suggest("mlp", ["mul", "mlp_forward", "mlp_backward"])
        == "did you mean 'mlp_backward' or 'mlp_forward'?"
    )
    assert suggest("MATMUL", ["matmul", "add"]) == "did you mean 'matmul'?"
    assert require_choice("json", ["table", "json"], "--format") == "json"
    with pytest.raises(UsageError) as caught:
        require_choice("zzz", ["table", "json"], "--format")
    assert caught.value.why == "possible: table, json"


def _run(monkeypatch, error, verbose=False):
    def fail(arguments, invocation):
        invocation["verbose"] = verbose
        raise error

    monkeypatch.setattr("gpubench.cli.command.run_app", fail)
    return exit.guard([])


def test_ctrl_c_before_the_guard_stands_shows_no_traceback(monkeypatch):
    def load(arguments):
        raise KeyboardInterrupt  # while a module is loaded

    monkeypatch.setattr(cli, "_run", load)
    assert cli.main([]) == ExitCode.INTERRUPTED


def test_each_exception_has_its_exit_code(monkeypatch, capsys):
    refused = InputError("unreadable", "what\nbroken", why="because", hint="do")
    assert _run(monkeypatch, refused) == ExitCode.INPUT
    assert capsys.readouterr().err == "error: what broken\n  why: because\n  fix: do\n"
    assert _run(monkeypatch, GpubenchError("refused", "what")) == ExitCode.FAILED
    assert _run(monkeypatch, KeyboardInterrupt()) == ExitCode.INTERRUPTED
    assert _run(monkeypatch, exit.Terminated()) == ExitCode.TERMINATED
    assert (_run(monkeypatch, SystemExit(2)), _run(monkeypatch, SystemExit())) == (ExitCode.USAGE, ExitCode.OK)
    assert "Traceback" not in capsys.readouterr().err
    assert _run(monkeypatch, SystemExit("no such luck")) == ExitCode.FAILED
    assert capsys.readouterr().err == "no such luck\n"
    assert _run(monkeypatch, refused, verbose=True) == ExitCode.INPUT
    assert "Traceback" in capsys.readouterr().err


def test_files_of_the_working_folder_are_no_modules_of_ours(gpubench, tmp_path):
    for name in ("random", "json", "queue", "typer"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    ended = gpubench("ops", "--format", "json")
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, "")


@pytest.mark.parametrize("error", [RuntimeError("oops"), OSError(5, "Input/output error"), BrokenPipeError()])
def test_anything_else_is_a_bug(monkeypatch, capsys, error):
    """A pipe to a worker that breaks is a bug too: only standard output may break quietly."""
    assert _run(monkeypatch, error) == ExitCode.FAILED
    reported = capsys.readouterr().err
    assert "Traceback" in reported
    assert "please report" in reported


_WAIT = """
import sys, time
from gpubench.cli import exit, command
def wait(arguments, invocation):
    print("waiting", flush=True)
    time.sleep(60)
command.run_app = wait
sys.exit(exit.guard([]))
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGINT, ExitCode.INTERRUPTED)]
)
def test_signals(number, code):
    with subprocess.Popen(
        [sys.executable, "-c", _WAIT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(number)
        _, reported = child.communicate(timeout=100)
    assert child.returncode == code
    assert "Traceback" not in reported


def test_the_parser_still_has_the_shape_we_translate():
    """`command` recognises the parser's exceptions by these names, which typer does not export."""
    assert command.ParserUsageError.__name__ == "UsageError"
    module = sys.modules[command.ParserUsageError.__module__]
    assert issubclass(module.NoSuchOption, command.ParserUsageError)
    assert issubclass(module.NoArgsIsHelpError, command.ParserUsageError)
