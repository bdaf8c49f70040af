"""A comparison as CSV: one row per case and new file; empty is null. Times in seconds."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

import msgspec

from gpubench.report.compare.types import Comparison

COLUMNS = (
    "new_file", "new_run_id", "case_id", "verdict", "reason", "base_s", "new_s", "ratio", "lo", "hi", "p", "p_adjusted",
    "threshold", "k_base", "k_new", "sessions_needed", "labels", "muted",
)  # fmt: skip


def render(comparison: Comparison) -> str:
    """A heading and the cases; those with a number on one side alone are `missing`, `failed` or `added`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    rows = [msgspec.structs.asdict(row) for row in comparison.cases]
    absent = {"missing": comparison.missing, "failed": comparison.failed, "added": comparison.added}
    rows += [msgspec.structs.asdict(row) | {"verdict": word} for word, found in absent.items() for row in found]
    for row in rows:
        new = comparison.new[row["new"]]
        known = row | {"case_id": row["id"], "new_file": _inert(new.source), "new_run_id": new.run_id}
        writer.writerow({name: _field(value) for name, value in known.items()})
    return text.getvalue()


def _field(value: object) -> str:
    if value is None or isinstance(value, Mapping):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _inert(name: str) -> str:
    """A file name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
