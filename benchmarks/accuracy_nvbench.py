"""Compare nvbench with gpubench: `python -m benchmarks.accuracy_nvbench OUT.json`, in a separate process.

nvbench resets the device when it ends and may run only once in a process. Therefore gpubench takes its readings
inside the nvbench process: one before and one after each measurement of nvbench.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.accuracy_record import Clock, Pairing, Reading

TURNS = 2
# The wall seconds for the single launches of a kernel, and the device seconds of a batch.
TIMEOUT_S, BATCH_S = 0.3, 0.05
COLD = ("nv/cold/time/gpu/median", "nv/cold/time/gpu/mean")
BATCH = ("nv/batch/time/gpu/mean",)
_CLOCKS: tuple[tuple[str, Clock, Sequence[str]], ...] = (
    ("nvbench", "cold", COLD),
    ("nvbench, batch", "hot", BATCH),
)


class Beside(NamedTuple):
    """gpubench's readings beside one measurement of nvbench."""

    op: str  # name of the op
    n: int  # size of the op
    number: int  # value of nvbench's axis `number`
    before: Reading  # gpubench's reading before nvbench's
    after: Reading  # gpubench's reading after it


def summaries(document: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return nvbench's float64 results by tag, for each value of its axis `number`. Values that nvbench skipped
    are left out."""
    times: dict[int, dict[str, float]] = {}
    for benchmark in document["benchmarks"]:
        for state in benchmark["states"]:
            number = next(int(axis["value"]) for axis in state["axis_values"] if axis["name"] == "number")
            if not state.get("is_skipped"):
                times[number] = {
                    summary["tag"]: float(entry["value"])
                    for summary in state["summaries"] or ()
                    for entry in summary["data"]
                    if entry["name"] == "value" and entry["type"] == "float64" and entry["value"] is not None
                }
    return times


def pairings(besides: Sequence[Beside], document: Mapping[str, Any]) -> list[Pairing]:
    """Return the pairings of nvbench's times with gpubench's, for each op and size: single launches with the cold
    clock, batches with the hot clock. `besides` has gpubench's readings, and `document` is nvbench's JSON."""
    states = summaries(document)
    samples: dict[tuple[str, int, str, Clock], tuple[list[float], list[float]]] = {}
    for beside in besides:
        for tool, clock, tags in _CLOCKS:
            seconds = next(
                (states[beside.number][tag] for tag in tags if tag in states.get(beside.number, {})), None
            )
            if seconds is not None:
                own, others = samples.setdefault((beside.op, beside.n, tool, clock), ([], []))
                own.append((beside.before[clock] + beside.after[clock]) / 2)
                others.append(seconds)
    return [
        Pairing(op, n, "cupy", tool, clock, own, others)
        for (op, n, tool, clock), (own, others) in samples.items()
    ]


def measure(out: Path) -> None:
    """Run nvbench for every size of `add` and `matmul`, and write the pairings to the file `out`."""
    from cuda import bench

    from benchmarks.accuracy_subjects import SIZES, Subject, cupy_subject, reading
    from gpubench import backends

    session = backends.load("cupy").open("cupy:0")
    import cupy

    kernels = [(op, n) for op, sizes in SIZES.items() for n in sizes]
    besides: list[Beside] = []
    made: dict[tuple[str, int], Subject] = {}

    def run(state: Any) -> None:
        number = state.get_int64("number")
        op, n = (kernels if number < len(kernels) else kernels[::-1])[number % len(kernels)]
        if (op, n) not in made:
            made.clear()
            made[op, n] = cupy_subject(session, op, n)
        subject = made[op, n]
        stream = cupy.cuda.ExternalStream(state.get_stream().addressof())

        def launch(_: Any) -> None:
            with stream:
                subject.call()

        before = reading(subject)
        state.exec(launch)
        besides.append(Beside(op, n, number, before, reading(subject)))

    bench.register(run).add_int64_axis("number", list(range(TURNS * len(kernels))))
    report = out.with_suffix(".nvbench.json")
    options = {"--json": report, "--devices": 0, "--timeout": TIMEOUT_S, "--batch-target-time": BATCH_S}
    bench.run_all_benchmarks([sys.argv[0], *(str(word) for option in options.items() for word in option)])
    document = json.loads(report.read_text(encoding="utf-8"))
    out.write_bytes(msgspec.json.encode(pairings(besides, document)))


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
