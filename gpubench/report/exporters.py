"""The formats for other programs: CSV, series over commits, and the files of other benchmark programs."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.machine import usable_cpus
from gpubench.analysis.samples import main_blocks
from gpubench.analysis.speedup import Speedup
from gpubench.base.errors import UsageError
from gpubench.base.plugins.sections import all_rows
from gpubench.base.streams import printable
from gpubench.base.units import count_noun
from gpubench.curves.stats import IntervalLike, median
from gpubench.report.layout import CsvValue, RenderOptions, csv_text, json_text
from gpubench.report.wording import computes
from gpubench.result.run import Run

NS = 1e9


class SessionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The used samples of one session."""

    samples: tuple[float, ...]  # seconds per launch
    repeat: int  # the number of launches in a sample

    @property
    def median_s(self) -> float:
        """The session's median, in seconds per launch."""
        return median(self.samples)

    @property
    def launches(self) -> int:
        """The number of launches in all samples."""
        return self.repeat * len(self.samples)


class Estimated(msgspec.Struct, frozen=True, kw_only=True):
    """A case that has an estimate."""

    row: CaseResult  # the case, as in a report
    time: IntervalLike  # the estimate with its interval
    sessions: tuple[SessionTimes, ...]  # the sessions with used samples
    speedup: Speedup | None  # the speedup over the run's baseline; None if there is none

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def samples(self) -> list[float]:
        """The used samples of all sessions, in order, in seconds per launch."""
        return [value for session in self.sessions for value in session.samples]


class Rate(NamedTuple):
    """Work per second. The unit depends only on the op and its size."""

    value: float  # work per second
    unit: str  # "GFLOP/s" or "GB/s"


def estimated_cases(analysis: Analysis) -> tuple[Estimated, ...]:
    """Return the cases with an estimate, in the order of the report. Implausible cases have no estimate."""
    ratios = speedup_of(analysis)
    blocks = {case_id: main_blocks(analysis.run, outcome) for case_id, outcome in analysis.outcomes.items()}
    return tuple(
        Estimated(
            row=case, time=case.time, speedup=ratios.get(case.id),
            sessions=tuple(
                # Earlier blocks of a session may have another number of launches.
                SessionTimes(samples=samples, repeat=blocks[case.id][index][-1].repeat)
                for index, samples in sorted(case.sessions.items())
            ),
        )
        for case in analysis.cases
        if case.time is not None
    )  # fmt: skip


def only_run(analyses: Sequence[Analysis], format: str) -> Analysis:
    """Return the only run. Raises UsageError if there are several, because `format` cannot tell them apart."""
    if len(analyses) == 1:
        return analyses[0]
    raise UsageError(
        "one-file-only", f"--format {format} takes one result file, not {len(analyses)}",
        why="its entries are named by case id, and the same case of two files would be one entry",
    )  # fmt: skip


def speedup_of(analysis: Analysis) -> dict[str, Speedup]:
    """Return the speedup of each case over the fastest implementation of the baseline, by case id."""
    return {speedup.case.id: speedup for speedup in analysis.speedups if speedup.kind != "library"}


def rate_of(case: CaseResult, seconds: float) -> Rate | None:
    """Return the work of one launch divided by `seconds`: in GFLOP/s if the case mainly computes, else in GB/s.
    Returns None if the op declares no work."""
    if computes(case):
        return Rate(case.flops / seconds / 1e9, "GFLOP/s")
    return Rate(case.bytes / seconds / 1e9, "GB/s") if case.bytes else None


def half_width(interval: IntervalLike) -> float:
    """Return the larger distance of an interval's ends from its estimate."""
    return max(interval.high - interval.estimate, interval.estimate - interval.low)


