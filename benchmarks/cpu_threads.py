"""Compare the tuned CPU implementation, which chooses its number of threads, with plain NumPy and with one
thread.

Run: .venv/bin/python -P benchmarks/cpu_threads.py [--ops add,softmax] [--dtype float32] [--rounds 12] (-P
because this folder has modules with the names of modules that numba imports.)

The three take turns of a millisecond in one process, after fresh choices, for each op and for sizes in steps of
half an octave. The script prints the cases in which the tuned implementation takes more than 1.05 times as long
and more than 0.1 us longer. It says *surely* if the interval of the ratio shows it, and *perhaps* if only the
median does. This is a report, not a test. The exit code is always 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script has its own folder there instead

from gpubench import kernels
from gpubench.backends.numpy import BACKEND, NumpySession
from gpubench.backends.shared.host import random_inputs, settle
from gpubench.curves import stats
from gpubench.kernels.contract.op import Implementation, Op
from gpubench.result.case import Case

OPS = (
    "copy,add,sub,mul,div,saxpy,chain,dot,sum,max,relu,relu_grad,transpose,"
    "sigmoid,tanh,gelu,softmax,sigmoid_grad,tanh_grad,gelu_grad,softmax_grad"
)
LOW, HIGH, STEP = 256, 16 * 2**20, 2**0.5
BATCH_S = 1e-3
FACTOR, SLACK_S = 1.05, 1e-7


def main() -> None:
    """Print a table of the cases in which the tuned implementation is slower, and a line of counts."""
    options = _options()
    # The cache is empty, so that all choices are made now.
    os.environ["GPUBENCH_CACHE_DIR"] = tempfile.mkdtemp()
    alone = BACKEND.open("numpy:0", 1, autotune=False)
    session = BACKEND.open("numpy:0", options.threads)
    print(f"{session.threads} threads, {options.dtype}, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(
        "| op | n | chosen | beside | tuned / it | interval | tuned, us | |\n|---|---|---|---|---|---|---|---|"
    )
    compared = 0
    for name in options.ops.split(","):
        op = kernels.load(name)
        n = float(LOW)
        while n <= HIGH:
            compared += _one(op, _params(op, round(n)), options, session, alone)
            n *= STEP
    print(f"{compared} ratios")


def _params(op: Op, elements: int) -> dict[str, int]:
    """Return the params of an op whose largest input has about this number of elements."""
    ladder = op.sizes
    size = elements if op.name != "transpose" else int(elements**0.5)
    return {"n": max(ladder.granule, size // ladder.granule * ladder.granule)}


def _one(op: Op, params: Mapping[str, int], options: Any, session: NumpySession, alone: NumpySession) -> int:
    inputs = random_inputs(op, params, options.dtype, seed=1)

    def call(of: NumpySession, implementation: Implementation) -> tuple[Callable[[int], None], str]:
        case = Case(
            op=op.name, group=op.group, params=dict(params), dtype=options.dtype, implementation=implementation,
            regime="resident",
            device_id="numpy:0",
        )  # fmt: skip
        output = of.allocate(op.output.shape(params), options.dtype)
        output[...] = 0  # the pages are there before the first launch
        if of is session:
            of.tune(op, case, inputs)
        launch = of.compile(op, case, inputs, output)
        return (lambda repeat: of.run(launch, repeat)), launch.kernel_name or "plain NumPy"

    calls = {
        "tuned": call(session, "tuned"), "plain NumPy": call(session, "library"), "one thread": call(alone, "tuned")
    }  # fmt: skip
    seconds = _times({name: run for name, (run, _) in calls.items()}, options.rounds)
    own = statistics.median(seconds["tuned"])
    for other in ("plain NumPy", "one thread"):
        ratios = [a / b for a, b in zip(seconds["tuned"], seconds[other], strict=True)]
        middle, (low, high) = statistics.median(ratios), stats.median_interval(ratios)
        if middle > FACTOR and own - statistics.median(seconds[other]) > SLACK_S:
            how = "surely" if low > FACTOR else "perhaps"
            shown = f"{middle:.2f} | {low:.2f} to {high:.2f} | {1e6 * own:.2f} | {how}"
            print(f"| {op.name} | {params['n']} | {calls['tuned'][1]} | {other} | {shown} |", flush=True)
    return 2


def _times(calls: Mapping[str, Callable[[int], None]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds per launch of each call in each round."""
    repeats = {}
    for name, call in calls.items():
        call(1)
        repeats[name] = max(1, min(10_000, round(BATCH_S / max(_took(call, 3), 1e-8))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        # The calls take turns, in reverse order in every second round.
        for name in calls if number % 2 else reversed(list(calls)):
            settle()  # threads of the previous call may still spin
            calls[name](1)  # wakes the threads of this call
            seconds[name].append(_took(calls[name], repeats[name]))
    return seconds


def _took(call: Callable[[int], None], repeat: int) -> float:
    began = time.perf_counter()
    call(repeat)
    return (time.perf_counter() - began) / repeat


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default=OPS)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
