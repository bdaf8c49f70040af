"""google-benchmark's JSON: one row per case and session, times in nanoseconds; its compare.py reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.machine import fact, usable_cpus
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text
from gpubench.result.run import Run

NS = 1e9


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The document of one run. Raises UsageError for several runs."""
    analysis = only_run(analyses, "google-benchmark")
    return json_text({"context": _context(analysis.run), "benchmarks": list(_rows(analysis))}, options)


def _context(run: Run) -> dict[str, Any]:
    """The machine. `host_name` stays empty: a result holds none."""
    logical = fact(run.machine, "cpu", "logical") or usable_cpus(run) or 0
    return {
        "date": run.started_at, "host_name": "", "executable": "gpubench", "num_cpus": logical,
        "mhz_per_cpu": round((fact(run.machine, "cpu", "max_hz") or 0) / 1e6),
        "cpu_scaling_enabled": fact(run.machine, "cpu", "governor") not in (None, "performance"),
        "caches": [
            {
                "type": cache.type.capitalize(), "level": cache.level, "size": cache.size_bytes,
                "num_sharing": max(1, logical // max(1, cache.instances)),
            }
            for cache in fact(run.machine, "cpu", "caches") or []
        ],
        "load_avg": [], "library_version": run.tool.get("gpubench", ""), "library_build_type": "release",
        "json_schema_version": 1,
    }  # fmt: skip


def _rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """An op is a family; its cases are the instances."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    for case in estimated(analysis):
        op = case.row.case.op
        family = families.setdefault(op, len(families))
        member = members[op] = members.get(op, -1) + 1
        yield from _case_rows(case, family, member)


def _case_rows(case: Estimated, family: int, member: int) -> Iterator[dict[str, Any]]:
    """One row a session. `cpu_time` repeats `real_time`; a counter is left out where the op declares none."""
    counters = {"flops_per_second": case.row.flops, "bytes_per_second": case.row.bytes}
    for index, session in enumerate(case.sessions):
        seconds = session.median_s
        yield {
            "name": case.id, "run_name": case.id, "family_index": family, "per_family_instance_index": member,
            "run_type": "iteration", "repetitions": len(case.sessions), "repetition_index": index, "threads": 1,
            "iterations": session.launches, "real_time": seconds * NS, "cpu_time": seconds * NS, "time_unit": "ns",
            **{name: count / seconds for name, count in counters.items() if count},
        }  # fmt: skip
