"""What to say when no GPU was measured, and why it was not."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.result import Run
from gpubench.report.analysis.types import CaseResult


def no_gpu(run: Run, cases: Sequence[CaseResult]) -> str:
    """Why there is no verdict at all."""
    software = sorted({device.name for device in run.devices if device.kind == "software"})
    if any(row.device_kind == "software" and row.time is not None for row in cases):
        return (
            f"No GPU was measured: {', '.join(software) or 'the adapter'} is a software adapter, which runs on "
            "the CPU; its times stand in a table of their own and give no verdict."
        )
    if not any(row.time is not None for row in cases):
        return f"Nothing was measured{_because(run, cases)}."
    if any(row.device_kind in ("gpu", "fake") and row.time is not None for row in cases):
        return "A GPU was measured, but no CPU case of the same work: there is nothing to compare it with."
    return f"CPU: no GPU was measured{_because(run, cases)}."


def _because(run: Run, cases: Sequence[CaseResult]) -> str:
    reasons: dict[str, str] = {}
    for row in cases:
        if row.device_kind != "cpu" and row.time is None and row.reason:
            reasons.setdefault(row.case.device_id, " ".join(row.detail.split()) or row.reason)
    for warning in run.warnings:
        if warning.code in ("unavailable", "software-device") and warning.id is None:
            text = " ".join(warning.message.split())
            reasons.setdefault(text.partition(":")[0], text)
    if not reasons:
        return " (no GPU backend was asked for, or none was found)"
    texts = [text if text.startswith(f"{name}:") else f"{name}: {text}" for name, text in reasons.items()]
    told = "; ".join(texts)
    return f" ({told.rstrip('.')})"
