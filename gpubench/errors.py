"""Every way in which gpubench says no. This module imports nothing of ours.

A `GpubenchError` ends the program with three lines (what, why, what to do) and its exit code.
A `BackendError` never does: the worker turns it into a `Skip` or a `Failure` of one case.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The documented exit codes (docs/cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    GATE = 3
    INPUT = 4
    UNAVAILABLE = 5
    BUDGET = 124
    INTERRUPTED = 130
    TERMINATED = 143


class GpubenchError(Exception):
    """An expected problem, told to the user in three lines.

    `code` is a kebab-case name that scripts may match, `message` says what happened,
    `why` the reason and `hint` what to do next.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, code: str, message: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.why = why
        self.hint = hint


class UsageError(GpubenchError):
    """The command line asks for something that does not exist or makes no sense."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A configuration file or a GPUBENCH_ variable is wrong."""


class InputError(GpubenchError):
    """A file that was given cannot be used."""

    exit_code = ExitCode.INPUT


class RequiredUnavailable(GpubenchError):
    """A backend or device that the user named is not to be had."""

    exit_code = ExitCode.UNAVAILABLE


class BackendError(Exception):
    """Raised at a backend's edge in place of the vendor's exception.

    `reason` is a code of the result file, `detail` one sentence, `hint` the remedy if one is known.
    """

    reason = "error"

    def __init__(self, detail: str, *, hint: str = "", reason: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        if reason is not None:
            self.reason = reason


class BackendUnavailable(BackendError):
    """The library, driver or device is not there: a Skip."""

    reason = "unavailable"


class Unsupported(BackendError):
    """This device cannot hold or run this case: a Skip."""

    reason = "unsupported"


class DeviceOutOfMemory(BackendError):
    """The device has no room; the session stays usable: a Skip."""

    reason = "out-of-memory"


class BuildError(BackendError):
    """A kernel did not compile; `detail` carries the compiler's text: a Failure."""

    reason = "build-error"


class WrongResult(BackendError):
    """The output differs from the float64 reference: a Failure without a number."""

    reason = "wrong-result"


class DeviceLost(BackendError):
    """The device is gone; only a fresh worker can go on: a Failure."""

    reason = "device-lost"
