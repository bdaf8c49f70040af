"""Compare the rates of NumPy's tuned implementations with the all-core copy, in GB/s of compulsory bytes.

Run: .venv/bin/python benchmarks/cpu_kernels.py [--mib 256] [--dtype float32] [--ops copy,add] [--threads 8]

All calls take turns, and medians are shown. This is a report, not a test: its ratios need an otherwise idle
machine. The exit code is always 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from gpubench import kernels
from gpubench.backends.numpy import BACKEND, NumpySession
from gpubench.backends.shared.host import random_inputs
from gpubench.kernels.contract.op import ITEMSIZE, Dtype, Implementation, Op
from gpubench.result.case import Case

OPS = (
    "copy,add,sub,mul,div,saxpy,chain,dot,sum,max,relu,relu_grad,transpose,gemv,"
    "sigmoid,tanh,gelu,softmax,sigmoid_grad,tanh_grad,gelu_grad,softmax_grad"
)
SIDES = ("transpose", "gemv")  # n is the side of a matrix
LEAST_ROUNDS = 3
# The threads of OpenBLAS keep their cores busy for 0.1 s after a call (measured), which would disturb the next
# one.
BLAS_SPINS_S = 0.15


def params(name: str, elements: int) -> dict[str, int]:
    """Return the params of an op whose largest input has about this number of elements."""
    return {"n": int(elements**0.5) // 64 * 64 if name in SIDES else elements}


def runner(
    session: NumpySession, op: Op, elements: int, dtype: Dtype
) -> Callable[[Implementation], Callable[[], None]]:
    """Return a function that takes the name of an implementation and returns a call that runs this
    implementation of the op. All of these calls read the same inputs."""
    size = params(op.name, elements)
    inputs = random_inputs(op, size, dtype, seed=1)
    output = session.allocate(op.output.shape(size), dtype)
    output[...] = 0  # the pages are there before the first launch

    def implementation(name: Implementation) -> Callable[[], None]:
        case = Case(
            op=op.name,
            group=op.group,
            params=size,
            dtype=dtype,
            implementation=name,
            regime="resident",
            device_id="numpy:0",
        )
        launch = session.compile(op, case, inputs, output if name == "tuned" else None)
        return lambda: session.run(launch)

    return implementation


def rates(calls: dict[str, tuple[Callable[[], None], int]], seconds: float) -> dict[str, list[float]]:
    """Return the GB/s of each call in each round.

    `calls` has pairs (call, bytes) by name. The calls take turns, and the first round is dropped.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds <= LEAST_ROUNDS or time.perf_counter() < end:
        for name, (call, size) in calls.items():
            start = time.perf_counter()
            call()
            if rounds:
                samples[name].append(size / (time.perf_counter() - start) / 1e9)
            if name == "library":
                time.sleep(BLAS_SPINS_S)
        rounds += 1
    return samples


def main() -> None:
    options = _options()
    session = BACKEND.open("numpy:0", options.threads)
    elements = options.mib * 2**20 // ITEMSIZE[options.dtype]
    copy_op = kernels.load("copy")
    copy = runner(session, copy_op, elements, options.dtype)("tuned")
    copy_bytes = copy_op.bytes({"n": elements}, options.dtype)
    print(
        f"{session.threads} threads, {options.dtype}, {options.mib} MiB an array, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'op':14}{'library':>9}{'tuned':>9}{'copy':>9}{'tuned/copy':>12}{'tuned/library':>15}")
    for name in options.ops.split(","):
        op = kernels.load(name)
        implementations = runner(session, op, elements, options.dtype)
        size = op.bytes(params(name, elements), options.dtype)
        calls = {
            "library": (implementations("library"), size),
            "tuned": (implementations("tuned"), size),
            "copy": (copy, copy_bytes),
        }
        measured_rates = rates(calls, options.seconds)
        library, tuned, beside = (statistics.median(measured_rates[implementation]) for implementation in calls)
        ratio = statistics.median(
            a / b for a, b in zip(measured_rates["tuned"], measured_rates["copy"], strict=True)
        )
        print(
            f"{name:14}{library:9.1f}{tuned:9.1f}{beside:9.1f}{ratio:12.2f}{tuned / library:15.1f}", flush=True
        )
    session.close()


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--dtype", choices=("float32", "float64", "float16"), default="float32")
    parser.add_argument("--ops", default=OPS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=1.5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
