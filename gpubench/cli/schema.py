"""`gpubench schema`: the JSON Schema of a document."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpubench.cli._suggest import require_choice

_PREFIX = "gpubench-"
NAMES = ("gpubench-result", "gpubench-detect", "gpubench-report", "gpubench-compare", "gpubench-advise")


def schema(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="gpubench-result, -detect, -report, -compare or -advise.")
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
    if name == "gpubench-compare":
        from gpubench.report.compare.types import Comparison

        return schemas.document_schema(name, Comparison)
    if name == "gpubench-advise":
        from gpubench.report.formats._advice_types import AdviceDocument

        return schemas.document_schema(name, AdviceDocument)
    from gpubench.report.formats._report_types import ReportDocument

    return schemas.document_schema(name, ReportDocument)
