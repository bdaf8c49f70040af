"""Reports to a file or to standard output, and the one error of whatever could not be written."""

from __future__ import annotations

import sys
from pathlib import Path

from gpubench.errors import GpubenchError


def write(report: str | bytes, output: str | None) -> None:
    """To the file `output`, or to standard output. Text is UTF-8 whatever the locale says, and as it ends. Raises
    GpubenchError."""
    if output in (None, "-"):
        if isinstance(report, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(report)
            return
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(report)
        return
    content = report.encode() if isinstance(report, str) else report
    try:
        Path(str(output)).write_bytes(content)
    except OSError as error:
        raise cannot_write(str(output), error) from error


def cannot_write(what: str, error: OSError) -> GpubenchError:
    """The error for a file, or files, that the system refused."""
    return GpubenchError(
        "cannot-write", f"cannot write {what}", why=error.strerror or str(error),
        hint="free some space or choose another place",
    )  # fmt: skip
