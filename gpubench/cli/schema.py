"""`gpubench schema`: the JSON Schema of a document."""

from __future__ import annotations

from typing import Any

from gpubench.base import streams
from gpubench.base.errors import require_choice
from gpubench.base.plugins import wings
from gpubench.cli.options import SchemaOptions, documents

_PREFIX = "gpubench-"
# The module and the type of the documents that are derived from results.
_DERIVED = {
    "gpubench-report": "gpubench.report.document:ReportDocument",
    "gpubench-events": "gpubench.report.events:EventLine",
    "gpubench-compare": "gpubench.compare.comparison:Comparison",
    "gpubench-noise": "gpubench.compare.noise:Noise",
    "gpubench-advise": "gpubench.analysis.advice:Advice",
}


def schema(options: SchemaOptions) -> None:
    """Print the JSON Schema of a document; of events, that of one line."""
    name = options.name if options.name.startswith(_PREFIX) else _PREFIX + options.name
    require_choice(name, documents(), "NAME")
    import msgspec

    streams.put(msgspec.json.format(msgspec.json.encode(_schema(name))).decode() + "\n")


def _schema(name: str) -> dict[str, Any]:
    from gpubench.result.store import document

    place = (_DERIVED | wings.brought("schemas")).get(name)
    return document.schema(name) if place is None else document.document_schema(name, wings.find(place))
