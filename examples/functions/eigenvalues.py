import gpubench


@gpubench.function(tolerance=1e-4)  # of the largest: float32 rounds at every rotation
def eigenvalues(xp, matrix):
    """The eigenvalues of a symmetric matrix of n x n."""
    return xp.linalg.eigvalsh(matrix)


@eigenvalues.inputs
def _(rng, n):
    matrix = rng.standard_normal((n, n), dtype="float32")
    return [matrix + matrix.T]
