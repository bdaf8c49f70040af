"""What a continuous integration wants to know of a report or a comparison: verdict, counts, messages, size limits."""

from gpubench.report.ci.outcome import Outcome, of_comparison, of_reports

__all__ = ["Outcome", "of_comparison", "of_reports"]
