"""Options that every command takes, declared once. A command names those it uses; it accepts them all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Errors only on stderr.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Tracebacks and probe details on stderr.")]
Color = Annotated[str, typer.Option("--color", metavar="auto|always|never", help="Colour of the output.")]
Ascii = Annotated[bool, typer.Option("--ascii", help="No box drawing and no block characters.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress on stderr.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Read this configuration file and no other.")
]
NoConfig = Annotated[bool, typer.Option("--no-config", help="Read no configuration file.")]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print each effective value with its source, then exit.")
]

COLORS = ("auto", "always", "never")
# As `report.FORMATS` has them, which takes longer to import than --help may.
FORMAT_NAMES = (
    "table, plain, markdown, json, jsonl, csv, html, svg, png; for other tools gha-smaller, gha-bigger, bmf, "
    "pytest-benchmark, hyperfine, google-benchmark, go"
)


def shared(
    quiet: Quiet = False,
    verbose: Verbose = False,
    color: Color = "auto",
    ascii: Ascii = False,
    no_progress: NoProgress = False,
    config: Config = None,
    no_config: NoConfig = False,
    show_config: ShowConfig = False,
) -> None:
    """The signature from which `_command` takes the shared options."""
