"""Times of plain calls of functions with NumPy, CuPy and PyTorch, at 33 sizes, in three rounds and four
situations.

Run: python benchmarks/functions_sweep.py RESULT.json FILE.py ... > sweep.jsonl

RESULT.json is the result of gpubench for these files. Its times on the CPU define the smallest and the largest
size of each function. A printed line is {"op", "device", "situation", "n", "seconds"}, with the seconds of one
call.
"""

# ruff: noqa: TID253
from __future__ import annotations

import json
import runpy
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import array_api_compat.torch
import numpy
import torch

SIZES, ROUNDS, SAMPLE_S, LONG_S, MOST, CALLS, LIMIT_S = 33, 3, 2e-3, 0.05, 100, 10, 4.0
PLACE = "cuda:0" if torch.cuda.is_available() else "cpu"
# By device: the array library, the functions that copy to and from the device, and a function that waits for
# the device.
LIBRARIES: dict[str, Any] = {"cpu": (numpy, numpy.asarray, numpy.asarray, lambda: None)}
LIBRARIES[f"torch:{PLACE}"] = (
    array_api_compat.torch, lambda x: torch.from_numpy(x).to(PLACE), lambda x: x.cpu().numpy(),
    torch.cuda.synchronize if PLACE != "cpu" else lambda: None,
)  # fmt: skip
if PLACE != "cpu":
    import array_api_compat.cupy
    import cupy

    synchronize = cupy.cuda.runtime.deviceSynchronize
    LIBRARIES["cupy:0"] = (array_api_compat.cupy, cupy.asarray, cupy.asnumpy, synchronize)


def situations(call: Any, up: Any, down: Any, wait: Any, inputs: list[Any]) -> dict[str, tuple[Any, int]]:
    """Return, by the name of a situation, a function that makes a number of turns, and the calls in one turn.
    `call` is the function to time, `up` and `down` copy an input and a result, and `wait` waits for the device.
    `inputs` are on the host."""
    there = [up(getattr(x, "value", x)) for x in inputs]  # the value of an input marked by gpubench.stays

    def wait_each(turns: int) -> None:
        for _ in range(turns):
            call(*there)
            wait()

    def queue(turns: int) -> None:
        for _ in range(turns):
            call(*there)
        wait()

    def copy_each(turns: int, calls: int = 1) -> None:
        for _ in range(turns):
            moved = [y if hasattr(x, "value") else up(x) for x, y in zip(inputs, there, strict=True)]
            for _ in range(calls):
                result = call(*moved)
            down(result)

    return {
        "resident-waited": (wait_each, 1), "resident-queued": (queue, 1), "transfer-always": (copy_each, 1),
        f"transfer-once-{CALLS}": (lambda turns: copy_each(turns, CALLS), CALLS),
    }  # fmt: skip


def time_call(sample: Any, calls: int) -> float:
    """Return the seconds of a call, from the faster of two samples after a turn for warm-up. `sample` makes a given
    number of turns of `calls` calls each. The second sample is omitted if the first takes longer than LONG_S."""
    spans: list[float] = []
    for turns in (1, 1, MOST):
        turns = min(max(round(SAMPLE_S / spans[-1]), 1), turns) if spans[1:] else 1
        began = perf_counter()
        sample(turns)
        spans.append((perf_counter() - began) / turns)
        if len(spans) == 2 and spans[1] > LONG_S:
            break
    return min(spans[1:]) / calls


def make_inputs(function: Any, n: int) -> list[Any]:
    """Return the inputs of a function at size n as gpubench would make them, with float64 replaced by float32.
    If the function does not make its own inputs, they are vectors of numbers from 0.5 to 2."""
    rng = numpy.random.default_rng(n)
    made = function.make(rng, n) if function.make else [rng.uniform(0.5, 2, n) for _ in function.arguments]
    return [x.astype("float32") if getattr(x, "dtype", None) == "float64" else x for x in made]


def sweep(name: str, function: Any, low: int, high: int) -> None:
    """Print the median times of one function at up to SIZES sizes from `low` to `high`, in equal ratios. The
    rounds go through the sizes in alternating order, and no round begins after LIMIT_S seconds."""
    sizes = sorted({round(low * (high / low) ** (i / (SIZES - 1))) for i in range(SIZES)})
    # PyTorch creates arrays on its default device. Functions that create none are faster without one.
    creates = "arange" in function.cpu.__code__.co_names
    times: dict[tuple[str, str, int], list[float]] = {}
    began = perf_counter()
    for turn in range(ROUNDS):
        if perf_counter() - began > LIMIT_S:
            break
        for n in sizes[:: -1 if turn % 2 else 1]:
            inputs = make_inputs(function, n)
            for device, (xp, up, down, wait) in LIBRARIES.items():
                torch.set_default_device(PLACE if creates and "torch" in device else None)
                call = lambda *arrays, xp=xp: function(xp, *arrays)  # noqa: E731
                for situation, sample in situations(call, up, down, wait, inputs).items():
                    if device != "cpu" or situation == "resident-waited":
                        times.setdefault((device, situation, n), []).append(time_call(*sample))
    for (device, situation, n), seconds in times.items():
        line = {"op": name, "device": device, "situation": situation, "n": n}
        print(json.dumps(line | {"seconds": statistics.median(seconds)}), flush=True)


def main() -> None:
    """Sweep all functions of the files for which the result has times on the CPU and on the GPU."""
    with open(sys.argv[1], encoding="utf-8") as file:
        outcomes = [x for x in json.load(file)["outcomes"] if x.get("blocks")]
    for path in map(Path, sys.argv[2:]):
        for name, function in runpy.run_path(str(path)).items():
            op = f"{path.stem}.{name}"
            cases = [x["case"] for x in outcomes if x["case"]["op"] == op]
            sizes = [case["params"]["n"] for case in cases if case["device_id"].startswith("numpy")]
            if hasattr(function, "make") and 0 < len(sizes) < len(cases):
                low, high = min(sizes), max(sizes)
                began = perf_counter()
                with torch.no_grad():
                    sweep(op, function, low, high)
                print(f"{op}: n = {low} to {high}, {perf_counter() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
