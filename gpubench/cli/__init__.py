"""The command line: parsing, printing and exit codes only. `--version` answers without loading any of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program on `argv` (default: the process's own) and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["--version"]:
        from gpubench import __version__

        print(f"gpubench {__version__}")
        return 0
    from gpubench.cli._exit import run_guarded

    return run_guarded(arguments)
