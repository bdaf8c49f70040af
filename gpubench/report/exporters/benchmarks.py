"""Files as other benchmark programs write them: Go's text, google-benchmark, hyperfine and pytest-benchmark."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.machine import fact, usable_cpus
from gpubench.base.streams import printable
from gpubench.report.exporters import Estimated, decimal, estimated_cases, only_run, rate_of
from gpubench.report.layout import RenderOptions, json_text
from gpubench.result.run import Run

NS = 1e9

# ---------------------------------------------------------------- Go, which benchstat reads

# Go's names of what the kernel calls otherwise; the rest has the same name.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "loongarch64": "loong64"}


def render_go(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the runs one after the other: a heading holds until the next one, so several files go into one."""
    return "\n".join(_run_text(analysis) for analysis in analyses)


def _run_text(analysis: Analysis) -> str:
    machine = analysis.run.machine
    system = printable(str(fact(machine, "platform", "os") or "unknown")).lower()
    kernel_name = printable(str(fact(machine, "platform", "arch") or "unknown"))
    cpu = printable(str(fact(machine, "cpu", "model") or "unknown"))
    heading = [
        f"goos: {system}", f"goarch: {_ARCHITECTURES.get(kernel_name, kernel_name)}", "pkg: gpubench", f"cpu: {cpu}",
    ]  # fmt: skip
    lines = [line for case in estimated_cases(analysis) for line in _lines(case)]
    return "\n".join([*heading, *lines]) + "\n"


def _lines(case: Estimated) -> Iterator[str]:
    name = benchmark_name(case)
    for session in case.sessions:
        rate = rate_of(case.row, session.median_s)
        work = f" {decimal(rate.value)} {rate.unit}" if rate is not None else ""
        yield f"{name} {session.launches} {decimal(session.median_s * NS)} ns/op{work}"


def benchmark_name(case: Estimated) -> str:
    """Return `BenchmarkMatmul/n=4096/dtype=float32/form=tuned/regime=resident/backend=cupy/dev=0`."""
    what = case.row.case
    backend, _, number = what.device_id.rpartition(":")
    params = [f"{key}={value}" for key, value in sorted(what.params.items(), key=_n_first)]
    parts = [
        "Benchmark" + "".join(word.capitalize() for word in what.op.split("_")), *params,
        f"dtype={what.dtype}", f"form={what.form_id}", f"regime={what.regime_id}",
        f"backend={backend.replace(':', '-')}", f"dev={number.replace('-', '_')}",
    ]  # fmt: skip
    # White space ends a name, a slash begins the next part of it, and -1 at the end would be GOMAXPROCS.
    return "/".join("".join(c if c.isprintable() and c not in " /" else "_" for c in part) for part in parts)


def _n_first(param: tuple[str, int]) -> tuple[bool, str]:
    return param[0] != "n", param[0]


# ---------------------------------------------------------------- google-benchmark, for its compare.py


