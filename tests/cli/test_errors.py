"""Every error is three lines on stderr, nothing on stdout, the documented exit code, and no traceback."""

import errno
import gc
import signal
import sys
import threading
from unittest.mock import Mock

import pytest

from gpubench import cli
from gpubench.base import errors
from gpubench.base.errors import ExitCode, GpubenchError, InputError, UsageError, require_choice, suggest
from gpubench.cli import exit
from tests.raising import raised


def test_no_command_shows_the_help_and_fails(gpubench):
    ended = gpubench()
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, "")
    assert "Usage: gpubench" in ended.stderr


def test_the_exit_codes_are_those_that_scripts_ask_for():
    first = ("OK", "FAILED", "USAGE", "GATE", "INPUT", "UNAVAILABLE")
    ended = {"BUDGET": 124, "INTERRUPTED": 130, "TERMINATED": 143}
    assert {code.name: code.value for code in ExitCode} == dict(zip(first, range(6), strict=True)) | ended


def test_suggestions():
    assert suggest("--zzzzzz", ["--format"]) == ""
    near = suggest("mlp", ["mul", "mlp_forward", "mlp_backward"])
    assert near == "did you mean 'mlp_backward' or 'mlp_forward'?"
    assert suggest("MATMUL", ["matmul", "add"]) == "did you mean 'matmul'?"
    assert require_choice("json", ["table", "json"], "--format") == "json"
    refused = raised(UsageError, require_choice, "zzz", ["table", "json"], "--format")
    assert refused.why == "possible: table, json"


@pytest.mark.parametrize(("count", "why"), [
    (20, "possible: n00, n01"), (21, "it is none of 21 names; similar: n20, n10, n09"),
])  # fmt: skip
def test_up_to_twenty_names_are_listed_one_by_one_where_a_command_lists_them_all(count, why):
    names = [f"n{i:02}" for i in range(count)]
    refused = raised(UsageError, require_choice, "n0", names, "NAME", listing="gpubench ops")
    assert refused.why.startswith(why)
    assert refused.hint.endswith("`gpubench ops` lists them all")


@pytest.mark.parametrize(("word", "listing", "hint"), [
    ("a b", "", "in a list write a,b"), ("a b", "gpubench ops", "in a list write a,b; `gpubench ops` lists them all"), ("a b c", "", "in a list write a,b,c"),
    ("a z", "", "look"), ("z", "", "look"), ("a  ", "", "look"),
])  # fmt: skip
def test_names_without_commas_are_told_how_a_list_is_written(word, listing, hint):
    assert raised(UsageError, require_choice, word, "abc", "NAME", hint="look", listing=listing).hint == hint


def test_an_error_of_a_backend_has_its_sentence_its_remedy_and_a_reason():
    plain, named = (
        errors.Unsupported("no room"),
        errors.Unsupported("no room", hint="take less", reason="timeout"),
    )
    assert [(str(e), e.detail, e.hint, e.reason) for e in (plain, named)] == [
        ("no room", "no room", "", "unsupported"), ("no room", "no room", "take less", "timeout")
    ]  # fmt: skip


@pytest.mark.parametrize(("error", "limit"), [
    (MemoryError(), errors.NO_MEMORY), (OSError(errno.ENOMEM, ""), errors.NO_MEMORY), (OSError(errno.EMFILE, ""), errors.NO_FILES),
    (OSError(errno.ENFILE, ""), errors.NO_FILES), (OSError(errno.EAGAIN, ""), errors.NO_TASKS), (OSError(errno.EIO, "bad_alloc"), ""),
    (RuntimeError("can't start new thread"), errors.NO_TASKS), (ImportError("failed to map segment"), errors.NO_MEMORY), (RuntimeError("dictionary changed size"), ""), (ValueError("bad_alloc"), ""),
    (BlockingIOError(errno.EAGAIN, "", 3), ""),  # a part was written
])  # fmt: skip
def test_a_limit_of_the_system_is_named(error, limit):
    assert errors.find_limit(error) == limit


def _run(monkeypatch, error, verbose=False):
    def fail(arguments, invocation):
        invocation["verbose"] = verbose
        raise error

    monkeypatch.setattr("gpubench.cli.command.run_app", fail)
    return exit.guard([])


def test_ctrl_c_before_the_guard_stands_shows_no_traceback(monkeypatch):
    monkeypatch.setattr(exit, "guard", Mock(side_effect=KeyboardInterrupt))  # while a module is loaded
    assert cli.main([]) == ExitCode.INTERRUPTED


def test_the_cache_is_told_of_and_a_thread_keeps_the_handlers(monkeypatch, capsys):
    codes, handler = [], signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "gpubench.result.store.cache.notes", lambda: [Mock(message="it is damaged", hint="nothing to do")]
    )
    thread = threading.Thread(target=lambda: codes.append(cli.main(["schema"])))
    thread.start()
    thread.join()
    assert (codes, capsys.readouterr().err) == ([0], "warning: it is damaged; nothing to do\n")
    assert cli.main(["schema"]) == 0
    assert (signal.getsignal(signal.SIGTERM) is handler, gc.isenabled()) == (True, True)


def test_windows_gets_the_files_that_no_shell_names(monkeypatch, tmp_path):
    for name in ("b.json", "a.json"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "win32")
    told = []
    monkeypatch.setattr(exit, "guard", lambda arguments: told.append(arguments) or 0)
    monkeypatch.setattr(
        sys, "argv", "gpubench report *.json ?.md -o *.json --label a* --quiet a* --label=*.json -*".split()
    )
    assert cli.main() == 0
    gc.enable()
    assert told == ["report a.json b.json ?.md -o *.json --label a* --quiet a.json --label=*.json -*".split()]


def test_each_exception_has_its_exit_code(monkeypatch, capsys):
    refused = InputError("unreadable", "what\nbroken", why="because", hint="do")
    assert _run(monkeypatch, refused) == ExitCode.INPUT
    assert capsys.readouterr().err == "error: what broken\n  why: because\n  fix: do\n"
    for error in (GpubenchError("refused"), OSError(13, "no"), UnicodeEncodeError("a", "\udcff", 0, 1, "")):
        assert _run(monkeypatch, error) == ExitCode.FAILED
    assert _run(monkeypatch, KeyboardInterrupt()) == ExitCode.INTERRUPTED
    assert _run(monkeypatch, exit.Terminated()) == ExitCode.TERMINATED
    assert (_run(monkeypatch, SystemExit(2)), _run(monkeypatch, SystemExit())) == (ExitCode.USAGE, ExitCode.OK)
    assert "Traceback" not in capsys.readouterr().err
    assert _run(monkeypatch, SystemExit("no such luck")) == ExitCode.FAILED
    assert capsys.readouterr().err == "no such luck\n"
    for error, code in ((refused, ExitCode.INPUT), (OSError(13, "no"), ExitCode.FAILED)):
        assert _run(monkeypatch, error, verbose=True) == code
        assert "in fail\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [RuntimeError("oops"), OSError(errno.EBADF, "Bad file descriptor"), BrokenPipeError()]
)
def test_anything_else_is_a_bug(monkeypatch, capsys, error):
    """A pipe to a worker that breaks is a bug too: only standard output may break quietly."""
    assert _run(monkeypatch, error) == ExitCode.FAILED
    reported = capsys.readouterr().err
    assert ("Traceback" in reported, "please report" in reported) == (True, True)
