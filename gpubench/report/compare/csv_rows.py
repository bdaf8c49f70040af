"""A comparison as CSV: one row per case and new file; empty is null. Times in seconds."""

from __future__ import annotations

import csv
import io

import msgspec

from gpubench.report.compare.types import Comparison
from gpubench.report.formats._csv import cell

COLUMNS = (
    "new_file", "new_run_id", "case_id", "verdict", "reason", "base_s", "new_s", "ratio", "lo", "hi", "p", "p_adjusted",
    "threshold", "k_base", "k_new", "sessions_needed", "labels", "muted",
)  # fmt: skip


def render(comparison: Comparison) -> str:
    """A heading and the cases; those with a number on one side alone are `missing`, `failed` or `added`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    rows = [msgspec.structs.asdict(row) for row in comparison.cases]
    absent = {"missing": comparison.missing, "failed": comparison.failed, "added": comparison.added}
    rows += [msgspec.structs.asdict(row) | {"verdict": word} for word, found in absent.items() for row in found]
    for row in rows:
        new = comparison.new[row["new"]]
        known = row | {"case_id": row["id"], "new_file": new.source, "new_run_id": new.run_id}
        writer.writerow({name: cell(known[name]) for name in COLUMNS if name in known})
    return text.getvalue()
