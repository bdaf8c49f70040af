"""Is a run an experiment? Then it answers for no machine: neither advice nor a recommendation is made of it."""

from __future__ import annotations

from gpubench.model.result import Run
from gpubench.report.analysis.machine import usable_cpus


def experiment(run: Run) -> dict[str, str]:
    """Settings that make a run show something else than what a call usually takes, by option; empty: it is none."""
    found: dict[str, str] = {}
    if run.settings.inputs != "random":
        found["--inputs"] = run.settings.inputs
    if run.settings.cache != "warm":
        found["--cache"] = run.settings.cache
    # A run always says how many threads it used; all usable CPUs are nothing special.
    threads, cpus = run.settings.threads, usable_cpus(run)
    if threads is not None and cpus is not None and threads < cpus:
        found["--threads"] = f"{threads} of {cpus}"
    return found
