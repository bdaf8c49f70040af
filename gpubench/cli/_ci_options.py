"""Options for continuous integration: of `run`, `report` and `compare` alike; and the gates of the first two."""

from __future__ import annotations

from typing import Annotated

import typer

Summary = Annotated[
    bool, typer.Option("--summary", help="Append the Markdown report to the file $GITHUB_STEP_SUMMARY.")
]
Annotations = Annotated[
    str,
    typer.Option(
        "--annotations",
        metavar="auto|always|never",
        help="Failed gates and warnings as ::error and ::warning on stderr; auto: under GitHub Actions.",
    ),
]
Marker = Annotated[
    str | None,
    typer.Option(
        "--marker",
        metavar="ID",
        help="Start Markdown with <!-- gpubench:ID -->, by which a comment is found again.",
        show_default=False,
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        "--max-bytes",
        metavar="N",
        min=1000,
        help="Shorten Markdown to N bytes. Default: 65000 with --marker, else whole.",
        show_default=False,
    ),
]
MinSpeedup = Annotated[
    list[str] | None,
    typer.Option(
        "--min-speedup",
        metavar="SEL=X",
        help="Exit 3 if a selected case is slower than X times the baseline, or has no number; repeatable.",
    ),
]
FailOn = Annotated[
    str | None,
    typer.Option(
        "--fail-on", metavar="LIST", help="Exit 3 for any of noisy,skipped,incomplete.", show_default=False
    ),
]
