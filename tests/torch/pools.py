"""The threads of numba, PyTorch and OpenBLAS in one process: how many there are, which of them work, and which still run.

`python pools.py THREADS LIBRARY ...` loads the libraries in that order, for so many threads each, and prints one JSON
object. Linux tells each thread's processor time.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from gpubench import backends, kernels
from gpubench.backends.numpy.compiled import NumbaThreads
from gpubench.backends.shared.host import random_inputs, settle
from gpubench.kernels.contract.kernel import Limits
from gpubench.kernels.contract.op import Array, Op
from gpubench.result.case import Case
from tests.judging import compare

ELEMENTS = {"n": 1 << 20}
SIDE = {"n": 512}
BUSY_S, WINDOW_S = 0.2, 0.05
BURSTS, LAUNCHES = 3, 20
TASKS = Path("/proc/self/task")


class Library:
    """One library with one launch of its own."""

    def __init__(self, op: Op, inputs: list[Array], run: Callable[[], Array]) -> None:
        self.op, self.inputs, self.run = op, inputs, run

    def right(self) -> bool:
        """Whether a launch gives what NumPy gives in float64."""
        wide = [x.astype(np.float64) for x in self.inputs]
        scale = np.asarray(self.op.tolerance.scale(np, *wide)) if self.op.tolerance.scale else None
        want = np.asarray((self.op.reference or self.op.expr)(np, *wide))
        return compare(self.op, "float32", np.asarray(self.run()), want, scale).ok


def numba(threads: int) -> Library:
    """gelu, compiled, on all threads."""
    op = kernels.load("gelu")
    (x,) = random_inputs(op, ELEMENTS, "float32", 1)
    output = np.empty_like(x)
    limits = Limits(max_buffer_bytes=2**40, max_binding_bytes=2**40, multiprocessors=threads)
    candidate = op.tuned["numpy"][0].candidates(ELEMENTS, "float32", limits)[0]
    launch = NumbaThreads(threads).launch(candidate.build(), {"x": x, "out": output})

    def run() -> Array:
        launch()
        return output

    return Library(op, [x], run)


def torch(threads: int) -> Library:
    session = backends.load("torch").open("torch:cpu", threads)
    op = kernels.load("gelu")
    inputs = random_inputs(op, ELEMENTS, "float32", 1)
    case = Case("gelu", op.group, ELEMENTS, "float32", "library", "resident", "torch:cpu")
    launch = session.compile(op, case, [session.view(x) for x in inputs], None)

    def run() -> Array:
        session.run(launch)
        return launch.output.numpy()

    return Library(op, inputs, run)


def openblas(threads: int) -> Library:
    """A product by the BLAS behind NumPy."""
    session = backends.load("numpy").open("numpy:0", threads)
    op = kernels.load("matmul")
    inputs = random_inputs(op, SIDE, "float32", 1)
    case = Case("matmul", op.group, SIDE, "float32", "library", "resident", "numpy:0")
    launch = session.compile(op, case, inputs, None)

    def run() -> Array:
        session.run(launch)
        return launch.output

    return Library(op, inputs, run)


def processor_s() -> dict[str, float]:
    """By thread the seconds that it has run."""
    return {task.name: int((task / "schedstat").read_text().split()[0]) * 1e-9 for task in TASKS.iterdir()}


def ran_s(during: Callable[[], object]) -> list[float]:
    """The seconds that each thread runs meanwhile, the busiest first."""
    before = processor_s()
    during()
    return sorted((s - before.get(name, 0.0) for name, s in processor_s().items()), reverse=True)


def work(library: Library) -> None:
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        library.run()


def burst_s(library: Library, before: Library) -> list[float]:
    """Seconds of each thread for a few launches of a library, after `before` was used and everything came to rest."""
    before.run()
    settle()
    return ran_s(lambda: [library.run() for _ in range(LAUNCHES)])


def beside(library: Library, other: Library, threads: int) -> float:
    """The share of the processor time of bursts, each after a burst of another library, that went to more threads than
    were asked for. The time itself tells nothing: on a shared machine a library's threads wait long for each other."""
    bursts = [burst_s(library, other) for _ in range(BURSTS)]
    return statistics.median(sum(ran[threads:]) / sum(ran) for ran in bursts)


def main() -> None:
    """Print what was found. More threads than cores take turns, alone as well: then nothing is compared or watched."""
    threads, names = int(sys.argv[1]), sys.argv[2:]
    all_run = threads <= len(os.sched_getaffinity(0))
    opened: dict[str, Library] = {}
    at_work, at_rest = {}, {}
    for name in names:
        opened[name] = globals()[name](threads)
        opened[name].run()
    for name, library in opened.items() if all_run else ():
        settle()
        at_work[name] = ran_s(lambda library=library: work(library))
        settle()
        at_rest[name] = ran_s(lambda: time.sleep(WINDOW_S))
    found = {
        "threads": len(list(TASKS.iterdir())),
        "pools": {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()},
        "right": {name: library.right() for name, library in opened.items()},
        "at_work": at_work,
        "at_rest": at_rest,
        "window_s": WINDOW_S,
        "beside": {
            f"{name} after {other}": beside(opened[name], opened[other], threads)
            for name in names for other in names
            if name != other and all_run
        },
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
