"""The program's standard streams: notes that never end a run, and lines that no runner of a CI obeys."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any

from gpubench.base.escaping import inert

# One of these is set in each step of the runners that obey lines of a log: GitHub, Forgejo and Gitea; Azure Pipelines;
# TeamCity; and the variable that nearly all of them set.
RUNNERS = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION", "CI")
_TAIL = 200  # characters of an unfinished line that tell whether the next ones complete a command


class Stream:
    """A standard stream. `guarded`: no line of it is a command of a runner. `survives`: what cannot be written is lost.

    Everything but writing is the stream's own.
    """

    def __init__(self, stream: IO[str], *, survives: bool, guarded: bool) -> None:
        self.stream = stream
        self._survives = survives
        self.guarded = guarded
        self.apart = False  # only `put` writes here; what anybody else writes is a note
        self._line = ""  # the line that has not ended, as it was written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write `text`, without its commands. Returns its length."""
        if not self.apart:
            self.put(text)
        elif sys.stderr is not None:
            sys.stderr.write(text)
        return len(text)

    def put(self, text: str) -> None:
        """Write `text` of our own, without its commands."""
        self._put(self._inert(text) if self.guarded else text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what waits in the buffer."""
        with self._lossy():
            self.stream.flush()

    def command(self, line: str) -> None:
        """Write a line that the runner is to obey."""
        self._put("\n" * bool(self._line) + line + "\n")
        self._line = ""

    def _put(self, text: str) -> None:
        with self._lossy():
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def _lossy(self) -> contextlib.AbstractContextManager[None]:
        """A closed stream raises ValueError."""
        return contextlib.suppress(OSError, ValueError) if self._survives else contextlib.nullcontext()

    def _inert(self, text: str) -> str:
        shown = inert(self._line + text)
        written = shown[len(self._line) :]
        line = shown[max(shown.rfind("\n"), shown.rfind("\r")) + 1 :]
        # A long line is told apart from an empty one by a letter.
        self._line = line if len(line) <= _TAIL else "x" * bool(line.strip()) + line[-_TAIL:]
        return written


def in_runner(environ: Mapping[str, str]) -> bool:
    """Whether the lines of this process may be read by a runner."""
    return any(environ.get(name) for name in RUNNERS)


def take_over(environ: Mapping[str, str] = os.environ) -> None:
    """Put a Stream in the place of standard output and of standard error.

    A stream that was closed before we started (`>&-`) is None; what goes there is dropped.
    """
    guarded = in_runner(environ)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Stream):
            stream.guarded = guarded
            continue
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
        setattr(sys, name, Stream(stream, survives=name == "stderr", guarded=guarded))


def keep_apart() -> None:
    """Keep standard output, if it is ours, for what `put` writes: all that others print goes to standard error.

    They may print in Python, in C or from a thread: our output moves to a descriptor that nobody knows.
    """
    out = sys.stdout
    if not isinstance(out, Stream) or out.stream is not sys.__stdout__:
        return
    out.flush()
    private = os.dup(out.fileno())
    with contextlib.suppress(OSError):  # standard error is closed
        os.dup2(2, 1)
    out.stream = open(  # noqa: SIM115 - until the process ends
        private, "w", encoding=out.encoding, errors=out.errors, buffering=1 if out.line_buffering else -1
    )
    out.apart = True


def surviving(stream: IO[str]) -> Any:
    """`stream` itself if it survives what cannot be written, else a Stream over it that does."""
    return (
        stream if isinstance(stream, Stream) else Stream(stream, survives=True, guarded=in_runner(os.environ))
    )


def put(text: str) -> None:
    """Write `text` to standard output in UTF-8, whatever the locale says."""
    out: Any = sys.stdout
    if getattr(out, "encoding", "") != "utf-8" and hasattr(out, "reconfigure"):
        out.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(out, Stream):
        out.put(text)
    else:
        out.write(text)


class Output:
    """Standard output for who writes line by line."""

    name = "standard output"

    def write(self, text: str) -> None:
        """Write `text` as `put` does."""
        put(text)

    def flush(self) -> None:
        """Write what waits in the buffer."""
        sys.stdout.flush()


def command(line: str) -> None:
    """Write a line to standard error that a runner obeys."""
    stream = sys.stderr
    if isinstance(stream, Stream):
        stream.command(line)
    else:
        print(line, file=stream)
