"""The document of pytest-benchmark, field by field. Times are in seconds."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True):
    """Base of the document's parts: immutable."""


class MachineInfo(Part, frozen=True, kw_only=True):
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


class CommitInfo(Part, frozen=True, kw_only=True):
    """The commit of the working folder; the defaults are pytest-benchmark's words outside a repository."""

    id: str = "unversioned"
    time: str | None = None
    author_time: str | None = None
    dirty: bool = False
    project: str = "gpubench"
    branch: str = "(unknown)"


class Options(Part, frozen=True, kw_only=True):
    """How it was measured; times in seconds."""

    disable_gc: bool
    timer: str
    min_rounds: int
    max_time: float
    min_time: float
    warmup: bool


class Stats(Part, frozen=True, kw_only=True):
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


class Benchmark(Part, frozen=True, kw_only=True):
    """One case: its id is the name in full and in short, its op the group."""

    group: str
    name: str
    fullname: str
    params: dict[str, str] = {}
    param: str | None = None
    extra_info: dict[str, str] = {}
    options: Options
    stats: Stats


class Document(Part, frozen=True, kw_only=True):
    """The whole file."""

    machine_info: MachineInfo
    commit_info: CommitInfo
    benchmarks: list[Benchmark]
    datetime: str
    version: str
