"""`gpubench schema`: the JSON Schema of a document."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpubench.cli._suggest import require_choice

_PREFIX = "gpubench-"
NAMES = ("gpubench-result", "gpubench-detect", "gpubench-report")


def schema(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="gpubench-result, gpubench-detect or gpubench-report.")
    ] = "gpubench-result",
) -> None:
    """Print the JSON Schema of a document."""
    full = name if name.startswith(_PREFIX) else _PREFIX + name
    require_choice(full, NAMES, "NAME")
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(_schema(full))).decode())


def _schema(name: str) -> dict[str, Any]:
    from gpubench.store import schemas

    if name in schemas.SCHEMA_NAMES:
        return schemas.schema(name)
    from gpubench.report.formats._report_types import ReportDocument

    return schemas.document_schema(name, ReportDocument)
