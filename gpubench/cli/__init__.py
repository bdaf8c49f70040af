"""The command line, one file for each command. Options become a request, and the end of a command becomes an
exit code.

The Python interface and wings use this package, too. `--version` is answered without importing any module of
it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program on `argv` (None: on the arguments of this process), and return its exit code."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # before or after the guard, while modules are loaded
        from gpubench.base.errors import ExitCode

        return ExitCode.INTERRUPTED
    except Exception as error:  # before the guard stood: files that are not ours
        from gpubench.base.installation import tell_bug

        return tell_bug(error)


def _main(argv: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["--version"]:
        from gpubench import __version__

        try:
            print(f"gpubench {__version__}", flush=True)
        except OSError as error:  # nobody reads it, or the disk is full
            from gpubench.cli.exit import output_code

            failed = output_code(error)
            return 1 if failed is None else failed
        return 0
    from gpubench.cli.exit import guard

    if argv is not None:
        return guard(arguments)
    if sys.platform == "win32":
        arguments = _expand_wildcards(arguments)
    # No garbage is collected while modules are loaded, nor at the end: that would cost a sixth of a short command.
    # `command` switches collection on for the command's own work.
    gc.disable()
    try:
        code = guard(arguments)
    finally:
        gc.freeze()
    foreign = sys.modules.get("gpubench.base.plugins.containment")
    if foreign is not None and foreign.used.is_set():
        foreign.end(code)
    return code


def _expand_wildcards(arguments: Sequence[str]) -> list[str]:
    """Replace each word with wildcards by the files that match it, if any match."""
    import glob

    # No Windows shell does this. `--label "a*b"` names no file.
    words: list[str] = []
    for before, word in zip(("", *arguments), arguments, strict=False):
        named = set("*?").intersection(word) and not word.startswith("-") and not _takes_value(before)
        words += (named and sorted(glob.glob(word))) or [word]
    return words


def _takes_value(word: str) -> bool:
    """Return whether `word` is an option such as `-o`, whose value is the next word."""
    from gpubench.cli.options import commands

    every = (declared for options in commands().values() for declared in options.declared.values())
    switches = {x.key for x in every if x.switch}
    # Unknown long options count, too.
    return word == "-o" or (word.startswith("--") and "=" not in word and word[2:] not in switches)
