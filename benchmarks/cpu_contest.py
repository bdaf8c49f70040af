"""The contest of the CPU: gpubench's tuned implementation and PyTorch on the same cores, in separate processes.

Run: .venv/bin/python benchmarks/cpu_contest.py [--pairs 10] [--ops add,softmax/64] [--sizes 64Ki,64Mi] [-o
FILE.json]

It prints a Markdown table of PyTorch's time / gpubench's time, so that gpubench is faster if the value is above
1. The exit code is always 0.

The pairs are those of contest.py. After a warm-up, a process times batches of calls that last at least a
millisecond, and reports the median batch of each case. Both read the same numbers from arrays that NumPy
allocated, aligned to 64 bytes, and write into an existing array.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.contest import SIDES, parser, run_pairs
from gpubench import backends, kernels
from gpubench.analysis.speedup import blas_text
from gpubench.backends.contract.protocols import Tunes
from gpubench.curves import stats
from gpubench.result.case import Case

OPS = (
    "copy,add,sub,mul,div,saxpy,chain,relu,tanh,sigmoid,gelu,softmax/64,softmax/1024,softmax/65536,"
    "sum,max,dot,relu_grad,tanh_grad,sigmoid_grad,gelu_grad,softmax_grad/1024,transpose"
)
SIZES = "64Ki,1Mi,16Mi,64Mi"
UNITS = {"Ki": 2**10, "Mi": 2**20}
# For each op that is limited by memory, the share of the all-core copy's rate that it has to reach.
COPY_SHARES = dict.fromkeys(
    ("add", "sub", "mul", "div", "saxpy", "chain", "relu", "relu_grad", "sum", "max", "dot"), 0.9
) | {"copy": 0.9, "transpose": 0.6}
LEAST_RATIO = {"softmax_grad": 0.9}  # the least ratio; 1 for the other ops
NEVER_BELOW, WIDEST = 0.95, 0.10
BATCH_S, WARM_UP_S, BATCHES, LEAST_BATCHES = 1e-3, 5e-3, 10, 3
BLOCK = 1 << 20  # the number of random numbers that are drawn and then repeated
PAGE = 64
SEEN = 5  # the number of values of each result that the parent process compares

Prepared = tuple[Callable[[int], None], Callable[[], Any], str]


def main() -> None:
    options = _options()
    names = options.ops.split(",")
    sizes = {word: _elements(word) for word in options.sizes.split(",")}
    if options.child:
        _child(options, names, sizes)
        return
    prepared, pairs = run_pairs(__file__, options, ("ops", "sizes"))
    record = {
        "machine": _machine(options, pairs[0]),
        "pairs": pairs,
        "chosen": {name: case["implementation"] for name, case in prepared["cases"].items()},
    }
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(table(record, names, list(sizes)))


# ---------------------------------------------------------------- one process


def _child(options: Any, names: list[str], sizes: dict[str, int]) -> None:
    import numpy as np

    began = time.monotonic()
    side = Side(options.child, options.threads)
    arrays = _arrays(max(sizes.values()))
    cases = [(name, word) for word in sorted(sizes, key=sizes.__getitem__) for name in names]
    cases_by_name = {}
    for number, (name, word) in enumerate(cases):
        case = _case(name, sizes[word])
        op = kernels.load(case.op)
        inputs = [
            array[: _count(operand.shape(case.params))].reshape(operand.shape(case.params))
            for operand, array in zip(op.inputs, arrays, strict=False)
        ]
        shape = op.output.shape(case.params)
        output = arrays[-1][: _count(shape)].reshape(shape)
        call, result, implementation = side.prepare(case, inputs, output)
        rest_s = options.budget_s - (time.monotonic() - began)
        seconds = _time(call, rest_s / (len(cases) - number))
        values = np.asarray(result()).reshape(-1)
        step = max(1, values.size // SEEN)
        cases_by_name[f"{name} {word}"] = {
            "s": seconds,
            "bytes": op.bytes(case.params, case.dtype),
            "implementation": implementation,
            "seen": [float(value) for value in values[::step][:SEEN]],
        }
    print(json.dumps({"cases": cases_by_name, "side": side.describe()}))


def _time(call: Callable[[int], None], limit_s: float) -> float:
    """Return the seconds of a call, as the median of the batches that fit into about `limit_s` seconds."""
    clock = time.perf_counter
    start = clock()
    call(1)
    took = clock() - start
    while clock() - start < min(WARM_UP_S, limit_s):
        before = clock()
        call(1)
        took = min(took, clock() - before)
    repeat = max(1, round(BATCH_S / took + 0.5))
    batches: list[float] = []
    while not batches or (
        limit_s > 0 and len(batches) < BATCHES and (len(batches) < LEAST_BATCHES or clock() - start < limit_s)
    ):
        before = clock()
        call(repeat)
        batches.append((clock() - before) / repeat)
    return stats.median(batches)


def _arrays(elements: int) -> list[Any]:
    """Return three inputs, which are the same in every process, and an output. Each array has this number of
    elements."""
    import numpy as np

    generator = np.random.default_rng(1)
    arrays = []
    for _ in range(4):
        raw = np.empty(elements * 4 + PAGE, np.uint8)
        first = -raw.ctypes.data % PAGE
        array = raw[first : first + elements * 4].view(np.float32)
        drawn = generator.standard_normal(min(BLOCK, elements), np.float32)
        for start in range(0, elements, BLOCK):
            part = array[start : start + BLOCK]
            part[:] = drawn[: part.size]
        arrays.append(array)
    return arrays


class Side:
    """A CPU as gpubench drives it, with its own tuned implementation or with PyTorch's library
    implementation."""

    def __init__(self, name: str, threads: int) -> None:
        backend, device, self.implementation = {
            "ours": ("numpy", "0", "tuned"),
            "torch": ("torch", "cpu", "library"),
        }[name]
        self._device_id = f"{backend}:{device}"
        self._session = backends.load(backend).open(self._device_id, threads)

    def prepare(self, case: Case, inputs: list[Any], output: Any) -> Prepared:
        """Return a function that makes a number of calls, a function that returns the result, and the name of
        the kernel."""
        session, op = self._session, kernels.load(case.op)
        case = msgspec.structs.replace(case, implementation=self.implementation, device_id=self._device_id)
        view = getattr(session, "view", lambda array: array)  # PyTorch computes with tensors
        buffers = [view(array) for array in inputs]
        if isinstance(session, Tunes):
            session.tune(op, case, buffers)
        launch = session.compile(op, case, buffers, view(output))
        return (
            lambda repeat: session.run(launch, repeat),
            lambda: launch.output,
            launch.kernel_name or self.implementation,
        )

    def describe(self) -> dict[str, Any]:
        """Return the version, the number of threads and the BLAS library."""
        return {
            "version": self._session.device.driver,
            "threads": self._session.threads,
            "blas": blas_text(self._session.blas),
        }


def _case(name: str, elements: int) -> Case:
    """Return the case of `op` or `op/columns` on arrays with this number of elements."""
    word, _, columns = name.partition("/")
    op = kernels.load(word)
    if word == "transpose":
        params = {"n": round(elements**0.5)}
    else:
        params = {"n": elements} | ({"columns": int(columns)} if columns else {})
    return Case(
        op=word, group=op.group, params=params, dtype="float32", implementation="tuned", regime="resident",
        device_id="numpy:0",
    )  # fmt: skip


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


# ---------------------------------------------------------------- what it means


def table(record: Any, names: list[str], sizes: list[str]) -> str:
    """Return Markdown text with the machine, the table, and the cells that fail."""
    machine, pairs = record["machine"], record["pairs"]
    largest = sizes[-1]
    where = f"{machine['cpu']}, {machine['threads']} threads, load {machine['load']:.1f}"
    what = f"torch {machine['torch']} / numpy {machine['ours']}; float32, {len(pairs)} pairs"
    cells_are = "Cells: PyTorch's time / ours [interval]"
    lines = [
        f"{where}; {what}. {cells_are}; last column: share of the all-core copy at {largest}. **Bold** fails.",
        "",
        f"| op | {' | '.join(sizes)} | copy |",
        f"|---|{'---|' * (len(sizes) + 1)}",
    ]
    failed, cells = [], 0
    for name in names:
        line_cells = []
        for word in sizes:
            cell, ok = _ratio_cell(pairs, name, word)
            cells += 1
            line_cells.append(cell if ok else f"**{cell}**")
            failed += [] if ok else [f"{name} {word}"]
        share, ok = _share_cell(pairs, name, largest)
        failed += [] if ok else [f"{name} copy share"]
        lines.append(f"| {name} | {' | '.join(line_cells)} | {share if ok else f'**{share}**'} |")
    wrong = _different(pairs[0])
    lines += ["", f"{cells} ratios; failed: {', '.join(failed) or 'none'}."]
    return "\n".join([*lines, f"Results differ: {', '.join(wrong)}."] if wrong else lines)


def _ratio_cell(pairs: list[Any], name: str, word: str) -> tuple[str, bool]:
    """Return the ratio PyTorch's time / gpubench's with its interval, as text, and whether it passes."""
    key = f"{name} {word}"
    ratios = [pair["torch"]["cases"][key]["s"] / pair["ours"]["cases"][key]["s"] for pair in pairs]
    middle = stats.geometric_median(ratios)
    low, high = stats.median_interval(ratios)
    limit = LEAST_RATIO.get(name.partition("/")[0], 1.0)
    # A ratio slightly below the limit passes if its interval contains the limit and is narrow.
    close = low <= limit <= high and high - low <= WIDEST * middle and middle >= NEVER_BELOW * limit
    return f"{middle:.2f} [{low:.2f}-{high:.2f}]", middle >= limit or close


def _share_cell(pairs: list[Any], name: str, word: str) -> tuple[str, bool]:
    """Return the op's share of the copy rate as text, and whether it is high enough (true without a target)."""
    least = COPY_SHARES.get(name)
    if least is None or f"copy {word}" not in pairs[0]["ours"]["cases"]:
        return "", True
    shares = []
    for pair in pairs:
        # The faster copy counts, gpubench's or PyTorch's; bytes are compulsory bytes.
        peak = max(_rate(pair[side]["cases"][f"copy {word}"]) for side in SIDES)
        shares.append(_rate(pair["ours"]["cases"][f"{name} {word}"]) / peak)
    middle = stats.geometric_median(shares)
    return f"{middle:.2f}", middle >= least


