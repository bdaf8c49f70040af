"""Compare a buffer from the memory pool with an existing buffer, step by step.

Run: python benchmarks/buffers.py [DEVICE ...] (default: cupy:0 and wgpu:0)

It prints the nanoseconds per call of each step. It also prints how much longer an `add` of 1 Mi float32 elements
takes, waited and queued, if its output comes from the pool. For CuPy it also measures CuPy's own pool and `empty`,
and `a + b` in comparison with `add(a, b, out=o)`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from gpubench import backends, kernels
from gpubench.result.case import Case

N, ROUNDS, CALLS = 1 << 20, 15, 2000
SHAPE = (N,)


def nanoseconds(calls: Callable[[int], object], count: int = CALLS) -> float:
    """Return the nanoseconds per call, the median of several rounds. `calls(count)` makes `count` calls."""
    calls(count)
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        calls(count)
        seconds.append((time.perf_counter() - began) / count)
    return statistics.median(seconds) * 1e9


def repeat(call: Callable[[], object]) -> Callable[[int], None]:
    """Return a function that makes a given number of calls."""

    def calls(count: int) -> None:
        for _ in range(count):
            call()

    return calls


def step_costs(session: Any, name: str) -> dict[str, float]:
    """Return the nanoseconds of each step of taking memory from the pool and giving it back."""
    take, give_back = session.ready_buffers(SHAPE, "float32")
    give_back(take())
    costs = {
        "ready buffers: take and give back": nanoseconds(repeat(lambda: give_back(take()))),
        "by shape: allocate and free": nanoseconds(
            repeat(lambda: session.free(session.allocate(SHAPE, "float32")))
        ),
        "an empty call": nanoseconds(repeat(lambda: None)),
    }
    if name == "cupy":
        import cupy

        pool, memory = cupy.get_default_memory_pool(), cupy.cuda.alloc(4 * N)
        a, b, out = (cupy.ones(SHAPE, "float32") for _ in range(3))
        costs |= {
            "CuPy: pool.malloc and its end": nanoseconds(repeat(lambda: pool.malloc(4 * N))),
            "CuPy: an ndarray on memory that is there": nanoseconds(
                repeat(lambda: cupy.ndarray(SHAPE, "float32", memory))
            ),
            "CuPy: empty and its end": nanoseconds(repeat(lambda: cupy.empty(SHAPE, "float32"))),
            "CuPy: shape and dtype of an array": nanoseconds(repeat(lambda: (out.shape, out.dtype.char))),
            "CuPy: a + b, queued": nanoseconds(make_queue(session, lambda: a + b)),
            "CuPy: add(a, b, out=o), queued": nanoseconds(make_queue(session, lambda: cupy.add(a, b, out=out))),
        }
    return costs


def make_queue(session: Any, call: Callable[[], object]) -> Callable[[int], None]:
    """Return a function that makes a given number of calls and then waits once."""

    def calls(count: int) -> None:
        for _ in range(count):
            call()
        session.sync()

    return calls


def compare_adds(session: Any, device_id: str) -> dict[str, tuple[float, float]]:
    """Return, by situation, the nanoseconds of an `add` into existing memory, and into memory from the pool."""
    op = kernels.load("add")
    case = Case("add", op.group, {"n": N}, "float32", "tuned", session.device.resident_regime, device_id)
    inputs = [session.allocate(SHAPE, "float32") for _ in range(2)]
    for buffer in inputs:
        session.fill(buffer, SHAPE, "float32", 1.0)
    launch = session.compile(op, case, inputs, session.allocate(SHAPE, "float32"))
    take, give_back = session.ready_buffers(SHAPE, "float32")
    give_back(take())

    def queue_adds(count: int) -> None:
        session.run(launch, count)
        session.sync()

    def queue_adds_of_pool(count: int) -> None:
        for _ in range(count):
            give_back(take())
        session.run(launch, count)
        session.sync()

    def wait_for_adds(count: int) -> None:
        for _ in range(count):
            session.run(launch)
            session.sync()

    def wait_for_adds_of_pool(count: int) -> None:
        for _ in range(count):
            buffer = take()
            session.run(launch)
            session.sync()
            give_back(buffer)

    pairs = {
        "waited": (wait_for_adds, wait_for_adds_of_pool, 300),
        "queued": (queue_adds, queue_adds_of_pool, CALLS),
    }
    return {
        name: (nanoseconds(plain, count), nanoseconds(pooled, count))
        for name, (plain, pooled, count) in pairs.items()
    }


def main() -> None:
    """Print a table for each device that can be opened."""
    for device_id in sys.argv[1:] or ["cupy:0", "wgpu:0"]:
        name = device_id.partition(":")[0]
        try:
            session = backends.load(name).open(device_id)
        except Exception as error:
            print(f"{device_id}: {error}")
            continue
        print(f"\n{device_id}: {session.device.name}")
        costs = step_costs(session, name)
        for step, cost in costs.items():
            print(f"  {step:45} {cost:10.0f} ns")
        ready = costs["ready buffers: take and give back"] - costs["an empty call"]
        for situation, (plain, pooled) in compare_adds(session, device_id).items():
            print(
                f"  add, {situation}: {plain:.0f} ns, with memory of the pool {pooled:.0f} ns "
                f"({pooled / plain - 1:+.1%}); take and give back are {ready / plain:.1%} of it"
            )
        session.close()


if __name__ == "__main__":
    main()
