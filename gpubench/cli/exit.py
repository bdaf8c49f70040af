"""The end of every command: errors become up to three lines on stderr and the documented exit code."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import sys
from collections.abc import Sequence
from typing import Any

from gpubench.base import disk, streams
from gpubench.base.errors import ExitCode, GpubenchError, find_limit

# Error numbers that occur only if a file is written. Others, such as EIO, may come from any pipe or device.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, by SIGHUP when the terminal closes, and by Ctrl-Break on Windows.

    Code that cleans up after Ctrl-C also cleans up after this. Only the exit code differs.
    """

    exit_code = ExitCode.TERMINATED


def guard(arguments: Sequence[str]) -> int:
    """Run the command line `arguments` and return its exit code. No exception escapes: each one becomes an exit
    code and a message."""
    invocation: dict[str, Any] = {"verbose": False}
    streams.take_over()
    previous = _catch_endings()
    try:
        from gpubench.cli.command import run_app

        code = run_app(arguments, invocation)
        sys.stdout.flush()
        _tell_notes()
        return code
    except GpubenchError as error:
        return tell(error, verbose=invocation["verbose"])
    except SystemExit as exit:
        return _exit_code(exit)
    except Terminated:
        return ExitCode.TERMINATED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        failed = output_code(error) if isinstance(error, OSError) else None
        return _refused_or_bug(error, invocation["verbose"]) if failed is None else failed
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def tell(error: GpubenchError, *, verbose: bool = False) -> ExitCode:
    """Print what happened, why, and what to do, and return the exit code. If `verbose` is true, print the
    traceback first."""
    if verbose:
        import traceback

        traceback.print_exception(error)
    lines = [f"error: {streams.printable(error.message)}"]
    if error.why:
        lines.append(f"  why: {streams.printable(error.why)}")
    if error.hint:
        from gpubench.base.installation import locate

        lines.append(f"  fix: {streams.printable(locate(error.hint))}")
    print("\n".join(lines), file=sys.stderr, flush=True)
    return error.exit_code


def _tell_notes() -> None:
    """Print on stderr what went wrong with the cache in this process."""
    # Problems of workers are warnings of the run.
    if cache := sys.modules.get("gpubench.result.store.cache"):
        for note in cache.notes():
            print(f"warning: {note.message}; {note.hint}", file=sys.stderr)


def _refused_or_bug(error: Exception, verbose: bool) -> int:
    """Report what the system refused as an error, and anything else as a bug; return the exit code."""
    why = find_limit(error)
    if isinstance(error, OSError) and (why or error.errno in disk.LOST or disk.mend(error)):
        why = why or disk.reason(error)
        why += f" ({error.filename})" if error.filename else ""
    if isinstance(error, UnicodeEncodeError):  # of a file, a folder or a variable; messages and files are UTF-8
        why = f"{error.object[:300]!r} is not valid {error.encoding.upper()}"
    if why:
        refused = GpubenchError("refused", why=why)
        refused.__cause__ = error  # --verbose shows where it happened
        return tell(refused, verbose=verbose)
    from gpubench.base.installation import tell_bug

    return tell_bug(error)


def _exit_code(exit: SystemExit) -> int:
    """Return the exit code that the interpreter would use; a text is printed as an error."""
    if isinstance(exit.code, int | None):
        return exit.code or ExitCode.OK
    print(exit.code, file=sys.stderr)
    return ExitCode.FAILED


def _catch_endings() -> dict[int, Any]:
    """Make SIGTERM, SIGHUP and SIGBREAK raise Terminated; return the previous handlers by signal number."""

    def terminate(*_: object) -> None:
        raise Terminated

    numbers = [signal.SIGTERM]
    for name in ("SIGHUP", "SIGBREAK"):  # the second on Windows alone: Ctrl-Break, and a console that is closed
        # An ignored SIGHUP stays ignored, because `nohup` asks for that.
        if (number := getattr(signal, name, None)) and signal.getsignal(number) is not signal.SIG_IGN:
            numbers.append(number)
    try:
        if hasattr(signal, "SIGCHLD"):  # where a parent has it ignored, each child seems to end with status 0
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return {number: signal.signal(number, terminate) for number in numbers}
    except ValueError:  # not in the main thread: a caller that embeds us keeps its own handlers
        return {}


def output_code(error: OSError) -> ExitCode | None:
    """Return the exit code if writing to standard output failed, or None if `error` is another error. A pipe
    whose reader has ended is OK; a full disk is printed as an error."""
    # Windows calls a pipe without a reader an invalid argument.
    if isinstance(error, BrokenPipeError) or (
        error.errno == errno.EINVAL and error.filename is None and sys.platform == "win32"
    ):
        if not _has_no_reader():
            return None
        _drop_output()
        return ExitCode.OK  # the reader, such as `head`, has what it wanted
    if error.errno not in _FULL or error.filename is not None:
        return None
    _drop_output()
    return tell(GpubenchError("cannot-print", why=disk.reason(error), hint=disk.mend(error) or None))


def _has_no_reader() -> bool:
    """Return whether standard output is a pipe without a reader; on Windows, which does not tell, whether it is a
    pipe."""
    try:
        if not hasattr(select, "poll"):
            return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def _drop_output() -> None:
    # The interpreter flushes once more at exit, and would complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
