"""The parser's complaints in our own words: what, why, what to do, with a suggestion."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from gpubench.errors import ExitCode, UsageError
from gpubench.suggestions import suggest

# typer (>= 0.26) carries click inside and exports these through the bases of BadParameter alone.
ParserUsageError: type[Exception] = typer.BadParameter.__mro__[1]
_NOT_A_CHOICE = re.compile(r"'(?P<word>.*)' is not (?:one of )?(?P<choices>'.*')\.?")


@contextmanager
def translated() -> Iterator[None]:
    """Turn the parser's exceptions into UsageError; help for an empty command line goes to stderr."""
    try:
        yield
    except ParserUsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            raise SystemExit(ExitCode.USAGE) from None
        raise explain(error) from error


def explain(error: Any) -> UsageError:
    """The UsageError that says the same as `error`."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "gpubench"
    fallback = f"{path} --help lists what is possible"
    text = error.format_message()
    if hasattr(error, "possibilities"):
        names = [name for param in context.command.params for name in param.opts] if context else []
        near = suggest(error.option_name, [*names, "--help"])
        return UsageError(
            "unknown-option", f"there is no option {error.option_name}", why=f"{path} does not know it",
            hint=near or fallback,
        )  # fmt: skip
    where, _, why = text.partition(": ")
    choice = _NOT_A_CHOICE.search(text)
    if choice:
        fallback = suggest(choice["word"], re.findall(r"'([^']*)'", choice["choices"])) or fallback
    if not why:
        return UsageError("usage", _lower(text), why=f"usage: {_usage_line(context)}", hint=fallback)
    return UsageError("bad-value", _lower(where), why=why, hint=fallback)


def _usage_line(context: Any) -> str:
    return context.get_usage().removeprefix("Usage: ") if context else "gpubench COMMAND"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
