import gpubench


@gpubench.function
def monte_carlo_pi(xp, x, y):
    """Pi, by the share of n random points of a square that lie in the circle."""
    return 4 * xp.mean(xp.astype(x * x + y * y < 1, x.dtype))


@monte_carlo_pi.inputs
def _(rng, n):
    return [rng.random(n, dtype="float32"), rng.random(n, dtype="float32")]
