import gpubench


@gpubench.function
def convolution(xp, image, kernel):
    """An image of n x n pixels, convolved with a kernel of 3 x 3."""
    height, width = image.shape[0] - 2, image.shape[1] - 2
    return sum(kernel[i, j] * image[i : i + height, j : j + width] for i in range(3) for j in range(3))


@convolution.inputs
def _(rng, n):
    return [rng.random((n, n), dtype="float32"), gpubench.stays(rng.random((3, 3), dtype="float32"))]
