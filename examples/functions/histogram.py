import gpubench


@gpubench.function
def histogram(xp, x):
    """How many of n numbers from 0 to 1 lie in each of 100 bins."""
    return xp.bincount(xp.astype(x * 100, xp.int64), minlength=100)


@histogram.inputs
def _(rng, n):
    return [rng.random(n, dtype="float32")]
