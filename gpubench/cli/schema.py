"""`gpubench schema`: the JSON Schema of a document."""

from __future__ import annotations

from gpubench.base import streams
from gpubench.base.errors import require_choice
from gpubench.base.plugins import wings
from gpubench.cli.options import SchemaOptions

_PREFIX = "gpubench-"
# The module and the type of each document, beside those of wings.
_TYPES = {
    "gpubench-result": "gpubench.result.run:Run",
    "gpubench-detect": "gpubench.result.machine:Machine",
    "gpubench-report": "gpubench.report.document:ReportDocument",
    "gpubench-events": "gpubench.report.document:EventLine",
    "gpubench-compare": "gpubench.compare.comparison:Comparison",
    "gpubench-noise": "gpubench.compare.two_runs:Noise",
    "gpubench-advise": "gpubench.analysis.advice:Advice",
    "gpubench-ops": "gpubench.report.document:OpList",
    "gpubench-plan": "gpubench.report.document:Plan",
}


def documents() -> dict[str, str]:
    """Return the place (`module:type`) of each document that has a schema, by name."""
    return _TYPES | wings.brought("schemas")


def schema(options: SchemaOptions) -> None:
    """Print the JSON Schema of a document, or of one line of events."""
    types = documents()
    name = _PREFIX + require_choice(
        options.name.removeprefix(_PREFIX), [name.removeprefix(_PREFIX) for name in types], "NAME"
    )
    import msgspec

    from gpubench.result.store import document

    text = document.schema(name, wings.find(types[name]))
    streams.put(msgspec.json.format(msgspec.json.encode(text)).decode() + "\n")
