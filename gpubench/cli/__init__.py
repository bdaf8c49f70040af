"""The command line: parsing, printing and exit codes only. `--version` answers without loading any of it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program on `argv` (default: the process's own) and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["--version"]:
        from gpubench import __version__

        print(f"gpubench {__version__}")
        return 0
    if argv is not None:
        return _run(arguments)
    # Loading modules makes no garbage, and a process that ends need not look for any: together these
    # searches cost a sixth of a short command. `_command` switches them on for the command's own work.
    gc.disable()
    try:
        return _run(arguments)
    finally:
        gc.freeze()


def _run(arguments: list[str]) -> int:
    from gpubench.cli._exit import run_guarded

    return run_guarded(arguments)