def _rate(case: Any) -> float:
    return float(case["bytes"] / case["s"])


def _different(pair: Any) -> list[str]:
    """Return the cases, other than sums and dot products, in which gpubench and PyTorch gave different values. Only
    the few values that the processes reported are compared."""
    different = []
    for key, own in pair["ours"]["cases"].items():
        torch_values = pair["torch"]["cases"][key]["seen"]
        largest = max(map(abs, torch_values))
        # In a long sum of numbers of both signs rounding errors are a large part of the result.
        if not all(
            abs(a - b) <= 1e-3 * largest + 1e-6 for a, b in zip(own["seen"], torch_values, strict=True)
        ) and not key.startswith(("sum", "dot")):
            different.append(key)
    return different


def _machine(options: Any, pair: Any) -> dict[str, Any]:
    names = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "threads": options.threads,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        **{name: f"{side['version']}, {side['blas']}" for name in SIDES for side in [pair[name]["side"]]},
    }


def _elements(word: str) -> int:
    unit = UNITS.get(word[-2:])
    return int(word[:-2]) * unit if unit else int(word)


def _options() -> Any:
    options = parser(__doc__, budget_s=280.0)
    options.add_argument("--ops", default=OPS, help="an op of rows takes its columns: softmax/64")
    options.add_argument(
        "--sizes", default=SIZES, help="elements of one array, of the whole matrix for transpose"
    )
    return options.parse_args()


if __name__ == "__main__":
    main()
