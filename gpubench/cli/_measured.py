"""What detection needs the report for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpubench.model.machine import Measured
    from gpubench.model.result import Run


def read_result(run: Run) -> Measured | None:
    """What a result says of the mode of its machine. The report is loaded only where there is a result."""
    from gpubench.report.analysis import measured

    return measured(run)
