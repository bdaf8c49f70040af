import gpubench


@gpubench.function
def groupby_sums(xp, keys, values):
    """The sums of n values by their key, one of 1000."""
    return xp.bincount(keys, weights=values, minlength=1000)


@groupby_sums.inputs
def _(rng, n):
    return [rng.integers(0, 1000, n), rng.random(n, dtype="float32")]
