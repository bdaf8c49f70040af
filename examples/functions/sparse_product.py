import gpubench


@gpubench.function
def sparse_product(xp, values, columns, x):
    """A sparse matrix of n rows with 16 entries each, times a vector."""
    return (values * x[columns]).sum(1)


@sparse_product.inputs
def _(rng, n):
    matrix = [rng.random((n, 16), dtype="float32"), rng.integers(0, n, (n, 16))]
    return [*map(gpubench.stays, matrix), rng.random(n, dtype="float32")]
