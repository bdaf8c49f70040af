"""Options that choose what a report says; `run` takes them too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpubench.report.analysis import Claim

Claims = Annotated[
    str | None,
    typer.Option(
        "--claims",
        metavar="FILE",
        help="Expected speedups beside the measured ones: TOML or JSON, or builtin.",
        show_default=False,
    ),
]

Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="KEY",
        help="Rows by case, op, n, device, time or speedup; -KEY: largest first.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="LIST", help="Tables and CSV with these columns only.", show_default=False
    ),
]

Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="ID", help="DEVICE, FORM or FORM@DEVICE (default: best CPU form)."),
]


def listed(text: str | None) -> tuple[str, ...]:
    """The words of a list with commas; none without one."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def loaded_claims(name: str | None) -> tuple[Claim, ...]:
    """The claims of the file `name`; none without one. Raises InputError."""
    if name is None:
        return ()
    from gpubench.report import claims

    return claims.load(name)
