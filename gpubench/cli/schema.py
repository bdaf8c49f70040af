"""`gpubench schema`: the JSON Schema of a document."""

from __future__ import annotations

from typing import Any

from gpubench import streams
from gpubench.cli.options import DOCUMENTS, SchemaOptions
from gpubench.errors import require_choice

_PREFIX = "gpubench-"
# The module and the type of the documents that are derived from results.
_DERIVED = {
    "gpubench-report": ("gpubench.report.document", "ReportDocument"),
    "gpubench-events": ("gpubench.report.events", "EventLine"),
    "gpubench-compare": ("gpubench.analysis.comparison", "Comparison"),
    "gpubench-noise": ("gpubench.analysis.noise", "Noise"),
    "gpubench-fleet": ("gpubench.analysis.fleet", "Fleet"),
    "gpubench-fleet-report": ("gpubench.analysis.fleet_report", "FleetReport"),
    "gpubench-inventory": ("gpubench.analysis.inventory", "Inventory"),
    "gpubench-advise": ("gpubench.analysis.advice", "Advice"),
}


def schema(options: SchemaOptions) -> None:
    """Print the JSON Schema of a document; of events, that of one line."""
    name = options.name if options.name.startswith(_PREFIX) else _PREFIX + options.name
    require_choice(name, DOCUMENTS, "NAME")
    import msgspec

    streams.put(msgspec.json.format(msgspec.json.encode(_schema(name))).decode() + "\n")


def _schema(name: str) -> dict[str, Any]:
    from gpubench.store import document

    if name not in _DERIVED:
        return document.schema(name)
    import importlib

    module, kind = _DERIVED[name]
    return document.document_schema(name, getattr(importlib.import_module(module), kind))
