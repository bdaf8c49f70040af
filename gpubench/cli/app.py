"""The typer application: which commands there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gpubench.cli import _usage
from gpubench.cli._command import Command, Group
from gpubench.cli.detect import detect
from gpubench.cli.ops import ops
from gpubench.cli.report import report
from gpubench.cli.run import run
from gpubench.cli.schema import schema

COMMANDS = (detect, run, report, ops, schema)

app = typer.Typer(
    name="gpubench",
    cls=Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command(cls=Command)(command)


@app.callback(epilog="Measure, do not guess. `gpubench COMMAND --help` explains each command.")
def gpubench(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Should a computation run on the CPU, on the GPU, or on both, from which size on, and what is gained?"""


def run_app(arguments: Sequence[str], invocation: dict[str, Any]) -> int:
    """Run one command and return its exit code. `invocation` is told whether errors shall be verbose.

    Raises UsageError for what the command line gets wrong, and whatever the command raises.
    """
    group = typer.main.get_command(app)
    with _usage.translated():
        code = group.main(list(arguments), prog_name="gpubench", standalone_mode=False, obj=invocation)
    return code if isinstance(code, int) else 0
