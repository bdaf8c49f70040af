"""Curves whose times are known, and blocks that scatter around them."""

import math
from collections.abc import Callable, Mapping

from gpubench.curves import TimedSizes, compare, fit

Seconds = Callable[[float], float]
LADDER = [1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24]


def exact(seconds, sizes=LADDER, *, sessions=1):
    """One block of each size and session, without scatter."""
    return {n: [[seconds(n)]] * sessions for n in sizes}


def apart(seconds, factors, sizes=LADDER):
    """A session for each factor, which all of its times have."""
    return {n: [[seconds(n) * factor] for factor in factors] for n in sizes}


def scattered(seconds, rng, sizes=LADDER, *, block=0.08, size=0.05):
    """One block of each size: blocks and sizes scatter by these standard deviations of ln(seconds)."""
    return {n: [[seconds(n) * math.exp(rng.gauss(0, math.hypot(block, size)))]] for n in sizes}


def cpu(n, *, crossing=300_000, power=0.6, step=1.0, at=300_000):
    """A CPU that takes as long as `gpu` at `crossing`; above `at` it takes `step` times as long."""
    return gpu(n) * (n / crossing) ** power * (step if n > at else 1.0)


def gpu(n):
    """A launch of 20 us, and 4 ps for each element."""
    return 20e-6 + 4e-12 * n


def queued(n):
    """Launches of 20 us in a row, which hide behind 4 ps for each element: little more than the longer of the two."""
    return (20e-6**3 + (4e-12 * n) ** 3) ** (1 / 3)


OF_KIND: Mapping[str, Seconds] = {"cpu": gpu, "waited": gpu, "queued": queued, "copied": gpu}


def threshold(case, other):
    """From where on a waited GPU with the times `case` beats a CPU with the times `other`."""
    curves = fit({"gpu": TimedSizes("waited", case), "cpu": TimedSizes("cpu", other)})
    found = compare([curves["gpu"]], [curves["cpu"]])
    assert found is not None
    return found