def render_google_benchmark(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return a row for each case and session. Raises UsageError for several runs."""
    analysis = only_run(analyses, "google-benchmark")
    return json_text({"context": _context(analysis.run), "benchmarks": list(_google_rows(analysis))}, options)


def _context(run: Run) -> dict[str, Any]:
    """Return the machine. `host_name` stays empty: a result holds none."""
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


def _google_rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Yield the rows of an op, which is a family, by its cases, the instances."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    for case in estimated_cases(analysis):
        op = case.row.case.op
        family = families.setdefault(op, len(families))
        member = members[op] = members.get(op, -1) + 1
        yield from _case_rows(case, family, member)


def _case_rows(case: Estimated, family: int, member: int) -> Iterator[dict[str, Any]]:
    """Yield one row a session. `cpu_time` repeats `real_time`; a counter is left out where the op declares none."""
    counters = {"flops_per_second": case.row.flops, "bytes_per_second": case.row.bytes}
    for index, session in enumerate(case.sessions):
        seconds = session.median_s
        yield {
            "name": case.id, "run_name": case.id, "family_index": family, "per_family_instance_index": member,
            "run_type": "iteration", "repetitions": len(case.sessions), "repetition_index": index, "threads": 1,
            "iterations": session.launches, "real_time": seconds * NS, "cpu_time": seconds * NS, "time_unit": "ns",
            **{name: count / seconds for name, count in counters.items() if count},
        }  # fmt: skip


# ---------------------------------------------------------------- hyperfine


def render_hyperfine(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return every sample of each case as the time of a command. Raises UsageError for several runs."""
    cases = estimated_cases(only_run(analyses, "hyperfine"))
    parameters = [_parameters(case) for case in cases]
    names = {name for values in parameters for name in values}
    vary = {name for name in names if len({values.get(name) for values in parameters}) > 1}
    commands = [
        _command(case, {name: value for name, value in values.items() if name in vary})
        for case, values in zip(cases, parameters, strict=True)
    ]
    return json_text({"results": commands}, options)


def _command(case: Estimated, parameters: dict[str, str]) -> dict[str, Any]:
    """Return a case. `parameters`: what hyperfine would have scanned over, so nothing that is the same in all
    commands. The statistics are those of `times`; `stddev` is null for a single sample."""
    times = case.samples
    return {
        "command": case.id, "mean": statistics.fmean(times),
        "stddev": statistics.stdev(times) if len(times) > 1 else None, "median": statistics.median(times),
        "user": 0.0, "system": 0.0, "min": min(times), "max": max(times), "times": times,
        "exit_codes": [0] * len(times), "parameters": parameters,
    }  # fmt: skip


def _parameters(case: Estimated) -> dict[str, str]:
    """Return the parts that tell the cases apart; hyperfine's plotting scripts take one of them as the x axis."""
    what = case.row.case
    sizes = {name: str(value) for name, value in sorted(what.params.items())}
    return {
        "op": what.op, **sizes, "dtype": what.dtype, "form": what.form_id, "regime": what.regime_id,
        "device": what.device_id,
    }  # fmt: skip


# ---------------------------------------------------------------- pytest-benchmark

VERSION = "5.3.1"  # the release whose fields these are
MIN_TIME_S = 5e-3  # calibration makes a sample last this long (docs/measuring.md)
FENCE = 1.5
_SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "windows": "Windows"}


def render_pytest_benchmark(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return what `--benchmark-json --benchmark-save-data` writes. Raises UsageError for several runs."""
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
        for case in estimated_cases(analysis)
    ]  # fmt: skip
    document = {
        "machine_info": _machine_info(run), "commit_info": _commit_info(run), "benchmarks": benchmarks,
        "datetime": run.started_at, "version": VERSION,
    }  # fmt: skip
    return json_text(document, options)


def sample_stats(data: Sequence[float], iterations: int) -> dict[str, Any]:
    """Return the statistics that pytest-benchmark computes of the same rounds, with its quartiles and fences: one
    value a round. `outliers` is `stddev_outliers;iqr_outliers`."""
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
    """Return the quantile of Hyndman-Fan type 5 (Hazen), which is what pytest-benchmark's two rules for odd and even
    counts come to."""
    position = min(max(q * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = math.floor(position)
    share = position - below
    return ordered[below] + (ordered[math.ceil(position)] - ordered[below]) * share


def _machine_info(run: Run) -> dict[str, Any]:
    """Return facts of the file; what it does not hold is an empty text, as a host's name always is."""

    def fact_text(*path: str) -> str:
        return str(fact(run.machine, *path) or "")

    python = run.tool.get("python", "")
    return {
        "node": "", "processor": fact_text("cpu", "model"), "machine": fact_text("platform", "arch"),
        "python_compiler": "", "python_implementation": run.tool.get("implementation", ""),
        "python_implementation_version": python, "python_version": python, "python_build": ("", ""),
        "release": fact_text("platform", "kernel"),
        "system": _SYSTEMS.get(fact_text("platform", "os"), fact_text("platform", "os")), "cpu": {},
    }  # fmt: skip


def _commit_info(run: Run) -> dict[str, Any]:
    """Return the commit of the working folder; outside a repository pytest-benchmark's words for that."""
    git = run.environment.git
    return {
        "id": git.commit if git else "unversioned", "time": git.commit_time if git else None, "author_time": None,
        "dirty": bool(git and git.dirty), "project": "gpubench", "branch": (git and git.branch) or "(unknown)",
    }  # fmt: skip
