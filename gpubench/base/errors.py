"""The errors that gpubench reports to its user and that backends raise, and suggestions for mistyped names.
This module imports no other module of gpubench except the list of messages.

A `GpubenchError` ends the program with up to three lines (what, why, what to do) and an exit code. A
`BackendError` does not end it: the worker turns it into a `Skip` or a `Failure` of one case.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpubench.base.messages import Reason


class ExitCode(enum.IntEnum):
    """The exit codes of all commands, as in docs/cli.md."""

    OK = 0
    FAILED = 1  # an error, a wrong result, a failed case, or nothing was measured
    USAGE = 2  # a wrong command line or configuration
    GATE = 3  # a gate failed: a limit of the user, such as --min-speedup or --fail-on
    INPUT = 4  # a given file cannot be used
    UNAVAILABLE = 5  # a backend or device that the user named is not available
    BUDGET = 124  # the time of --budget was over too early
    INTERRUPTED = 130  # ended by Ctrl-C
    TERMINATED = 143  # ended by SIGTERM


class GpubenchError(Exception):
    """An expected problem, which is reported to the user in up to three lines: `message` (what happened), `why`
    and `hint` (what to do). Scripts may rely on `code`, a key of `messages.ERRORS`. Its entry there replaces an
    empty `message` and a `hint` of None. An empty `why` or `hint` has no line."""

    exit_code = ExitCode.FAILED

    def __init__(self, code: str, message: str = "", *, why: str = "", hint: str | None = None) -> None:
        from gpubench.base.messages import ERRORS  # not above: every start imports this module, and few raise

        entry = ERRORS[code]
        self.code = code
        self.message = message or entry.sentence
        self.why = why
        self.hint = entry.remedy if hint is None else hint
        super().__init__(self.message)
        for label, text in (("why", self.why), ("fix", self.hint)):
            if text:
                self.add_note(f"  {label}: {text}")  # a traceback and a notebook show notes


class UsageError(GpubenchError):
    """Error: the command line, or a call from Python, asks for something that does not exist or makes no sense."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """Error: a configuration file or a GPUBENCH_ variable is wrong."""


class InputError(GpubenchError):
    """Error: a given file cannot be used."""

    exit_code = ExitCode.INPUT


class RequiredUnavailable(GpubenchError):
    """Error: a backend or device that the user named is not available."""

    exit_code = ExitCode.UNAVAILABLE


class BadPlugin(GpubenchError):
    """Error: an op, a backend or another part of an installed package is broken. gpubench works without that
    part. Only a command that needs it fails."""


class BackendError(Exception):
    """Base class of the errors that a backend raises in place of the vendor's exceptions. `detail` says in one
    sentence what happened, and `hint` is the remedy, or "". `reason` is a key of `messages.REASONS`; None means
    the default of the class."""

    reason: Reason = "error"

    def __init__(self, detail: str, *, hint: str = "", reason: Reason | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        if reason is not None:
            self.reason = reason


class BackendUnavailable(BackendError):
    """Error: the library, the driver or the device is missing. The case becomes a Skip."""

    reason: Reason = "unavailable"


class Unsupported(BackendError):
    """Error: this device cannot hold or run the case. The case becomes a Skip."""

    reason: Reason = "unsupported"


class DeviceOutOfMemory(BackendError):
    """Error: the device has no room. The session stays usable, and the case becomes a Skip."""

    reason: Reason = "out-of-memory"


class BuildError(BackendError):
    """Error: a kernel did not compile. `detail` is the text of the compiler, and the case becomes a Failure."""

    reason: Reason = "build-error"


class WrongResult(BackendError):
    """Error: the output differs from the float64 reference. The case becomes a Failure without a time."""

    reason: Reason = "wrong-result"


class DeviceLost(BackendError):
    """Error: the device is gone, and a new worker is needed. The case becomes a Failure."""

    reason: Reason = "device-lost"


# Texts about limits that the system, a shell or a container sets.
NO_TASKS = (
    "the system starts no more processes or threads: see `ulimit -u`, `ulimit -v`, a container's pids limit"
)
NO_MEMORY = "the system gives no more memory: see `ulimit -v`, a container's memory limit"
NO_FILES = "the system opens no more files: see `ulimit -n`"
_WORDS = {
    "can't start new thread": NO_TASKS, "pthread_create": NO_TASKS, "MemoryError": NO_MEMORY, "bad_alloc": NO_MEMORY,
    "Cannot allocate memory": NO_MEMORY, "Memory allocation": NO_MEMORY, "failed to map segment": NO_MEMORY,
}  # fmt: skip


def find_limit(error: BaseException) -> str:
    """Return the limit of the system that caused this exception, and where to see it. Return "" if none did."""
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return NO_MEMORY
    if number in (errno.EMFILE, errno.ENFILE):
        return NO_FILES
    if number == errno.EAGAIN and not getattr(error, "characters_written", 0):
        return NO_TASKS
    return name_limit(str(error)) if isinstance(error, RuntimeError | ImportError) else ""


def name_limit(text: str) -> str:
    """Return the limit of the system that a library's output `text` mentions, and where to see it. Return "" if it
    mentions none."""
    return next((limit for words, limit in _WORDS.items() if words in text), "")


# A name of gpubench, then words that people type in its place; a comma ends them.
_MEANT = (
    "run bench benchmark measure profile test, detect devices doctor gpus info, ops kernels list ls, compare diff,"
    "report export html latest plot results show view, sizes n, size n, budget time, version v, hybrid both,"
    "device gpu, host cpu, float16 half, float64 double, cupy cuda hip, numpy cpu, wgpu vulkan metal dx12, result run"
)


def suggest(word: str, names: Iterable[str]) -> str:
    """Return a text such as `did you mean 'matmul'?`, or "" if no name is similar to `word` or meant by it.
    For `mlp` the text has all names that begin with `mlp_`. Dashes in front of options do not count."""
    from difflib import get_close_matches

    word, lowered = word.lower().lstrip("-"), {name.lower().lstrip("-"): name for name in names}
    for name, *others in map(str.split, _MEANT.split(",")):
        if word in others and name in lowered and word not in lowered:
            word = name
    if begun := sorted(name for name in lowered if name.startswith(f"{word}_")):
        return f"did you mean {' or '.join(repr(lowered[name]) for name in begun)}?"
    near = get_close_matches(word, lowered, n=1, cutoff=0.66)
    return f"did you mean {lowered[near[0]]!r}?" if near else ""


MOST_CHOICES = 20  # most names that a message lists, if a command lists them, too


def require_choice(word: str, names: Iterable[str], what: str, *, hint: str = "", listing: str = "") -> str:
    """Return `word` if it is one of `names`, otherwise raise UsageError about the option `what`, such as
    "--format". `hint` replaces the suggestion of a similar name. `listing` is a command that lists all names,
    which the error mentions; "" means that there is none."""
    allowed = list(dict.fromkeys(names))
    if word in allowed:
        return word
    why = "possible: " + ", ".join(allowed)
    if len(allowed) > MOST_CHOICES and listing:  # if no command lists the names, the message does
        from difflib import get_close_matches

        near = get_close_matches(word, allowed, n=3, cutoff=0.5)
        why = f"it is none of {len(allowed)} names" + (f"; similar: {', '.join(near)}" if near else "")
    words = word.split()
    # Names were typed as a list without commas, whatever `hint` says.
    if len(words) > 1 and set(words) <= set(allowed):
        hint = f"in a list write {','.join(words)}" + (";" if listing else "")
    steps = filter(None, (hint or suggest(word, allowed), f"`{listing}` lists them all" if listing else ""))
    raise UsageError(
        "unknown-value", f"{what}: there is no {word!r}", why=why,
        hint=" ".join(steps) or f"take one of these for {what}",
    )  # fmt: skip
