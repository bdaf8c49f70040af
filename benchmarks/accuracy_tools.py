"""The tools that benchmarks/accuracy.py compares with gpubench. Each is called as its documentation
recommends."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.accuracy_record import Clock, Pairing, Reading
from benchmarks.accuracy_subjects import Subject, reading

TORCH_RUN_S = 0.05
TRITON_RUN_MS = 40
CUPYX_CALLS = 5
CUPYX_SINGLES = 30


class Theirs(NamedTuple):
    """The time that a tool measured."""

    seconds: float  # seconds per launch
    host_s: float | None = None  # host's part of them; None if the tool does not report it


class Tool(NamedTuple):
    """One way to measure."""

    name: str  # name of the tool
    clock: Clock  # gpubench's clock for the same quantity
    library: str  # library that made the kernel that the tool runs
    judged: bool  # as in `Pairing`
    measure: Callable[[Subject], Theirs]  # measures a kernel by the tool


def cupyx_many(subject: Subject) -> Theirs:
    """Time with cupyx.profiler as many launches as gpubench queues. The host enqueues launches while earlier ones
    run."""
    from cupyx.profiler import benchmark

    count = subject.cycle.hot_repeat or 1

    def many() -> None:
        for _ in range(count):
            subject.call()

    times = benchmark(many, n_repeat=CUPYX_CALLS, n_warmup=1)
    return Theirs(_middle(times.gpu_times[0]) / count, _middle(times.cpu_times) / count)


def cupyx_one(subject: Subject) -> Theirs:
    """Time one launch with cupyx.profiler, as in its examples. The idle device waits for the host during part
    of this time."""
    from cupyx.profiler import benchmark

    times = benchmark(subject.call, n_repeat=CUPYX_SINGLES, n_warmup=3, name=subject.op)
    return Theirs(_middle(times.gpu_times[0]), _middle(times.cpu_times))


def torch_timer(subject: Subject) -> Theirs:
    """Return the wall time per launch of many launches and one wait, from torch.utils.benchmark."""
    from torch.utils.benchmark import Timer

    times = Timer("call()", globals={"call": subject.call}).blocked_autorange(min_run_time=TORCH_RUN_S)
    return Theirs(float(times.median))


def triton_bench(subject: Subject) -> Theirs:
    """Time one launch with triton.testing.do_bench, which clears 256 MiB and then records events around the
    launch."""
    from triton.testing import do_bench

    return Theirs(float(do_bench(subject.call, warmup=10, rep=TRITON_RUN_MS, return_mode="median")) * 1e-3)


def _middle(values: Any) -> float:
    return float(statistics.median(values.tolist()))


TOOLS = (
    Tool("cupyx.profiler, many launches", "hot", "cupy", True, cupyx_many),
    Tool("cupyx.profiler, one launch", "single", "cupy", False, cupyx_one),
    Tool("triton do_bench", "cold", "cupy", True, triton_bench),
    Tool("torch Timer", "hot", "torch", True, torch_timer),
    Tool("torch Timer", "wall", "torch", False, torch_timer),
)


def turns(
    subject: Subject, tools: Sequence[Tool], count: int, read: Callable[[Subject], Reading] = reading
) -> list[Pairing]:
    """Measure the kernel of `subject` by each tool, `count` times in turns with gpubench (`read`), and return a
    pairing for each tool. A tool's time is paired with the mean of gpubench's readings just before and after it."""
    # Tools with the same `measure` share one measurement.
    ways = list(dict.fromkeys(tool.measure for tool in tools))
    own: dict[Callable[[Subject], Theirs], list[Reading]] = {way: [] for way in ways}
    foreign: dict[Callable[[Subject], Theirs], list[Theirs]] = {way: [] for way in ways}
    before = read(subject)
    for turn in range(count):
        for way in ways if turn % 2 == 0 else reversed(ways):
            foreign[way].append(way(subject))
            after = read(subject)
            own[way].append({clock: (before[clock] + after[clock]) / 2 for clock in before})
            before = after
    return [
        Pairing(
            subject.op, subject.n, subject.library, tool.name, tool.clock,
            [values[tool.clock] for values in own[tool.measure]], [values.seconds for values in foreign[tool.measure]],
            tool.judged, _host(foreign[tool.measure]),
        )
        for tool in tools
    ]  # fmt: skip


def _host(readings: Sequence[Theirs]) -> float | None:
    seconds = [reading.host_s for reading in readings if reading.host_s is not None]
    return statistics.median(seconds) if seconds else None
