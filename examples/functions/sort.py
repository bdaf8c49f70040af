import gpubench


@gpubench.function
def sort(xp, x):
    """N numbers in ascending order."""
    return xp.sort(x)


@sort.inputs
def _(rng, n):
    return [rng.random(n, dtype="float32")]
