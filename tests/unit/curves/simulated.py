"""Curves whose times are known, and blocks that scatter around them."""

LADDER = [1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24]


def exact(seconds, sizes=LADDER):
    """One block of each size, without scatter."""
    return {n: [[seconds(n)]] for n in sizes}


def apart(seconds, factors, sizes=LADDER):
    """A session for each factor, which all of its times have."""
    return {n: [[seconds(n) * factor] for factor in factors] for n in sizes}


def cpu(n, *, crossing=300_000, power=0.6, step=1.0, at=300_000):
    """A CPU that takes as long as `gpu` at `crossing`; above `at` it takes `step` times as long."""
    return gpu(n) * (n / crossing) ** power * (step if n > at else 1.0)


def gpu(n):
    """A launch of 20 us, and 4 ps for each element."""
    return 20e-6 + 4e-12 * n


def queued(n):
    """Launches of 20 us in a row, which hide behind 4 ps for each element: little more than the longer of the two."""
    return (20e-6**3 + (4e-12 * n) ** 3) ** (1 / 3)
