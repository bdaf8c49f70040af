"""The typer application: which commands there are, each loaded only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from gpubench.cli import _usage
from gpubench.cli._command import Command, Group

# One module each, with a function of the same name. The order is that of the help.
COMMANDS = ("detect", "run", "report", "compare", "noise", "merge", "advise", "ops", "schema")


def gpubench(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Should a computation run on the CPU, on the GPU, or on both, from which size on, and what is gained?"""


def build(names: Iterable[str] = COMMANDS) -> Any:
    """The parser of these commands."""
    app = typer.Typer(
        name="gpubench",
        cls=Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="Measure, do not guess. `gpubench COMMAND --help` explains each command.")(gpubench)
    for name in names:
        module = importlib.import_module(f"gpubench.cli.{name}")
        app.command(name, cls=Command)(getattr(module, name))
    return typer.main.get_command(app)


def run_app(arguments: Sequence[str], invocation: dict[str, Any]) -> int:
    """Run one command and return its exit code. `invocation` is told whether errors shall be verbose.

    Raises UsageError for what the command line gets wrong, and whatever the command raises.
    """
    # Reading the signatures of all commands would cost each of them 20 ms.
    named = [word for word in arguments[:1] if word in COMMANDS]
    with _usage.translated():
        code = build(named or COMMANDS).main(
            list(arguments), prog_name="gpubench", standalone_mode=False, obj=invocation
        )
    return code if isinstance(code, int) else 0
