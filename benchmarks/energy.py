"""Check NVML's energy counter against its power sensor, and against twice the work.

    python benchmarks/energy.py [SECONDS]

Matrix products run for SECONDS (10), then for half of that time, then for SECONDS again. For each of the three
windows the script prints the counter's joules, the integral of the sensor's power, and the joules of one
product.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import pairwise
from typing import Any

SIDE, READ_EVERY_S, SETTLE_S = 8192, 0.02, 2.0


def main() -> None:
    """Measure and print the three windows."""
    import cupy
    import pynvml

    long_s = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    pynvml.nvmlInit()
    board = pynvml.nvmlDeviceGetHandleByIndex(0)
    a = cupy.random.random((SIDE, SIDE), dtype="float32")
    b = cupy.empty_like(a)
    _work(cupy, a, b, SETTLE_S)
    per_product = []
    for seconds in (long_s, long_s / 2, long_s):
        readings: list[tuple[float, float, float]] = []
        over = threading.Event()
        reader = threading.Thread(target=_read, args=(pynvml, board, readings, over))
        reader.start()
        began = time.perf_counter()
        products = _work(cupy, a, b, seconds)
        ended = time.perf_counter()
        over.set()
        reader.join()
        inside = [reading for reading in readings if began <= reading[0] <= ended]
        steps = [later for earlier, later in pairwise(inside) if later[1] != earlier[1]]
        (first_s, first_j, _), (last_s, last_j, _) = steps[0], steps[-1]
        between = [reading for reading in inside if first_s <= reading[0] <= last_s]
        sensed = sum((y[0] - x[0]) * (x[2] + y[2]) / 2 for x, y in pairwise(between))
        watts = (last_j - first_j) / (last_s - first_s)
        per_product.append(watts * (ended - began) / products)
        print(
            f"{ended - began:5.1f} s, {products} products, {len(steps)} steps: counter {last_j - first_j:.0f} J, "
            f"sensor {sensed:.0f} J, ratio {(last_j - first_j) / sensed:.3f}; {per_product[-1]:.3f} J a product"
        )
    print(f"half the work: {per_product[1] / per_product[0]:.3f}, again: {per_product[2] / per_product[0]:.3f}")


def _read(pynvml: Any, board: Any, readings: list[tuple[float, float, float]], over: threading.Event) -> None:
    """Append readings (seconds, joules, watts) to `readings` until the event `over` is set."""
    while not over.wait(READ_EVERY_S):
        joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(board) * 1e-3
        readings.append((time.perf_counter(), joules, pynvml.nvmlDeviceGetPowerUsage(board) * 1e-3))


def _work(cupy: Any, a: Any, b: Any, seconds: float) -> int:
    """Multiply matrices for `seconds`, and return the number of products."""
    until, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for _ in range(8):
            cupy.matmul(a, a, out=b)
        count += 8
        cupy.cuda.Device().synchronize()
    return count


if __name__ == "__main__":
    main()
