"""Probes of native libraries. Each probe runs in a child process of its own, because such libraries have hung
whole machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gpubench.base.installation import KEPT, install_command
from gpubench.result.machine import Status

T = TypeVar("T")
# A fact as `facts.parse_record` reads it.
FactJson = dict[str, Any]


class ProbeFailure(Exception):
    """The error that a library is missing or refuses to work. Its arguments are fields of the probe's provider
    in the document."""

    def __init__(self, status: Status, error_code: str, hint: str) -> None:
        super().__init__(hint)
        self.status: Status = status
        self.error_code = error_code
        self.hint = hint


@contextlib.contextmanager
def require(package: str, remedy: str = "") -> Iterator[None]:
    """Run the imports of a package in this context. Raises ProbeFailure if one fails. The hint has `remedy`, or
    the command that installs gpubench."""
    try:
        yield
    except BaseException as error:
        # A package that does not load may raise anything, also SystemExit.
        code = "ImportError" if isinstance(error, ImportError) else type(error).__name__
        # CuPy wraps the error in a page of advice.
        why = f"does not load ({' '.join(str(error.__cause__ or error).split())}; {KEPT})"
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else why
        raise ProbeFailure("absent", code, f"{package} {why}: {remedy or install_command()}") from error


def text(value: Any) -> str | None:
    """Return bytes decoded to text, and other values such as None unchanged."""
    # some bindings return bytes
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def fact(value: Any, status: Status = "unsupported") -> FactJson:
    """Return the fact of a value as JSON. Its status is "ok", or `status` if the value is None."""
    return {"value": value, "status": status if value is None else "ok"}


def ask_each(
    version: str,
    name: str,
    devices: Iterable[T],
    describe: Callable[[int, T], dict[str, Any]],
    check: Callable[[T], bool] | None,
) -> Iterator[dict[str, Any]]:
    """Yield a probe's answer before the check of each device, and once more at the end. The answer has the
    records of all devices that `describe(number, device)` can describe, and names the others in its hint.
    `check` tells whether a device computes rightly."""
    described, lost = [], []
    for number, device in enumerate(devices):
        try:
            described.append((device, describe(number, device)))
        except Exception as error:
            lost.append(f"{name}{number}: {error}")
    answer = {
        "records": [record for _, record in described],
        "version": version,
        "hint": "; ".join(lost) or None,
    }
    # A check on a broken device may never return: the records are out by then.
    for device, record in described:
        yield answer | {"partial": True}
        if check is not None and "why_not" not in record:
            record["checked"] = check(device)
    yield answer