def decimal(value: float, digits: int = 6) -> str:
    """Return `value` as text with `digits` significant digits and without an exponent, which some programs
    cannot read."""
    text = format(Decimal(f"{value:.{digits}g}"), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# ---------------------------------------------------------------- CSV: a row for each case and its stages

CSV_COLUMNS = (
    "run_id", "case_id", "op", "n", "dtype", "implementation", "regime", "calls", "device", "device_name", "outcome",
    "reason",
    "time_s", "lo_s", "hi_s", "ci_kind", "min_s", "q1_s", "q3_s", "mad_s", "sessions", "samples",
    "flops_per_s", "bytes_per_s", "device_cold_s", "device_hot_s",
    "speedup", "speedup_lo", "speedup_hi", "baseline_id", "label", "warnings",
    "percent_of_peak", "stage", "stage_alone_s", "runs_on", "predicted_s", "algbw", "busbw",
    "efficiency", "efficiency_lo", "efficiency_hi", "balance",
)  # fmt: skip


def csv_columns(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all columns: gpubench's columns, then the columns of other packages' sections in
    `keys`."""
    return tuple(dict.fromkeys((*CSV_COLUMNS, *(column for rows in all_rows(keys) for column in rows.csv))))


def render_csv(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the cases of all runs as CSV, below a line of headings. Only the options `columns` and `sections`
    have an effect."""
    text = io.StringIO()
    names = options.columns or csv_columns(options.sections)
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    for analysis in analyses:
        devices = {device.id: device.name for device in analysis.run.devices}
        ratios, lines = speedup_of(analysis), _section_rows(analysis, options.sections)
        for result in analysis.cases:
            identity = _identity(analysis, result, devices)
            first, *parts = lines.get(result.id) or [{}]
            for values in (_time_values(result) | _speedup_values(ratios.get(result.id)) | first, *parts):
                writer.writerow({name: csv_text(value) for name, value in (identity | values).items()})
    return text.getvalue()


def _section_rows(analysis: Analysis, keys: Sequence[str]) -> dict[str, list[dict[str, CsvValue]]]:
    """Return the values that sections add, by case id: first for the case's own line, then for further lines."""
    lines: dict[str, list[dict[str, CsvValue]]] = {}
    for rows in all_rows(keys):
        if rows.csv or rows.parts:
            for result in rows.make(analysis):
                parts = lines.setdefault(result.id, [{}])
                values = {column: getattr(result, field) for column, field in rows.csv.items()}
                parts[0] |= {column: value for column, value in values.items() if value is not None}
                parts += [dict(part) for part in rows.parts(result)] if rows.parts else []
    return lines


def _identity(analysis: Analysis, result: CaseResult, names: dict[str, str]) -> dict[str, CsvValue]:
    case = result.case
    return {
        "run_id": analysis.run.id, "case_id": result.id, "op": case.op, "n": case.params.get("n"), "dtype": case.dtype,
        "implementation": case.implementation_id, "regime": case.regime, "calls": case.calls, "device": case.device_id,
        "device_name": names.get(case.device_id, ""), "outcome": result.outcome, "reason": result.reason,
        "label": result.label, "warnings": result.findings,
    }  # fmt: skip


def _time_values(result: CaseResult) -> dict[str, CsvValue]:
    if result.time is None or result.rates is None:
        return {}
    return {
        "time_s": result.time.estimate, "lo_s": result.time.low, "hi_s": result.time.high, "ci_kind": result.time.kind,
        "min_s": result.min_s, "q1_s": result.q1_s, "q3_s": result.q3_s, "mad_s": result.mad_s,
        "sessions": len(result.sessions), "samples": result.sample_count,
        "flops_per_s": result.rates.flops_per_s, "bytes_per_s": result.rates.bytes_per_s,
        "device_cold_s": result.device_cold_s, "device_hot_s": result.device_hot_s,
    }  # fmt: skip


def _speedup_values(result: Speedup | None) -> dict[str, CsvValue]:
    if result is None:
        return {}
    return {
        "speedup": result.ratio,
        "speedup_lo": result.lo,
        "speedup_hi": result.hi,
        "baseline_id": result.baseline_id,
    }


# ---------------------------------------------------------------- series over commits: Bencher, github-action-benchmark

MS = 1e3


def render_bmf(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one run in Bencher Metric Format, by case id. Raises UsageError for several runs. Each case has
    its latency (ns), throughput (calls per second) and speedup."""
    cases = estimated_cases(only_run(analyses, "bmf"))
    return json_text({case.id: _measures(case) for case in cases}, options)


def _measures(case: Estimated) -> dict[str, dict[str, float]]:
    time = case.time
    measures = {
        "latency": _metric(time.estimate * NS, time.low * NS, time.high * NS),
        "throughput": _metric(1 / time.estimate, 1 / time.high, 1 / time.low),
    }
    if case.speedup is not None:
        ratio = case.speedup.interval
        measures["speedup"] = _metric(ratio.estimate, ratio.low, ratio.high)
    return measures


def _metric(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "lower_value": low, "upper_value": high}


def render_smaller(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the wall times of one run in the format of github-action-benchmark, where smaller numbers are
    better. Raises UsageError for several runs."""
    cases = estimated_cases(only_run(analyses, "gha-smaller"))
    return json_text(
        [
            _entry(
                case.id, case.time.estimate * MS, "ms", half_width(case.time) * MS, case,
                _interval_note("wall time of one launch", case.time, "ms", MS),
            )
            for case in cases
        ],
        options,
    )  # fmt: skip


def render_bigger(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the speedups and rates of one run in the format of github-action-benchmark, where bigger numbers
    are better. Raises UsageError for several runs."""
    cases = estimated_cases(only_run(analyses, "gha-bigger"))
    return json_text([entry for case in cases for entry in _entries(case)], options)


def _entries(case: Estimated) -> Iterator[dict[str, Any]]:
    if case.speedup is not None:
        ratio = case.speedup.interval
        note = _interval_note(f"against {case.speedup.baseline.id}", ratio, "x")
        yield _entry(f"{case.id} speedup", ratio.estimate, "x", half_width(ratio), case, note)
    on_device = case.row.rates is not None and case.row.rates.clock == "device_cold"
    seconds = case.row.device_cold_s if on_device else None
    rate = rate_of(case.row, case.time.estimate if seconds is None else seconds)
    if rate is not None:
        # The device's clock gives no interval, so the relative one of the wall time is used.
        half = rate.value * half_width(case.time) / case.time.estimate
        note = f"by the {'wall' if seconds is None else 'device'} clock"
        yield _entry(f"{case.id} rate", rate.value, rate.unit, half, case, note)


def _entry(name: str, value: float, unit: str, half: float, case: Estimated, note: str) -> dict[str, Any]:
    """Return one point of a chart, `value` ± `half`, with `note` in its tooltip."""
    label = "" if case.row.label == "ok" else f", {case.row.label}"
    counts = count_noun(len(case.sessions), "session"), count_noun(case.row.sample_count, "sample")
    extra = f"{note}\n{', '.join(counts)}{label}"
    return {"name": name, "value": value, "unit": unit, "range": f"± {decimal(half, 2)}", "extra": extra}


def _interval_note(what: str, interval: IntervalLike, unit: str, scale: float = 1.0) -> str:
    """Return a text such as `wall time of one launch, 95 % interval [1.5, 1.6] ms`. `what` is its beginning."""
    return f"{what}, 95 % interval [{interval.low * scale:.4g}, {interval.high * scale:.4g}] {unit}"


# ---------------------------------------------------------------- Go, which benchstat reads

# Go's names of architectures, by the kernel's name. Those that are not listed have the same name in both.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "loongarch64": "loong64"}


def render_go(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return the runs in the format of Go benchmarks, one after the other, each with its own heading."""
    return "\n".join(_run_text(analysis) for analysis in analyses)


def _run_text(analysis: Analysis) -> str:
    machine = analysis.run.machine
    system = printable(machine.platform.os.value or "unknown").lower()
    kernel_name = printable(machine.platform.arch.value or "unknown")
    cpu = printable(machine.cpu.model.value or "unknown")
    heading = [
        f"goos: {system}", f"goarch: {_ARCHITECTURES.get(kernel_name, kernel_name)}", "pkg: gpubench", f"cpu: {cpu}",
    ]  # fmt: skip
    lines = [line for case in estimated_cases(analysis) for line in _go_lines(case)]
    return "\n".join([*heading, *lines]) + "\n"


def _go_lines(case: Estimated) -> Iterator[str]:
    name = benchmark_name(case)
    for session in case.sessions:
        rate = rate_of(case.row, session.median_s)
        work = f" {decimal(rate.value)} {rate.unit}" if rate is not None else ""
        yield f"{name} {session.launches} {decimal(session.median_s * NS)} ns/op{work}"


def benchmark_name(case: Estimated) -> str:
    """Return the name of a case as a Go benchmark, such as
    `BenchmarkMatmul/n=4096/dtype=float32/implementation=tuned/regime=resident/backend=cupy/dev=0`."""
    what = case.row.case
    backend, _, number = what.device_id.rpartition(":")
    params = [
        f"{key}={value}"
        for key, value in sorted(what.params.items(), key=lambda param: (param[0] != "n", param[0]))
    ]
    parts = [
        "Benchmark" + "".join(word[:1].upper() + word[1:] for word in what.op.split("_")), *params,
        f"dtype={what.dtype}", f"implementation={what.implementation_id}", f"regime={what.regime_id}",
        f"backend={backend.replace(':', '-')}", f"dev={number.replace('-', '_')}",
    ]  # fmt: skip
    # White space ends a name, a slash begins its next part, and -1 at its end would be taken for GOMAXPROCS.
    return "/".join("".join(c if c.isprintable() and c not in " /" else "_" for c in part) for part in parts)


# ---------------------------------------------------------------- google-benchmark, for its compare.py


def render_google_benchmark(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one run in the JSON format of google-benchmark, with a row for each case and session. Raises
    UsageError for several runs."""
    analysis = only_run(analyses, "google-benchmark")
    return json_text({"context": _context(analysis.run), "benchmarks": list(_google_rows(analysis))}, options)


def _context(run: Run) -> dict[str, Any]:
    """Return the facts about the machine and the run."""
    cpu = run.machine.cpu
    logical = cpu.logical.value or usable_cpus(run) or 0
    return {
        # A result does not contain the host name.
        "date": run.started_at, "host_name": "", "executable": "gpubench", "num_cpus": logical,
        "mhz_per_cpu": round((cpu.max_hz.value or 0) / 1e6),
        "cpu_scaling_enabled": cpu.governor.value not in (None, "performance"),
        "caches": [
            {
                "type": cache.type.capitalize(), "level": cache.level, "size": cache.size_bytes,
                "num_sharing": max(1, logical // max(1, cache.instances)),
            }
            for cache in cpu.caches.value or []
        ],
        "load_avg": [], "library_version": run.tool.get("gpubench", ""), "library_build_type": "release",
        "json_schema_version": 1,
    }  # fmt: skip


def _google_rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Yield the rows of all cases. An op is a family, and its cases are the instances of the family."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    for case in estimated_cases(analysis):
        op = case.row.case.op
        family = families.setdefault(op, len(families))
        member = members[op] = members.get(op, -1) + 1
        yield from _case_rows(case, family, member)


def _case_rows(case: Estimated, family: int, member: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each session of a case. `family` is the index of its op, and `member` the index of the
    case in the op."""
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
    """Return one run in the JSON format of hyperfine. A case is a command, and each of its samples a time.
    Raises UsageError for several runs."""
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
    """Return a case as a command, with the parameters that differ between commands."""
    times = case.samples
    return {
        "command": case.id, "mean": statistics.fmean(times),
        "stddev": statistics.stdev(times) if len(times) > 1 else None, "median": statistics.median(times),
        "user": 0.0, "system": 0.0, "min": min(times), "max": max(times), "times": times,
        "exit_codes": [0] * len(times), "parameters": parameters,
    }  # fmt: skip


def _parameters(case: Estimated) -> dict[str, str]:
    """Return the parts of the case's id as parameters, which hyperfine's scripts plot."""
    what = case.row.case
    sizes = {name: str(value) for name, value in sorted(what.params.items())}
    return {
        "op": what.op, **sizes, "dtype": what.dtype, "implementation": what.implementation_id, "regime": what.regime_id,
        "device": what.device_id,
    }  # fmt: skip


# ---------------------------------------------------------------- pytest-benchmark

VERSION = "5.3.1"  # the release of pytest-benchmark whose fields are written
FENCE = 1.5
_SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "windows": "Windows"}


def render_pytest_benchmark(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """Return one run in the JSON format that pytest-benchmark writes with `--benchmark-json
    --benchmark-save-data`. Raises UsageError for several runs."""
    analysis = only_run(analyses, "pytest-benchmark")
    run = analysis.run
    settings = {
        "disable_gc": True, "timer": "perf_counter", "min_rounds": run.settings.min_samples,
        "max_time": run.settings.max_time_s, "min_time": run.settings.sample_s, "warmup": True,
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
    """Return the statistics of the samples in `data` as pytest-benchmark computes them, with its quartiles and
    fences. Each sample counts as a round of `iterations` calls. `outliers` has the form
    `stddev_outliers;iqr_outliers`."""
    ordered, mean, total = sorted(data), statistics.fmean(data), sum(data)
    stddev = statistics.stdev(data) if len(data) > 1 else 0.0
    q1, q3 = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
    low, high = q1 - FENCE * (q3 - q1), q3 + FENCE * (q3 - q1)
    far = sum(not low <= value <= high for value in data)
    wide = sum(not mean - stddev <= value <= mean + stddev for value in data)
    return {
        "min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": stddev, "rounds": len(data),
        "median": statistics.median(data), "iqr": q3 - q1, "q1": q1, "q3": q3, "iqr_outliers": far,
        "stddev_outliers": wide, "outliers": f"{wide};{far}",
        "ld15iqr": next(value for value in ordered if value >= low),
        "hd15iqr": next(value for value in reversed(ordered) if value <= high),
        "ops": len(data) / total, "total": total, "data": list(data), "iterations": iterations,
    }  # fmt: skip


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Return the quantile of Hyndman-Fan type 5 (Hazen), as pytest-benchmark computes it."""
    if len(ordered) == 1:
        return ordered[0]
    position = q * len(ordered) - 0.5
    below = math.floor(position)
    return ordered[below] + (ordered[math.ceil(position)] - ordered[below]) * (position - below)


def _machine_info(run: Run) -> dict[str, Any]:
    """Return the facts about the machine under pytest-benchmark's names. An unknown fact is an empty text."""
    python, platform = run.tool.get("python", ""), run.machine.platform
    system = platform.os.value or ""
    return {
        # A result does not contain the host name.
        "node": "", "processor": run.machine.cpu.model.value or "", "machine": platform.arch.value or "",
        "python_compiler": "", "python_implementation": run.tool.get("implementation", ""),
        "python_implementation_version": python, "python_version": python, "python_build": ("", ""),
        "release": platform.kernel.value or "",
        "system": _SYSTEMS.get(system, system), "cpu": {},
    }  # fmt: skip


def _commit_info(run: Run) -> dict[str, Any]:
    """Return the commit of the working folder, with pytest-benchmark's placeholders outside a repository."""
    git = run.environment.git
    return {
        "id": git.commit if git else "unversioned", "time": git.commit_time if git else None, "author_time": None,
        "dirty": bool(git and git.dirty), "project": "gpubench", "branch": (git and git.branch) or "(unknown)",
    }  # fmt: skip
