"""pytest-benchmark's JSON, as `--benchmark-json --benchmark-save-data` writes it: seconds per launch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.machine import fact
from gpubench.model.result import Run, Settings
from gpubench.report.exporters import Estimated, estimated, only_run
from gpubench.report.layout import RenderOptions, json_text


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran. `node` stays empty: a result holds no host name."""

    node: str = ""
    processor: str
    machine: str
    python_compiler: str = ""
    python_implementation: str
    python_implementation_version: str
    python_version: str
    python_build: tuple[str, str] = ("", "")
    release: str
    system: str
    cpu: dict[str, str] = {}


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of the working folder; the defaults are pytest-benchmark's words outside a repository."""

    id: str = "unversioned"
    time: str | None = None
    author_time: str | None = None
    dirty: bool = False
    project: str = "gpubench"
    branch: str = "(unknown)"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured; times in seconds."""

    disable_gc: bool
    timer: str
    min_rounds: int
    max_time: float
    min_time: float
    warmup: bool


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of `data`, one value per round. `outliers` is `stddev_outliers;iqr_outliers`."""

    min: float
    max: float
    mean: float
    stddev: float
    rounds: int
    median: float
    iqr: float
    q1: float
    q3: float
    iqr_outliers: int
    stddev_outliers: int
    outliers: str
    ld15iqr: float
    hd15iqr: float
    ops: float
    total: float
    data: list[float]
    iterations: int


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One case: its id is the name in full and in short, its op the group."""

    group: str
    name: str
    fullname: str
    params: dict[str, str] = {}
    param: str | None = None
    extra_info: dict[str, str] = {}
    options: Options
    stats: Stats


class PytestBenchmarkDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    machine_info: MachineInfo
    commit_info: CommitInfo
    benchmarks: list[Benchmark]
    datetime: str
    version: str


VERSION = "5.3.1"  # the release whose fields these are
MIN_TIME_S = 5e-3  # calibration makes a sample last this long (docs/measuring.md)
FENCE = 1.5
_SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "windows": "Windows"}


def render(analyses: Sequence[Analysis], options: RenderOptions) -> str:
    """The document of one run. Raises UsageError for several runs."""
    analysis = only_run(analyses, "pytest-benchmark")
    run = analysis.run
    settings = _options(run.settings)
    document = PytestBenchmarkDocument(
        machine_info=_machine_info(run), commit_info=_commit_info(run),
        benchmarks=[_benchmark(case, settings) for case in estimated(analysis)],
        datetime=run.started_at, version=VERSION,
    )  # fmt: skip
    return json_text(document, options)


def _benchmark(case: Estimated, settings: Options) -> Benchmark:
    return Benchmark(
        group=case.row.case.op, name=case.id, fullname=case.id, options=settings,
        stats=sample_stats(case.samples, case.sessions[0].repeat),
    )  # fmt: skip


def sample_stats(data: Sequence[float], iterations: int) -> Stats:
    """The statistics that pytest-benchmark computes of the same rounds, with its quartiles and fences."""
    ordered, mean, total = sorted(data), statistics.fmean(data), sum(data)
    stddev = statistics.stdev(data) if len(data) > 1 else 0.0
    q1, q3 = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
    low, high = q1 - FENCE * (q3 - q1), q3 + FENCE * (q3 - q1)
    far = sum(1 for value in data if not low <= value <= high)
    wide = sum(1 for value in data if not mean - stddev <= value <= mean + stddev)
    return Stats(
        min=ordered[0], max=ordered[-1], mean=mean, stddev=stddev, rounds=len(data), median=statistics.median(data),
        iqr=q3 - q1, q1=q1, q3=q3, iqr_outliers=far, stddev_outliers=wide, outliers=f"{wide};{far}",
        ld15iqr=next(value for value in ordered if value >= low),
        hd15iqr=next(value for value in reversed(ordered) if value <= high),
        ops=len(data) / total, total=total, data=list(data), iterations=iterations,
    )  # fmt: skip


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Hyndman-Fan type 5 (Hazen), which is what pytest-benchmark's two rules for odd and even counts come to."""
    position = min(max(q * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = math.floor(position)
    share = position - below
    return ordered[below] + (ordered[math.ceil(position)] - ordered[below]) * share


def _options(settings: Settings) -> Options:
    return Options(
        disable_gc=True, timer="perf_counter", min_rounds=settings.min_samples, max_time=settings.max_time_s,
        min_time=MIN_TIME_S, warmup=True,
    )  # fmt: skip


def _machine_info(run: Run) -> MachineInfo:
    """Facts of the file; what it does not hold is an empty text, as a host's name always is."""
    system = str(fact(run.machine, "platform", "os") or "")
    python = run.tool.get("python", "")
    return MachineInfo(
        processor=str(fact(run.machine, "cpu", "model") or ""),
        machine=str(fact(run.machine, "platform", "arch") or ""),
        python_implementation=run.tool.get("implementation", ""), python_implementation_version=python,
        python_version=python, release=str(fact(run.machine, "platform", "kernel") or ""),
        system=_SYSTEMS.get(system, system),
    )  # fmt: skip


def _commit_info(run: Run) -> CommitInfo:
    git = run.environment.git
    if git is None:
        return CommitInfo()
    return CommitInfo(
        id=git.commit, time=git.commit_time, dirty=bool(git.dirty), branch=git.branch or "(unknown)"
    )
