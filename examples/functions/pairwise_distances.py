import gpubench


@gpubench.function
def pairwise_distances(xp, points):
    """The distance of each of n points to each other."""
    difference = points[:, None, :] - points[None, :, :]
    return xp.sqrt((difference * difference).sum(-1))


@pairwise_distances.inputs
def _(rng, n):
    return [rng.standard_normal((n, 16), dtype="float32")]
