import gpubench


@gpubench.function
def matrix_solve(xp, matrix, right):
    """The solution of n linear equations."""
    return xp.linalg.solve(matrix, right)


@matrix_solve.inputs
def _(rng, n):
    matrix = rng.standard_normal((n, n), dtype="float32")
    matrix.flat[:: n + 1] += 2 * n**0.5
    return [matrix, rng.standard_normal((n, 1), dtype="float32")]
