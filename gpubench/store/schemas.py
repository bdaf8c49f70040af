"""JSON Schema of the documents, derived from the types that read and write them."""

from __future__ import annotations

from typing import Any

import msgspec

from gpubench.errors import UsageError
from gpubench.model.machine import Machine
from gpubench.model.result import Run

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, type[msgspec.Struct]] = {"gpubench-result": Run, "gpubench-detect": Machine}
SCHEMA_NAMES = tuple(_TYPES)


def schema(name: str) -> dict[str, Any]:
    """The schema of the document `name`. Raises UsageError for an unknown one."""
    if name not in _TYPES:
        raise UsageError(
            "unknown-document",
            f"there is no document {name!r}",
            why="the documents are " + ", ".join(SCHEMA_NAMES),
            hint="gpubench schema gpubench-result",
        )
    return document_schema(name, _TYPES[name])


def document_schema(name: str, kind: Any) -> dict[str, Any]:
    """The schema of `kind`, a struct or a union of some, under the title `name`; its type may live elsewhere."""
    return {"$schema": _DIALECT, "title": name, **msgspec.json.schema(kind)}
