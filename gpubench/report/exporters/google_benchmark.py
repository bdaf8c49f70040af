"""google-benchmark's JSON: one row per case and session, times in nanoseconds; its compare.py reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.machine import fact, usable_cpus
from gpubench.model.result import Run
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text

NS = 1e9


class GoogleCache(msgspec.Struct, frozen=True, kw_only=True):
    """`size` in bytes; `num_sharing` CPUs share one."""

    type: str
    level: int
    size: int
    num_sharing: int


class GoogleContext(msgspec.Struct, frozen=True, kw_only=True):
    """The machine. `host_name` stays empty: a result holds none."""

    date: str
    host_name: str = ""
    executable: str = "gpubench"
    num_cpus: int
    mhz_per_cpu: int
    cpu_scaling_enabled: bool
    caches: list[GoogleCache]
    load_avg: list[float] = []
    library_version: str
    library_build_type: str = "release"
    json_schema_version: int = 1


class Repetition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session of one case. `cpu_time` repeats `real_time`; a counter is left out where the op declares none."""

    name: str
    run_name: str
    family_index: int
    per_family_instance_index: int
    run_type: str
    repetitions: int
    repetition_index: int
    threads: int
    iterations: int
    real_time: float
    cpu_time: float
    time_unit: str
    flops_per_second: float | None = None
    bytes_per_second: float | None = None


class GoogleBenchmarkDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    context: GoogleContext
    benchmarks: list[Repetition]


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The document of one run. Raises UsageError for several runs."""
    analysis = only_run(analyses, "google-benchmark")
    return json_text(
        GoogleBenchmarkDocument(context=_context(analysis.run), benchmarks=list(_rows(analysis))), options
    )


def _context(run: Run) -> GoogleContext:
    governor = fact(run.machine, "cpu", "governor")
    logical = fact(run.machine, "cpu", "logical") or usable_cpus(run) or 0
    caches = [
        GoogleCache(
            type=cache.type.capitalize(), level=cache.level, size=cache.size_bytes,
            num_sharing=max(1, logical // max(1, cache.instances)),
        )
        for cache in fact(run.machine, "cpu", "caches") or []
    ]  # fmt: skip
    return GoogleContext(
        date=run.started_at, num_cpus=logical, mhz_per_cpu=round((fact(run.machine, "cpu", "max_hz") or 0) / 1e6),
        cpu_scaling_enabled=governor not in (None, "performance"), caches=caches,
        library_version=run.tool.get("gpubench", ""),
    )  # fmt: skip


def _rows(analysis: Analysis) -> Iterator[Repetition]:
    """An op is a family; its cases are the instances."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    for case in estimated(analysis):
        op = case.row.case.op
        family = families.setdefault(op, len(families))
        member = members[op] = members.get(op, -1) + 1
        yield from _case_rows(case, family, member)


def _case_rows(case: Estimated, family: int, member: int) -> Iterator[Repetition]:
    flops, size = case.row.flops, case.row.bytes
    for index, session in enumerate(case.sessions):
        seconds = session.median_s
        yield Repetition(
            name=case.id, run_name=case.id, family_index=family, per_family_instance_index=member,
            run_type="iteration", repetitions=len(case.sessions), repetition_index=index, threads=1,
            iterations=session.launches, real_time=seconds * NS, cpu_time=seconds * NS, time_unit="ns",
            flops_per_second=flops / seconds if flops else None, bytes_per_second=size / seconds if size else None,
        )  # fmt: skip
