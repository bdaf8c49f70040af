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


def loaded_claims(name: str | None) -> tuple[Claim, ...]:
    """The claims of the file `name`; none without one. Raises InputError."""
    if name is None:
        return ()
    from gpubench.report import claims

    return claims.load(name)
