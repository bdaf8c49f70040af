import gpubench


@gpubench.function
def batched_dot(xp, a, b):
    """N products of two matrices of 32 x 32."""
    return xp.matmul(a, b)


@batched_dot.inputs
def _(rng, n):
    return [rng.standard_normal((n, 32, 32), dtype="float32") for _ in "ab"]
