"""pytest-benchmark's JSON, as `--benchmark-json --benchmark-save-data` writes it: seconds per launch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.machine import fact
from gpubench.report.exporters import estimated, only_run
from gpubench.report.layout import RenderOptions, json_text
from gpubench.result.run import Run

VERSION = "5.3.1"  # the release whose fields these are
MIN_TIME_S = 5e-3  # calibration makes a sample last this long (docs/measuring.md)
FENCE = 1.5
_SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "windows": "Windows"}


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The document of one run. Raises UsageError for several runs."""
    analysis = only_run(analyses, "pytest-benchmark")
    run = analysis.run
    settings = {
        "disable_gc": True, "timer": "perf_counter", "min_rounds": run.settings.min_samples,
        "max_time": run.settings.max_time_s, "min_time": MIN_TIME_S, "warmup": True,
    }  # fmt: skip
    benchmarks = [
        {
            "group": case.row.case.op, "name": case.id, "fullname": case.id, "params": {}, "param": None,
            "extra_info": {}, "options": settings, "stats": sample_stats(case.samples, case.sessions[0].repeat),
        }
        for case in estimated(analysis)
    ]  # fmt: skip
    document = {
        "machine_info": _machine_info(run), "commit_info": _commit_info(run), "benchmarks": benchmarks,
        "datetime": run.started_at, "version": VERSION,
    }  # fmt: skip
    return json_text(document, options)


def sample_stats(data: Sequence[float], iterations: int) -> dict[str, Any]:
    """The statistics that pytest-benchmark computes of the same rounds, with its quartiles and fences: one value a
    round. `outliers` is `stddev_outliers;iqr_outliers`."""
    ordered, mean, total = sorted(data), statistics.fmean(data), sum(data)
    stddev = statistics.stdev(data) if len(data) > 1 else 0.0
    q1, q3 = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
    low, high = q1 - FENCE * (q3 - q1), q3 + FENCE * (q3 - q1)
    far = sum(1 for value in data if not low <= value <= high)
    wide = sum(1 for value in data if not mean - stddev <= value <= mean + stddev)
    return {
        "min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": stddev, "rounds": len(data),
        "median": statistics.median(data), "iqr": q3 - q1, "q1": q1, "q3": q3, "iqr_outliers": far,
        "stddev_outliers": wide, "outliers": f"{wide};{far}",
        "ld15iqr": next(value for value in ordered if value >= low),
        "hd15iqr": next(value for value in reversed(ordered) if value <= high),
        "ops": len(data) / total, "total": total, "data": list(data), "iterations": iterations,
    }  # fmt: skip


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Hyndman-Fan type 5 (Hazen), which is what pytest-benchmark's two rules for odd and even counts come to."""
    position = min(max(q * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = math.floor(position)
    share = position - below
    return ordered[below] + (ordered[math.ceil(position)] - ordered[below]) * share


def _machine_info(run: Run) -> dict[str, Any]:
    """Facts of the file; what it does not hold is an empty text, as a host's name always is."""

    def known(*path: str) -> str:
        return str(fact(run.machine, *path) or "")

    python = run.tool.get("python", "")
    return {
        "node": "", "processor": known("cpu", "model"), "machine": known("platform", "arch"), "python_compiler": "",
        "python_implementation": run.tool.get("implementation", ""), "python_implementation_version": python,
        "python_version": python, "python_build": ("", ""), "release": known("platform", "kernel"),
        "system": _SYSTEMS.get(known("platform", "os"), known("platform", "os")), "cpu": {},
    }  # fmt: skip


def _commit_info(run: Run) -> dict[str, Any]:
    """The commit of the working folder; outside a repository pytest-benchmark's words for that."""
    git = run.environment.git
    return {
        "id": git.commit if git else "unversioned", "time": git.commit_time if git else None, "author_time": None,
        "dirty": bool(git and git.dirty), "project": "gpubench", "branch": (git and git.branch) or "(unknown)",
    }  # fmt: skip
