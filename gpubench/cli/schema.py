"""`gpubench schema`: the JSON Schema of a document."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpubench.suggestions import require_choice

_PREFIX = "gpubench-"
# The module and the type of the documents that are derived from results.
_DERIVED = {
    "gpubench-report": ("gpubench.report.formats._report_types", "ReportDocument"),
    "gpubench-events": ("gpubench.report.formats._events", "EventLine"),
    "gpubench-compare": ("gpubench.report.compare.types", "Comparison"),
    "gpubench-noise": ("gpubench.report.noise.types", "Noise"),
    "gpubench-fleet": ("gpubench.report.merging.types", "Fleet"),
    "gpubench-advise": ("gpubench.report.formats._advice_types", "AdviceDocument"),
}
NAMES = ("gpubench-result", "gpubench-detect", *_DERIVED)


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"{NAMES[0]}, {', '.join(name.removeprefix('gpubench') for name in NAMES[1:])}.",
        ),
    ] = "gpubench-result",
) -> None:
    """Print the JSON Schema of a document; of events, that of one line."""
    full = name if name.startswith(_PREFIX) else _PREFIX + name
    require_choice(full, NAMES, "NAME")
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(_schema(full))).decode())


def _schema(name: str) -> dict[str, Any]:
    from gpubench.store import schemas

    if name not in _DERIVED:
        return schemas.schema(name)
    import importlib

    module, kind = _DERIVED[name]
    return schemas.document_schema(name, getattr(importlib.import_module(module), kind))
